"""Tables of measured speeds, from benchmarks/results/*.json.

    python tools/speed.py        write the table of the README (a test compares)
    python tools/speed.py gpu    print a table of the site

The README's table stands between `<!-- speed:NAME -->` and `<!-- end -->`; the site's pages are
filled by tools/site_pages.py.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"(<!-- speed:(\w+) -->\n).*?(<!-- end -->)", re.S)


def _read(name: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text()))


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def gpu() -> str:
    """Client updates per second of the engine on a GPU."""
    found = _read("engine-h200")
    rows = [
        [
            job["job"].split(", float32")[0].split(", bf16")[0],
            job["dtype"],
            f"{job['updates_per_second']:,.0f}",
        ]
        for job in found["jobs"]
    ]
    return _table([f"job, one {found['device']}", "precision", "client updates/s"], rows)


def more_work() -> str:
    """Strategies whose clients or server do more, as shares of FedAvg's rate."""
    found = _read("keeping-h200")
    jobs = found["jobs"].values()
    rows = [[name, *(f"{job[name]['ratio']:.2f}" for job in jobs)] for name in next(iter(jobs))]
    return _table([f"of FedAvg's rate, one {found['device']}", *found["jobs"]], rows[1:])


def models() -> str:
    """Models as users write them, against the plain loop on the same GPU."""
    found = _read("models-h200")
    rows = [
        [
            f"{job['model']}, {job['rows']} rows",
            *(f"{job[key]:,.0f}" for key in ("updates_per_second", "plain_per_second")),
            f"{job['ratio']:.1f} x",
            f"{job['first_round_seconds']} s",
        ]
        for job in found["jobs"]
    ]
    head = [f"model, one {found['device']}", "client updates/s", "plain loop", "ratio"]
    return _table([*head, "first round"], rows)


def models_on_cpu() -> str:
    """The same on one CPU core, with the peak of memory of both."""
    found = _read("models-cpu-x86_64")
    rows = [
        [
            job["model"],
            f"{job['ratio']:.2f} x ({job['least']:.2f} to {job['most']:.2f})",
            f"{job['megabytes']} MB",
            f"{job['plain_megabytes']} MB",
        ]
        for job in found["jobs"]
    ]
    head = [f"model, one core of {_cpu(found)}", "against the plain loop", "memory", "the loop's"]
    return _table(head, rows)


def fading() -> str:
    """FedMABA with a fading alpha, last models; differences to alpha = 0.5 under equal seeds."""
    lines, usual = [], "fedmaba:alpha=0.5"
    for job, found in _read("fading-alpha-h200")["jobs"].items():
        last = [row[1:] for row in found if row[0] == found[-1][0]]
        by_seed = {name: {s: v for s, n, *v in last if n == name} for _, name, *_ in last}
        for name, values in by_seed.items():
            apart = [
                [a - b for a, b in zip(v, by_seed[usual][s], strict=True)]
                for s, v in values.items()
            ]
            cells = [
                f"{statistics.mean(own):.2f}" + ("" if name == usual else f" ({_spread(differs)})")
                for own, differs in zip(
                    zip(*values.values(), strict=True), zip(*apart, strict=True), strict=True
                )
            ]
            lines.append([job, name, *cells])
    return _table(["last models", "strategy", "accuracy %", "variance %²", "worst 5 %"], lines)


def _spread(differences: Sequence[float]) -> str:
    """A mean with its 95 % interval, of five values."""
    assert len(differences) == 5
    half = 2.776 * statistics.stdev(differences) / 5**0.5
    return f"{statistics.mean(differences):+.2f} ± {half:.2f}"


