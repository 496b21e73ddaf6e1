"""Models of your own through `engine.simulate`, against the loop that everybody writes.

That loop is `plain.py`. The models are classes as users write them, in `own_models.py`. BERT is
left out where transformers is not installed.

On CUDA the plain loop is timed on training alone. Ours also does FedMABA's start-loss pass, the
aggregation and an evaluation every 20 rounds. Five runs train ten clients each (ResNet-18: one
run), 500 examples in minibatches of 50. Both run in turn, on the same GPU. Before that, all models
are compiled at the same time, each in a process of its own, into the folder that keeps compiled
kernels; how long that took is part of the result.

On a CPU both do the same work: start losses, training, aggregation, and an evaluation every two
rounds. Two of four clients take part, with 100 examples each (ResNet-18: 20). A line gives the
median of the ratios of blocks of two rounds, in turn and in one process, and their range. On one
core the clock counts CPU seconds, on several it is the one on the wall. The peak of memory is that
of a process of its own for each side, above what it had with the data.

    python benchmarks/models.py --out models.json            on CUDA: bf16, then tf32
    python benchmarks/models.py --device cpu                 one CPU core
    python benchmarks/models.py --device cpu --threads 8     eight cores, eight clients in a round
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import memory
import own_models
from cpu import about
from fedmaba import strategies
from fedmaba.data import datasets
from fedmaba.data.federation import Federation
from fedmaba.rows.batchnorm import Choice
from fedmaba.simulation.engine import Plan, Run, simulate, start
from plain import Plain

BERT = "BERT 2 x 128"
EVERY = 20  # rounds between evaluations on CUDA; the first 20 are not timed


class Model(NamedTuple):
    """A model, its data, and what is measured of it."""

    make: Callable[[], nn.Module]
    runs: int = 5  #                on CUDA
    bar: int = 0  #                 updates per second there; 0: twelve times the plain loop's
    data: str = "images"  #         or text, or characters
    batchnorm: Choice = "refuse"
    each: int = 100  #              examples of a client on a CPU
    minibatch: int = 50  #          on a CPU


MODELS = {
    "CNN with GroupNorm": Model(own_models.GroupNormCNN, bar=900),
    "ResNet-8": Model(lambda: own_models.ResNet((16, 32, 64), 1), bar=350),
    "ViT": Model(own_models.ViT, bar=320),
    "LSTM, 32 lines": Model(own_models.LineLSTM, bar=552),
    "LSTM, 80 characters": Model(own_models.CharacterLSTM, data="characters"),
    "ResNet-18": Model(
        lambda: own_models.ResNet((64, 128, 256, 512), 2), 1, 46, each=20, minibatch=10
    ),
    "TextCNN": Model(own_models.TextCNN, data="text"),
    "GRU on text": Model(own_models.TextGRU, data="text"),
    BERT: Model(own_models.Bert, data="text"),
    "Mixer": Model(own_models.Mixer),
    "MobileNet, batchnorm=local": Model(own_models.MobileNet, batchnorm="local"),
    "MobileNet, batchnorm=group": Model(own_models.MobileNet, batchnorm="group"),
    "ConvNeXt": Model(own_models.ConvNeXt),
}


def examples(kind: str, each: int, tested: int, clients: int) -> datasets.Dataset:
    """Random images of CIFAR-10's size, random characters, or texts of random tokens."""
    rng, n = np.random.default_rng(0), clients * each
    many, classes = n + tested, 10
    if kind == "characters":
        x, classes = rng.integers(80, size=(many, 80)).astype(np.float32), 80
    elif kind == "text":
        x = rng.integers(own_models.TOKENS, size=(many, own_models.LENGTH))
    else:
        x = rng.standard_normal((many, 3, 32, 32), dtype=np.float32)
    y = np.arange(many) % classes
    return datasets.from_arrays(x[:n], y[:n], x_test=x[n:], y_test=y[n:])


def jobs(name: str, small: bool, least: int = 4) -> tuple[list[Run], Callable[..., nn.Module]]:
    """The runs of a model and the factory that makes it; small ones have `least` clients."""
    model = MODELS[name]
    clients, many = (least, 1) if small else (100, model.runs)
    sizes = (model.each, 10 * clients) if small else (500, 10_000)
    data = examples(model.data, *sizes, clients)
    feds = [Federation.make(data, "iid", clients, s) for s in range(many)]
    strategy = strategies.parse("fedmaba")[0]
    runs = [Run(strategy, s, fed) for s, fed in enumerate(feds)]
    return runs, lambda shape, classes: model.make()


