"""What an experiment is, as data: one model for the command line, TOML files and Python.

Every key of a TOML file is an option of the command line, and the other way round; each is declared
once, here. Imports nothing heavy, because `fedmaba --help` reads this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedmaba.data.model_folder import folder_of
from fedmaba.errors import InputError, unknown
from fedmaba.simulation.optimiser import Name as OptimiserName

OptionalCount = int | None
MetricName = Literal[
    "accuracy",
    "balanced-accuracy",
    "f1",
    "auc",
    "average-precision",
    "rmse",
    "mae",
    "r2",
    "perplexity",
    "brier",
    "ece",
]
MAX_COUNT = 10**9  # Rounds, clients, steps and the like have this limit.
MAX_SEEDS = 10_000
SEEDS_HELP = "a count (3), a range (3-9), a list (0,2); one single seed needs a trailing comma (2,)"
PRECISION = "float32, tf32, bf16 or float64: tf32 and bf16 are faster on a GPU, but less precise"
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # never part of a name


def option(default: Any, flag: str, text: str, **limits: Any) -> Any:
    """A key of the experiment with its command-line flag and help."""
    return Field(default, description=text, json_schema_extra={"flag": flag}, **limits)


def newer_option(default: Any, flag: str, text: str, **limits: Any) -> Any:
    """A key that version 0.1 did not have.

    With its default value it says nothing, so it is no part of what identifies a run: a run that
    was begun before there was such a key is still the same.
    """
    told: Any = {"flag": flag, "newer": True}
    return Field(default, description=text, json_schema_extra=told, **limits)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: object) -> object:
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, bool):  # Python would take it for 0 or 1
                raise ValueError("no key is true or false: give a number or text")
            if isinstance(one, str) and FORBIDDEN.search(one):
                raise ValueError("it has control characters or broken text: leave them out")
        return value


def named(value: str | None) -> str | None:
    """Refuse a folder without a name: most often a shell variable that was never set."""
    if value is not None and not value.strip():
        raise ValueError("it is empty: name a folder, or leave it out")
    return value


def as_text(value: object) -> object:
    """A share as text, also if it was given as a number."""
    return str(value) if isinstance(value, int | float) else value


def listed(value: object) -> object:
    """Read `a,b` as a list of names."""
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


def fraction(value: object) -> object:
    """Read `5%` as 0.05 and leave anything else as it is."""
    if isinstance(value, str) and value.endswith("%"):
        with suppress(ValueError):
            return float(value[:-1]) / 100
    return value


class Data(Section):
    name: str = option("sample", "--data", "data set, or your own .npz, .csv or .parquet file")
    dir: str | None = option(None, "--data-dir", "folder where the data set's files lie")
    partition: str | None = option(
        None, "--partition", "how the data are split over clients [shards:2, or the file's own]"
    )
    clients: OptionalCount = option(
        None, "--clients", "how many clients [100; sample: 20]", ge=1, le=MAX_COUNT
    )
    test: Literal["official", "local"] | None = option(
        None, "--test", "official test set, or local: a fifth of each client's data"
    )
    task: Literal["classify", "regress", "multilabel", "sequence"] | None = newer_option(
        None,
        "--task",
        "what to predict: classify, regress, multilabel or sequence [as the targets say]",
    )
    validation: str = option(
        "0%", "--validation", "share of each client's training data to keep for validation"
    )
    normalise: Literal["scale", "standard", "cifar10"] | None = newer_option(
        None,
        "--normalise",
        "how pixels become inputs: scale (/ 255), standard (the set's own mean and deviation), "
        "cifar10 (CIFAR-10's) [Fashion-MNIST scale; CIFAR cifar10]",
    )
    label: str | None = newer_option(
        None, "--label", "column of your table to predict [label or y]"
    )
    client: str | None = newer_option(
        None, "--client", "column of your table that names the client of a row [client]"
    )
    group: str | None = newer_option(
        None, "--group", "column of your table with groups of people [group]"
    )
    split: str | None = newer_option(
        None, "--split", "column of your table that says train, validation or test [split]"
    )
    drop: list[str] | None = newer_option(
        None, "--drop", "columns of your table to leave out, as a,b"
    )
    categorical: list[str] | None = newer_option(
        None, "--categorical", "columns of your table whose numbers stand for words, as a,b"
    )
    feature: list[str] | None = newer_option(
        None,
        "--feature",
        "columns of your table that are features, whatever they look like, as a,b",
    )
    together: str | None = newer_option(
        None,
        "--together",
        "column of your table whose equal values stay together, in training or in test",
    )
    text: str | None = newer_option(
        None, "--text", "of your own table: the column of text that --model hf:FOLDER reads"
    )
    tokeniser: str | None = newer_option(
        None, "--tokeniser", "folder of the tokeniser for --text [that of --model hf:FOLDER]"
    )
    tokens: OptionalCount = newer_option(
        None,
        "--tokens",
        "longest text, in tokens; more are cut [what the folder says]",
        ge=1,
        le=MAX_COUNT,
    )
    missing: Literal["median", "client-median", "refuse"] | None = newer_option(
        None,
        "--missing",
        "how gaps in a table are filled: median, client-median (of its training examples) or "
        "refuse [median]",
    )
    standardise: Literal["yes", "no"] | None = newer_option(
        None,
        "--standardise",
        "whether numbers of a table are scaled to mean 0 and deviation 1: yes or no [yes]",
    )
    min_examples: OptionalCount = newer_option(
        None,
        "--min-examples",
        "leave out clients of the data with fewer examples than this [none]",
        ge=1,
        le=MAX_COUNT,
    )
    resplit: Literal["yes", "no"] | None = newer_option(
        None,
        "--resplit",
        "whether each seed divides the data anew [yes; a Federation of Python: no]",
    )

    _named = field_validator("dir")(named)
    _text = field_validator("validation", mode="before")(as_text)
    _listed = field_validator("drop", "categorical", "feature", mode="before")(listed)


class Train(Section):
    rounds: int = option(100, "--rounds", "communication rounds", ge=1, le=MAX_COUNT)
    participants: int | Literal["all"] = option("all", "--participants", "clients per round")
    epochs: int = option(1, "--epochs", "local passes over a client's data", ge=1, le=MAX_COUNT)
    steps: OptionalCount = option(
        None, "--steps", "local steps instead of whole epochs", ge=1, le=MAX_COUNT
    )
    minibatch: int = option(50, "--minibatch", "examples per local step", ge=1, le=MAX_COUNT)
    lr: float = option(0.1, "--lr", "local step size", gt=0, allow_inf_nan=False)
    lr_decay: float = option(
        0.999, "--lr-decay", "factor on the step size after every round", gt=0, le=1
    )
    momentum: float = option(0.0, "--momentum", "momentum of local SGD", ge=0, lt=1)
    weight_decay: float = option(
        0.0, "--weight-decay", "weight decay of local steps", ge=0, allow_inf_nan=False
    )
    schedule: str | None = newer_option(
        None,
        "--schedule",
        "step size over rounds: constant, exponential:F, cosine, warmup:N,... [by --lr-decay]",
    )
    step_schedule: str = newer_option(
        "constant", "--step-schedule", "step size over the steps of a round, in the same words"
    )
    optimiser: OptimiserName = newer_option(
        "sgd", "--optimiser", "local optimiser: sgd, nesterov, adam or adamw"
    )
    beta1: float = newer_option(0.9, "--beta1", "Adam's memory of gradients", ge=0, lt=1)
    beta2: float = newer_option(0.999, "--beta2", "Adam's memory of their squares", ge=0, lt=1)
    epsilon: float = newer_option(
        1e-8, "--epsilon", "added to Adam's divisor", gt=0, allow_inf_nan=False
    )
    clip: float | None = newer_option(
        None, "--clip", "largest norm of a local gradient [any]", gt=0, allow_inf_nan=False
    )
    augment: str | None = newer_option(
        None, "--augment", "random changes to training images: flip, crop:4 or flip,crop:4"
    )
    own_layers: str | None = newer_option(
        None,
        "--own-layers",
        "weights that stay with clients, by their names: last, or fc1.*+fc2.*",
    )

    @field_validator("steps")
    @classmethod
    def _instead(cls, value: int | None, others: ValidationInfo) -> int | None:
        if value is not None and others.data.get("epochs", 1) != 1:
            raise ValueError(f"epochs is {others.data['epochs']}, too: give one of them")
        return value

    @field_validator("participants", mode="wrap")
    @classmethod
    def _positive(cls, value: object, read: Callable[[object], int | str]) -> int | str:
        with suppress(ValueError):
            found = read(value)
            if found == "all" or 1 <= int(found) <= MAX_COUNT:
                return found
        raise ValueError("say 'all' or a number of at least 1")


class Attack(Section):
    does: str | None = option(
        None, "--attack", "what hostile clients do: loss=1e6, loss=x3, labels=flip, update=-1, ..."
    )
    share: str = option(
        "10%", "--hostile", "share of clients that are hostile; only the others are judged"
    )

    _text = field_validator("share", mode="before")(as_text)

    @field_validator("share")  # This is called whenever a value is given, also with its default.
    @classmethod
    def _some_attack(cls, value: str, others: ValidationInfo) -> str:
        if others.data.get("does", "") is None:
            raise ValueError("hostile clients do nothing: say what with --attack, or leave it out")
        return value


class DP(Section):
    """The section [dp]: what clients are promised, see docs/privacy.md."""

    epsilon: float = Field(gt=0)
    delta: float = Field(1e-5, gt=0, lt=1)
    clip: float = Field(1.0, gt=0, allow_inf_nan=False)
    loss: float = Field(3.0, gt=0, allow_inf_nan=False)
    loss_share: float = Field(0.1, gt=0, lt=1)


def pairs_of_text(value: object) -> object:
    """Read `epsilon=8,clip=1` as keys with values."""
    if not isinstance(value, str):
        return value
    found: dict[str, str] = {}
    for part in value.split(","):
        key, equals, text = (word.strip() for word in part.partition("="))
        if not equals or not key or key in found:
            raise ValueError("write each key once with its value, as epsilon=8,delta=1e-5,clip=1.0")
        found[key] = text
    return found


class Server(Section):
    lr: float = option(1.0, "--server-lr", "factor on the server's step", gt=0, allow_inf_nan=False)
    momentum: float = option(
        0.0,
        "--server-momentum",
        "momentum of the server's step [fedavgm, fedadam, fedyogi: their own]",
        ge=0,
        lt=1,
    )
    deploy: str | None = option(
        None,
        "--deploy",
        "model handed out: last, average, poly:K, ema:B, best:accuracy, best:fair "
        "[the strategy's: poly:8, AFL average]",
    )


class Eval(Section):
    every: int = option(
        10, "--eval-every", "rounds between evaluations of all clients", ge=1, le=MAX_COUNT
    )
    share: float = option(
        0.05,
        "--share",
        "share of clients over which 'worst' and 'best' average, as 5%",
        gt=0,
        le=1,
    )

    metric: MetricName | None = newer_option(
        None,
        "--metric",
        "how a client's predictions are scored: accuracy, balanced-accuracy, f1, auc, "
        "average-precision, brier, ece; rmse, mae, r2; perplexity [as the task says]",
    )

    finetune: OptionalCount = newer_option(
        None,
        "--finetune",
        "also evaluate each client after so many own local steps from the deployed model",
        ge=1,
        le=MAX_COUNT,
    )

    _fraction = field_validator("share", mode="before")(fraction)


class Machine(Section):
    device: str = option("auto", "--device", "auto, cpu, cuda or cuda:N")
    dtype: Literal["float32", "tf32", "bf16", "float64"] = option("float32", "--dtype", PRECISION)
    threads: OptionalCount = option(None, "--threads", "CPU cores to use [all]", ge=1, le=1024)
    chunk: OptionalCount = option(
        None, "--chunk", "clients trained at once [what fits]", ge=1, le=MAX_COUNT
    )

    @field_validator("device")
    @classmethod
    def _device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,4})?", value):
            raise ValueError("say auto, cpu, cuda or cuda:N")
        return value


class Save(Section):
    out: str | None = option(None, "--out", "run folder to write [runs/NAME]")
    seconds: float = option(60.0, "--checkpoint-seconds", "seconds between checkpoints", gt=0)
    every: OptionalCount = option(
        None, "--checkpoint-every", "also save after every so many rounds", ge=1, le=MAX_COUNT
    )

    _named = field_validator("out")(named)


class Turnout(Section):
    available: str | None = newer_option(
        None,
        "--available",
        "who is there in a round: p=0.2..0.9, cyclic:24, each with ,by=size, label or group; or a "
        ".csv of client, from, to [always]",
    )
    select: str | None = newer_option(
        None,
        "--select",
        "whom the server asks: uniform, size, power-of-choice:d=20, ucb, fair or "
        "package.module.Class [uniform]",
    )
    dropout: str | None = newer_option(
        None, "--dropout", "share of the asked clients whose answer never comes, as 10% [0%]"
    )
    speed: str | None = newer_option(
        None,
        "--speed",
        "training examples a second: 100, lognormal:0.5, lognormal:0.5,median=100 or a .csv",
    )
    bandwidth: str | None = newer_option(
        None, "--bandwidth", "megabytes a second of each client, each way, in the same words"
    )
    deadline: str | None = newer_option(
        None, "--deadline", "how long the server waits for answers: 60s, 2m or 1h [for all]"
    )

    unseen: str | None = newer_option(
        None,
        "--unseen",
        "share, or number, of the clients that take no part and are evaluated apart, as 20%",
    )
    sums: Literal["plain", "secure"] | None = newer_option(
        None, "--sums", "whose bytes are counted: plain or secure, where masks hide changes [plain]"
    )

    _text = field_validator("dropout", "speed", "bandwidth", "deadline", "unseen", mode="before")(
        as_text
    )


def usual_model(data: str) -> str:
    """The model that is used where none is named: one that fits the data set of this name."""
    return "lstm" if data.partition(":")[0] in ("shakespeare", "sotu") else "mlp"


class Experiment(Section):
    """Everything that decides the numbers, and where they go."""

    strategies: list[str] = Field(min_length=1, description="name:key=value,... each")
    seeds: int | list[int] = option(3, "--seeds", SEEDS_HELP)
    model: str = option(
        "mlp",
        "--model",
        "mlp (shakespeare, sotu: lstm), cnn, resnet8, ..., hf:FOLDER or package.module:factory",
    )
    init: str | None = newer_option(
        None, "--init", "weights to start from: a .safetensors file [drawn by the seed]"
    )
    batchnorm: Literal["refuse", "group", "local", "average", "frozen"] = newer_option(
        "refuse",
        "--batchnorm",
        "what becomes of BatchNorm in a model: refuse, group (GroupNorm), local (FedBN), average "
        "or frozen",
    )
    data: Data = Data()
    train: Train = Train()
    attack: Attack = Attack()
    dp: DP | None = newer_option(
        None,
        "--dp",
        "privacy promised to clients: epsilon=8,delta=1e-5,clip=1.0,loss=3,loss_share=0.1",
    )
    server: Server = Server()
    turnout: Turnout = Turnout()
    eval: Eval = Eval()
    machine: Machine = Machine()
    save: Save = Save()

    @field_validator("init")
    @classmethod
    def _file(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("it is empty: name a .safetensors file, or leave it out")
        return value

    @model_validator(mode="before")
    @classmethod
    def _older(cls, tree: Any) -> Any:
        """Accept files of earlier versions, which named a share even without an attack."""
        newer = {key.path[0] for key in options() if key.newer}
        newer -= {key.path[0] for key in options() if not key.newer}
        whole = cls.model_fields.keys() - newer <= tree.keys()
        if tree.get("attack") == {"share": "10%"} and whole:
            return {key: value for key, value in tree.items() if key != "attack"}
        return tree

    @model_validator(mode="before")
    @classmethod
    def _fitting(cls, tree: Any) -> Any:
        """Where no model or tokeniser is named, take one that fits."""
        data, model = tree.get("data"), tree.get("model")
        if not isinstance(data, Mapping):
            return tree
        if "model" not in tree and isinstance(name := data.get("name"), str):
            return {**tree, "model": usual_model(name)}
        folder = folder_of(model) if isinstance(model, str) else None
        if folder and data.get("text") and not data.get("tokeniser"):
            return {**tree, "data": {**data, "tokeniser": folder}}
        return tree

    _pairs = field_validator("dp", mode="before")(pairs_of_text)

    @field_validator("dp")
    @classmethod
    def _promise(cls, value: DP | None) -> DP | None:
        """Without a limit nothing is promised: such a run is one without dp."""
        return None if value is not None and value.epsilon == float("inf") else value

    @field_validator("strategies", mode="before")
    @classmethod
    def _one(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds(cls, value: object) -> object:
        return _parse_seed_list(value) if isinstance(value, str) else value

    @field_validator("seeds")
    @classmethod
    def _some(cls, value: int | list[int]) -> int | list[int]:
        listed = value if isinstance(value, list) else range(value)
        few = 0 < (len(value) if isinstance(value, list) else value) <= MAX_SEEDS
        if not few or not 0 <= min(listed) <= max(listed) < 2**63 or len(set(listed)) < len(listed):
            raise ValueError(
                f"give at least one seed and at most {MAX_SEEDS}, each from 0 to 2**63 - 1, "
                "none twice"
            )
        return value

    def seed_list(self) -> list[int]:
        return self.seeds if isinstance(self.seeds, list) else list(range(self.seeds))


def _parse_seed_list(text: str) -> int | list[int]:
    """Read `3` as a count, and `0,2`, `3-9` or `2,` as the seeds themselves."""
    found: list[int] = []
    for part in text.strip().removesuffix(",").split(","):
        ends = re.fullmatch(r"([0-9]{1,99})(-([0-9]{1,99}))?", part.strip())
        if not ends:
            raise ValueError(f"write {SEEDS_HELP}")
        first, last = int(ends[1]), int(ends[3] or ends[1])
        if last < first:
            raise ValueError(f"{part.strip()} is no range: write {last}-{first}")
        if len(found) + last - first >= MAX_SEEDS:
            raise ValueError(f"these are too many: name at most {MAX_SEEDS}")
        found += range(first, last + 1)
    return found if re.search("[,-]", text) else found[0]


class Key(NamedTuple):
    """One option of an experiment."""

    path: tuple[str, ...]  # ("train", "lr")
    flag: str  #             "--lr"
    text: str
    default: object
    newer: bool = False  #   than version 0.1

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def argument(self) -> str:
        """The option as a Python keyword: lr, data, eval_every."""
        return self.flag.removeprefix("--").replace("-", "_")


@cache  # Every experiment that is read or compared asks for these.
def options(section: type[BaseModel] = Experiment, path: tuple[str, ...] = ()) -> tuple[Key, ...]:
    """Every option, in order."""
    found: list[Key] = []
    for name, f in section.model_fields.items():
        if isinstance(f.default, Section):
            found += options(type(f.default), (*path, name))
        elif isinstance(f.json_schema_extra, dict):
            flag, newer = str(f.json_schema_extra["flag"]), "newer" in f.json_schema_extra
            found.append(Key((*path, name), flag, f.description or "", f.default, newer))
    return tuple(found)


def build(tree: Mapping[str, Any], source: str = "") -> Experiment:
    """Check a tree of keys and return its experiment; all errors are one line."""
    try:
        return Experiment.model_validate(dict(tree))
    except ValidationError as error:
        found = "; ".join(_explain(e) for e in error.errors())
        raise InputError(f"{source}: {found}" if source else found) from None


def value_at(tree: object, name: str, usual: object = None) -> Any:
    """The value of `section.key` in a tree, or what is usual where it is not given."""
    for part in name.split("."):
        tree = tree.get(part, usual) if isinstance(tree, Mapping) else None
    return tree


def set_key(tree: dict[str, Any], name: str, value: object) -> None:
    """Set `section.key` in a tree."""
    *sections, last = name.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise InputError(f"{name}: {section} is not a section")
    tree[last] = value


def _explain(error: Any) -> str:
    """One pydantic error as value, rule, remedy."""
    section: type[BaseModel] = Experiment
    where: list[str] = []
    # Only the path up to the key is shown, because pydantic adds the type that it tried.
    for part in map(str, error["loc"]):
        where.append(part)
        inner = _section(section, part)
        if inner is None:
            break
        section = inner
    name, given = ".".join(where), _typed(error["input"])
    if error["type"] == "extra_forbidden":
        same = [key.name for key in options() if where[-1] in (key.path[-1], key.argument)]
        if same:  # the key belongs to another section
            return f"unknown key {name!r}: did you mean {' or '.join(map(repr, same))}?"
        head = "".join(f"{part}." for part in where[:-1])
        return str(unknown("key", where[-1], section.model_fields, head))
    if section is DP and error["type"] == "missing":
        return f"{name} is missing: give a number, as {where[-1]}=8"
    if error["type"] in ("missing", "too_short"):
        return f"{name} is missing: name at least one strategy"
    if error["type"] == "model_type":
        return f"{name}={given}: {name} is a section: write [{name}] with keys below it"
    rule = str(error["msg"]).removeprefix("Value error, ").replace("Input should", "it should")
    return f"{name}={given}: {rule}"


def _section(owner: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The section that a key of another one holds; None where it holds a value."""
    if key not in owner.model_fields:
        return None
    found = owner.model_fields[key]
    kinds = [type(found.default), *get_args(found.annotation)]
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Section)), None)


def _typed(value: object) -> str:
    """A value as the user typed it: a number has no quotes, even if it came as text."""
    text = repr(value)
    if isinstance(value, str):
        with suppress(ValueError):
            float(value)
            text = value
    return text if len(text) < 100 else f"{text[:80]}..."
