"""The command line of the fault campaigns."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
import time
from pathlib import Path
from typing import NamedTuple

from faults.cases import play, repeat
from faults.common import Tally

ROOT = Path(__file__).parents[1]


class Campaign(NamedTuple):
    """Where a campaign lives, and how often it tries at full count."""

    module: str
    function: str  # "cases": of hostile folders, which one harness plays
    trials: int


CAMPAIGNS = {
    "kill": Campaign("kill", "campaign", 1_000),
    "steps": Campaign("kill", "steps", 10_000),
    "signals": Campaign("kill", "signals", 200),
    "damage": Campaign("damage", "campaign", 100_000),
    "disk": Campaign("disk", "campaign", 10_000),
    "tmpfs": Campaign("disk", "tmpfs", 60),
    "config": Campaign("configs", "campaign", 10_000),
    "reports": Campaign("reports", "campaign", 100_000),
    "nan": Campaign("nans", "campaign", 60),
    "races": Campaign("races", "campaign", 100),
    "threads": Campaign("threads", "campaign", 4),
    "soak": Campaign("soak", "campaign", 10_000),
    "types": Campaign("fields", "cases", 36_000),
    "special": Campaign("special", "cases", 3_000),
    "links": Campaign("links", "cases", 4_000),
    "strings": Campaign("strings", "cases", 12_000),
    "gpu": Campaign("gpu", "campaign", 12),
}
HERE = [name for name in CAMPAIGNS if name != "gpu"]  # what `all` runs


def run(name: str, count: int | None, seed: int, out: Path) -> Tally:
    """One campaign, its line and its JSON file."""
    entry = CAMPAIGNS[name]
    count = entry.trials if count is None else count
    start = time.monotonic()
    module = importlib.import_module(f"faults.{entry.module}")
    if entry.function == "cases":
        tally = play(name, module, count, seed, say)
    else:
        tally = getattr(module, entry.function)(count, seed, say)
    out.mkdir(parents=True, exist_ok=True)
    record = {
        "command": f"python -m faults {name} --count {count} --seed {seed}",
        "tried": tally.tried,
        "lost": tally.lost,
        **tally.figures,
        **({"counts": dict(sorted(tally.counts.items()))} if tally.counts else {}),
        **({"why": tally.why} if tally.why else {}),
        "seconds": round(time.monotonic() - start, 1),
        "python": platform.python_version(),
    }
    (out / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    for why in tally.why:
        print(why, file=sys.stderr)
    extra = ", ".join(f"{k}: {v}" for k, v in tally.figures.items() if not isinstance(v, dict))
    print(f"{name}: tried {tally.tried} / lost {tally.lost}" + (f" ({extra})" if extra else ""))
    return tally


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def gather(out: Path) -> dict[str, dict[str, object]]:
    """What all campaigns found, by name."""
    files = {name: out / f"{name}.json" for name in CAMPAIGNS}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def table(found: dict[str, dict[str, object]]) -> list[str]:
    """A line of the table in docs/reliability.md for each campaign."""
    lines = []
    for name, entry in found.items():
        known = {"command", "tried", "lost", "counts", "why", "seconds", "python"}
        rest = {**{k: v for k, v in entry.items() if k not in known}, **(entry.get("counts") or {})}
        more = "; ".join(f"{key}: {_short(value)}" for key, value in rest.items())
        lines.append(f"| `{name}` | {_short(entry['tried'])} | {entry['lost']} | {more} |")
    return lines


def _short(value: object) -> str:
    if isinstance(value, list):
        return " to ".join(map(_short, value))
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("name", choices=[*CAMPAIGNS, "all", "table"])
    parser.add_argument("--count", type=int, help="how often to try [full count]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="one case of a campaign again, its folder kept")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "faults")
    asked = parser.parse_args()
    if asked.name == "table":  # of what --out holds, for the page; the JSON for benchmarks/results
        (asked.out / "faults.json").write_text(json.dumps(gather(asked.out), indent=2) + "\n")
        print("\n".join(table(gather(asked.out))))
        return
    if asked.case is not None:
        module = importlib.import_module(f"faults.{CAMPAIGNS[asked.name].module}")
        repeat(asked.name, module, asked.seed, asked.case)
        return
    names = HERE if asked.name == "all" else [asked.name]
    lost = sum(run(name, asked.count, asked.seed, asked.out).lost for name in names)
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