def whole() -> str:
    """The paper's tables and figures by one command: large batches, and the small ones as one."""
    then, now = _read("reproduce-h200-tf32"), _read("reproduce-h200-bf16")
    before = {name: took for name, _, _, took in _parts(then)}
    rows = [
        [
            *(name, f"{runs}", f"{updates:,}", f"{before[name]:.0f} s"),
            *(f"{took:.0f} s", f"{updates / took:,.0f}"),
        ]
        for name, runs, updates, took in _parts(now)
    ]
    runs, updates = (sum(one[key] for one in now["batches"]) for key in ("runs", "updates"))
    ends = [f"{found['seconds']:.0f} s" for found in (then, now)]
    rows.append(["all, with loading data and drawing", f"{runs}", f"{updates:,}", *ends, ""])
    head = [f"batch, one {now['device']}", "runs", "client updates", "earlier, tf32", "now, bf16"]
    return _table([*head, "updates/s"], rows)


def _parts(found: dict[str, Any]) -> list[tuple[str, int, int, float]]:
    """Name, runs, client updates and seconds."""
    large = [one for one in found["batches"] if one["runs"] > 10]
    small = [one for one in found["batches"] if one not in large]
    named = {f"{one['data']}, {one['partition']}, {_some(one)}": [one] for one in large}
    named[f"{len(small)} more readings, {small[0]['data']}, all clients"] = small
    keys = ("runs", "updates", "seconds")
    return [(name, *(sum(p[key] for p in parts) for key in keys)) for name, parts in named.items()]


def _some(one: dict[str, Any]) -> str:
    many = "all clients" if one["clients"] == 100 else f"{one['clients']} of 100"
    return many if one["validation"] == "0%" else f"{many}, {one['validation']} held back"


def _machines(name: str) -> list[dict[str, Any]]:
    """The files of a benchmark of one CPU core."""
    found = (ROOT / "benchmarks" / "results").glob(f"{name}-*.json")
    return [_read(path.stem) for path in sorted(found, reverse=True)]


def _cpu(found: dict[str, Any]) -> str:
    return re.sub(r"\(R\)| Processor| @.*", "", found["cpu"])


def brief() -> str:
    """What the README shows: one row for each kind of machine and model."""
    gpu, core = _read("engine-h200"), _read("cpu-x86_64")
    jobs = {(job["job"], job["dtype"]): job["updates_per_second"] for job in gpu["jobs"]}
    rows = [
        [
            f"{name}, {many}",
            f"{gpu['device']}, tf32",
            f"{jobs[f'{name}, {many}', 'tf32']:,.0f}",
            "–",
        ]
        for name, many in (
            ("mlp", "33 runs x 100 clients"),
            ("mlp", "1 run, 10 of 100 clients"),
            ("cnn", "33 runs x 10 of 100 clients"),
        )
    ]
    for job in core["jobs"]:
        loops = (job["a DataLoader"]["ratio"], job["tensors"]["ratio"])
        rows.append(
            [
                f"{job['job']}, 1 run",
                f"one core, {_cpu(core)}",
                f"{job['updates_per_second']:.3g}",
                f"{max(loops):.1f} (with a DataLoader), {min(loops):.1f} (without)",
            ]
        )
    head = ["job", "machine", "client updates/s", "times as fast as a plain PyTorch loop"]
    return _table(head, rows)


def core() -> str:
    """The engine against the plain loop on one CPU core."""
    rows = [
        [
            f"{job['job']}, {_cpu(found)}",
            f"{job['updates_per_second']:.3g}/s",
            *(
                f"{side['ratio']:.2f} x ({min(side['ratios']):.2f} to {max(side['ratios']):.2f})"
                f", {side['updates_per_second']:.3g}/s"
                for side in (job["a DataLoader"], job["tensors"])
            ),
        ]
        for found in _machines("cpu")
        for job in found["jobs"]
    ]
    head = ["the plain loop with a DataLoader", "with images indexed in tensors"]
    return _table(["job, one core", "ours", *head], rows)


