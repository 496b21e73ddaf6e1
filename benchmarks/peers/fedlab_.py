"""FedLab: its serial trainer and synchronous server in the standalone pipeline."""

import torch
from common import CLIENTS, LR, MINIBATCH, PARTICIPANTS, ROUNDS, WARM, Clock, data, define_nms, mlp

define_nms()
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
x, y = map(torch.from_numpy, data())
sets = [TensorDataset(x[c], y[c]) for c in range(CLIENTS)]


class Data:
    def get_dataloader(self, id, batch_size):
        return DataLoader(sets[id], batch_size, shuffle=True)


class Pipeline(StandalonePipeline):
    clock = Clock()

    def evaluate(self):
        self.clock.tick()


model = mlp()
trainer = SGDSerialClientTrainer(model, CLIENTS)
trainer.setup_dataset(Data())
trainer.setup_optim(1, MINIBATCH, LR)
Pipeline(SyncServerHandler(model, WARM + ROUNDS, PARTICIPANTS / CLIENTS), trainer).main()
