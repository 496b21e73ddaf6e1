r"""Strings that come from files, made safe for each output: one function per output. No torch.

A name in a run folder is whatever its writer wanted: an escape sequence, `\input`, a formula, a
script. The record keeps it as it is; the place that produces an output passes it through the
function of that output, and an ordinary name comes out unchanged. Pure.
"""

from __future__ import annotations

import math
import re
import unicodedata

JOINERS = "\u200c\u200d"  # Without these signs Persian, Hindi and many emoji are spelled wrong.
FORMULA_SIGNS = "=+-@＝＋－＠﹦﹢﹣﹫"  # begin a formula in a spreadsheet
FORMULA = re.compile(
    rf'(^|;)(?=[\s"]*[{re.escape(FORMULA_SIGNS)}])'
)  # many spreadsheets split at ;
GREEK = {"α": "alpha", "ε": "varepsilon", "η": "eta", "λ": "lambda", "μ": "mu", "τ": "tau"}
LATEX = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "²": r"$^2$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "–": "--",
    "−": "$-$",
    "·": r"$\cdot$",
    "×": r"$\times$",
    **{c: f"$\\{name}$" for c, name in GREEK.items()},
    "ρ": r"$\rho$",
}
MARKDOWN = {  # Some readers take no backslash before these, so their number is written.
    **{c: f"\\{c}" for c in "\\`*_{}|[#-+!"},
    "<": "&lt;",
    ">": "&gt;",
    "&": "&amp;",
    "~": "&#126;",
    "$": "&#36;",
    "?": "&#63;",
    ":": "&#58;",
}
MARKDOWN_SIGNS = re.compile(
    r"""
    [\\`*{}|<>~$]
    | &(?=\#?\w+;)                               # of an entity
    | (?<![^\W_])_ | _(?![^\W_])                 # not within a word, as in eta_b
    | ^\[ | \[(?![-+.,\d\ ]+\](?![(\[]))         # not of an interval, as [-1.5, +2.0]
    | ^\# | ^[-+](?=\s|$|-) | ^\d{1,9}[.)](?=\s|$)  # of a heading or a list
    | ^!(?=!) | ^\?(?=\?) | ^:(?=:)               # of a box
    """,
    re.VERBOSE,
)
HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"}


def one_line(text: str) -> str:
    r"""A text for a terminal, a message or a tag: one line, what cannot be seen as \x1b."""
    if text.isprintable():
        return text
    return "".join(map(_seen, " ".join(text.splitlines())))


def _seen(c: str) -> str:
    if c.isprintable() or c in JOINERS:
        return c
    return " " if c.isspace() else c.encode("unicode_escape").decode()


def for_latex(text: str) -> str:
    """A text that LaTeX prints as it stands."""
    out = "".join(LATEX.get(c, c) for c in one_line(text))
    return f"{{}}{out}" if out.startswith(("[", "*")) else out  # an option of the line above


def for_markdown(text: str) -> str:
    """A text that Markdown shows as it stands, also in a table; an address may become a link."""
    return MARKDOWN_SIGNS.sub(_marked, one_line(text).strip())


def _marked(found: re.Match[str]) -> str:
    number, mark = found[0][:-1], found[0][-1]  # an item of a list has one
    return number + MARKDOWN.get(mark, f"\\{mark}")


def for_csv(value: object) -> object:
    """A cell of a CSV file: a number as it is, a text as one that no spreadsheet calculates."""
    if isinstance(value, float):
        return f"{value:.12g}" if math.isfinite(value) else ""
    if value is None or isinstance(value, int):
        return value
    return FORMULA.sub(r"\1'", one_line(str(value)))


def for_html(text: str) -> str:
    """A text for a page or an attribute in quotes; lines and spaces stay."""
    if not text.isprintable():
        text = "".join(
            c if c in "\n\t" or unicodedata.category(c) == "Zs" else _seen(c) for c in text
        )
    return "".join(HTML.get(c, c) for c in text)


def for_figure(text: str) -> str:
    """A text that matplotlib draws as it stands: no formula, and never left out of a legend."""
    out = one_line(text).replace("$", r"\$")
    return f" {out}" if out.startswith("_") else out


def for_prometheus(text: str) -> str:
    """The value of a label in Prometheus' text format, without its quotes."""
    return one_line(text).replace("\\", r"\\").replace('"', r"\"")
