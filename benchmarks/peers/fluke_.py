"""fluke: FedAvg with its own in-memory loader; evaluation off."""

import torch
from common import (
    CLIENTS,
    EACH,
    LR,
    MINIBATCH,
    PARTICIPANTS,
    ROUNDS,
    WARM,
    Clock,
    data,
    define_nms,
    mlp,
)

define_nms()
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataContainer, DataSplitter
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver

torch.set_num_threads(1)
x, y = map(torch.from_numpy, data())
FlukeENV().set_seed(0)
FlukeENV().set_evaluator(ClassificationEval(eval_every=10_000, n_classes=10))
x, y = x.reshape(CLIENTS * EACH, -1), y.reshape(-1)
splitter = DataSplitter(DataContainer(x, y, x[:100], y[:100], 10), client_split=0.0)


class Tick(FederationObserver):
    clock = Clock()

    def end_round(self, round):
        self.clock.tick()


settings = DDict(
    client={
        "batch_size": MINIBATCH,
        "local_epochs": 1,
        "loss": "CrossEntropyLoss",
        "optimizer": {"name": "SGD", "lr": LR},
        "scheduler": {"name": "StepLR", "gamma": 1.0, "step_size": 1},
    },
    server={"weighted": True},
    model=mlp(),
)
algorithm = FedAVG(CLIENTS, splitter, settings)
algorithm.set_callbacks([Tick()])
algorithm.run(WARM + ROUNDS, PARTICIPANTS / CLIENTS)
