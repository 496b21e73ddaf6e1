"""Strings of files in every output: shown, never obeyed; ordinary names come out as they are."""

import csv
import html.parser
import http.client
import json
import re
import sys
import threading
import unicodedata
import xml.etree.ElementTree
from io import StringIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import fedmaba
from escape_cases import HOSTILE, ORDINARY, about, history
from fedmaba import cli
from fedmaba.cli import commands
from fedmaba.errors import InputError
from fedmaba.report import (
    data,
    document,
    escape,
    export,
    figures,
    tensorboard,
    terminal,
    watch,
)
from fedmaba.report import html as page
from fedmaba.results import run_folder

quick = settings(deadline=None, database=None)
BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
BEGINS = tuple("=+-@＝＋－＠\t\r\n")
any_text = st.text(st.characters(exclude_categories=[])) | st.sampled_from(HOSTILE)
SOME = [HOSTILE[i : i + 20] for i in range(0, len(HOSTILE), 20)]  # a history of each
# where a history takes long: names of all kinds in two of them, and all names in the slow tests
FEW = [HOSTILE[0::27], HOSTILE[13::27]]
FEW += [pytest.param(names, marks=pytest.mark.slow) for names in SOME]


def obeyed(text: str) -> list[str]:
    """Signs that a terminal or an editor acts on, or that no file can hold."""
    kinds = ("Cc", "Cs", "Zl", "Zp", "Cn")
    signs = {c for c in set(text) - {"\n"} if unicodedata.category(c) in kinds or c in BIDI}
    return [c for c in text if c in signs] if signs else []  # a page is long and has none


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_names_come_out_as_they_are(text):
    assert escape.one_line(text) == escape.for_markdown(text) == text
    assert escape.for_figure(text) == text
    assert str(escape.for_csv(text)).lstrip("'") == text


# --- one line: terminal, messages, tags -----------------------------------------------------------


@quick
@given(any_text)
def test_one_line_is_one_line_of_signs_that_can_be_seen(text):
    seen = escape.one_line(text)
    assert not obeyed(seen)
    assert "\n" not in seen
    assert seen.encode().decode() == seen == escape.one_line(seen)


def test_what_cannot_be_seen_is_named():
    assert escape.one_line("a\x1b[31m\u202eb\ud800") == r"a\x1b[31m\u202eb\ud800"
    assert escape.one_line("a\r\nb\tc\u2028d\n") == "a b c d"


@pytest.mark.parametrize("names", FEW)
@pytest.mark.parametrize("terminal_like", [False, True])
def test_a_terminal_obeys_no_name(names, terminal_like):
    out = StringIO()
    colours = "standard" if terminal_like else None
    console = Console(file=out, width=400, force_terminal=terminal_like, color_system=colours)
    found = history(names)
    terminal.show(found, console=console)
    for name in names:  # a name as a head, too
        grid = document.Grid("x", name, ["row", name], [[document.Cell(name)] * 2])
        console.print(terminal.table_of(grid))
    text = out.getvalue()
    if terminal_like:  # our own colours
        text = re.sub(r"\x1b\[(\d|;)*m", "", text)
    assert not obeyed(text)
    assert not obeyed(str(found))
    assert len(str(found).splitlines()) == 2 + len(set(names))
    assert "diverged: seed 2" in text


def test_a_name_in_a_head_is_no_markup():
    out = StringIO()
    grid = document.Grid("x", "t", ["row", "[bold]x[/bold] :smile:"], [[document.Cell("a")] * 2])
    Console(file=out, width=100).print(terminal.table_of(grid))
    assert "[bold]x[/bold] :smile:" in out.getvalue()


