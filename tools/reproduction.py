"""Renew docs/reproduction.md and its figures from results/: python tools/reproduction.py

Between `<!-- reproduce TARGET TABLE ... -->` and `<!-- end -->` stand the tables of a target, and
`61.45<!-- TARGET|ROW|FIGURE|MODEL|ROUND -->` is a number of its own, here and in the README; a ROW
`a - b` is the mean difference over the seeds both have. A test compares the pages with the files.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

from fedmaba import compact, targets
from fedmaba.errors import InputError
from fedmaba.report import document, figures, reproduction

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reproduction.md"
PAGES = (PAGE, ROOT / "README.md")
RESULTS = ROOT / "results"
BLOCK = re.compile(r"(<!-- reproduce (\S+)((?: \S+)*) -->\n).*?(<!-- end -->)", re.S)
VALUE = re.compile(r"[-+–.\d]+(<!-- ([^|\s]+)\|([^|]+)\|(\w+)\|(\w+)\|(\w+) -->)")
LEFT_OUT = ("The paper: ",)  # said once on the page


def load(folder: Path) -> list[compact.Batch]:
    return compact.read_all(folder) if folder.is_dir() else []


def renew(text: str, batches: list[compact.Batch]) -> str:
    """The page with every table and number as the files have it."""
    text = BLOCK.sub(lambda m: m[1] + section(m[2], m[3].split(), batches) + m[4], text)
    return VALUE.sub(lambda m: value(m[2], m[3], m[4], m[5], m[6], batches) + m[1], text)


def section(name: str, chosen: list[str], batches: list[compact.Batch]) -> str:
    """The tables of a target, or that it has not been run."""
    target = targets.load(name)
    try:
        page = reproduction.document(target, batches)
    except InputError:
        return f"\n{target.view.title}: not run yet.\n\n"
    page.text = [t for t in page.text if not t.startswith(LEFT_OUT)]
    used = {b.path: b for job in target.every_job() for b in compact.collect(batches, job)[1]}
    said = sorted({f"`{batch.about['command']}`" for batch in used.values()})
    page.text.append(f"Commands: {', '.join(said)}.")
    pictures = [picture(name, kind) for kind in page.figures if target.view.kind != "table"]
    body = document.markdown(page, chosen, level=3)
    return "\n" + body + "".join(f"\n![{target.view.title}]({p})\n" for p in pictures) + "\n"


def picture(name: str, kind: str) -> str:
    return f"images/{name}-{kind}.svg"


def value(
    name: str, row: str, figure: str, model: str, at: str, batches: list[compact.Batch]
) -> str:
    """One mean over seeds, as a table would show it."""
    job = targets.load(name).jobs[0]
    history = reproduction.of_deploy(compact.collect(batches, job)[0], None)
    kind = "last" if model == "last" else "deployed"
    found = reproduction.values(history, kind, reproduction.CHOICES[at])
    ours, _, base = row.partition(" - ")
    if base:
        both = reproduction.paired(found, ours, figure, base)
        return f"{np.mean(np.subtract(*both)):+.2f}" if len(both[0]) else "–"
    seeds = found.get(ours, {}).values()
    return f"{np.mean([getattr(f, figure) for f in seeds]):.2f}" if seeds else "–"


def draw(batches: list[compact.Batch]) -> None:
    """The figures the page shows."""
    for name in targets.names():
        target = targets.load(name)
        if target.view.kind not in ("figure", "sweep"):
            continue
        try:
            page = reproduction.document(target, batches)
        except InputError:
            continue
        for kind, make in page.figures.items():
            (ROOT / "docs" / picture(name, kind)).write_bytes(figures.encode(make(), ".svg"))


if __name__ == "__main__":
    found = load(RESULTS)
    for page in PAGES:
        page.write_text(renew(page.read_text(encoding="utf-8"), found), encoding="utf-8")
    draw(found)
    print(f"{PAGE}: {len(found)} files, {sum(len(b.keys) for b in found)} runs", file=sys.stderr)
