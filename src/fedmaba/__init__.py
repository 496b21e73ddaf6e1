"""fedmaba: fair federated learning by multi-armed-bandit allocation, and its rivals.

Names are imported when first used: `import fedmaba` is quick and needs no torch.
"""

import importlib  # nothing else: `python -m fedmaba` would look for it in the working folder first

TYPE_CHECKING = False  # as type checkers know it, without `typing`
if TYPE_CHECKING:
    from typing import Any

    from fedmaba.data.dataset import Dataset
    from fedmaba.data.federation import Federation
    from fedmaba.errors import InputError
    from fedmaba.experiment.histories import load_history
    from fedmaba.experiment.starting import compare
    from fedmaba.experiment.tune import tune
    from fedmaba.results.history import History, RunHistory
    from fedmaba.results.metrics import Fairness, fairness
    from fedmaba.strategies import (
        AFL,
        GIFAIR,
        MIFA,
        QFFL,
        TERM,
        AAggFF,
        AdaFed,
        Alone,
        DeltaFL,
        Ditto,
        Eagle,
        FairFed,
        FedAdam,
        FedAvg,
        FedAvgM,
        FedDyn,
        FedEBA,
        FedFV,
        FedGini,
        FedLF,
        FedMABA,
        FedMDFG,
        FedMGDA,
        FedNova,
        FedProx,
        FedSGD,
        FedYogi,
        PropFair,
        Scaffold,
        parse,
        register,
    )
    from fedmaba.strategies.base import (
        Combine,
        Decision,
        Keep,
        Local,
        Needs,
        Objective,
        Personal,
        Replies,
        ServerStep,
        Shown,
        Strategy,
        param,
    )
    from fedmaba.strategies.server_optimisers import ServerOptimiser

__version__ = "0.1.0"

_HOME = {
    "compare": "experiment.starting",
    "Dataset": "data.dataset",
    "Decision": "strategies.base",
    "Federation": "data.federation",
    "History": "results.history",
    "Keep": "strategies.base",
    "Local": "strategies.base",
    "Needs": "strategies.base",
    "Personal": "strategies.base",
    "Combine": "strategies.base",
    "Objective": "strategies.base",
    "Replies": "strategies.base",
    "ServerStep": "strategies.base",
    "Shown": "strategies.base",
    "Strategy": "strategies.base",
    "Fairness": "results.metrics",
    "InputError": "errors",
    "RunHistory": "results.history",
    "fairness": "results.metrics",
    "load_history": "experiment.histories",
    "param": "strategies.base",
    "parse": "strategies",
    "register": "strategies",
    "tune": "experiment.tune",
    "AAggFF": "strategies",
    "AFL": "strategies",
    "AdaFed": "strategies",
    "Alone": "strategies",
    "DeltaFL": "strategies",
    "Ditto": "strategies",
    "Eagle": "strategies",
    "FairFed": "strategies",
    "FedAdam": "strategies",
    "FedAvg": "strategies",
    "FedAvgM": "strategies",
    "FedDyn": "strategies",
    "FedEBA": "strategies",
    "FedFV": "strategies",
    "FedGini": "strategies",
    "FedLF": "strategies",
    "FedMABA": "strategies",
    "FedMDFG": "strategies",
    "FedMGDA": "strategies",
    "FedNova": "strategies",
    "FedProx": "strategies",
    "FedSGD": "strategies",
    "FedYogi": "strategies",
    "GIFAIR": "strategies",
    "MIFA": "strategies",
    "PropFair": "strategies",
    "QFFL": "strategies",
    "Scaffold": "strategies",
    "TERM": "strategies",
    "ServerOptimiser": "strategies.server_optimisers",
}
__all__ = [
    "AFL",
    "GIFAIR",
    "MIFA",
    "QFFL",
    "TERM",
    "AAggFF",
    "AdaFed",
    "Alone",
    "Combine",
    "Dataset",
    "Decision",
    "DeltaFL",
    "Ditto",
    "Eagle",
    "FairFed",
    "Fairness",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedDyn",
    "FedEBA",
    "FedFV",
    "FedGini",
    "FedLF",
    "FedMABA",
    "FedMDFG",
    "FedMGDA",
    "FedNova",
    "FedProx",
    "FedSGD",
    "FedYogi",
    "Federation",
    "History",
    "InputError",
    "Keep",
    "Local",
    "Needs",
    "Objective",
    "Personal",
    "PropFair",
    "Replies",
    "RunHistory",
    "Scaffold",
    "ServerOptimiser",
    "ServerStep",
    "Shown",
    "Strategy",
    "__version__",
    "compare",
    "fairness",
    "load_history",
    "param",
    "parse",
    "register",
    "tune",
]


def __getattr__(name: str) -> "Any":
    if name == "datasets":  # apps that `fedmaba flower new` wrote before 0.2 import it from here
        return importlib.import_module("fedmaba.data.datasets")
    if name in _HOME:
        return getattr(importlib.import_module(f"fedmaba.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fedmaba' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
