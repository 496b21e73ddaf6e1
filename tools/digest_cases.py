"""What `digests.py` plays: each feature alone, the pairs that meet, plans, models, ranks, a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from digest_world import (
    ASKED,
    MINIBATCH,
    SEED,
    Noisy,
    Reader,
    Traced,
    image_norms,
    margin,
    narrow,
    norms,
    small,
    spread,
    squares,
    table,
)

from fedmaba import strategies
from fedmaba.privacy.mechanism import Privacy
from fedmaba.rows.weights import GivenWeights
from fedmaba.simulation.engine import Optimiser

# Each batch is played with all clients, and with some of them in small chunks.
ALL = {"rounds": 4, "minibatch": MINIBATCH, "lr": 0.2, "lr_decay": 0.9, "eval_every": 2}
SOME = {**ALL, "rounds": 6, "participants": 4, "chunk": 2, "eval_every": 3, "dtype": "float64"}
# Models without a form written by hand take longer: fewer rounds.
WITHOUT_ROW_FORM = (norms, image_norms, Traced, Noisy, Reader)
FEW = ({**ALL, "rounds": 2}, {**SOME, "rounds": 4, "chunk": 3, "eval_every": 2})


@dataclass(frozen=True)
class Case:
    """Some runs, and how they are played."""

    specs: tuple[str, ...]
    fed: str = "images"
    model: Any = small
    plan: Mapping[str, Any] = field(default_factory=dict)
    ways: tuple[Mapping[str, Any], ...] = (ALL, SOME)
    seeds: tuple[int, ...] = (SEED,)
    turned: bool = False  #           whether other seeds have other clients
    deploy: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of `start`
    stop: int | None = None  #        after this round the runs stop, and others go on
    refused: bool = False
    ranks: int = 1
    around: Callable[[], AbstractContextManager[Any]] = nullcontext  # what a batch runs in


def cases(device: str) -> dict[str, Case]:
    """Every case of a device, by its name; first what only a GPU has."""
    both = {**_alone(), **_pairs(), **_plans()}
    return {**_on_a_gpu(), **both} if device == "cuda" else {**both, **_on_ranks()}


def _alone() -> dict[str, Case]:
    """Each strategy, and each thing that a strategy may ask for; then all of them as neighbours."""
    found = {}
    for name, kind in strategies.REGISTRY.items():
        people = kind().needs().groups
        found[f"strategy {name}"] = _of(name, people=people)
    for what, (needs, _) in ASKED.items():
        single = {"dtype": "float32"} if what.startswith("breaks") else {}
        found[f"asks {what}"] = _of(f"?{what}", people=needs.groups, plan=single)
    both = {"fed": "people held", "model": table}
    sent = [n for n, kind in strategies.REGISTRY.items() if not kind().local().own_layers]
    found["together strategies"] = Case((*sent, *VARIANTS), **both)
    found["together asks"] = Case(tuple(f"?{what}" for what in ASKED), **both, ways=(SOME,))
    for what in ("kept", "means_late", "own_late", "prox", "bent", "breaks_own"):
        runs = ("fedavg", f"?{what}", "fedsgd")
        found[f"neighbours of {what}"] = _of(*runs, seeds=(3, 4))
    return found


def _of(*specs: str, people: bool = False, **more: Any) -> Case:
    usual: dict[str, Any] = {"fed": "people held" if people else "images held"}
    usual |= {"model": table} if people else {}
    usual |= {"ways": FEW} if more.get("model") in WITHOUT_ROW_FORM else {}
    return Case(specs, **{**usual, **more})


VARIANTS = (
    "fedavg:weights=uniform",
    "qffl:q=0.5,mode=sgd",
    "term:T=2,normalise=reference",
    "fedmgda:epsilon=1,eta=0.3,decay=0.9",
    "propfair:M=1.5,epsilon=0.3",
    "propfair:M=1.2,below=scaled",
    "fedfv:alpha=0,tau=3",
    "fedmaba:alpha=0.8,eta_b=1,rho=0.3,eta_s=0.5,loss_at=mean",
    "fedmaba:ball=global,loss_at=end,eta_b=3",
    "fedmaba:sync=overwrite,loss_at=held",
    "scaffold:option=I,eta_g=0.7",
    "feddyn:alpha=0.4",
    "ditto:lam=0.3,server=scaffold",
    "ditto:server=fedmdfg",
    "ditto:server=fedlf:tau=2",
    "ditto:server=fedeba",
    "ditto:server=fairfed",
    "fedlf:tau=2,norms=reference",
    "fedmdfg:theta=3,s=2",
    "fedeba:tau=0.3,a=0.4",
    "eagle:lam=20",
)


def _pairs() -> dict[str, Case]:
    """What clients do, with what is done to or with all of them."""
    found: dict[str, Case] = {}
    met = {
        "losses": ("?start", "?mean", "?end", "?norms", "fedmaba"),
        "kept": ("?kept", "?kept_late", "?means_late", "?server_adds"),
        "personal": ("?own", "?own_late", "?only_late", "?own_kept", "eagle"),
        "first steps": ("?first", "?first_full", "fedeba"),
        "step search": ("?search", "?search_kept", "?search_past", "fedmdfg"),
        "past changes": ("?past", "?past_layers", "fedfv"),
        "prox": ("?prox_late", "?prox_kept", "?own_prox", "fedprox"),
        "propfair": ("?bent_late", "?bent_prox", "propfair"),
        "full batch": ("?full_batch", "?full_batch_kept", "fedsgd"),
    }
    breaks = ("fedavg", "?breaks_kept", "?breaks_late", "?breaks_own", "?breaks_prox")
    single = {"dtype": "float32"}  # in which numbers overflow sooner
    found["breaks"] = _of(*breaks, plan=single)
    found["own layers x breaks"] = _of(*breaks, model=norms, plan=single | {"batchnorm": "local"})
    attacks = {
        "update": "|update=-2",
        "loss": "|loss=x3",
        "worst": "|loss=worst+update=1.5",
        "labels": "|labels=flip",
    }
    for what, specs in met.items():
        here = attacks if what in ("losses", "personal") else {"update": attacks["update"]}
        for name, attack in here.items():
            found[f"attack {name} x {what}"] = _of(*specs, fed="images held" + attack)
        own = {"batchnorm": "local"}
        found[f"own layers x {what}"] = _of(*specs, model=norms, plan=own)
    for name, attack in (("", ""), ("attack x ", attacks["worst"])):
        groups = ("?groups_late", "?groups_kept", "?groups_own", "?groups_first", "fairfed")
        people = {"fed": "people held" + attack}
        found[f"{name}groups"] = _of(*groups, people=True, **people)
        own = {"model": norms, "plan": {"batchnorm": "local"}}
        found[f"{name}own layers x groups"] = _of(*groups, people=True, **people, **own)
    dp = {"privacy": Privacy(8.0, clip=0.05, loss=1.5)}
    for what, specs in {
        "losses": ("?start", "?mean", "?end", "fedmaba"),
        "personal": ("?own", "ditto:lam=0.3"),
        "local work": ("?prox", "?bent", "?bent_prox", "fedsgd"),
        "server optimisers": ("fedavgm", "fedadam", "afl"),
    }.items():
        found[f"privacy x {what}"] = _of(*specs, plan=dp)
        attacked = f"images held{attacks['worst']}"
        found[f"privacy x attack x {what}"] = _of(*specs, fed=attacked, plan=dp)
        own = dp | {"batchnorm": "local"}
        found[f"privacy x own layers x {what}"] = _of(*specs, model=norms, plan=own)
    for what in ("kept", "only", "first", "own_late", "norms"):
        found[f"privacy refuses {what}"] = _of(f"?{what}", plan=dp, refused=True)
    mixed = ("?mean", "?past_kept", "?own", "?first", "?search_past", "?means", "fedmaba")
    for choice in ("average", "local", "frozen", "group"):
        choices = {"model": image_norms, "plan": {"batchnorm": choice}}
        found[f"batchnorm {choice} of images"] = _of(*mixed, **choices)
    found["batchnorm average"] = _of(*mixed, model=norms, plan={"batchnorm": "average"})
    attacked = "images held|update=-2+loss=x3"
    found["batchnorm average x attack"] = replace(found["batchnorm average"], fed=attacked)
    return found


def _by(schedule: str) -> dict[str, Any]:
    return {"schedule": schedule, "lr_decay": 0.999}


def _plans() -> dict[str, Case]:
    """Settings of a plan, models, tasks; and runs that stop and go on."""
    found: dict[str, Case] = {}
    mixed = ("fedavg", "?mean", "?prox", "?bent", "?kept", "?means_late", "?own_late", "fedsgd")
    plans: dict[str, dict[str, Any]] = {
        "momentum": {"optimiser": Optimiser(0.5, 0.01)},
        "nesterov": {"optimiser": Optimiser(0.7, 0.0, "nesterov"), **_by("warmup:2,cosine")},
        "adam": {"optimiser": Optimiser(optimiser="adam", clip=0.5, epsilon=0.1), "lr": 0.02},
        "adamw": {"optimiser": Optimiser(weight_decay=0.1, optimiser="adamw"), "lr": 0.01},
        "step schedule": {"step_schedule": "warmup:2,cosine", "epochs": 2},
        "steps": {"steps": 5, **_by("exponential:0.8")},
        "augment": {"augment": "flip,crop:2"},
        "server momentum": {"server_momentum": 0.5, "server_lr": 0.7},
    }
    for name, plan in plans.items():
        found[f"plan {name}"] = _of(*mixed, plan=plan)
    tuned = {"finetune": 3, "optimiser": Optimiser(0.5)}
    found["plan finetune"] = _of("fedavg", "?kept", "?own", "fedmaba", plan=tuned)
    local = {"model": norms, "plan": tuned | {"batchnorm": "local"}}
    found["plan finetune x own layers"] = _of("fedavg", "?kept", "?own", "fedmaba", **local)
    found["server optimisers"] = _of("fedavgm", "fedadam", "fedyogi", "?kept", "?server_adds")
    picks = ("last", "average", "poly:2", "ema:0.5", "best:accuracy", "best:fair")
    each = {"eval_every": 1}
    found["deploy"] = _of("fedavg", "?own", "?only", "fedmaba", deploy=picks, plan=each)
    found["even clients"] = _of("fedavg", "fedmaba", "fedprox", fed="even")  # summed up at once
    found["even clients of several kinds"] = _of("?kept", "fedavg", "?norms", fed="even")
    mixed_kinds = ("fedavg", "?kept", "?means_late", "?own_late", "?past", "?first", "?search")
    found["several federations"] = _of(*mixed_kinds, seeds=(3, 4), turned=True)
    found["two threads"] = _of(*mixed_kinds, plan={"threads": 2})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        named = {n: w.numpy() for n, w in small((1, 8, 8), 4).state_dict().items()}
    found["given weights"] = _of("fedavg", "?own", options={"init": GivenWeights(named, "here")})
    found["crowd"] = _of("?full_batch", "?bent_full_batch", "scaffold:option=I", "fedsgd", "fedeba",
                         fed="crowd", model=table, plan={"minibatch": 50})  # fmt: skip
    usual = (
        "fedavg",
        "?mean",
        "?prox",
        "?bent",
        "?means",
        "?own",
        "fedmaba:loss_at=end",
        "fedmgda",
    )
    found["model mlp"] = _of(*usual, model="mlp")
    found["model cnn"] = _of(
        "fedavg", "?mean", "scaffold", fed="pictures", model="cnn", plan={"rounds": 2}
    )
    found["model traced"] = _of(*usual, "?first", "?past_layers", model=Traced)
    found["model one after another"] = _of(*usual, "?first", "?past_layers", model=Noisy)
    found["task sequence"] = _of(*usual, fed="sequence", model=Reader)
    found["task regress"] = _of(*usual, fed="regress held", model=table)
    found["task multilabel"] = _of(*usual, fed="multilabel", model=table)
    own = {"loss": squares, "metric": margin}
    found["own loss and metric"] = _of(*usual, options=own)
    found["own loss and metric traced"] = _of(*usual, model=Traced, options=own)
    found["client metric"] = _of(*usual, options={"client_metric": spread})
    found["chunk too large"] = _of(*usual, options={"loss": narrow})
    resumed = {
        "losses": (*usual, "fedyogi"),
        "kept": ("?kept", "?means_late", "?server_adds", "?first_full", "?search_kept"),
        "personal": ("?own_late", "?only", "?own_kept", "eagle"),
        "past changes": ("?past", "?past_own", "?past_layers", "fedfv"),
    }
    for what, specs in resumed.items():
        found[f"resumed {what}"] = _of(*specs, stop=3)
    breaks = ("fedavg", "?breaks_kept", "?breaks_late", "?breaks_own")
    found["resumed breaks"] = _of(*breaks, plan={"dtype": "float32"}, stop=2)
    found["resumed deploy"] = replace(found["deploy"], stop=3)
    dp = {"privacy": Privacy(8.0, clip=0.05, loss=1.5)}
    found["resumed privacy"] = _of("fedavg", "?mean", "?own", plan=dp, stop=2)
    own = {"model": norms, "plan": {"batchnorm": "local"}}
    found["resumed own layers"] = _of(*usual, "?kept_late", **own, stop=1)
    return found


def _on_ranks() -> dict[str, Case]:
    """Two processes at one batch, as torchrun starts them."""
    found = {**_alone(), **_pairs(), **_plans()}
    names = ("together strategies", "together asks", "neighbours of kept", "attack update x kept")
    names += ("attack loss x personal", "own layers x kept", "own layers x personal", "groups")
    names += (
        "own layers x losses",
        "own layers x groups",
        "privacy x losses",
        "own layers x breaks",
    )
    names += ("privacy x own layers x personal", "batchnorm average", "deploy", "plan finetune")
    names += ("chunk too large", "client metric", "resumed kept", "resumed own layers")
    return {f"ranks {name}": replace(found[name], ranks=2) for name in names}


# --- what only a GPU has -------------------------------------------------------------------------


@contextmanager
def little_memory(megabytes: int = 400) -> Iterator[None]:
    """A GPU's memory of which most is taken: a chunk that is too large is halved."""
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(megabytes * 2**20 / whole)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextmanager
def small_card(**says: int) -> Iterator[None]:
    """A GPU that says it has less of something than it has."""
    asked = torch.cuda.get_device_properties

    class Small:
        def __init__(self, device: Any = None) -> None:
            self.real = asked(device)

        def __getattr__(self, name: str) -> Any:
            return says[name] if name in says else getattr(self.real, name)

    with mock.patch.object(torch.cuda, "get_device_properties", Small):
        yield


