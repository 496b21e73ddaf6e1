"""Generated configurations: each runs, or is refused with one line that names every wrong key.

Whether a value is right is said here once more, by a table, and held against what happens. Half go
through the command line, half through a file; some files are noise.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from faults.common import Say, Tally, call, inside, make_data, one_line, progress, scratch
from faults.formats import mutate
from fedmaba.experiment import config, experiment_file

HUGE = 10**30
# key: values that are right, values that are wrong
TABLE: dict[str, tuple[list[object], list[object]]] = {
    "seeds": (
        [1, 2, [3], [0, 7], "4,5", "3-5", "0,7-8", "2,"],
        [0, -1, [], [1, 1], [-2], HUGE, [HUGE], 1.5, "x", 10_001, "5-3", "0-10000", "1-2,2"],
    ),
    "model": (["softmax"], ["mlpp", "", ":", ":x", "a:", ".x:y", "no.where:make", "os:nothing", 3]),
    "data.partition": (
        ["given", "iid", "shards:2", "dirichlet:0.5", "sizes:1"],
        ["", "given:2", "shard:2", "shards:0", "shards:x", "dirichlet:-1", "dirichlet:nan"],
    ),
    "data.validation": (["0%", "10%", 0, 0.1], ["120%", "-1%", "x", "nan", 1.5, ""]),
    "data.test": (["local"], ["officiall", "", 3, "LOCAL"]),
    "train.rounds": ([1, 2], [0, -3, 1.5, "many", HUGE, "nan"]),
    "train.participants": (["all", 1, 5], [0, -1, 7, "few", 1.5, HUGE]),
    "train.epochs": ([1, 2], [0, -1, "x", HUGE, 0.5]),
    "train.steps": ([1, 3], [0, -1, "x", HUGE]),
    "train.minibatch": ([1, 5, 1000, 10**9], [0, -5, "x", HUGE, 2.5]),
    "train.lr": ([0.1, 1e-12, 1, 1e30], [0, -1, "x", "nan", "inf"]),
    "train.lr_decay": ([1, 0.5, 1e-300], [0, 1.1, -1, "nan", "x"]),
    "train.momentum": ([0, 0.9], [1, -0.1, "nan", "x", "inf"]),
    "train.weight_decay": ([0, 0.01], [-1, "nan", "inf", "x"]),
    "train.schedule": ([], ["", "linear", "warmup:0", "cosine:1", 3]),
    "train.step_schedule": (["exponential:0.9"], ["", "exponential", "warmup:x", 3]),
    "train.optimiser": (["sgd"], ["", "adagrad", 3, "nan"]),
    "train.beta1": ([0.9], [1, -0.1, "nan", "x"]),
    "train.beta2": ([0.999], [1, -0.1, "nan", "x"]),
    "train.epsilon": ([1e-8], [0, -1, "nan", "inf", "x"]),
    "train.clip": ([0.5, 3], [0, -1, "nan", "inf", "x"]),
    "train.augment": ([], ["", "turn", "crop:0", "flip,flip", 3]),
    "server.lr": ([1, 0.5, 1e-9], [0, -1, "inf", "nan", "x"]),
    "server.momentum": ([0, 0.9], [1, -0.1, "nan", "x"]),
    "server.deploy": (
        ["last", "average", "poly:8", "poly:0", "ema:0.9"],
        ["best", "poly", "poly:-1", "ema:1", "ema:0", "ema:x", "last:3", ""],
    ),
    "eval.every": ([1, 2, 10**9], [0, -1, "x", HUGE]),
    "eval.share": ([0.05, 1, 0.5], [0, 1.5, -1, "nan", "x"]),
    "machine.device": (["cpu", "auto"], ["gpu", "cuda:x", "meta", "", "cpu:0:0", "cuda:-1"]),
    "machine.dtype": (["float32", "float64"], ["float16", "", 32]),
    "machine.threads": ([1, 2, 64], [0, -1, "x", HUGE, 10**6]),
    "machine.chunk": ([1, 3, 10**9], [0, -1, "x", HUGE]),
    "save.every": ([1, 50, 10**9], [0, -1, "x", HUGE]),
    "save.seconds": ([1e-9, 60, "inf"], [0, -1, "nan", "x"]),
    "train.learning_rate": ([], [0.1]),
    "trian.lr": ([], [0.1]),
    "colour": ([], ["red"]),
}  # fmt: skip
GOOD = [
    "fedavg", "fedsgd", "fedprox:mu=0.1", "qffl:q=[0.1,2]", "afl", "term", "fedmgda", "propfair",
    "fedfv:tau=2", "fedmaba", "fedmaba:alpha=0.8,eta_b=[0.1,1]",
]  # fmt: skip
BAD = [
    "fedmba", "fedmaba:alfa=1", "fedmaba:alpha=2", "fedmaba:alpha", "fedmaba:alpha=[0.1", "", ":",
    "qffl:q=nan", "qffl:q=-1", "fedfv:tau=1.5", "fedavg:x=1", "no.where.Strategy", "os.path",
    "..x.y", "fedmaba:ball=global,sync=overwrite", "term:T=1e301", "afl:lam=\x00", "fedmaba:alpha=",
]  # fmt: skip
HOSTILE = ["\x00", "a\nb", "\ud800", "x" * 5000, "\u202e", "[" * 3000, "{}", "$(id)", "%s%n"]
KEYS = {key.name: key for key in config.options()}


def campaign(count: int, seed: int, say: Say) -> Tally:
    rng, tally = random.Random(seed), Tally()
    show = progress(say, "config")
    with scratch() as root, inside(root):
        data = make_data(root / "tiny.npz")
        for done in range(count):
            make = _noise if rng.random() < 0.1 else _case
            why = make(data, rng, tally)
            tally.check(not why, f"case {done}: {why}")
            shutil.rmtree("run", ignore_errors=True)
            shutil.rmtree("runs", ignore_errors=True)
            show(done, count, tally)
    return tally


def _case(data: Path, rng: random.Random, tally: Tally) -> str:
    """One configuration; what is wrong with how it was taken."""
    tree: dict[str, object] = {"data.name": str(data), "save.out": "run", "train.rounds": 1}
    tree |= {"model": "softmax", "seeds": 1, "machine.device": "cpu", "train.minibatch": 20}
    errors = rng.choice([0, 0, 1, 1, 2, 4])  # how many keys are wrong
    wrong: dict[str, object] = {}
    for name in rng.sample(list(TABLE), rng.randint(1, 8)):
        good, bad = TABLE[name]
        if len(wrong) < errors:
            wrong[name] = tree[name] = rng.choice(bad)
        elif good:
            tree[name] = rng.choice(good)
    if tree.get("train.epochs") == 2 and tree.get("train.steps") in (1, 3):
        wrong.setdefault("train.steps", tree["train.steps"])  # one instead of the other
    either = False
    specs = rng.sample(GOOD, rng.randint(1, 3))
    if specs == ["fedsgd"]:
        specs.append("fedavg")  # alone, it refuses the options of local steps
    if errors and rng.random() < 0.3:
        specs.append(rng.choice(BAD))
        wrong["strategies"] = specs[-1]
    if rng.random() < 0.03:
        name = rng.choice(["data.name", "data.dir", "save.out", "data.partition", "model"])
        wrong[name] = tree[name] = rng.choice(HOSTILE)
        either = name in ("save.out", "data.dir")  # some of these are names a folder can have
    words = _words(tree, specs) if rng.random() < 0.5 else _file(tree, specs)
    if words is None:
        return ""
    code, _, err = call(*words, "--quiet")
    tally.counts["ran" if code in (0, 65) else "refused"] += 1
    told = f"{wrong} in {words}: exit code {code}: {err[-900:]}"
    if code not in (0, 65) and not (code in (2, 74) and one_line(err)):
        return told
    if either or "is not TOML" in err:
        return ""
    if code == 74 or (code == 2) != bool(wrong):
        # a share of validation data or a partition may leave a client without examples
        hard = {"data.validation", "data.partition", "data.test"} & tree.keys()
        return "" if hard and not wrong and "client" in err else f"verdicts differ: {told}"
    if wrong.get("train.participants") == 7 and (len(wrong) > 1 or "data.partition" in tree):
        del wrong["train.participants"]  # only the data know that there are 6 clients
    missing = [name for name, value in wrong.items() if not _named(name, value, err)]
    return f"not named {missing}: {told}" if missing else ""


def _named(name: str, value: object, err: str) -> bool:
    """Whether an error speaks of a key: by its name, its last word or its value."""
    words = [name, name.rpartition(".")[2] + "=", repr(value), f"'{value}'"]
    if name == "strategies":
        words += [str(value).partition(":")[0], "strategy"]
    known = {"data.validation": "share ", "data.partition": "partition ", "data.name": "data set "}
    words += [known[name]] if name in known else []
    words += ["'trian'"] if name == "trian.lr" else []
    return any(word in err for word in words)


def _words(tree: dict[str, object], specs: list[str]) -> list[str] | None:
    """The configuration as a command line; None where a process could not be given it."""
    words = ["compare", *specs]
    for name, value in tree.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        if name in KEYS:
            words += [f"{KEYS[name].flag}={text}"]
        else:
            words += ["--set", f"{name}={text}"]
    return None if any("\x00" in w for w in words) or "" in words else words


def _file(tree: dict[str, object], specs: list[str]) -> list[str] | None:
    """The configuration as a file."""
    nested: dict[str, object] = {}
    for name, value in tree.items():
        config.set_key(nested, name, value)
    text = f"strategies = {experiment_file.toml_value(specs)}\n"
    text += "".join(
        f"{k} = {experiment_file.toml_value(v)}\n"
        for k, v in nested.items()
        if not isinstance(v, dict)
    )
    for name, section in nested.items():
        if isinstance(section, dict):
            text += f"[{name}]\n"
            text += "".join(f"{k} = {experiment_file.toml_value(v)}\n" for k, v in section.items())
    Path("e.toml").write_text(text, encoding="utf-8", errors="surrogatepass")
    return ["run", "e.toml"]


def _noise(data: Path, rng: random.Random, tally: Tally) -> str:
    """A file that is hardly TOML."""
    good = (
        f'strategies = ["fedavg"]\nseeds = 1\nmodel = "softmax"\n[data]\nname = "{data}"\n'
        '[train]\nrounds = 1\n[machine]\ndevice = "cpu"\n[save]\nout = "run"\n'
    ).encode()
    deep = b"a = " + b"[" * 20_000
    odd = [b"", b"\xff\xfe", deep, b"strategies = 3", b"[data]\n[data]", b"train = [1]\n" + good]
    odd += [b"strategies = [[]]", b"strategies = {a = 1}", b"[[train]]\nlr = 1", b"a.b.c.d = 1"]
    text = rng.choice(odd) if rng.random() < 0.3 else mutate(good, rng)
    if b"[train]\nrounds = 1\n" not in text and text not in odd:
        text = good[: rng.randrange(len(good) - 60)]  # a changed number of rounds could be large
    Path("e.toml").write_bytes(text)
    code, _, err = call("run", "e.toml", "--quiet", "--rounds", "1", "--seeds", "1")
    tally.counts["noise"] += 1
    fine = code in (0, 65) or (code in (2, 74) and one_line(err))
    return "" if fine else f"{text[:300]!r}: exit code {code}: {err[-900:]}"
