"""One description of an experiment: command line, TOML and Python say the same."""

import copy
import inspect
import re
import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from fedmaba import cli
from fedmaba.cli import running
from fedmaba.errors import InputError
from fedmaba.experiment import experiment_file
from fedmaba.experiment.config import DP, Experiment, build, options, set_key
from fedmaba.experiment.experiment_file import dump

quick = settings(
    max_examples=30, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
KEYS = {key.name: key for key in options()}
# a value other than the default for each key, as one would type it
TYPED = {
    "seeds": ("4,7", [4, 7]),
    "model": ("cnn", "cnn"),
    "init": ("first.safetensors", "first.safetensors"),
    "batchnorm": ("group", "group"),
    "data.name": ("cifar10", "cifar10"),
    "data.dir": ("some/where", "some/where"),
    "data.partition": ("dirichlet:0.3", "dirichlet:0.3"),
    "data.clients": ("30", 30),
    "data.label": ("ill", "ill"),
    "data.client": ("hospital", "hospital"),
    "data.group": ("sex", "sex"),
    "data.split": ("fold", "fold"),
    "data.drop": ("name,street", ["name", "street"]),
    "data.categorical": ("kind", ["kind"]),
    "data.feature": ("kind", ["kind"]),
    "data.together": ("patient", "patient"),
    "data.text": ("remark", "remark"),
    "data.tokeniser": ("folder", "folder"),
    "data.tokens": ("64", 64),
    "data.missing": ("client-median", "client-median"),
    "data.standardise": ("no", "no"),
    "data.min_examples": ("5", 5),
    "data.resplit": ("no", "no"),
    "data.test": ("local", "local"),
    "data.task": ("regress", "regress"),
    "data.validation": ("10%", "10%"),
    "data.normalise": ("standard", "standard"),
    "train.rounds": ("7", 7),
    "train.participants": ("5", 5),
    "train.epochs": ("2", 2),
    "train.steps": ("9", 9),
    "train.minibatch": ("8", 8),
    "train.lr": ("0.02", 0.02),
    "train.lr_decay": ("1", 1.0),
    "train.momentum": ("0.9", 0.9),
    "train.weight_decay": ("1e-4", 1e-4),
    "train.schedule": ("warmup:5,cosine", "warmup:5,cosine"),
    "train.step_schedule": ("cosine", "cosine"),
    "train.optimiser": ("adamw", "adamw"),
    "train.beta1": ("0.8", 0.8),
    "train.beta2": ("0.99", 0.99),
    "train.epsilon": ("1e-6", 1e-6),
    "train.clip": ("2", 2.0),
    "train.augment": ("flip,crop:4", "flip,crop:4"),
    "train.own_layers": ("last", "last"),
    "attack.does": ("loss=x3", "loss=x3"),
    "attack.share": ("20%", "20%"),
    "dp": ("epsilon=8,clip=2", DP(epsilon=8, clip=2)),
    "server.lr": ("0.5", 0.5),
    "server.momentum": ("0.3", 0.3),
    "server.deploy": ("ema:0.9", "ema:0.9"),
    "eval.every": ("3", 3),
    "eval.finetune": ("2", 2),
    "turnout.available": ("p=0.2..0.9,by=size", "p=0.2..0.9,by=size"),
    "turnout.select": ("power-of-choice:d=8", "power-of-choice:d=8"),
    "turnout.dropout": ("10%", "10%"),
    "turnout.speed": ("lognormal:0.5", "lognormal:0.5"),
    "turnout.bandwidth": ("2", "2"),
    "turnout.deadline": ("60s", "60s"),
    "turnout.unseen": ("20%", "20%"),
    "turnout.sums": ("secure", "secure"),
    "eval.share": ("0.1", 0.1),
    "eval.metric": ("auc", "auc"),
    "machine.device": ("cpu", "cpu"),
    "machine.dtype": ("float64", "float64"),
    "machine.threads": ("1", 1),
    "machine.chunk": ("4", 4),
    "save.out": ("there", "there"),
    "save.every": ("5", 5),
    "save.seconds": ("9.5", 9.5),
}


ADAM = ("train.optimiser", "--optimiser", "adam")
WITH = {"attack.share": ("attack.does", "--attack", "loss=x3")}
TABLE = ("data.name", "--data", "mine.csv")
COLUMNS = (
    "label",
    "client",
    "group",
    "split",
    "drop",
    "categorical",
    "feature",
    "together",
    "missing",
    "standardise",
)
WITH["turnout.deadline"] = ("turnout.speed", "--speed", "9")
WITH |= dict.fromkeys((f"data.{key}" for key in (*COLUMNS, "text", "tokeniser", "tokens")), TABLE)
WITH |= dict.fromkeys(("train.beta1", "train.beta2", "train.epsilon"), ADAM)


def reach(experiment: Experiment, name: str) -> object:
    value: object = experiment
    for part in name.split("."):
        value = getattr(value, part)
    return value


# --- every option, everywhere ------------------------------------------------------------------


def test_every_option_is_put_to_the_test():
    assert set(TYPED) == set(KEYS)
    assert len({key.flag for key in KEYS.values()}) == len(KEYS)
    assert len({key.argument for key in KEYS.values()}) == len(KEYS)
    assert all(key.text for key in KEYS.values())


def caught(monkeypatch, *words: str) -> Experiment:
    """The experiment that a command line asks for, without running it."""
    seen = []
    monkeypatch.setattr(running, "_run", lambda asked, *rest: seen.extend(asked))
    monkeypatch.setattr("sys.argv", ["fedmaba", *words])
    with pytest.raises(SystemExit) as done:
        cli.main()
    assert not done.value.code
    (asked,) = seen
    return asked


@pytest.mark.parametrize("name", KEYS)
def test_an_option_is_a_flag_a_key_an_override_and_a_keyword(name, monkeypatch, tmp_path):
    typed, value = TYPED[name]
    key = KEYS[name]
    assert reach(build({"strategies": ["fedavg"]}), name) == key.default != value
    base: dict = {"strategies": ["fedavg"]}
    words = ["compare", "fedavg"]
    if name in WITH:  # it is refused by itself
        other, flag, text = WITH[name]
        set_key(base, other, text)
        words += [flag, text]
    by_flag = caught(monkeypatch, *words, key.flag, typed)
    by_set = caught(monkeypatch, *words, "--set", f"{name}={typed}")
    tree = copy.deepcopy(base)
    set_key(tree, name, value)
    file = tmp_path / "experiment.toml"
    file.write_text(dump(build(tree)))
    by_file = caught(monkeypatch, "run", str(file))
    assert by_flag == by_set == by_file == build(tree)
    assert reach(by_flag, name) == value
    # a flag of `run` beats the file, an override beats both
    file.write_text(dump(build(base)))
    assert caught(monkeypatch, "run", str(file), key.flag, typed) == by_flag
    assert key.argument in inspect.signature(running.compare).parameters
    assert key.argument in inspect.signature(running.run).parameters


def test_an_override_beats_a_flag_and_a_flag_beats_the_file(monkeypatch, tmp_path):
    file = tmp_path / "e.toml"
    file.write_text('strategies = ["fedavg"]\n[train]\nlr = 0.3\nrounds = 9\nepochs = 4\n')
    words = ["run", str(file), "--lr", "0.2", "--rounds", "8", "--set", "train.lr=0.1"]
    train = caught(monkeypatch, *words).train
    assert (train.lr, train.rounds, train.epochs) == (0.1, 8, 4)


def test_help_names_every_flag_with_its_default(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fedmaba", "compare", "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        cli.main()
    shown = " ".join(capsys.readouterr().out.split())
    for key in KEYS.values():
        assert key.flag in shown
        if key.default is not None:
            assert f"[{key.default}]" in shown


@pytest.mark.parametrize(
    "words",
    [("--out", "2024"), ("--out", "1e3"), ("--out", "true"), ("--data-dir", "7"), ("--out", "007")],
)
def test_a_name_that_looks_like_a_number_is_still_a_name(words, monkeypatch):
    asked = caught(monkeypatch, "compare", "fedavg", *words)
    assert words[1] in (asked.save.out, asked.data.dir)


# --- files -------------------------------------------------------------------------------------

word = some.text(
    some.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=12
)
count = some.integers(1, 50)
share = some.floats(0, 0.99)
positive = some.floats(1e-9, 1e9)
TREES = some.fixed_dictionaries(
    {"strategies": some.lists(word, min_size=1, max_size=3), "model": word},
    optional={
        "seeds": some.one_of(count, some.lists(count, min_size=1, unique=True)),
        "data": some.fixed_dictionaries({"name": word, "validation": some.one_of(word, share)}),
        "train": some.fixed_dictionaries({"participants": some.just("all"), "lr": positive}),
        "save": some.fixed_dictionaries({"out": word, "seconds": some.just(float("inf"))}),
    },
)


@quick
@given(TREES)
def test_a_file_reads_back_as_the_same_experiment(tree):
    experiment = build(tree)
    text = dump(experiment)
    again = build(tomllib.loads(text))
    assert again == experiment
    assert dump(again) == text


def test_nothing_but_the_strategies_must_be_said():
    experiment = build({"strategies": "fedavg"})
    assert experiment.strategies == ["fedavg"]
    assert experiment.seed_list() == [0, 1, 2]
    assert build({"strategies": ["fedavg"], "seeds": [5, 2]}).seed_list() == [5, 2]
    assert build(tomllib.loads(dump(experiment))) == experiment


def test_a_bad_file_is_one_line(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        experiment_file.read_toml(tmp_path / "none.toml")
    with pytest.raises(InputError, match="directory"):
        experiment_file.read_toml(tmp_path)
    file = tmp_path / "bad.toml"
    for content in (b"strategies = [", b"\xff\xfe", b"a = 1\na = 2\n", b"\x00"):
        file.write_bytes(content)
        with pytest.raises(InputError, match="is not TOML") as found:
            experiment_file.read_toml(file)
        assert "\n" not in str(found.value)


# --- errors ------------------------------------------------------------------------------------


def refusal(tree: dict, source: str = "") -> str:
    with pytest.raises(InputError) as found:
        build({"strategies": ["fedavg"], **tree}, source)
    text = str(found.value)
    assert "\n" not in text
    assert "pydantic" not in text
    return text


def test_every_error_is_in_the_one_line():
    text = refusal(
        {"train": {"lr": -1, "rounds": 0, "epoch": 3}, "data": {"clients": "many"}, "seeds": []},
        "e.toml",
    )
    assert text.startswith("e.toml: ")
    assert text.count("; ") == 4
    for part in ("train.lr=-1", "train.rounds=0", "did you mean 'train.epochs'", "data.clients="):
        assert part in text
    assert "seeds=[]" in text


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("train.epoch", "train.epochs"),
        ("trian", "train"),
    ],
)
def test_an_unknown_key_gets_the_nearest_known_one(name, near):
    tree: dict = {}
    set_key(tree, name, 3)
    assert f"unknown key {name!r}: did you mean {near!r}" in refusal(tree)


@pytest.mark.parametrize("name", ["train.interval", "train.list[0]", "interval", "literal"])
def test_an_unknown_key_is_named_as_it_was_written(name):
    tree: dict = {}
    set_key(tree, name, 3)
    assert f"unknown key {name!r}" in refusal(tree)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("train.lr", 0, "greater than 0"),
        ("train.lr", float("inf"), "finite"),
        ("train.lr_decay", 1.5, "less than or equal to 1"),
        ("train.momentum", 1, "less than 1"),
        ("train.clip", 0, "greater than 0"),
        ("train.beta2", 1, "less than 1"),
        ("train.epsilon", 0, "greater than 0"),
        ("train.minibatch", 0, "greater than or equal to 1"),
        ("train.optimiser", "adagrad", "it should be 'sgd', 'nesterov', 'adam' or 'adamw'"),
        ("train.participants", 0, "'all' or a number of at least 1"),
        ("train.rounds", 2.5, "train.rounds=2.5"),
        ("train", 3, "write [train]"),
        ("data.test", "both", "'official' or 'local'"),
        ("eval.share", 0, "greater than 0"),
        ("eval.share", 1.1, "less than or equal to 1"),
        ("save.every", 0, "save.every=0"),
        ("seeds", 0, "at least one seed"),
        ("seeds", [1, 1], "none twice"),
        ("seeds", [-1], "each from 0"),
    ],
)
def test_a_value_out_of_range_is_named_with_the_rule(name, value, said):
    tree: dict = {}
    set_key(tree, name, value)
    text = refusal(tree)
    assert said in text
    assert text.startswith(name)