@pytest.mark.parametrize("names", SOME)
def test_an_error_is_one_line_whatever_it_names(names, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedmaba", "list", "figures"])
    for name in names:

        def fails(standalone_mode, name=name):
            raise InputError(f"{name}: no run folder")

        monkeypatch.setattr(commands, "app", fails)
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith("fedmaba: ")
        assert said.endswith(": no run folder\n")
        assert said.count("\n") == 1
        assert not obeyed(said)


def test_a_warning_and_a_word_of_the_command_line_are_one_line_too(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedmaba", "table", "\x1b[2J\u202e/nothing"])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err.startswith(r"fedmaba: \x1b[2J\u202e/nothing is no run folder")
    import warnings

    assert warnings.formatwarning("a\n\x1bb", UserWarning, "f", 1) == "fedmaba: warning: a \\x1bb\n"


def test_tags_of_tensorboard_can_be_written():
    pytest.importorskip("tensorboard")
    event = tensorboard.event_of(1, {f"strategy/{name}": 1.0 for name in HOSTILE}, None)
    tags = [value.tag for value in event.summary.value]
    assert len(tags) == len(HOSTILE)
    assert not obeyed("".join(tags))
    assert event.SerializeToString()


# --- CSV ------------------------------------------------------------------------------------------


def naive(text: str) -> list[list[str]]:
    """Rows of a reader that ends one at every line break, quoted or not."""
    return list(csv.reader(re.split(r"\r\n|\r|\n", text.removesuffix("\n"))))


@quick
@given(st.lists(st.lists(any_text, min_size=3, max_size=3), min_size=1, max_size=5))
def test_no_text_leaves_its_cell_or_begins_a_formula(rows):
    text = document.csv_text(rows)
    found = list(csv.reader(StringIO(text, newline="")))
    assert len(found) == len(naive(text)) == len(rows)
    for row in found:
        assert len(row) == 3
        for cell in row:
            assert not cell.lstrip().startswith(BEGINS)
            assert not any(part.lstrip('" ').startswith(BEGINS) for part in cell.split(";"))
    for line in text.splitlines():  # and as a spreadsheet splits that wants semicolons
        assert not any(part.strip('" ').startswith(BEGINS) for part in line.split(";"))
    assert not obeyed(text)
    assert text.encode()


def test_a_carriage_return_and_wide_signs_start_no_formula():
    name = "bob\r=cmd|' /C calc'!A0"
    assert document.csv_text([[name, "＝1+1", "＠x", " =1", "x;=1"]]) == (
        "bob =cmd|' /C calc'!A0,'＝1+1,'＠x,' =1,x;'=1\n"
    )


def test_numbers_stay_numbers():
    assert document.csv_text(
        [[-1.5, -3, 1e-20, float("nan"), float("-inf"), None, np.float64(-2)]]
    ) == ("-1.5,-3,1e-20,,,,-2\n")


@pytest.mark.parametrize("names", FEW)
def test_every_csv_of_a_run_has_its_rows_and_columns(names):
    source = data.Source(names[0], history(names), about(names))
    tables = [
        export.summary(source.history), export.rounds(source.history), export.clients(source),
        export.weights(source),
    ]  # fmt: skip
    for rows in tables:
        found = list(csv.reader(StringIO(document.csv_text(rows), newline="")))
        assert len(found) == len(rows) == len(naive(document.csv_text(rows)))
        assert {len(row) for row in found} == {len(rows[0])}
        for row in found:
            assert not any(
                cell.lstrip().startswith(BEGINS[:-3]) for cell in row if not number(cell)
            )
    text = source.history.table("csv", against=names[0]) if len(names) > 1 else ""
    assert {len(row) for row in csv.reader(StringIO(text, newline=""))} <= {9}


def number(cell: str) -> bool:
    return re.fullmatch(r"-?[\d.]+(e[-+]\d+)?", cell) is not None


# --- LaTeX ----------------------------------------------------------------------------------------

OURS = {"textbackslash", "textasciitilde", "textasciicircum", "textless", "textgreater", "textbar"}
OURS |= {"pm", "cdot", "times", "textbf", "underline", "rho", *escape.GREEK.values()}


def unescaped(text: str) -> list[str]:
    """Commands and special signs of a LaTeX text that are not ours."""
    found = [m for m in re.findall(r"\\([A-Za-z]+)", text) if m not in OURS]
    text = re.sub(r"\\[A-Za-z]+|\\[&%$#_{}]|\$\^2\$|\$-\$|\$\$(?=$)", "", text)
    text = re.sub(r"\$\$", "", text)  # of ours, whose command is gone
    return found + re.findall(r"[\\&%#_~^$<>|]", text)


@quick
@given(any_text)
def test_latex_prints_a_name_as_it_stands(text):
    seen = escape.for_latex(text)
    assert not unescaped(seen), seen
    assert seen.count("{") - seen.count(r"\{") == seen.count("}") - seen.count(r"\}")
    assert not obeyed(seen)
    assert "\n" not in seen
    assert not seen.startswith(("[", "*"))  # an option of the line above


@pytest.mark.parametrize("names", FEW)
def test_a_latex_table_has_the_columns_it_should_have(names):
    text = history(names).table("latex", against=names[0])
    assert not obeyed(text)
    body = [line for line in text.splitlines() if not line.startswith("%")]
    known = {"begin", "end", "centering", "caption", "label", "toprule", "midrule", "bottomrule"}
    known |= OURS
    assert set(re.findall(r"\\([A-Za-z]+)", "\n".join(body))) <= known
    assert [line for line in body if "\\begin{tab" in line][0::2] == ["\\begin{table}"] * 2
    for block in re.findall(r"\\toprule\n(.*?)\\bottomrule", "\n".join(body), re.DOTALL):
        rows = [line for line in block.splitlines() if line != "\\midrule"]
        assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
        assert all(row.endswith(r" \\") for row in rows)


# --- Markdown -------------------------------------------------------------------------------------


class Tags(html.parser.HTMLParser):
    """Elements of a page and their attributes; the text of each cell."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen, self.rows = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, text):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += text


def renderers():
    from markdown_it import MarkdownIt  # comes with rich

    wide = MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough")
    yield wide.render
    try:
        import markdown
    except ImportError:  # of the extra `docs`
        return
    extensions = ["tables", "attr_list", "footnotes", "abbr", "toc", "admonition", "md_in_html"]
    yield lambda text: markdown.markdown(text, extensions=extensions)


FINE = {"h1", "p", "strong", "em", "table", "thead", "tbody", "tr", "th", "td"}


@pytest.mark.parametrize("names", FEW)
def test_markdown_shows_a_name_and_makes_nothing_live(names):
    found = history(names)
    for name in names:
        sheet = document.Document(name, [name], [])
        text = document.markdown(sheet)
        assert not obeyed(text)
        assert "<" not in text
        for render in renderers():
            tags = Tags(render(text)).seen
            assert {tag for tag, _ in tags} <= {"h1", "p"}, (name, render(text))
            assert {key for _, own in tags for key in own} <= {"id"}, (name, render(text))
    text = found.table("markdown", against=names[0])
    assert "<" not in text
    assert not obeyed(text)
    for render in renderers():
        shown = Tags(render(text))
        assert {tag for tag, _ in shown.seen} <= FINE
        keys = {(key, value) for _, own in shown.seen for key, value in own.items()}
        assert {key for key, _ in keys} <= {"id", "style"}
        assert {value for key, value in keys if key == "style"} <= {"text-align: left;"}
        assert {len(row) for row in shown.rows[: 1 + len(names)]} == {7}
        assert [row[0].strip() for row in shown.rows[1 : 1 + len(names)]] == [
            escape.one_line(name).strip() for name in names
        ]


@quick
@given(any_text)
def test_a_cell_of_markdown_stays_one_cell(text):
    seen = escape.for_markdown(text)
    assert "<" not in seen
    assert "\n" not in seen
    assert not obeyed(seen)
    line = document.line([document.Cell(text), document.Cell("x")], "markdown")
    for render in renderers():
        rows = Tags(render(f"| a | b |\n| --- | --- |\n{line}\n")).rows
        assert [len(row) for row in rows] == [2, 2]


# --- the page -------------------------------------------------------------------------------------


@quick
@given(any_text)
def test_a_text_of_a_page_is_no_markup(text):
    seen = escape.for_html(text)
    assert not re.search(r"[<>\"']", seen)
    assert not [c for c in obeyed(seen) if c != "\t"]
    assert seen.encode().decode() == seen


def test_a_page_keeps_lines_and_spaces():
    text = "a\tb\nc\u00a0<&>\"'"
    assert html.unescape(escape.for_html(text)) == text


@pytest.mark.parametrize("names", FEW)
def test_the_page_of_a_hostile_folder_is_text(names):
    counts = {0: np.ones((4, len(names)), np.int64)}
    source = data.Source(names[0], history(names), about(names), "\n".join(names), counts)
    text = page.page([source])
    assert text.encode()
    assert not [c for c in obeyed(text) if c != "\t"]
    tags = Tags(text).seen
    assert [tag for tag, _ in tags].count("script") == 2
    for tag, own in tags:
        assert not {key for key in own if key.startswith("on")}, tag
        assert tag not in ("iframe", "object", "base", "img", "math", "embed", "form")
        for key in ("href", "src", "action"):
            assert own.get(key, "#").startswith(("#", "data:image/svg+xml,")), (tag, own)
        assert "\n" not in (own.get("data-copy-text") or "")  # pasted, it would run at once
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1]
    assert "<" not in block
    tree = json.loads(block)
    assert not obeyed(json.dumps(tree, ensure_ascii=False))
    for row in tree["tables"]["deployed.last"]["rows"]:
        assert not unescaped(
            row["latex"].removesuffix(r" \\").replace(" & ", "").replace("$\\pm$", "")
        )
        assert "<" not in row["markdown"]


# --- figures --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.filterwarnings("ignore:Matplotlib currently does not support")
def test_a_figure_draws_every_name_as_it_stands():
    pytest.importorskip("matplotlib")
    some = [name for name in HOSTILE if not name.startswith("name ")]
    assert len(some) > 300
    with figures.style():
        figure = figures.canvas((4, 3))
        for name in some:
            figure.text(0.1, 0.5, escape.for_figure(name), in_layout=False)
    assert figures.encode(figure, ".pdf")
    shown = drawn(figure)
    for name in some:
        assert escape.one_line(name) in shown


def drawn(figure) -> str:
    """The words in a figure, read from a picture that is whole XML."""
    picture = xml.etree.ElementTree.fromstring(figures.encode(figure, ".svg"))
    return "\n".join(picture.itertext())


# the figure of incentives is that of gains, beside a row `local`; see test_costs for those of costs
ELSEWHERE = ("heterogeneity", "incentive", "turns", "bytes", "hours")
KINDS = [k for k in figures.KINDS if k not in ELSEWHERE]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [k if k in ("rounds", "tradeoff") else pytest.param(k, marks=pytest.mark.slow) for k in KINDS],
)
@pytest.mark.filterwarnings("ignore:constrained_layout not applied")
def test_a_name_is_no_formula_in_any_figure(kind):
    pytest.importorskip("matplotlib")
    names = [r"a$\foo$", "$$", "_hidden", r"\$x$", "b\x1b[2J\ud800$\\frac{1}{$"]
    names += ["c", "d", "e"]  # so many that a legend says which are thick
    shown = drawn(figures.figure_of(history(names), kind))
    for name in names if kind != "tradeoff" else ():  # there letters are drawn as lines
        assert escape.one_line(name) in shown


def test_names_of_classes_are_no_formulas_either():
    pytest.importorskip("matplotlib")
    names = [r"a$\foo$", "b\x1b$", "c"]
    source = data.Source(
        "x", history(["fedavg"]), about(names), "x", {0: np.ones((4, 3), np.int64)}
    )
    shown = figures.encode(figures.draw([source], "heterogeneity"), ".svg").decode()
    assert r"a$\foo$" in shown
    assert r"b\x1b$" in shown


def test_a_user_who_sets_everything_in_latex_runs_no_name(monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context({"text.usetex": True}):
        assert figures.encode(figures.figure_of(history([r"\input{x}"]), "variance"), ".svg")


# --- whole folders --------------------------------------------------------------------------------


class Own(fedmaba.FedAvg):
    """A rule whose name means something to every program."""

    name = r"a$\foo$ \input{x} <b>|[x](javascript:1) =1+1"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder and clients with names that a shell, a terminal and a spreadsheet would obey."""
    out = tmp_path_factory.mktemp("escape") / "run\x1b]0;x\x07\u202e$(x)"
    rng, who = np.random.default_rng(0), np.repeat(np.arange(4), 20)
    names = np.array(["bob\r=cmd|' /C calc'!A0", "＝1+1", "eve\x1b[2J", "x;=1"])
    x, y = rng.normal(size=(80, 3)).astype(np.float32), rng.integers(0, 2, 80)
    mine = fedmaba.Federation.from_arrays(x, y, names[who])
    fedmaba.compare(["fedavg", Own()], data=mine, model="softmax", rounds=2, seeds=1, out=out)
    return out


@pytest.mark.slow
def test_every_command_shows_a_hostile_folder_and_obeys_nothing(run, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    commands = [["table", run, *words] for words in ([], ["--against", "fedavg"])]
    commands += [["table", run, "--to", form] for form in ("markdown", "latex", "csv")]
    commands += [["export", run, "-o", tmp_path / "csv"]]
    commands += [["report", run, "-o", tmp_path / "a\x1b.html"]]
    for kind in ("tradeoff", "heterogeneity"):  # each kind: test_a_name_is_no_formula_in_any_figure
        commands += [["figure", kind, run, "-o", tmp_path / f"{kind}.svg"]]
    for words in commands:
        monkeypatch.setattr(sys, "argv", ["fedmaba", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        assert not end.value.code, said.err
        assert not obeyed(said.out + said.err), words
    with open(tmp_path / "csv" / "clients.csv", newline="") as file:
        text = file.read()
    assert len(naive(text)) == len(list(csv.reader(StringIO(text, newline="")))) == 1 + 2 * 4
    assert "＝" not in {row[4][:1] for row in naive(text)}
    kept = run_folder.load_history(run).runs[1].label  # the record keeps the truth
    assert kept == Own.name
    assert "bob\r=cmd|' /C calc'!A0" in data.load_run_folder(run).data["clients"]


def test_what_watch_says_of_a_fault_is_one_line(run, monkeypatch):
    def fails(self):
        raise InputError("a\ud800\x1b\nb")

    monkeypatch.setattr(watch.Server, "page", fails)
    with watch.serve(run) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        asked = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
        asked.request("GET", "/")
        answer = asked.getresponse()
        assert (answer.status, answer.read()) == (503, b"fedmaba: a\\ud800\\x1b b\n")
        asked.close()
        server.shutdown()
