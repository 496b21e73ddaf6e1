"""Flower: its simulation runtime (Ray), FedAvg of flwr.serverapp; evaluation off."""

import torch
from common import CLIENTS, FOLDER, LR, MINIBATCH, PARTICIPANTS, ROUNDS, WARM, Clock, mlp
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client_app, server_app = ClientApp(), ServerApp()
folder, minibatch, lr = str(FOLDER.resolve()), MINIBATCH, LR


@client_app.train()
def train(message, context):
    import numpy as np

    torch.set_num_threads(1)
    c = int(context.node_config["partition-id"])
    x, y = (np.load(f"{folder}/{name}.npy", mmap_mode="r", allow_pickle=False)[c] for name in "xy")
    x, y = torch.from_numpy(np.array(x)), torch.from_numpy(np.array(y))
    nn = torch.nn  # a worker has no `common`
    layers = (nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))
    model = nn.Sequential(*layers)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for rows in torch.randperm(len(x)).split(minibatch):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    arrays, metrics = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": len(x)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


class Timed(FedAvg):
    clock = Clock()

    def aggregate_train(self, server_round, replies):
        out = super().aggregate_train(server_round, replies)
        self.clock.tick()
        return out


@server_app.main()
def main(grid, context):
    strategy = Timed(
        fraction_train=PARTICIPANTS / CLIENTS,
        fraction_evaluate=0.0,
        min_train_nodes=PARTICIPANTS,
        min_available_nodes=CLIENTS,
    )
    strategy.start(grid, ArrayRecord(mlp().state_dict()), num_rounds=WARM + ROUNDS)


run_simulation(
    *(server_app, client_app, CLIENTS),
    backend_config={
        "init_args": {"num_cpus": 1},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    },
)
