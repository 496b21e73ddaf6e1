"""pfl on a GPU: its CIFAR-10 benchmark with users of equal size. HOW is the share of the cohort.

Examples lie on the device from the start, as in its own script. With a share of 5, this is one of
five processes that train a fifth of the cohort each; they are not made to wait for each other.
"""

import numpy as np
import torch
from gpu_common import Turns, allow_tf32, asked, job, model, read
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import to_tensor
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional as F

allow_tf32()
name, share, folder, device, small = asked()
it = job(name, small)
cohort = max(1, it.participants // int(share))
x, y = (to_tensor(np.array(part)) for part in read(name, folder))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = model(name)

    def forward(self, x):
        return self.layers(x)

    def loss(self, x, y, eval=False):
        self.train(not eval)
        return F.cross_entropy(self(x), y.long())

    @torch.no_grad()
    def metrics(self, x, y, eval=True):
        self.train(not eval)
        out, y = self(x), y.long()
        loss = F.cross_entropy(out, y, reduction="sum").item()
        right = (out.argmax(1) == y).sum().item()
        return {"loss": Weighted(loss, len(x)), "accuracy": Weighted(right, len(x))}


class Tick(TrainingProcessCallback):
    turns = Turns(it.warm, cohort * it.epochs, device)

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.turns.tick()
        return False, Metrics()


users = {c: tuple(v[c * it.each : (c + 1) * it.each] for v in (x, y)) for c in range(it.clients)}
train = FederatedDataset.from_slices(users, get_user_sampler("random", range(len(users))))
n = it.clients * it.each
central = Dataset(raw_data=[x[n:], y[n:]])
net = Net().to(x.device)
central_optimiser = torch.optim.SGD(net.parameters(), 1.0)
FederatedAveraging().run(
    NNAlgorithmParams(
        central_num_iterations=1_000_000,
        evaluation_frequency=it.eval_every,
        train_cohort_size=cohort,
        val_cohort_size=0,
    ),
    SimulatedBackend(train, train, postprocessors=[WeightByUser()]),
    PyTorchModel(net, torch.optim.SGD, central_optimiser),
    NNTrainHyperParams(
        local_num_epochs=it.epochs, local_learning_rate=it.lr, local_batch_size=it.minibatch
    ),
    NNEvalHyperParams(local_batch_size=10_000),
    callbacks=[
        CentralEvaluationCallback(
            central, NNEvalHyperParams(local_batch_size=10_000), it.eval_every
        ),
        Tick(),
    ],
)
