"""The options that `fedmaba.compare` takes as keywords, typed for type checkers.

Made from experiment/config.py by `tools/reference.py`. No torch.
"""

from __future__ import annotations

from typing import Literal, TypedDict


class Options(TypedDict, total=False):
    """Every option of an experiment that is no parameter of `compare` by itself."""

    seeds: int | list[int] | str
    batchnorm: Literal["refuse", "group", "local", "average", "frozen"]
    data_dir: str | None
    partition: str | None
    clients: int | None
    test: Literal["official", "local"] | None
    task: Literal["classify", "regress", "multilabel", "sequence"] | None
    validation: str | float
    normalise: Literal["scale", "standard", "cifar10"] | None
    label: str | None
    client: str | None
    group: str | None
    split: str | None
    drop: list[str] | str | None
    categorical: list[str] | str | None
    missing: Literal["median", "client-median", "refuse"] | None
    standardise: Literal["yes", "no"] | None
    min_examples: int | None
    resplit: Literal["yes", "no"] | None
    rounds: int
    participants: int | Literal["all"]
    epochs: int
    steps: int | None
    minibatch: int
    lr: float
    lr_decay: float
    momentum: float
    weight_decay: float
    schedule: str | None
    step_schedule: str
    optimiser: Literal["sgd", "nesterov", "adam", "adamw"]
    beta1: float
    beta2: float
    epsilon: float
    clip: float | None
    augment: str | None
    attack: str | None
    hostile: str | float
    dp: str | dict[str, float] | None
    server_lr: float
    server_momentum: float
    deploy: str | None
    eval_every: int
    share: float | str
    finetune: int | None
    device: str
    dtype: Literal["float32", "tf32", "bf16", "float64"]
    threads: int | None
    chunk: int | None
    checkpoint_seconds: float
    checkpoint_every: int | None
