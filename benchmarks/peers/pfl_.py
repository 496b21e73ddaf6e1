"""pfl: FederatedAveraging with the simulated backend."""

import torch
from common import CLIENTS, LR, MINIBATCH, PARTICIPANTS, ROUNDS, WARM, Clock, data, mlp
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn

torch.set_num_threads(1)
x, y = map(torch.from_numpy, data())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = mlp()

    def forward(self, x):
        return self.layers(x)

    def loss(self, x, y, eval=False):
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x, y, eval=False):
        return {"loss": Weighted(float(self.loss(x, y)) * len(x), len(x))}


class Tick(TrainingProcessCallback):
    clock = Clock()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.clock.tick()
        return False, Metrics()


def one(c):
    return PyTorchTensorDataset((x[c], y[c]), user_id=str(c))


users = FederatedDataset(one, get_user_sampler("minimize_reuse", list(range(CLIENTS))))
net = Net()
model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
params = NNAlgorithmParams(
    central_num_iterations=WARM + ROUNDS,
    evaluation_frequency=10_000,
    train_cohort_size=PARTICIPANTS,
    val_cohort_size=None,
)
train = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=MINIBATCH)
FederatedAveraging().run(
    params, SimulatedBackend(users, users), model, train, None, callbacks=[Tick()]
)
