"""The options that `fedmaba.compare` takes as keywords, typed for type checkers.

Made from experiment/config.py by `tools/reference.py`. No torch.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict, TypeVar

Value = TypeVar("Value")
Values: TypeAlias = Value | list[Value]  # one, or several to be tried


class Options(TypedDict, total=False):
    """Every option of an experiment that is no parameter of `compare` by itself."""

    seeds: int | list[int] | str
    batchnorm: Values[Literal["refuse", "group", "local", "average", "frozen"]]
    data_dir: str | None
    partition: Values[str] | None
    clients: Values[int] | None
    test: Values[Literal["official", "local"]] | None
    task: Values[Literal["classify", "regress", "multilabel", "sequence"]] | None
    validation: Values[str | float]
    normalise: Values[Literal["scale", "standard", "cifar10"]] | None
    label: Values[str] | None
    client: Values[str] | None
    group: Values[str] | None
    split: Values[str] | None
    drop: Values[list[str] | str] | None
    categorical: Values[list[str] | str] | None
    missing: Values[Literal["median", "client-median", "refuse"]] | None
    standardise: Values[Literal["yes", "no"]] | None
    min_examples: Values[int] | None
    resplit: Values[Literal["yes", "no"]] | None
    rounds: Values[int]
    participants: Values[int | Literal["all"]]
    epochs: Values[int]
    steps: Values[int] | None
    minibatch: Values[int]
    lr: Values[float]
    lr_decay: Values[float]
    momentum: Values[float]
    weight_decay: Values[float]
    schedule: Values[str] | None
    step_schedule: Values[str]
    optimiser: Values[Literal["sgd", "nesterov", "adam", "adamw"]]
    beta1: Values[float]
    beta2: Values[float]
    epsilon: Values[float]
    clip: Values[float] | None
    augment: Values[str] | None
    attack: Values[str] | None
    hostile: Values[str | float]
    server_lr: Values[float]
    server_momentum: Values[float]
    deploy: Values[str] | None
    eval_every: Values[int]
    share: float | str
    finetune: Values[int] | None
    device: Values[str]
    dtype: Values[Literal["float32", "tf32", "bf16", "float64"]]
    threads: int | None
    chunk: Values[int] | None
    checkpoint_seconds: float
    checkpoint_every: int | None
