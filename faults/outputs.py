"""Readers of every output, independent of what writes them: what in it is live, or not text?

Each looks at one output and yields what a string from a file must never have become: an escape
sequence, a formula, a LaTeX command, a tag, a link, a row.
"""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
import xml.etree.ElementTree as tree
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser

from markdown_it import MarkdownIt

from fedmaba.report import escape

BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
ENDS = set("\u2028\u2029")
SCHEMES = re.compile(r"(?i)^[\s\x00-\x20]*(?:javascript|vbscript|data(?!:image/png;base64,)):")
# what escaping may write; any other command is one that a name brought in, or the table's own
ESCAPES = {
    "textbackslash", "textasciitilde", "textasciicircum", "textless", "textgreater", "textbar",
    "textdollar", "textunderscore", "textquotesingle", "textquotedbl", "textasciigrave", "ldots",
    "textquotedblleft", "textquotedblright", "textendash", "textemdash", "textellipsis", "char",
    "textbraceleft", "textbraceright", "textasteriskcentered", "texttt", "slash", "relax", "string",
}  # fmt: skip
PLAIN_LATEX = "%$#_{}&"  # that a backslash makes harmless
STRUCTURE = ("table", "thead", "tbody", "tr", "th", "p", "ul", "ol", "li", "pre", "blockquote")
STRUCTURE += ("h1", "h2", "h3", "h4", "h5", "h6", "hr")
MARKUP = {*STRUCTURE, "td", "em", "strong", "code", "br", "s"}  # that markdown may make of names
LIVE = {  # elements that do something
    "script", "iframe", "object", "embed", "base", "meta", "link", "form", "foreignobject",
    "animate", "set", "applet", "frame", "frameset", "img", "image", "video", "audio", "source",
    "style", "svg", "math", "input", "button", "textarea", "a", "template",
}  # fmt: skip


def odd(text: str, allowed: str = "\n") -> Iterator[str]:
    """Characters that a terminal or an editor acts upon, and bytes that are no text."""
    found = set()
    for c in set(text) - set(allowed):
        if "\udc80" <= c <= "\udcff":
            found.add("bytes that are no UTF-8")
        elif "\ud800" <= c <= "\udfff":
            found.add("a lone surrogate")
        elif c == "\x1b" or "\x80" <= c <= "\x9f":
            found.add("an escape code")
        elif unicodedata.category(c) == "Cc":
            found.add("a control character")
        elif c in BIDI:
            found.add("a character that turns text round")
        elif c in ENDS:
            found.add("a line end of Unicode")
    yield from sorted(found)


# --- CSV ----------------------------------------------------------------------------------------


def csv_rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


def in_csv(text: str, like: str | None = None) -> Iterator[str]:
    """Formulas, broken rows, and line ends that only some programs see."""
    body = text.replace("\r\n", "\n")
    yield from odd(body)
    try:
        rows = csv_rows(text)
    except csv.Error as error:
        yield f"no CSV ({error})"
        return
    if len({len(row) for row in rows}) > 1:
        yield "rows of unequal length"
    if like is not None and len(rows) != len(csv_rows(like)):
        yield "another number of rows"
    cells = {cell for row in rows for cell in row}
    if any(_formula(cell) for cell in cells):
        yield "a formula"
    pieces = {p.strip('"') for p in re.split("[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]", text)}
    if any(_formula(piece.split(",")[0]) for piece in pieces):
        yield "a formula after a line end"


def _formula(cell: str) -> bool:
    """Whether a spreadsheet would calculate it: also with what it leaves away before it."""
    plain = unicodedata.normalize("NFKC", cell)
    plain = plain.lstrip("".join(c for c in set(plain) if not c.isprintable() or c.isspace()))
    if not plain.startswith(("=", "+", "-", "@")):
        return False
    try:
        float(plain)
    except ValueError:
        return True
    return False


# --- LaTeX --------------------------------------------------------------------------------------


def in_latex(text: str, like: str) -> Iterator[str]:
    """Commands, maths, comments and cells that the same table of a plain name has not."""
    yield from odd(text)
    text, like = (re.sub("(?m)^%.*$", "", whole) for whole in (text, like))  # TeX skips comments
    for ours in filter(re.compile(r"\$.*\$").fullmatch, escape.LATEX.values()):  # as $-$
        text, like = text.replace(ours, ""), like.replace(ours, "")
    known = {name for name, _ in _commands(like)} | ESCAPES
    strange = {name for name, _ in _commands(text)} - known
    if strange:
        yield "a command of LaTeX"
    for c in "$%#^~&{}":
        if _bare(text, c) != _bare(like, c) and c not in "{}":
            yield f"a bare {c}"
    if _bare(text, "{") != _bare(text, "}"):
        yield "braces that do not match"
    if _rows(text) != _rows(like):
        yield "another number of rows"


