"""Run parts of reproduction targets one after another, until a time limit.

A part is `TARGET#VARIANT@SEEDS/ROWS`: the variant's place in the target's file, counted from 1 (1
where the target has one), its seeds, and its rows; seeds and rows may be left out. Of a target
that searches, `TARGET#search/ROWS` is all its trials so far (a pick at the end of its grid asks for
more: name it again), and `TARGET#picks@SEEDS/ROWS` what these have
picked, by all results that are there so far. A part that would not end in time, by the rate of the
parts before it, is left out. All files of results are put into one ZIP file as soon as a part is
done; `fedmaba reproduce TARGET --from FOLDER` reads them once they are unpacked. Data: --data-dir,
or $FEDMABA_DATA.

    python experiments/run_parts.py --seconds 480 --out parts.zip readings#15@0,1
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
import traceback
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedmaba.experiment import config
from laboratory import archive, picks, targets
from laboratory.run import LoadedData, PendingBatch, begin
from laboratory.run import batches_of as run_batches
from laboratory.targets import Scale

PART = re.compile(r"([\w-]+)(?:#(\d+|search|picks))?(?:@([\d,]+))?(?:/(.+))?")
FIRST_RATE = {"mlp": 45_000.0, "mlp1": 55_000.0, "cnn": 4_000.0}  # client updates a second, an H200
OTHER_RATE = 300.0  # of models not named above
START = 5.0  # seconds that every part takes before its first round


def batches_of(
    text: str, rounds: int | None, done: list[archive.ArchiveFile]
) -> list[PendingBatch]:
    """The runs that a part names and that are not done, a batch for each experiment."""
    found = PART.fullmatch(text)
    if not found:
        raise SystemExit(f"{text}: write TARGET#VARIANT@SEEDS/ROWS")
    name, which, seeds, rows = found.groups()
    scale = Scale(
        rounds=rounds,
        seeds=tuple(map(int, seeds.strip(",").split(","))) if seeds else None,
        only=targets.parse_row_names(rows) if rows else (),
    )
    target = targets.load_target(name, scale)
    if which in ("search", "picks") and not target.view.search:
        raise SystemExit(f"{text}: {name} searches nothing: write TARGET#VARIANT@SEEDS/ROWS")
    if which == "picks":
        if lacking := picks.waiting(picks.trials(target, done)):
            raise SystemExit(f"{text}: no pick yet for {', '.join(lacking)}: run #search before")
        jobs = picks.with_picks(target, done).jobs
        jobs = tuple(
            replace(job, runs=tuple(k for k in job.runs if k.seed in job.fresh)) for job in jobs
        )
    else:
        jobs = picks.searched(target, done).jobs
        jobs = jobs if which == "search" else jobs[int(which or 1) - 1 :][:1]
    left: list[PendingBatch] = []
    for job in jobs:
        missing = set(archive.collect(done, job)[2])
        left += run_batches(name, job, [key for key in job.runs if key in missing])
    return sorted(left, key=lambda work: -len(work.runs))


def command(work: PendingBatch) -> list[str]:
    """What one types to run these runs, among others of the target."""
    seeds = ",".join(map(str, sorted({key.seed for key in work.runs}))) + ","
    rows = ",".join(dict.fromkeys(key.label for key in work.runs))
    return ["fedmaba", "reproduce", work.name, "--seeds", seeds, "--only", rows]


def run(asked: argparse.Namespace) -> None:
    begun, rates, loaded = time.monotonic(), dict(FIRST_RATE), None
    work_folder = Path(tempfile.mkdtemp())
    machine = targets.parse_machine(asked.device, asked.dtype)

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:6.1f} s  {text}", flush=True)

    for text in asked.parts:
        try:
            done = [b for f in (*asked.done, work_folder) for b in archive.read_folder(f)]
            batches = batches_of(text, asked.rounds, done)
            if not batches:
                say(f"{text}: nothing to do")
                continue
            model = batches[0].job.experiment.model
            updates, runs = sum(w.updates for w in batches), sum(len(w.runs) for w in batches)
            needs = len(batches) * START + updates / rates.get(model, OTHER_RATE)
            left = asked.seconds - (time.monotonic() - begun)
            if needs > left:
                say(f"{text}: LEFT OUT, needs about {needs:.0f} s of {left:.0f} s")
                continue
            say(f"{text}: {runs} runs, {updates:,} updates, about {needs:.0f} s")
            before = time.monotonic()
            for work in batches:
                loaded = play(work, work_folder, machine, loaded, asked)
                pack(work_folder, asked.out)
                say(f"  {work.job.title}: {len(work.runs)} runs, {work.updates:,} updates")
            spent = time.monotonic() - before
            rates[model] = updates / max(spent - len(batches) * START, 1.0)
            say(f"{text}: done in {spent:.1f} s, {updates / spent:,.0f} updates/s")
        except (Exception, SystemExit) as error:  # one part that fails does not stop the rest
            why = error if isinstance(error, SystemExit) else traceback.format_exc()
            say(f"{text}: FAILED\n{why}")


def play(
    work: PendingBatch,
    folder: Path,
    machine: config.Machine,
    loaded: LoadedData | None,
    asked: argparse.Namespace,
) -> LoadedData:
    """Run one part to its end."""
    if asked.data_dir:
        data = work.job.experiment.data.model_copy(update={"dir": asked.data_dir})
        job = work.job
        work = replace(
            work, job=replace(job, experiment=job.experiment.model_copy(update={"data": data}))
        )
    words = [*command(work), "--device", asked.device, "--dtype", asked.dtype]
    running = begin(work, folder, machine, loaded, words)
    for _ in running.rounds():
        pass
    return running.loaded_data()


def pack(folder: Path, out: Path) -> None:
    """All files of results as one ZIP file, whole or not at all."""
    new = out.with_suffix(".new")
    with zipfile.ZipFile(new, "w") as whole:
        for path in sorted(folder.glob("*.npz")):
            whole.write(path, path.name)
    new.replace(out)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", help="TARGET#VARIANT@SEEDS/ROWS or TARGET#search")
    parser.add_argument(
        "--seconds", type=float, default=480.0, help="begin no part that ends later"
    )
    parser.add_argument("--out", type=Path, default=Path("parts.zip"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="tf32")
    parser.add_argument("--data-dir")
    parser.add_argument("--done", type=Path, action="append", default=[], help="folder of results")
    parser.add_argument("--rounds", type=int, help="fewer rounds, to try it out")
    run(parser.parse_args(words))


if __name__ == "__main__":
    main()
