"""The fault campaigns must see what they look for: each reader of an output, each verdict."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults import formats, outputs, strings
from faults.cases import seen, where

ROOT = Path(__file__).parents[2]
TABLE = "| strategy | accuracy |\n|---|---|\n| {} | 1.00 |\n"
LATEX = "\\begin{{tabular}}{{lr}}\n{} & $1 \\pm 2$ \\\\\n\\end{{tabular}}\n"
PAGE = '<title>x</title><p>{}</p><script type="application/json">{{"a": 1}}</script>'
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><text{1}>{0}</text></svg>'


@pytest.mark.parametrize("text", ["\x1b[2J", "\x9b2J", "\x07", "\r", "\u202e", "\u2028", "\udc80"])
def test_a_terminal_is_not_told_what_to_do(text):
    assert list(outputs.odd(f"a{text}b\n"))
    assert not list(outputs.odd("é 世界 ± 😀\n"))


@pytest.mark.parametrize(
    "cell",
    ["=1+1", " =1", "\uff1d1", "@x", "-1+1", '"bob\r=cmd"', '"a\n=1"', "\u200b=1", "\x00=1"],
)
def test_a_formula_in_a_csv_is_seen(cell):
    assert list(outputs.in_csv(f"name,value\n{cell},1\n", "name,value\nbob,1\n"))


def test_a_sound_csv_is_sound():
    text = 'name,value\n"bob, ""the"" builder",-1.5\n\'=1,1e-05\n'
    assert not list(outputs.in_csv(text, "name,value\na,1\nb,2\n"))
    assert list(outputs.in_csv("a,b\n1\n", None)) == ["rows of unequal length"]


@pytest.mark.parametrize(
    "name",
    [r"\input{x}", "a$b$", "a_b & c", "100%", "#1", "^^5cinput", r"x \\ y", "{", r"\\input{x}"],
)
def test_a_command_in_latex_is_seen(name):
    assert list(outputs.in_latex(LATEX.format(name), LATEX.format("fedavg")))


def test_escaped_latex_is_sound():
    name = r"\textbackslash{}input\{x\} 100\% \$ \_ \& \# \textasciicircum{}"
    assert not list(outputs.in_latex(LATEX.format(name), LATEX.format("fedavg")))


@pytest.mark.parametrize(
    "name",
    [
        "<img src=x onerror=a()>",
        "[x](javascript:alert(1))",
        "a | b",
        "<!-- x -->",
        "x\n\n# head",
        "![x](http://evil.example)",
        "<a href='x'>",
        "a\\\\|b",
    ],
)
def test_live_markdown_is_seen(name):
    assert list(outputs.in_markdown(TABLE.format(name), TABLE.format("fedavg")))


def test_escaped_markdown_is_sound():
    name = r"\<img\> \[x\](javascript:x) a \| b &lt;b&gt; **bold**"
    assert not list(outputs.in_markdown(TABLE.format(name), TABLE.format("fedavg")))


@pytest.mark.parametrize(
    "name",
    [
        "<script>a()</script>",
        "<p onclick=a()>",
        "<a href='javascript:a()'>",
        "<iframe>",
        '</p><script type="application/json">{</script>',
        "\x1b[2J",
        "<svg onload=a()>",
        "<unknown>",
    ],
)
def test_a_live_page_is_seen(name):
    assert list(outputs.in_html(PAGE.format(name), PAGE.format("fedavg")))
    assert not list(outputs.in_html(PAGE.format("&lt;b&gt; $x"), PAGE.format("fedavg")))


@pytest.mark.parametrize(
    ("text", "attributes"),
    [("<script/>", ""), ("", ' onload="a()"'), ("", ' href="http://x"'), ("&x;", ""), ("\x0b", "")],
)
def test_a_live_drawing_is_seen(text, attributes):
    assert list(outputs.in_svg(SVG.format(text, attributes)))
    assert not list(outputs.in_svg(SVG.format("&lt;script&gt;", ' href="#a"')))


def test_there_are_at_least_200_hostile_strings_and_places_for_them():
    assert len(strings.CORE) >= 200
    assert {kind for kind, _ in strings.PLACES} >= {"done", "half", "begun", "archive"}


def test_a_traceback_is_named_by_its_place():
    text = "Traceback\n  File \"/x/fedmaba/record.py\", line 7, in load\n    x\nKeyError: 'a'\n"
    assert where(text) == "KeyError at record.py:7 in load"


def test_a_change_of_a_byte_a_right_or_a_time_is_seen(tmp_path):
    file = tmp_path / "a"
    file.write_text("x")
    before = seen(tmp_path)
    assert seen(tmp_path) == before
    os.utime(file, (1, 1))
    assert seen(tmp_path) != before


def test_a_file_is_taken_apart_into_every_value(tmp_path):
    file = tmp_path / "about.json"
    file.write_text(json.dumps({"a": {"b": [1, 2, 3]}}))
    found = list(formats.places(tmp_path, file))
    assert {p.what.partition(" = ")[0] for p in found} == {
        f"about.json {at}" for at in ("all of it", "a", "a.b", "a.b.0", "a.b.2")
    } | {"about.json"}
    assert len(found) > 5 * len(formats.JSON)
    for place in found:
        place.content()


def test_a_campaign_that_loses_says_so_with_how_to_repeat_it():
    """A reader that crashes, writes outside, runs what it finds or never ends: all found."""
    program = """
import os, time
from faults import cases, kinds
from faults.cases import Case, play
import fedmaba.cli
def worse(how):
    def main():
        if how == "crash": {}["a"]
        if how == "write": open("outside/keep.txt", "a").write("x")
        if how == "run": os.mkdir("RAN-module")
        if how == "hang": time.sleep(60)
        if how == "fill": time.sleep(0 * len(bytearray(1_030_000_000)))
    return main
cases.SECONDS = 4.0
def spoil(how):
    def put(folder): fedmaba.cli.main = worse(how)
    return put
hows = ["crash", "write", "run", "hang", "fill", "none"]
class Worse:
    KINDS = ()
    def cases(seed, templates): return (Case(h, "", ("table",), spoil(h)) for h in hows)
tally = play("worse", Worse, 6, 0, lambda t: None)
print(tally.lost, *tally.figures["kinds of failure"], sep="|")
"""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True
    )
    lost, *found = done.stdout.strip().split("|")
    assert lost == "5", done.stderr
    told = " ".join(found)
    for kind in (
        "traceback: KeyError", "changed by table: outside/keep.txt", "code was run: RAN-module",
        "over 24 s, waiting", "over 1000 MB",
    ):  # fmt: skip
        assert kind in told