@pytest.mark.parametrize("many", [10**15, "0-999999999999999", "0-9999,10000", "0-9998," * 10**4])
def test_an_absurd_number_of_seeds_is_refused_at_once(many):
    text = refusal({"seeds": many})
    assert text.startswith("seeds=")
    assert "at most 10000" in text
    assert len(text) < 200


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3", 3), (" 3 ", 3), ("2,", [2]), ("0,2", [0, 2]), ("7, 0,", [7, 0]), ("3-5", [3, 4, 5]),
        ("4-4", [4]), ("9,0-2, 5-6,", [9, 0, 1, 2, 5, 6]), (f"{2**63 - 1},", [2**63 - 1]),
    ],
)  # fmt: skip
def test_seeds_as_text_are_how_many_or_which(text, found):
    assert build({"strategies": ["fedavg"], "seeds": text}).seeds == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "write a count (3), a range (3-9), a list (0,2)"),
        (",", "write a count"), ("1,,2", "write a count"), ("3-", "write a count"),
        ("-3", "write a count"), ("1-2-3", "write a count"), ("1.5", "write a count"),
        ("[1,2]", "write a count"), ("\u0663", "write a count"), ("9" * 5000, "write a count"),
        ("0", "at least one seed"), ("10001", "at most 10000"), (f"{2**63},", "2**63 - 1"),
        ("1-3,2", "none twice"), ("0,9-3", "9-3 is no range: write 3-9"),
    ],
)  # fmt: skip
def test_seeds_that_are_neither_are_one_line(text, said):
    with pytest.raises(InputError) as error:
        build({"strategies": ["fedavg"], "seeds": text})
    assert re.fullmatch(r"seeds=[^\n]{1,200}", str(error.value))
    assert said in str(error.value)


def test_a_key_below_a_value_is_refused():
    tree = {"train": {"lr": 0.1}}
    with pytest.raises(InputError, match="lr is not a section"):
        set_key(tree, "train.lr.fast", 1)


def test_an_experiment_cannot_be_changed_in_place():
    experiment = build({"strategies": ["fedavg"]})
    with pytest.raises(ValueError, match="frozen"):
        experiment.train.lr = 3.0
