"""FLGo: FedAvg on its own MNIST task, its files filled with random images; evaluation off."""

import os

import numpy as np
import torch
from common import (
    CLIENTS,
    EACH,
    FOLDER,
    LR,
    MINIBATCH,
    PARTICIPANTS,
    ROUNDS,
    WARM,
    Clock,
    define_nms,
)

define_nms()
import flgo
import flgo.algorithm.fedavg as fedavg
import flgo.benchmark
from flgo.benchmark.partition import IIDPartitioner

torch.set_num_threads(1)


def fill(folder):
    """The four files of MNIST; FLGo has no way to take arrays."""
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, n in (("train", CLIENTS * EACH), ("t10k", 1000)):
        image = rng.integers(256, size=(n, 28, 28)).astype(np.uint8)
        label = (np.arange(n) % 10).astype(np.uint8)
        for name, magic, array in (("images-idx3", 0x803, image), ("labels-idx1", 0x801, label)):
            head = np.array([magic, *array.shape], ">u4").tobytes()
            with open(f"{folder}/{part}-{name}-ubyte", "wb") as f:
                f.write(head + array.tobytes())


raw = os.path.join(flgo.benchmark.data_root, "MNIST", "MNIST", "raw")
if not os.path.exists(raw):
    fill(raw)
import flgo.benchmark.mnist_classification as mnist
import flgo.benchmark.mnist_classification.core as core
import flgo.benchmark.mnist_classification.model.mlp as model

# torch 2.13 asks a Subset that has __getitem__ for __getitems__ too
core.TaskPipe.TaskDataset.__getitems__ = lambda self, rows: [self[i] for i in rows]
task = str(FOLDER.resolve() / "flgo-task")
if not os.path.exists(task):
    flgo.gen_task_by_(mnist, IIDPartitioner(num_clients=CLIENTS), task)
clock = Clock()


class Server(fedavg.Server):
    def iterate(self):
        out = super().iterate()
        clock.tick()
        return out


fedavg.Server = Server
option = {
    "num_rounds": WARM + ROUNDS,
    "num_epochs": 1,
    "batch_size": MINIBATCH,
    "learning_rate": LR,
    "lr_scheduler": -1,
    "proportion": PARTICIPANTS / CLIENTS,
    "eval_interval": -1,
    "train_holdout": 0.0,
    "local_test": False,
    "log_file": False,
}
flgo.init(task, fedavg, option, model=model).run()