def on_cuda(name: str, dtype: str, rounds: int) -> dict[str, Any]:
    """Client updates per second of both."""
    runs, make = jobs(name, small=False)
    more = {"dtype": dtype, "device": "cuda", "batchnorm": MODELS[name].batchnorm}
    plan = Plan(rounds, participants=10, eval_every=EVERY, **more)
    begun = time.perf_counter()
    batch = start(runs, plan, make)
    batch.rows.tell = lambda line: print(f"  {line}", flush=True)
    marks, updates = [], 0
    for snapshot in simulate(batch):
        if snapshot.round == 0:
            first = time.perf_counter() - begun
        updates += sum(len(r.client) for r in snapshot.rounds if r)
        if (snapshot.round + 1) % EVERY == 0:
            marks.append(time.perf_counter())
    found: dict[str, Any] = {"job": name, "dtype": dtype, "path": batch.rows.path}
    found |= {
        "rows": 10 * len(runs),
        "chunk": batch.progress.chunk,
        "seconds_to_first_round": first,
    }
    found["peak_gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
    torch.cuda.reset_peak_memory_stats()
    if len(marks) > 1:
        parts = np.diff(marks)
        each = 10 * len(runs) * EVERY
        found |= {"updates_per_second": each * len(parts) / parts.sum()}
        found |= {"slowest": each / parts.max(), "fastest": each / parts.min()}
    return found


def plain_on_cuda(name: str, dtype: str) -> float:
    """Client updates per second of the plain loop, training alone."""
    runs, make = jobs(name, small=False)
    low = dtype == "bf16"
    for switch in (torch.backends.cuda.matmul, torch.backends.cudnn):
        switch.allow_tf32 = dtype != "float32"
    other = Plain(
        runs[0], Plan(1, device="cuda", batchnorm=MODELS[name].batchnorm), make, device="cuda"
    )
    clients = iter(other.train * 2)

    def some(many: int) -> float:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=low):
            for _ in range(many):
                other.local(*next(clients), 0, 0.1)
        torch.cuda.synchronize()
        return time.perf_counter() - begun

    some(2)
    return 20 / some(20)


def sides_on_cpu(name: str, rounds: int, threads: int) -> dict[str, Callable[[], Any]]:
    """What makes each side; a call of what is made plays one round."""
    model = MODELS[name]
    runs, make = jobs(name, small=True, least=max(4, threads))
    more = {"minibatch": model.minibatch, "batchnorm": model.batchnorm, "threads": threads}
    plan = Plan(rounds, participants=max(2, threads), eval_every=2, **more)

    def ours() -> Callable[[], object]:
        played = simulate(start(runs, plan, make))
        return lambda: next(played)

    return {"ours": ours, "plain": lambda: Plain(runs[0], plan, make).step}


def on_cpu(name: str, blocks: int, threads: int) -> dict[str, Any]:
    """The same rounds by both, in turn; the first block is not counted."""
    made = sides_on_cpu(name, 2 * blocks + 2, threads)
    sides = {side: make() for side, make in made.items()}
    clock = time.process_time if threads == 1 else time.perf_counter
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(blocks + 1):
        for side, step in sides.items():
            begun = clock()
            step()
            step()
            taken[side].append(clock() - begun)
    ratios = [p / o for o, p in zip(taken["ours"][1:], taken["plain"][1:], strict=True)]
    seconds = {side: statistics.median(v[1:]) / 2 for side, v in taken.items()}
    megabytes = {side: peak_apart(name, side, threads) for side in sides}
    found = {"job": name, "threads": threads, "ratio": statistics.median(ratios)}
    print(
        f"{name}: {found['ratio']:.2f} x the plain loop ({min(ratios):.2f} to {max(ratios):.2f}); "
        f"{megabytes['ours']:.0f} MB, the loop {megabytes['plain']:.0f}",
        flush=True,
    )
    return {**found, "ratios": ratios, "seconds_of_a_round": seconds, "peak_megabytes": megabytes}


