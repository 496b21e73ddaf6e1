"""The options that `fedmaba.compare` takes as keywords, typed for type checkers.

Made from experiment/config.py by `tools/reference.py`. No torch.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict, TypeVar

T = TypeVar("T")
OneOrMore: TypeAlias = T | list[T]  # several values: an experiment for each


class Options(TypedDict, total=False):
    """Every option of an experiment that is no parameter of `compare` by itself."""

    seeds: int | list[int] | str
    batchnorm: OneOrMore[Literal["refuse", "group", "local", "average", "frozen"]]
    data_dir: str | None
    partition: OneOrMore[str | None]
    clients: OneOrMore[int | None]
    test: OneOrMore[Literal["official", "local"] | None]
    task: OneOrMore[Literal["classify", "regress", "multilabel", "sequence"] | None]
    validation: OneOrMore[str | float]
    normalise: OneOrMore[Literal["scale", "standard", "cifar10"] | None]
    label: OneOrMore[str | None]
    client: OneOrMore[str | None]
    group: OneOrMore[str | None]
    split: OneOrMore[str | None]
    drop: OneOrMore[list[str] | str | None]
    categorical: OneOrMore[list[str] | str | None]
    feature: OneOrMore[list[str] | str | None]
    together: OneOrMore[str | None]
    text: OneOrMore[str | None]
    tokeniser: OneOrMore[str | None]
    tokens: OneOrMore[int | None]
    missing: OneOrMore[Literal["median", "client-median", "refuse"] | None]
    standardise: OneOrMore[Literal["yes", "no"] | None]
    min_examples: OneOrMore[int | None]
    resplit: OneOrMore[Literal["yes", "no"] | None]
    rounds: OneOrMore[int]
    participants: OneOrMore[int | Literal["all"]]
    epochs: OneOrMore[int]
    steps: OneOrMore[int | None]
    minibatch: OneOrMore[int]
    lr: OneOrMore[float]
    lr_decay: OneOrMore[float]
    momentum: OneOrMore[float]
    weight_decay: OneOrMore[float]
    schedule: OneOrMore[str | None]
    step_schedule: OneOrMore[str]
    optimiser: OneOrMore[Literal["sgd", "nesterov", "adam", "adamw"]]
    beta1: OneOrMore[float]
    beta2: OneOrMore[float]
    epsilon: OneOrMore[float]
    clip: OneOrMore[float | None]
    augment: OneOrMore[str | None]
    own_layers: OneOrMore[str | None]
    attack: OneOrMore[str | None]
    hostile: OneOrMore[str | float]
    dp: OneOrMore[str | dict[str, float] | None]
    server_lr: OneOrMore[float]
    server_momentum: OneOrMore[float]
    deploy: OneOrMore[str | None]
    available: OneOrMore[str | None]
    select: OneOrMore[str | None]
    dropout: OneOrMore[str | float | None]
    speed: OneOrMore[str | float | None]
    bandwidth: OneOrMore[str | float | None]
    deadline: OneOrMore[str | float | None]
    unseen: OneOrMore[str | float | None]
    sums: OneOrMore[Literal["plain", "secure"] | None]
    eval_every: OneOrMore[int]
    share: float | str
    finetune: OneOrMore[int | None]
    device: OneOrMore[str]
    dtype: OneOrMore[Literal["float32", "tf32", "bf16", "float64"]]
    threads: int | None
    chunk: OneOrMore[int | None]
    checkpoint_seconds: float
    checkpoint_every: int | None
