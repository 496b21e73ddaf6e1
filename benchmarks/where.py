"""Where the time of a target's rounds goes: the device's kernels, the host's functions.

    python benchmarks/where.py table3-cifar100-partial --device cuda --dtype tf32

plays some rounds of the target's largest batch after a warm-up, three times: timed alone, under
torch.profiler, under cProfile. Prints what a round takes, how long the device was busy in it and
with how many kernels, and who took most.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from contextlib import closing

import torch
from torch.profiler import ProfilerActivity, profile

from fedmaba.experiment import laboratory, session
from fedmaba.simulation import engine


def playing(name: str, rounds: int, device: str, dtype: str, model: str | None) -> engine.Batch:
    """The target's largest batch, three seeds, with no evaluation on the way."""
    targets = laboratory.enter("targets")
    jobs = targets.load_target(name, targets.Scale(seeds=3)).every_job()
    job = max(jobs, key=lambda one: targets.updates(one, one.runs))
    seeds = sorted({key.seed for key in job.runs})
    changes = {"rounds": rounds}
    asked = job.experiment.model_copy(
        update={
            "seeds": seeds,
            "model": model or job.experiment.model,
            "machine": targets.parse_machine(device, dtype),
            "train": job.experiment.train.model_copy(update=changes),
            "eval": job.experiment.eval.model_copy(update={"every": rounds + 1}),
        }
    )
    chosen = [(job.strategies[key.label], key.seed, key.deploy) for key in job.runs]
    batch = session.prepare(asked, None, list(job.strategies.values()), chosen).batch
    print(f"{job.title}: {len(batch.handed_out)} runs, {len(batch.runs)} of them trained")
    return batch


def kernels(seen: profile, rounds: int, top: int) -> None:
    """What the device did, and for how long."""
    spent = [e for e in seen.key_averages() if e.device_type.name != "CPU"]
    spent.sort(key=lambda e: -e.self_device_time_total)
    busy, many = (
        sum(v) for v in ([e.self_device_time_total for e in spent], [e.count for e in spent])
    )
    print(
        f"device busy {busy / 1e3 / rounds:.1f} ms a round, {many / rounds:.0f} kernels and copies"
    )
    for e in spent[:top]:
        mine = e.self_device_time_total / 1e3 / rounds
        print(f"{mine:8.2f} ms {e.count / rounds:8.1f} times  {e.key[:90]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="tf32")
    parser.add_argument("--model", help="another than the target's, as softmax")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("--top", type=int, default=25)
    asked = parser.parse_args()
    whole = asked.warm + 3 * asked.rounds + 1
    batch = playing(asked.target, whole, asked.device, asked.dtype, asked.model)
    cuda = batch.pool.x.is_cuda
    wait: Callable[[], None] = torch.cuda.synchronize if cuda else lambda: None
    with closing(batch.workers), closing(engine.simulate(batch)) as shots:

        def play(rounds: int) -> float:
            """Milliseconds a round."""
            wait()
            begun = time.perf_counter()
            for _ in range(rounds):
                next(shots)
            wait()
            return 1e3 * (time.perf_counter() - begun) / rounds

        print(f"warm-up: {play(asked.warm):.1f} ms a round")
        print(f"then: {play(asked.rounds):.1f} ms a round")
        if cuda:
            before = torch.cuda.memory_stats()
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                took = play(asked.rounds)
            after = torch.cuda.memory_stats()
            print(f"under torch.profiler: {took:.1f} ms a round")
            kernels(seen, asked.rounds, asked.top)
            for name in ("num_alloc_retries", "num_device_alloc", "num_device_free"):
                print(f"{name}: {after.get(name, 0) - before.get(name, 0)}")
        with cProfile.Profile() as calls:
            took = play(asked.rounds)
        print(f"under cProfile: {took:.1f} ms a round")
        pstats.Stats(calls).sort_stats("tottime").print_stats(asked.top)