def _on_a_gpu() -> dict[str, Case]:
    """Lanes, recordings, parts of rounds, steps in groups, low precision, little memory."""
    found: dict[str, Case] = {}
    lanes = ("fedavg", "fedmaba", "?norms", "fedfv", "?mean", "?kept", "?means_late", "?own_late")
    rounds = ({**ALL, "rounds": 10, "eval_every": 4}, {**SOME, "rounds": 30, "dtype": "float32"})
    found["lanes"] = _of(*lanes, "?bent", "fedmdfg", "scaffold:option=I", ways=rounds)
    found["lanes of even clients"] = _of("fedavg", "fedmaba", "?norms", fed="even", ways=rounds)
    found["lanes that break"] = _of(
        *lanes, "?breaks_kept", "?breaks_late", "?breaks_own", ways=rounds
    )
    found["lanes resumed"] = replace(found["lanes"], stop=5)
    for dtype in ("float32", "tf32", "bf16"):
        low = {"dtype": dtype}
        for model, fed in (("mlp", "images held"), ("cnn", "pictures held")):
            found[f"{dtype} {model}"] = _of(*lanes, fed=fed, model=model, plan=low, ways=rounds)
        cache = partial(small_card, L2_cache_size=1)
        many = ("fedavg", "fedprox", "?kept", "?means_late", "?prox_means", "?own", "?bent")
        for fed, ways in (("images held", rounds), ("many", ({**ALL, "minibatch": 6},))):
            found[f"{dtype} steps in groups, {fed}"] = _of(
                *many, fed=fed, model="mlp", plan=low, ways=ways, around=cache
            )
    kept = ("?kept", "?means_late", "?own_late", "?server_adds", "?breaks_kept")
    host = partial(small_card, total_memory=1000)
    found["kept in the host's memory"] = _of(*kept, ways=rounds, around=host)
    found["chunk beyond the memory"] = _of(
        *lanes, fed="many", model="mlp", plan={"chunk": 100_000}, around=little_memory
    )
    return {f"gpu {name}": case for name, case in found.items()}
