"""What `--help` shows of a command: its options in panels, and examples at the end.

Plain text, so that it reads alike in a narrow terminal, in a file and without colours.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from fedmaba.experiment import config

MOST_USED = "Most used"
SEARCH = "The search"
OWN_TABLE = "Your own table"
OUTPUT = "Output"
OTHER = "Other options"
PANEL_OF_SECTION = {
    "data": "Data and clients",
    "train": "Training",
    "model": "Training",
    "init": "Training",
    "batchnorm": "Training",
    "server": "Strategies",
    "eval": "Fairness figures",
    "attack": "Privacy and attacks",
    "dp": "Privacy and attacks",
    "turnout": "Who takes part",
    "machine": "Hardware",
    "save": OUTPUT,
}
PANELS = (  # in this order
    *("Arguments", SEARCH, MOST_USED, "Data and clients", OWN_TABLE),
    *dict.fromkeys([*PANEL_OF_SECTION.values()][1:]),
    OTHER,
)
FLAGS_MOST_USED = (
    *("--data", "--clients", "--partition", "--model", "--rounds"),
    *("--participants", "--lr", "--seeds", "--eval-every", "--out"),
)
FLAGS_OF_OWN_TABLE = (
    *("--label", "--client", "--group", "--split", "--drop", "--categorical", "--feature"),
    *("--together", "--missing", "--standardise"),
)


def panel_of(key: config.Key) -> str:
    """Under which title an option of an experiment stands."""
    if key.flag in FLAGS_MOST_USED:
        return MOST_USED
    return OWN_TABLE if key.flag in FLAGS_OF_OWN_TABLE else PANEL_OF_SECTION[key.path[0]]


def examples(*commands: str) -> str:
    """The end of a command's help; the first line keeps the others as they are."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


class CommandInPanels(TyperCommand):
    """A command whose help sorts its options into panels."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        named = [str(p.metavar) for p in self.params if p.param_type_name == "argument"]
        return ["[OPTIONS]", *named]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[Any]] = {}
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                about = getattr(param, "help", "")
                panels.setdefault("Arguments", []).append((param.metavar, about))
            elif row := param.get_help_record(ctx):
                title = getattr(param, "rich_help_panel", None) or OTHER
                panels.setdefault(title, []).append(row)
        for title in sorted(panels, key=PANELS.index):
            with formatter.section(title):
                formatter.write_dl(panels[title])