def _commands(text: str) -> Iterator[tuple[str, int]]:
    """Every command by name, read as TeX reads: a backslash and letters, or one other sign."""
    for found in re.finditer(r"\\(?:([A-Za-z@]+)|(.))", text, re.S):
        if found[1]:
            yield found[1], found.start()
        elif found[2] not in PLAIN_LATEX + "\\ ,;:!/-'\"`^~=.":
            yield found[2], found.start()


def _rows(text: str) -> int:
    return sum(found == r"\\" for found in re.findall(r"\\(?:[A-Za-z@]+|.)", text, re.S))


def _bare(text: str, c: str) -> int:
    """How often a sign stands without the backslash that makes it text."""
    return re.sub(r"\\(?:[A-Za-z@]+|.)", "", text, flags=re.S).count(c)


# --- HTML and Markdown --------------------------------------------------------------------------


class Page(HTMLParser):
    """The elements of a page as a browser finds them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.handlers: Counter[str] = Counter()
        self.links: list[str] = []
        self.blocks: list[str] = []
        self._data = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        told = dict(attrs)
        self.handlers.update(name for name in told if name.startswith("on"))
        names = ("href", "src", "action", "formaction", "xlink:href", "srcdoc", "data", "poster")
        self.links += [told[name] or "" for name in names if name in told]
        self._data = tag == "script" and "json" in (told.get("type") or "")
        if self._data:
            self.blocks.append("")

    def handle_comment(self, data: str) -> None:
        self.tags["!--"] += 1

    def handle_data(self, data: str) -> None:
        if self._data:
            self.blocks[-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._data = False


def in_html(text: str, like: str) -> Iterator[str]:
    """Elements, handlers and links that the page of plain names has not."""
    page, plain = Page(text), Page(like)
    for tag in sorted(page.tags.keys() - plain.tags.keys()):
        yield f"a tag <{tag[:20]}>" if tag in LIVE else "a tag that is not the page's"
    for tag in sorted(LIVE & plain.tags.keys()):
        if page.tags[tag] > plain.tags[tag] and tag not in ("svg", "a", "button", "input"):
            yield f"one <{tag}> more"
    if page.handlers != plain.handlers:
        yield "a handler of events"
    if any(SCHEMES.match(link) for link in set(page.links) - set(plain.links)):
        yield "a link that runs"
    if set(map(_host, page.links)) - set(map(_host, plain.links)):
        yield "a link to somewhere else"
    for block in page.blocks:
        try:
            json.loads(block)
        except ValueError:
            yield "a block that is no JSON"
    if len(page.blocks) != len(plain.blocks):
        yield "another number of blocks of data"
    found = set(odd(text, "\n\t"))
    yield from sorted(found & {"bytes that are no UTF-8", "a lone surrogate", "an escape code"})


def _host(link: str) -> str:
    return link if link.startswith("#") else link.partition("?")[0].partition(",")[0][:60]


def in_markdown(text: str, like: str) -> Iterator[str]:
    """HTML, links and rows, as a strict reader of Markdown finds them."""
    yield from odd(text)
    page, plain = Page(_rendered(text)), Page(_rendered(like))
    for tag in sorted(page.tags.keys() - MARKUP - plain.tags.keys()):
        yield f"a live <{tag[:20]}>" if tag in LIVE else "a live tag"
    for tag in STRUCTURE:
        if page.tags[tag] != plain.tags[tag]:
            yield f"another number of <{tag}>"
    if any(SCHEMES.match(link) for link in page.links):
        yield "a link that runs"
    if page.handlers:
        yield "a handler of events"
    bars = [_bars(line) for line in text.splitlines() if line.startswith("|")]
    wanted = {_bars(line) for line in like.splitlines() if line.startswith("|")}
    if set(bars) - wanted:
        yield "another number of cells"


def _bars(line: str) -> int:
    return len(re.findall(r"(?<!\\)(?:\\\\)*\|", line))


def _rendered(text: str) -> str:
    reader = MarkdownIt("commonmark", {"html": True}).enable("table")
    reader.validateLink = lambda url: True
    return str(reader.render(text))


# --- SVG ----------------------------------------------------------------------------------------


def in_svg(text: str) -> Iterator[str]:
    """Scripts, handlers and links in a drawing; and whether it is one at all."""
    try:
        root = tree.fromstring(text)
    except (tree.ParseError, UnicodeEncodeError):
        yield "no XML"
        return
    for element in root.iter():
        tag = str(element.tag).rpartition("}")[2].lower()
        if tag in LIVE - {"svg", "style", "image"}:
            yield f"a tag <{tag[:20]}>"
        for name, value in element.attrib.items():
            short = name.rpartition("}")[2].lower()
            if short.startswith("on"):
                yield "a handler of events"
            inner = ("#", "data:image/png;base64,", "http://purl.org/dc/")
            if short == "href" and not value.startswith(inner):
                yield "a link to somewhere else"