def peers() -> str:
    """The engine against other simulators on one CPU core."""
    rows = []
    for found in _machines("peers"):
        for name in dict.fromkeys(row["peer"] for row in found["peers"]):
            own = [row for row in found["peers"] if row["peer"] == name]
            cells = [
                f"{row['updates_per_second']:.1f}/s, ours {row['ours']:.1f}/s: {row['ratio']:.2f} x"
                if "ratio" in row
                else f"not run: {row['not_run']}"
                for row in own
            ]
            rows.append([f"{name} {own[0]['version']}", _cpu(found), *cells])
    return _table(["simulator", "core", "10 of 100", "all 100"], rows)


def gpu_peers() -> str:
    """The engine against other simulators on one GPU, and beside published figures."""
    found = _read("gpu-peers-h200")
    rows = [
        [
            f"{row['peer']} {row['version']}, {row['way']}",
            f"{row['per_second']:,.0f}" if "per_second" in row else f"not run: {row['not_run']}",
            f"{row['ours']:,.0f}" if "ours" in row else f"not run: {row['ours_not_run']}",
            f"{row['ratio']:,.1f} x" if "ratio" in row else "–",
        ]
        for row in found["peers"]
    ]
    for row in found["readings"]:
        job, ours = row["job"].removeprefix("flute-"), row.get("ours")
        cells = [f"{ours:,.0f}", "–"] if ours else [f"not run: {row['not_run']}", "–"]
        rows.append([f"FLUTE, {job}: published", f"{row['published_per_second']:.1f}", *cells])
    head = [f"simulator, one {found['device']}", "client-epochs/s", f"ours, {found['precision']}"]
    return _table([*head, "ratio"], rows)


def memory() -> str:
    """Peak memory above the data."""
    found = _read("memory")
    rows = [
        [
            one["strategy"],
            f"{one['clients']:,}",
            f"{one['participants']:,}",
            str(one["inputs"]),
            f"{one['peak_above_bytes'] / 1e9:.2f} GB",
            f"{one['round_seconds']:.2f} s",
        ]
        for one in found["settings"]
    ]
    return _table(
        [
            *(f"strategy, {_cpu(found)}", "clients", "a round", "inputs"),
            *("peak above the data", "a round takes"),
        ],
        rows,
    )


def step() -> str:
    """One strategy step."""
    told = _read("step")
    found = told["steps"]
    sizes = sorted({one["clients"] for one in found})
    time = {(one["strategy"], one["clients"]): one["seconds"] for one in found}
    rows = [
        [f"`{name}`", *(_ms(time.get((name, n))) for n in sizes)]
        for name in dict.fromkeys(one["strategy"] for one in found)
    ]
    return _table([f"strategy, {_cpu(told)}", *(f"{n:,} clients" for n in sizes)], rows)


def _ms(seconds: float | None) -> str:
    return "a matrix of n x n" if seconds is None else f"{1e3 * seconds:.3g} ms"


def growth() -> str:
    """Slopes in log-log, by core and on a GPU."""
    cores = [_read(f"growth-{machine}") for machine in ("x86_64", "aarch64")]
    gpu = _read("growth-cuda")
    head = ["time against", *(f"slope, {_cpu(one)}" for one in cores), "from, to"]
    rows = []
    for name, there in gpu["axes"].items():
        spans = [
            f"{one['at'][0]:,.0f} to {one['at'][-1]:,.0f}"
            for one in (cores[0]["axes"][name], there)
        ]
        slopes = [f"{one['axes'][name]['slope']:.2f}" for one in cores]
        rows.append([name, *slopes, spans[0], f"{there['slope']:.2f}", spans[1]])
    return _table([*head, "slope, H200", "from, to"], rows)


TABLES = {
    f.__name__: f
    for f in (
        gpu,
        models,
        models_on_cpu,
        more_work,
        fading,
        whole,
        brief,
        core,
        peers,
        gpu_peers,
        memory,
        step,
        growth,
    )
}


def filled(text: str) -> str:
    """A page with every table made anew."""
    return MARK.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(TABLES[sys.argv[1]](), end="")
    else:
        readme = ROOT / "README.md"
        readme.write_text(filled(readme.read_text(encoding="utf-8")), encoding="utf-8")
