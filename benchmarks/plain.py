"""The loop that everybody writes: one client after another, nn.Module, autograd, torch.optim.

The baseline of `cpu.py` and `models.py`. It does the work of `engine.simulate`, no more: the start
losses that the strategy asks for, local SGD, the weighted sum, the averaged model that is handed
out, and both models on every client's test images. It shares with the engine who takes part, the
order of the minibatches and `weigh`. Images come from a DataLoader, as in the examples of PyTorch,
Flower and FedLab, or are indexed in a client's tensor, which is quicker.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fedmaba import rng
from fedmaba.rows import models
from fedmaba.rows.random import dropout_mask, shuffles
from fedmaba.simulation.state import Plan, Run
from fedmaba.strategies import deployed
from fedmaba.strategies.base import Replies

Weights = dict[str, Tensor]
Pair = tuple[Tensor, Tensor]


class SameMask(nn.Module):
    """Dropout with the engine's masks, to compare models; the clock runs with nn.Dropout."""

    def __init__(self, p: float, number: int) -> None:
        super().__init__()
        self.p, self.number, self.key = p, number, torch.zeros(1, dtype=torch.int64)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * dropout_mask(self.key, self.number, (1, *x.shape), self.p, x.dtype)[0]


class Plain:
    """One run of a strategy whose weights are known before training."""

    def __init__(
        self,
        run: Run,
        plan: Plan,
        make: models.Factory,
        *,
        same_masks: bool = False,
        loader: bool = False,
        device: str = "cpu",
    ) -> None:
        self.loader = loader
        data, fed = run.federation.data, run.federation
        self.run, self.plan, self.round = run, plan, 0
        if plan.batchnorm == "local":  # torch's own layers, averaged as all else: less work
            self.model = make(data.shape, len(data.classes))
        else:
            self.model = models.build_model(
                make, data.shape, len(data.classes), run.seed, plan.batchnorm, examples=data.x
            )
        if same_masks:
            for name, module in list(self.model.named_children()):
                if isinstance(module, nn.Dropout):
                    setattr(self.model, name, SameMask(module.p, int(name)))
        self.masks = [m for m in self.model.modules() if isinstance(m, SameMask)]
        self.model.to(device)
        x, y = torch.from_numpy(data.x).to(device), torch.from_numpy(data.y).to(device)
        own = [[p.of(c) for c in range(fed.n_clients)] for p in (fed.train, fed.test)]
        self.train, self.test = ([(x[i], y[i]) for i in part] for part in own)
        self.server: Weights = copy.deepcopy(self.weights())
        self.deployed: Weights = copy.deepcopy(self.server)
        self.state = run.strategy.init(fed.n_clients)

    def step(self) -> int:
        """One round; how many clients took part."""
        t, run, plan = self.round, self.run, self.plan
        n = run.federation.n_clients
        lr = plan.lr * plan.lr_decay**t
        client = rng.sample_clients(run.seed, t, n, plan.participants or n)
        loss = None
        if run.strategy.needs().loss == "start":
            loss = self.losses(self.server, [self.train[c] for c in client])[0].numpy()
        size = run.federation.train.size[client]
        decision = run.strategy.weigh(self.state, Replies(t, lr, n, client, size, loss))
        self.state = decision.state
        change = {name: torch.zeros_like(value) for name, value in self.server.items()}
        for c, coef in zip(client.tolist(), decision.coef.tolist(), strict=True):
            key = int(rng.key(run.seed, "local", t, c).view("int64")[0])
            for name, value in self.local(*self.train[c], key, lr).items():
                change[name] += coef * (value - self.server[name])
        share = deployed.new_model_share(run.rules[0], t)
        for name, value in self.server.items():
            value += plan.server_lr * change[name]
            self.deployed[name] += share * (value - self.deployed[name])
        self.round += 1
        if self.round % plan.eval_every == 0:
            self.scores = [self.losses(w, self.test) for w in (self.server, self.deployed)]
        return len(client)

    def local(self, x: Tensor, y: Tensor, key: int, lr: float) -> Weights:
        """One epoch of SGD from the server's model."""
        self.model.load_state_dict(self.server, strict=False)
        self.model.train()
        optimizer = torch.optim.SGD(self.model.parameters(), lr)
        keys = torch.tensor([key])
        order = shuffles(keys + (1 << 40), torch.tensor([[len(x)]]), len(x))[0].to(x.device)
        for k, (images, labels) in enumerate(self.minibatches(x, y, order)):
            for mask in self.masks:
                mask.key = keys + k
            optimizer.zero_grad()
            F.cross_entropy(self.model(images), labels).backward()
            optimizer.step()
        return self.weights()

    def weights(self) -> Weights:
        """The model's weights and statistics, without counters of steps."""
        return {n: v for n, v in self.model.state_dict().items() if v.is_floating_point()}

    def minibatches(self, x: Tensor, y: Tensor, order: Tensor) -> Iterator[Pair]:
        """A client's minibatches of one epoch, in this order."""
        size = self.plan.minibatch
        if self.loader:
            found = iter(DataLoader(TensorDataset(x, y), size, sampler=order.tolist()))
        else:
            found = ((x[rows], y[rows]) for rows in order.split(size))
        return islice(found, self.plan.steps)

    def whole(self, x: Tensor, y: Tensor) -> Pair:
        """All of a client's examples at once."""
        return next(iter(DataLoader(TensorDataset(x, y), len(x)))) if self.loader else (x, y)

    @torch.no_grad()
    def losses(self, w: Weights, part: list[Pair]) -> Pair:
        """Loss and accuracy of a model for each client."""
        self.model.load_state_dict(w, strict=False)
        self.model.eval()
        out = [(self.model(x), y) for x, y in (self.whole(*pair) for pair in part)]
        loss = [F.cross_entropy(o, y).item() for o, y in out]
        right = [(o.argmax(1) == y).double().mean().item() for o, y in out]
        return torch.tensor(loss, dtype=torch.float64), torch.tensor(right)
