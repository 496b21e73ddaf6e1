"""Check that every row of a search had the same chance, from the files of results.

    python experiments/equal_chances.py [TARGET...]

A row has every step size of its target with each value of its own hyper-parameter, three of them
where these are numbers, under the same seeds as all other rows. Its pick follows the rule, stands
inside its grid or at an end that was extended as far as the file allows or is a limit, and ran with
every fresh seed. Without names, it checks the searches over step sizes whose results are there. A
row that had less is a line, and the exit code is 1.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedmaba.errors import FedmabaError
from laboratory import archive, grids, picks, targets
from laboratory.targets import Target

RESULTS = Path(__file__).parent / "results"
FLAT = 0.5  # points of accuracy that half of the rows change by at most in the last quarter


def rows_of(target: Target) -> list[str]:
    return list(dict.fromkeys(targets.row_of(k) for job in target.jobs for k in job.strategies))


def unequal_rules(target: Target) -> list[str]:
    """In what the file itself gives a row less than the others."""
    return [*_short_axes(target), *_missing_ends(target)]


def _short_axes(target: Target) -> Iterator[str]:
    steps = target.view.step_sizes
    if not (4 <= len(steps) <= 6 and min(steps) >= 0.01 and max(steps) <= 0.4):
        yield f"{target.name}: step_sizes {steps} are not four to six values from 0.01 to 0.4"
    for row in rows_of(target):
        made = grids.made_of(target, row)
        if own := grids.own_parameter(made):
            values = [getattr(strategy, own) for strategy in made]
            if not isinstance(values[0], str) and len(values) != 3:
                yield f"{target.name}: {row} has {len(values)} values of {own}, not 3"


def _missing_ends(target: Target) -> Iterator[str]:
    numeric = {grids.LR}
    for row in rows_of(target):
        made = grids.made_of(target, row)
        own = grids.own_parameter(made)
        if own and not isinstance(getattr(made[0], own), str):
            numeric.add(row)
    given, left_out = target.view.further, {k for k, s in target.view.instead.items() if not s}
    for row in sorted(numeric ^ (given.keys() - left_out)):
        have = "no" if row in numeric else "a needless"
        yield f"{target.name}: {row} has {have} entry in target.further"
    for row, ends in given.items():
        for end in (ends.low, ends.high):
            if not end or (not isinstance(end, str) and len(end) > 2):
                yield f"{target.name}: {row} has {end!r} at an end: give one or two values or why"


def missing_chances(target: Target, batches: Sequence[archive.ArchiveFile]) -> Iterator[str]:
    """Which rows had less than the rules give them, by the results."""
    tried = picks.trials(target, batches)
    for row in picks.waiting(tried):
        lacking = sum(t.asked - t.found for t in tried if t.row == row)
        yield f"{target.name}: {row} lacks {lacking} runs of its trials"
    for trial in tried:
        if trial.asked != target.view.search:
            yield f"{target.name}: {trial.label} has {trial.asked} seeds, not {target.view.search}"
        if trial.picked:
            keys = [targets.RunKey(trial.label, s, k) for s, k in _fresh(trial)]
            there = {
                key for batch in batches if batch.digest == trial.job.digest for key in batch.keys
            }
            if lost := [key.seed for key in keys if key not in there]:
                yield f"{target.name}: {trial.row} lacks the fresh seeds {lost}"


def _fresh(trial: picks.SearchTrial) -> list[tuple[int, str]]:
    (deploy,) = {key.deploy for key in trial.job.runs if key.label == trial.label}
    return [(seed, deploy) for seed in trial.job.every_fresh]


def ends_met(target: Target, batches: Sequence[archive.ArchiveFile]) -> Counter[str]:
    """Why nothing is tried beyond the ends at which picks stand, counted."""
    whole = picks.searched(target, batches)
    found: Counter[str] = Counter()
    for trial in picks.trials(whole, batches):
        if trial.picked:
            at = grids.points(whole, trial.row)[trial.job.digest, trial.label]
            for edge in grids.edges(whole, trial.row, at):
                found["extended to its end" if edge.why.startswith("extended") else edge.why] += 1
    return found


def late_change(target: Target, batches: Sequence[archive.ArchiveFile]) -> float:
    """Points by which mean accuracy changes between the last two evaluations, median of rows."""
    rows: dict[str, list[float]] = {}
    for run in picks.picked_history(target, batches).runs:
        if not run.diverged:
            mean = np.nanmean(run.accuracy("deployed"), axis=1)
            rows.setdefault(run.label, []).append(100 * (mean[-1] - mean[-2]))
    return float(np.median([abs(np.mean(changes)) for changes in rows.values()]))


def main(names: Sequence[str]) -> int:
    batches, faults, checked = archive.read_folder(RESULTS), [], 0
    held = {batch.digest for batch in batches}
    for name in names or targets.names():
        target = targets.load_target(name)
        if not target.view.step_sizes:
            continue
        faults += unequal_rules(target)
        if not names and not held & {job.digest for job in target.jobs}:
            print(f"{name}: not run yet")
            continue
        faults += (wrong := list(missing_chances(target, batches)))
        checked += 1
        if wrong:
            continue
        tried = picks.trials(target, batches)
        met = ", ".join(f"{why} {many}" for why, many in ends_met(target, batches).most_common())
        change = late_change(target, batches)
        state = "flat" if change <= FLAT else "early"
        print(
            f"{name}: {len(rows_of(target))} rows, {len(tried)} trials of {target.view.search} "
            f"seeds, picks at an end: {met}; in the last stretch half of the rows change by at "
            f"most {change:.2f} points: {state}"
        )
    good = (
        "every row had the same chance" if checked else "the files give every row the same chance"
    )
    print("\n".join(faults) or good)
    return 1 if faults else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except FedmabaError as error:
        sys.exit(f"error: {error}")
