"""Strings that a file may hold and that some output would obey, and histories that carry them."""

import numpy as np

from fedmaba.results.history import History, RunHistory
from report_cases import PAYLOADS

TERMINAL = [
    "\x1b[31mred", "\x1b]0;title\x07", "\x1b]8;;http://192.0.2.1\x1b\\link\x1b]8;;\x1b\\",
    "\x1b[2J\x1b[H", "\x1b[1A\x1b[2K", "\x1bc", "\x1bP+q\x1b\\", "\x9b31m", "\x9d0;t\x9c", "a\bb",
    "a\rb", "a\nb", "a\r\nb", "a\tb", "a\vb", "a\fb", "a\x00b", "\x07", "\x7f", "\x85", "a\x1cb",
    "a\u2028b", "a\u2029b", "\u202egnp.exe", "\u2066x\u2069", "\u200eab", "\u061cab", "\ufeffx",
    "\u200bx", "\u00adx", "\U000e0041x", "\ue000", "\uffff", "\ud800", "a\udcffb", "[bold]x[/bold]",
    "[red]", "[/]", "[link=http://192.0.2.1]x[/link]", ":smile:", "[@click=app.bell]x[/]",
]  # fmt: skip
LATEX = [
    r"\input{/etc/passwd}", r"\write18{id}", r"\immediate\write18{id}", r"\def\x{\x}\x", r"\\",
    r"a$\foo$", "$$", "$x", "a_b", "a^b", "^^5cinput{x}", "100%", "%", "#1", "&", "~", "{", "}",
    r"\end{document}", r"\csname input\endcsname", "[2cm]", "*", "[", "a & b \\\\ c", r"\catcode",
    "\\", "\\\\[1cm]", "``x''", "<<>>", "|", "ά", "Ω=1", "¿?", "\\verb|x|", "\\^^M",
]  # fmt: skip
SHEET = [
    "=1+1", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "bob\r=cmd|' /C calc'!A0", "＝1+1",
    "＋1", "－1", "＠x", " =1", "x;=1", 'x;"=1"', '"=1"', '",=1', "a,=1", "a\r\n=1", "\ufeff=1",
    "=HYPERLINK(\"http://192.0.2.1\")", "'=1", "\u00a0=1", "\u3000＝1", "\x00=1", "DDE(\"cmd\")",
    "-", "+", "=", "@", '"', ",", ";", "\r", "\n", "\r\n", "=\r=", "x;\t+1", "x;;-1", "\x85=1",
]  # fmt: skip
MARKDOWN = [
    "[x](javascript:window.hit=1)", "![x](javascript:window.hit=1)", "<javascript:window.hit=1>",
    "[x]: javascript:window.hit=1", "[x][y]", "[0.1](javascript:window.hit=1)",
    "[1, 2]: javascript:window.hit=1", "`code`", "``", "a|b", "a\\|b", "|", "||", "\\", "\\|",
    "*x*", "**x**", "__x__", "_x_", "~~x~~", "# x", "#x", "- x", "+ x", "1. x", "12) x", "---",
    "===", "> x", "    x", "```", "~~~", "$x$", "$$x$$", "&lt;script&gt;", "&#60;b&#62;",
    "<!-- x", "x\n\n# y", "{: onclick=window.hit=1 }", "x {: onclick=window.hit=1 }", "{{ 7*7 }}",
    "<b>x</b>", "??? x", "::: x",
    "[TOC]", "[^1]", "[^1]: x", "!!! x", "*[x]: y", "--8<-- \"x\"", "| a |\n| --- |\n| b |",
    "[[x]]", "<a href=javascript:1>", "a\n| b | c |", "&#x6A;avascript:1", "\\[x](y)", "[a\\](b)",
]  # fmt: skip
OWN = [*TERMINAL, *LATEX, *SHEET, *MARKDOWN]
HOSTILE = list(dict.fromkeys([*OWN, *(f"name {text}" for text in OWN), *PAYLOADS]))
ORDINARY = [
    "fedavg", "fedmaba:alpha=0.8,eta_b=0.5", "q-FFL, q=0.1 (code)", "FedMGDA+, η=1.0, ε=0.1",
    "poly:8", "ema:0.98", "hospital-3", "Klinik Süd", "東京", "بیمارستان", "می\u200cخواهم",
    "runs/table-001", "Left out of every mean: afl, seed 2, diverged.", "50 % of them", "A & B",
    "+1.00 [-0.50, +2.50]: holds", "12.3 ± 0.4", "a=b", "x-y", "O'Brien", "d'Hôpital", "50.5",
]  # fmt: skip


def history(names, evaluated=True, score=None) -> History:
    """A run for each name, which is also what it deploys and how another one diverged."""
    rng, runs = np.random.default_rng(0), []
    for name in names:
        for seed, diverged in ((0, ""), (1, ""), (2, name)):
            run = RunHistory(name, seed, name, np.full(4, 9), diverged)
            if evaluated:
                score_of = rng.random((2, 4)) if score is None else np.full((2, 4), score)
                run.tables = {
                    "round": [1, 2], "client": [np.arange(4)] * 2, "weight": [np.full(4, 0.25)] * 2,
                    "evaluated": [1, 2], "info.lambda": [0.0, 0.1],
                    **{f"{m}.accuracy": list(score_of) for m in ("deployed", "last")},
                    **{f"{m}.loss": list(score_of) for m in ("deployed", "last")},
                }  # fmt: skip
                run.tables = {k: [np.asarray(v) for v in rows] for k, rows in run.tables.items()}
            runs.append(run)
    return History(runs)


def about(names) -> dict:
    """What a hostile about.json says."""
    return {
        "command": [*names],
        "repeat": "\n".join(names),
        "python": True,
        "device": names[0],
        "versions": {n: n for n in names},
        "model": {n: n for n in names},
        "partition": {n: n for n in names},
        "hostile": {"0": [0, 1]},
        "data": {"name": names[0], "sha256": names[-1], "classes": names, "clients": names[:4]},
    }
