"""fedmaba: fair federated learning by multi-armed-bandit allocation, and its rivals.

Names are imported when first used: `import fedmaba` is quick and needs no torch.
"""

import importlib  # nothing else: `python -m fedmaba` would look for it in the working folder first

from fedmaba.results import registry  # which imports nothing

__version__ = "0.2.0"

# Type checkers read `__init__.pyi`, which `tools/reference.py` makes from this list.
_NAMES = {
    "calls": "compare tune",
    "data.dataset": "Dataset",
    "data.federation": "Federation",
    "errors": "InputError",
    "results.history": "History",
    "results.loading": "load_history",
    "results.metrics": "Fairness fairness",
    "results.run_history": "RunHistory",
    "selection.base": "Present Selection",
    "strategies": "AFL APFL GIFAIR MIFA NNM QFFL RFA TERM AAggFF AdaFed Alone CClip DeltaFL Ditto "
    "Eagle FairFed FedAdam FedALA FedAvg FedAvgM FedBABU FedDGGA FedDyn FedEBA FedEBAPlus FedExP "
    "FedFV FedGini FedLF FedMABA FedMDFG FedMGDA FedNova FedNTD FedPer FedProx FedRep FedSGD "
    "FedVARP FedYogi Krum LGFedAvg MaxFL Median Moon MultiKrum PerFedAvg PFedMe PropFair Scaffold "
    "ScaffPD Trimmed parse register",
    "strategies.base": "Combine Decision Guide Keep Local Needs Objective Personal Replies Second "
    "ServerStep Shown Strategy param",
    "strategies.server_optimisers": "ServerOptimiser",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = ["__version__", *sorted(_HOME)]


# How rooms above results serve it, which names none of them.
registry.views = lambda: importlib.import_module("fedmaba.report.history_views")
registry.reader = lambda: importlib.import_module("fedmaba.experiment.histories")


def __getattr__(name: str) -> object:
    if name == "datasets":  # apps that `fedmaba flower new` wrote before 0.2 import it from here
        return importlib.import_module("fedmaba.data.datasets")
    if name in _HOME:
        return getattr(importlib.import_module(f"fedmaba.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fedmaba' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
