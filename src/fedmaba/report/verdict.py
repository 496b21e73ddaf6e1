"""Verdicts on run folders: one for each set of folders on the same data.

The reference is FedAvg. A row of clients that train alone has no model to hand out; it takes part
only where every client is scored under a model of its own. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedmaba.report.current_figures import CurrentFigures
from fedmaba.report.data import Source, short_names
from fedmaba.report.row_styles import shares_no_model
from fedmaba.report.verdict_words import Verdict, judge, no_model
from fedmaba.results.run_history import At, Model


def verdicts_of(scores: CurrentFigures, model: Model, at: At) -> list[Verdict]:
    """One for each set of folders on the same data."""
    found, groups = scores.values(model, at), _groups(scores.sources)
    names = short_names(scores.sources)
    out = []
    for group in groups:
        own = {
            run.label: found.get(run.label, {})
            for run, i in zip(scores.history.runs, scores.owner, strict=True)
            if i in group
        }
        alone = [label for label in own if model != "personal" and shares_no_model(label)]
        shared = {label: f for label, f in own.items() if label not in alone}
        if any(shared.values()):
            own = shared
        else:  # nothing else to speak of
            alone = []
        said = judge(own, scores.share, scores.unit)
        if alone:
            said.sentence = f"{said.sentence} {no_model(alone)}".strip()
        said.where = ", ".join(names[i] for i in group) if len(groups) > 1 else ""
        going = [scores.progress[i] for i in group if not scores.sources[i].finished]
        if going and any(own.values()):
            said.so_far = "so far, " + ", ".join(dict.fromkeys(p.words for p in going))
        out.append(said)
    return out


def verdicts_of_sources(sources: Sequence[Source], share: float | None = None) -> list[Verdict]:
    """On the deployed model at the last round."""
    return verdicts_of(CurrentFigures(sources, share), "deployed", "last")


def _groups(sources: Sequence[Source]) -> list[list[int]]:
    """Which sources have the same data and the same partition."""
    groups: dict[object, list[int]] = {}
    for i, source in enumerate(sources):
        same = (source.data.get("sha256"), str(source.about.get("partition")))
        groups.setdefault(same if all(same) else i, []).append(i)
    return [*groups.values()]
