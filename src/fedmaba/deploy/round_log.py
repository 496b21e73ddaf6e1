"""The lines that a real federation logs about a round and about the end of a run. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO, WARNING
from typing import Any

from fedmaba.deploy.server import FederationServer
from fedmaba.results.state_folder import NEARLY_ALL


def no_reply_counted(server: FederationServer, spent: str = "") -> str:
    """Why a run failed in which no reply counted, and what to do; `spent` says that privacy is."""
    few = server.refused[:3]
    more = f" and {len(server.refused) - 3} more" if len(server.refused) > 3 else ""
    why = spent or ("; ".join(few) + more) or "nobody answered"
    return (
        f"no reply counted in {server.round} rounds, so no model was made; in the last: {why}: "
        "correct that, then run again with another state folder"
    )


def round_lines(report: Mapping[str, Any]) -> list[str]:
    """A round for people: the spread of scores, the strategy's numbers, then a line per site."""
    info = "".join(f", {k} {v:.3g}" for k, v in report["info"].items() if v is not None)
    count = len(report["sites"])
    lines = [f"round {report['round']}: {count} sites, {spread(report)}{info}"]
    if "secure" in report:
        found = report["secure"]
        clipped = f", {found['clipped']} of them clipped" if found.get("clipped") else ""
        lines.append(f"  secure sum of {found['summed']} changes{clipped}")
        if found.get("largest", 0) >= NEARLY_ALL:
            held = f"{found['largest']:.1%} of the weight"
            why = "the sum is nearly its change; SecureSum(most_share=0.9) refuses that"
            lines.append(f"  one site holds {held}: {why}")
    for site, row in report["sites"].items():
        cells, name = [f"  {site:<16}"], "error" if row["accuracy"] is None else "accuracy"
        for what, value in ((name, row.get(name)), ("own model", row.get("personal"))):
            cells += [] if value is None else [f"{what} {_score(name, value)}"]
        if row["loss"] is not None:
            cells.append(f"loss {row['loss']:.3f}")
        if row["weight"] is not None:
            cells.append(f"weight {row['weight']:.3f}")
        lines.append("  ".join(cells))
    return lines


def lines_of_round(report: Mapping[str, Any], known: int) -> list[tuple[int, str]]:
    """All lines about a round that has ended, with levels; `known` refusals were logged before."""
    out = [(INFO, line) for line in round_lines(report)]
    for site in report.get("started_anew", ()):
        out.append((WARNING, f"{site} lost what it kept, so it started anew in this round"))
    left = report["refused"][known:]
    return out + [(WARNING, f"left out of round {report['round']}: {why}") for why in left]


def lines_of(line: Mapping[str, Any]) -> list[str]:
    """A line of rounds.jsonl for people: of a round, or of the end."""
    if "deployed" in line:
        return lines_of_end(line)
    return [text for _, text in lines_of_round(line, 0)]


def lines_of_end(report: Mapping[str, Any]) -> list[str]:
    """How the model that is handed out serves the sites, and then each site that could tell."""
    name, own = "error" if "error" in report else "accuracy", report.get("personal", {})
    lines = [f"model handed out: {spread(report)}"]
    for site, value in report["deployed"].items():
        more = f", own model {_score(name, own[site])}" if site in own else ""
        lines.append(f"  {site:<16} {name} {_score(name, value)}{more}")
    return lines


def _score(name: str, value: float) -> str:
    """An accuracy or an error as a line has it."""
    return f"{100 * value:5.1f} %" if name == "accuracy" else f"{value:.4g}"


def spread(report: Mapping[str, Any]) -> str:
    """How accuracy spreads over the sites, in a few words."""
    if "variance" not in report:
        return "no accuracy reported"
    if "error" in report:
        worst, variance = (f"{report[key]:.4g}" for key in ("worst", "variance"))
        return f"error {report['error']:.4g}, worst {worst}, variance {variance}"
    mean, worst = report["accuracy"], report["worst"]
    return f"accuracy {mean:.1f} %, worst {worst:.1f} %, variance {report['variance']:.1f}"
