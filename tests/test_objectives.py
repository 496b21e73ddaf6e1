"""What clients minimise in place of their loss: as a plain loop does it, in every form of rows."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import fedmaba.rows as package
from fedmaba.data.federation import Federation
from fedmaba.errors import InputError
from fedmaba.rows.general import LoopRows
from fedmaba.rows.operations import RowMethod, RowOperations
from fedmaba.rows.stack import LayerRows
from fedmaba.rows.traced import TracedRows
from fedmaba.simulation import local_training
from fedmaba.simulation.engine import Optimiser, Run, simulate, start
from fedmaba.strategies.base import Local, Objective
from paper_loops import MoonOfFeatures
from plain_loop import PLAN, Plain, Wrapped, apart, one, played, vector
from plain_loop import mlp as plain_mlp
from recordings import Parts, Replays
from toys import Featured, Minimising, OutputsAlone

pytestmark = pytest.mark.usefixtures("few_threads")


class Loop(Plain):
    """The plain loop, in the words of the papers."""

    def forward(self, model, x, key=None):
        if key is not None:
            self.x_now = x
        if not isinstance(model, Wrapped):
            out = super().forward(model, x, key)
        elif key is None:
            out = model.eval()(x)
        else:  # dropout follows the client's random stream
            with RowOperations(RowMethod(rows=False), key[0]):
                out = model.train()(x)
        if key is not None:
            self.out_now = out
        return out

    def objective(self, data_loss, w, server):
        asked = self.strategy
        if asked.objective == "distil":
            with torch.no_grad():
                theirs = (self.forward(self.model, self.x_now) / 2).softmax(1)
            own = (self.out_now / 2).softmax(1)
            data_loss = data_loss + asked.number * (theirs * (theirs / own).log()).sum(1).mean()
        elif asked.objective == "confident":
            p = self.out_now.softmax(1)
            data_loss = data_loss + asked.number * (p * p.log()).sum(1).mean()
        else:
            data_loss = ((asked.number * data_loss).exp() - 1) / asked.number
        pull = sum(((a - b) ** 2).sum() for a, b in zip(w, server, strict=True))
        return data_loss + asked.prox / 2 * pull


def mlp(shape, classes):
    inner = nn.Linear(64, 10), nn.ReLU(), nn.Dropout(0.4), nn.Linear(10, classes)
    return nn.Sequential(nn.Flatten(), *inner)


FORMS = {"layers": LayerRows, "traced": TracedRows, "loop": LoopRows}
WAYS = {
    "sgd": (PLAN, {}),
    "some": (replace(PLAN, participants=3, chunk=2, epochs=2), {"prox": 0.3}),
    "full batch": (PLAN, {"full_batch": True, "prox": 0.3}),
    "momentum": (replace(PLAN, optimiser=Optimiser(0.5), step_schedule="cosine"), {}),
}


@pytest.fixture
def form(request, monkeypatch):
    monkeypatch.setattr(package, "SMALL", 0 if request.param == "loop" else package.SMALL)
    monkeypatch.setattr(local_training, "FULL_BATCH_PIECE", 4)
    return request.param


@pytest.mark.parametrize("form", FORMS, indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_what_clients_minimise_is_what_a_plain_loop_does(way, form, fed):
    (plan, asks), net = WAYS[way], plain_mlp if way == "full batch" else mlp  # pieces draw apart

    def make(shape, classes):
        return net(shape, classes) if form == "layers" else Wrapped(net(shape, classes))

    rules = [Minimising(**asks), Minimising(number=0.2, **asks), Minimising("confident", **asks)]
    rules += [Minimising("tilted", 0.1, **asks), one("fedavg"), one("propfair")]
    runs = [Run(rule, seed, fed) for rule in rules for seed in (3, 4)]
    wanted = [Loop(run.strategy, run.seed, fed, plan, make).run() for run in runs[:-4]]
    for graphs in (None, Replays(), Parts()):
        batch = start(runs, plan, make)
        assert type(batch.rows) is FORMS[form], batch.rows.path
        batch.graphs = graphs or batch.graphs
        shots = list(simulate(batch))
        for r, want in enumerate(wanted):
            assert apart(vector(batch, batch.progress.model[r]), want.path[-1]) < 1e-9
            for shot, told in zip(shots, want.told, strict=True):
                assert shot.rounds[r].loss == pytest.approx(told.loss, abs=1e-9)  # the usual one
    for r, run in enumerate(runs[-4:], len(runs) - 4):  # beside others as alone
        alone, _ = played([run], fed, plan, make)
        assert apart(alone.progress.model[0], batch.progress.model[r]) < 1e-9


def test_limits_of_fedntd_and_moon(fed):
    specs = ["fedavg", "fedntd:beta=0", "moon:mu=0", "moon", "fedntd"]
    first, _ = played(specs, fed, replace(PLAN, rounds=1), mlp)
    later, _ = played(specs, fed, PLAN, mlp)
    for models, same in ((first, 4), (later, 3)):
        plain, *others = models.progress.model
        assert all(apart(one, plain) < 1e-12 for one in others[: same - 1])
        assert all(apart(one, plain) > 1e-4 for one in others[same - 1 :])
    two = Federation(replace(fed.data, y=fed.data.y % 2, classes=("a", "b")), fed.split)
    batch, _ = played(["fedavg", "fedntd"], two, PLAN, mlp)
    assert apart(*batch.progress.model) < 1e-12  # one other class is left


@pytest.mark.parametrize("some", [{}, {"participants": 3, "chunk": 2, "epochs": 2}])
def test_features_are_those_of_the_papers_loop_in_both_general_forms(some, fed, monkeypatch):
    rules, plan, found = [one("moon:on=features"), Minimising("near")], replace(PLAN, **some), []
    want = MoonOfFeatures(3, fed, plan, Featured).run().model
    for form in (TracedRows, LoopRows):
        monkeypatch.setattr(package, "SMALL", 10**6 if form is TracedRows else 0)
        batch, _ = played([Run(rule, 3, fed) for rule in rules], fed, plan, Featured)
        assert type(batch.rows) is form, batch.rows.path
        assert apart(vector(batch, batch.progress.model[0]), want) < 1e-9
        found.append(batch.progress.model)
        arrays = [  # nothing that needs no features knows of them
            played(["fedavg", "moon", "fedntd"], fed, plan, make)[0].progress.arrays()
            for make in (Featured, OutputsAlone)
        ]
        assert all(np.array_equal(value, arrays[1][key]) for key, value in arrays[0].items())
    assert apart(*found) < 1e-9


def test_an_objective_for_classes_refuses_other_targets(make_federation):
    fed = make_federation()
    data = replace(fed.data, y=fed.data.y / 3, classes=(), task="regress")
    numbers = Federation(data, fed.split)
    with pytest.raises(InputError, match="fedntd is for examples of one class each"):
        start([Run(one("fedntd"), 3, numbers)], PLAN, mlp)


class Normed(nn.Module):
    """A model with statistics, which training reads otherwise than evaluation."""

    def __init__(self, shape, classes):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(64, 9), nn.BatchNorm1d(9), nn.Linear(9, classes)

    def forward(self, x):
        return self.b(self.norm(self.a(x.flatten(1))).tanh())


@pytest.mark.parametrize("choice", ["average", "local"])
def test_both_general_forms_see_the_same_statistics_of_the_server(choice, fed, monkeypatch):
    plan, found = replace(PLAN, minibatch=3, batchnorm=choice), []
    for form in (TracedRows, LoopRows):
        monkeypatch.setattr(package, "SMALL", 10**6 if form is TracedRows else 0)
        runs = [Run(Minimising(number=number), 3, fed) for number in (0.0, 0.7)]
        batch, _ = played(runs, fed, plan, Normed)
        assert type(batch.rows) is form, batch.rows.path
        found.append(batch.progress.model)
    assert apart(*found) < 1e-9
    assert apart(*found[0]) > 1e-3


def broken(losses, outputs, y, others, numbers):
    return losses if float(losses.sum()) > 0 else outputs


def one_hot(losses, outputs, y, others, numbers):
    return losses + nn.functional.one_hot(y, 4).sum(1)


def one_for_all(losses, outputs, y, others, numbers):
    return losses.mean()


def coupled(losses, outputs, y, others, numbers):
    return losses + outputs.mean()


def silent(losses, outputs, y, others, numbers):
    losses.sum()


def cut_off(losses, outputs, y, others, numbers):
    return outputs.detach().square().sum(-1)


def undefined(losses, outputs, y, others, numbers):
    return losses + (outputs[:, 0] - outputs[:, 0]).sqrt() * torch.inf


def three(losses, outputs, y):
    return losses


@pytest.mark.parametrize(
    ("objective", "line"),
    [
        (Objective("distill"), "unknown objective 'distill'"),
        (Objective("test_objectives:nothing"), "has no 'nothing'"),
        (Objective("test_objectives:PLAN"), "write a function of (loss, numbers), or of (losses,"),
        (Objective("test_objectives:three"), "write a function of (loss, numbers), or of (losses,"),
        (Objective("toys:tilted", {"T": 1.0}), "reads 't', which is neither among its numbers nor"),
        (Objective("toys:tilted", {"t": 1.0}, ("server",)), "leave out what it sees"),
        (
            Objective("toys:distil", {"lam": 1.0, "T": 1.0}),
            "reads 'server', which is neither",
        ),
        (Objective("test_objectives:broken"), "cannot be called for many clients at once"),
        (Objective("test_objectives:one_hot"), "leave out .item(), one_hot() and `if` on values"),
        (Objective("test_objectives:coupled"), "another loss in another minibatch"),
        (Objective("toys:near", {"share": 1.0}), "is one of features, and this model returns outp"),
        (Objective("test_objectives:silent"), "gave NoneType, not (3,): it must give one loss"),
        (
            Objective("test_objectives:one_for_all"),
            "gave shape (), not (3,): it must give one",
        ),
        (Objective("test_objectives:cut_off"), "gave a loss that no gradient reaches"),
        (Objective("test_objectives:undefined"), "gave nan at the initial model"),
        (Objective("propfair", {"m": 5.0}), "reads 'M', which is neither among its numbers"),
    ],
)
def test_an_objective_that_does_not_work_is_refused_before_the_first_round(objective, line, fed):
    @dataclass(frozen=True)
    class Asking(Minimising):
        name: ClassVar[str] = "asking"

        def local(self):
            return Local(objective=objective)

    with pytest.raises(InputError) as error:
        start([Run(Asking(), 3, fed)], PLAN, mlp)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_models_that_an_objective_sees_take_room(fed):
    rows = start([Run(one("fedavg"), 3, fed)], PLAN, mlp).rows
    assert rows.room(4, seen=2) - rows.room(4) == 2 * (rows.layout.size + 4 * rows.activations)


def test_rows_of_one_objective_are_trained_at_once_whatever_its_numbers(fed):
    rules = (Minimising(number=0.1), Minimising(number=0.9), Minimising("tilted"), one("fedavg"))
    batch = start([Run(rule, 3, fed) for rule in rules], PLAN, mlp)
    kinds = [kind.tolist() for kind in batch.kinds]
    assert kinds[0] == kinds[1]
    assert kinds[2] == kinds[3]  # an objective of the loss alone, beside plain rows
    assert len({tuple(kind) for kind in kinds}) == 2
