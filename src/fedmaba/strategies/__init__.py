"""Every algorithm by name. A new one is a file beside this and a line in the registry."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from fedmaba import user_code
from fedmaba.errors import FedmabaError, InputError, unknown
from fedmaba.strategies import contract, elsewhere, hyper_parameters
from fedmaba.strategies.aaggff import AAggFF as AAggFF
from fedmaba.strategies.adafed import AdaFed as AdaFed
from fedmaba.strategies.afl import AFL as AFL
from fedmaba.strategies.alone import Alone as Alone
from fedmaba.strategies.apfl import APFL as APFL
from fedmaba.strategies.base import Strategy, make_strategy
from fedmaba.strategies.cclip import CClip as CClip
from fedmaba.strategies.deltafl import DeltaFL as DeltaFL
from fedmaba.strategies.ditto import Ditto as Ditto
from fedmaba.strategies.eagle import Eagle as Eagle
from fedmaba.strategies.fairfed import FairFed as FairFed
from fedmaba.strategies.fedadam import FedAdam as FedAdam
from fedmaba.strategies.fedadam import FedYogi as FedYogi
from fedmaba.strategies.fedala import FedALA as FedALA
from fedmaba.strategies.fedavg import FedAvg as FedAvg
from fedmaba.strategies.fedavgm import FedAvgM as FedAvgM
from fedmaba.strategies.fedbabu import FedBABU as FedBABU
from fedmaba.strategies.feddgga import FedDGGA as FedDGGA
from fedmaba.strategies.feddyn import FedDyn as FedDyn
from fedmaba.strategies.fedeba import FedEBA as FedEBA
from fedmaba.strategies.fedeba import FedEBAPlus as FedEBAPlus
from fedmaba.strategies.fedexp import FedExP as FedExP
from fedmaba.strategies.fedfv import FedFV as FedFV
from fedmaba.strategies.fedgini import FedGini as FedGini
from fedmaba.strategies.fedlf import FedLF as FedLF
from fedmaba.strategies.fedmaba import FedMABA as FedMABA
from fedmaba.strategies.fedmdfg import FedMDFG as FedMDFG
from fedmaba.strategies.fedmgda import FedMGDA as FedMGDA
from fedmaba.strategies.fednova import FedNova as FedNova
from fedmaba.strategies.fedntd import FedNTD as FedNTD
from fedmaba.strategies.fedper import FedPer as FedPer
from fedmaba.strategies.fedprox import FedProx as FedProx
from fedmaba.strategies.fedrep import FedRep as FedRep
from fedmaba.strategies.fedsgd import FedSGD as FedSGD
from fedmaba.strategies.fedvarp import FedVARP as FedVARP
from fedmaba.strategies.gifair import GIFAIR as GIFAIR
from fedmaba.strategies.krum import Krum as Krum
from fedmaba.strategies.krum import MultiKrum as MultiKrum
from fedmaba.strategies.lgfedavg import LGFedAvg as LGFedAvg
from fedmaba.strategies.maxfl import MaxFL as MaxFL
from fedmaba.strategies.median import Median as Median
from fedmaba.strategies.mifa import MIFA as MIFA
from fedmaba.strategies.moon import Moon as Moon
from fedmaba.strategies.nnm import NNM as NNM
from fedmaba.strategies.perfedavg import PerFedAvg as PerFedAvg
from fedmaba.strategies.pfedme import PFedMe as PFedMe
from fedmaba.strategies.propfair import PropFair as PropFair
from fedmaba.strategies.qffl import QFFL as QFFL
from fedmaba.strategies.rfa import RFA as RFA
from fedmaba.strategies.scaffold import Scaffold as Scaffold
from fedmaba.strategies.scaffpd import ScaffPD as ScaffPD
from fedmaba.strategies.term import TERM as TERM
from fedmaba.strategies.trimmed import Trimmed as Trimmed

REGISTRY: dict[str, type[Strategy]] = {
    kind.name: kind
    for kind in (
        FedAvg,
        FedSGD,
        FedProx,
        QFFL,
        AFL,
        TERM,
        FedMGDA,
        PropFair,
        FedFV,
        FedMABA,
        FedAvgM,
        FedAdam,
        FedYogi,
        DeltaFL,
        GIFAIR,
        AAggFF,
        AdaFed,
        Scaffold,
        FedDyn,
        FedNova,
        Ditto,
        Alone,
        FairFed,
        FedEBA,
        FedLF,
        MIFA,
        FedMDFG,
        Eagle,
        FedGini,
        FedNTD,
        Moon,
        Median,
        Trimmed,
        Krum,
        MultiKrum,
        RFA,
        CClip,
        NNM,
        FedPer,
        FedRep,
        LGFedAvg,
        FedBABU,
        FedExP,
        FedVARP,
        MaxFL,
        FedDGGA,
        PFedMe,
        PerFedAvg,
        APFL,
        FedALA,
        ScaffPD,
        FedEBAPlus,
    )
}
BUILT_IN = tuple(REGISTRY)


def register(kind: type[Strategy]) -> type[Strategy]:
    """Make your own strategy known by its name; also usable as a decorator."""
    if not (isinstance(kind, type) and issubclass(kind, Strategy)):
        raise InputError(f"{kind!r} is no class of strategies: derive one from fedmaba.Strategy")
    contract.check_class(kind)
    if REGISTRY.get(kind.name, kind) is not kind:
        raise InputError(f"a strategy named {kind.name!r} is registered already: choose a new name")
    REGISTRY[kind.name] = kind
    return kind


def parse(spec: str) -> list[Strategy]:
    """`name:key=value,key=[v1,v2]` as strategies: a list of values is a grid.

    The declared type of a field of the strategy decides how its value is read.
    The name is a registered one, or `package.module.Class` for your own.
    """
    name, _, rest = spec.partition(":")
    if name not in REGISTRY and "." not in name:
        raise elsewhere.absent(name) or unknown(
            "strategy", name, REGISTRY, other=", or write package.module.Class for your own"
        )
    kind = REGISTRY[name] if name in REGISTRY else _import_class(name)
    grid: dict[str, list[object]] = {}
    for item in _split(rest, spec):
        key, equals, text = (part.strip() for part in item.partition("="))
        if not equals or not key or not text:
            raise InputError(f"{spec!r}: {item!r} is not key=value, as q=0.1")
        if key in grid:
            raise InputError(f"{spec!r}: {key!r} is given twice")
        listed = [text]
        if text.startswith("[") and text.endswith("]"):
            listed = _split(text[1:-1], spec) or [""]
        grid[key] = [_value(kind, key, one.strip()) for one in listed]
    return [
        _make(name, kind, dict(zip(grid, values, strict=True)))
        for values in itertools.product(*grid.values())
    ]


def single_specs(specs: Sequence[str]) -> dict[str, str]:
    """The words that name each strategy of some specs alone, by its label; a grid has several."""
    found: dict[str, str] = {}
    for spec in specs:
        for made in parse(spec):
            if (label := made.label()) in found:
                raise InputError(f"strategy {label!r} is listed twice: each row of a table is one")
            _, colon, values = label.partition(":")
            found[label] = spec.partition(":")[0] + colon + values
    return found


def describe_strategies() -> list[tuple[str, str, str]]:
    """Name, one line, and hyper-parameters of each strategy, the default of a choice first."""
    rows = []
    for name, kind in REGISTRY.items():
        types = hyper_parameters.field_types(kind)
        params = []
        for f in dataclasses.fields(kind):
            default = hyper_parameters.format_value(hyper_parameters.default_value(f))
            choices = map(str, hyper_parameters.listed_choices(types[f.name]))
            params.append(f"{f.name}={'|'.join(dict.fromkeys([default, *choices]))}")
        rows.append((name, (kind.__doc__ or "").strip().split("\n")[0], ", ".join(params)))
    return rows


def _import_class(path: str) -> type[Strategy]:
    """The class at `package.module.Class`."""
    if path.endswith(".toml"):
        raise InputError(f"strategy {path!r} is an experiment file: say fedmaba run {path}")
    where, _, attribute = path.rpartition(".")
    kind = user_code.import_attribute(
        f"strategy {path!r}", where, attribute, "package.module.Class"
    )
    if not (isinstance(kind, type) and issubclass(kind, Strategy)):
        raise InputError(f"strategy {path!r} is no class derived from fedmaba.Strategy")
    contract.check_class(kind, path)
    return kind


def _make(name: str, kind: type[Strategy], values: dict[str, object]) -> Strategy:
    """A strategy whose label can be written; an error in its class becomes one line."""
    try:
        made = make_strategy(kind, values)
        made.label()
    except FedmabaError:
        raise
    except Exception as error:  # user code can raise anything
        raise user_code.error_in_user_code(f"strategy {name!r}", error) from error
    return made


def _split(text: str, spec: str) -> list[str]:
    """Split at commas outside brackets."""
    try:
        return hyper_parameters.split_at_commas(text)
    except ValueError:
        raise InputError(f"{spec!r}: brackets do not match: write key=[v1,v2]") from None


def _value(kind: type[Strategy], key: str, text: str) -> object:
    """A hyper-parameter of a strategy from its text."""
    try:
        return hyper_parameters.parse_value(hyper_parameters.field_types(kind).get(key, str), text)
    except ValueError as rule:
        raise InputError(f"{kind.name}: {key}={text!r}: {rule}") from None