def peak_apart(name: str, side: str, threads: int) -> float:
    """The peak of memory of one side in a process of its own, in MB."""
    more = ["--only", name, "--peak", side, "--threads", str(threads)]
    command = [sys.executable, __file__, "--device", "cpu", *more]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak_here(name: str, side: str, threads: int) -> float:
    """The peak of memory of one side in this process, in MB above what the data take."""
    make = sides_on_cpu(name, 4, threads)[side]
    torch.optim.SGD([torch.zeros(1)], 0.1)  # loads what no model is to answer for
    gc.collect()
    before = memory.resident()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the data
    step = make()
    for _ in range(4):
        step()
    return (memory.peak() - before) / 1e6


def compile_all(names: list[str], dtypes: list[str], limit: float) -> dict[str, float]:
    """Compile every model at the same time; how long each took."""
    begun, out = time.perf_counter(), {}
    waiting = {
        (name, dtype): subprocess.Popen(
            [sys.executable, __file__, "--only", name, "--dtype", dtype, "--rounds", "1"],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"},
        )
        for dtype in dtypes
        for name in names
    }
    while waiting and time.perf_counter() - begun < limit:
        for (name, dtype), process in list(waiting.items()):
            if process.poll() is not None:
                out[f"{name}, {dtype}"] = time.perf_counter() - begun
                del waiting[name, dtype]
        time.sleep(0.2)
    for process in waiting.values():
        process.kill()
    print(f"compiled, all at the same time, in {time.perf_counter() - begun:.0f} s", flush=True)
    return out


def all_on_cuda(names: list[str], dtypes: list[str], rounds: int, limit: float) -> dict[str, Any]:
    """Every model in every precision, as long as time allows."""
    begun, found = time.perf_counter(), []
    seconds = compile_all(names, dtypes, 0.45 * limit)
    for dtype in dtypes:
        for name in names:
            if time.perf_counter() - begun > limit:
                print(f"{name}, {dtype}: no time left", flush=True)
                continue
            try:
                job = on_cuda(name, dtype, rounds)
                job["plain"] = plain_on_cuda(name, dtype)
            except Exception as error:  # one failure must not hide the other results
                print(f"{name}, {dtype}: {type(error).__name__}: {error}", flush=True)
                found.append({"job": name, "dtype": dtype, "failed": str(error)[:500]})
                continue
            bar = MODELS[name].bar or 12 * job["plain"]
            rate, other = job["updates_per_second"], job["plain"]
            print(
                f"{name}, {dtype}: {rate:,.0f} client updates/s (bar {bar:,.0f}), the plain loop "
                f"{other:.0f}: {rate / other:.1f} x; first round after "
                f"{job['seconds_to_first_round']:.0f} s, {job['peak_gigabytes']:.1f} GB",
                flush=True,
            )
            found.append({**job, "bar": bar, "ratio": rate / other})
    return {"compiled_together": seconds, "jobs": found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--dtype", default="bf16,tf32")
    parser.add_argument("--rounds", type=int, default=2 * EVERY)
    parser.add_argument("--blocks", type=int, default=5, help="on a CPU")
    parser.add_argument("--threads", type=int, default=1, help="on a CPU")
    parser.add_argument("--peak", choices=("ours", "plain"), help="print one side's memory alone")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which none begins")
    parser.add_argument("--out", default="models.json")
    asked = parser.parse_args()
    chosen, precisions = [n for n in MODELS if asked.only in n], asked.dtype.split(",")
    if BERT in chosen and find_spec("transformers") is None:
        print(f"{BERT}: left out, because transformers is not installed")
        chosen.remove(BERT)
    threads = str(asked.threads)
    if asked.device == "cpu" and os.environ.get("OMP_NUM_THREADS") != threads:
        again = [sys.executable, *sys.argv]
        os.execve(again[0], again, {**os.environ, "OMP_NUM_THREADS": threads})
    if asked.device == "cpu":
        torch.set_num_threads(asked.threads)
        if asked.peak:
            print(peak_here(chosen[0], asked.peak, asked.threads))
            sys.exit()
        jobs_done = [on_cpu(name, asked.blocks, asked.threads) for name in chosen]
        result: dict[str, Any] = {**about(), "jobs": jobs_done}
    elif asked.rounds == 1:  # compiles only
        result = {"jobs": [on_cuda(chosen[0], precisions[0], 1)]}
        sys.exit()
    else:
        result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        result |= all_on_cuda(chosen, precisions, asked.rounds, asked.limit)
    with open(asked.out, "w") as f:
        json.dump(result, f, indent=2)
