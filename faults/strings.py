"""Hostile strings in every field that is shown, then every output read by a parser of its own."""

from __future__ import annotations

import functools
import io
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from faults import formats, kinds, outputs
from faults.cases import Case, Result
from faults.common import call, inside, scratch

CORE = (
    # a terminal
    "\x1b[2Jx", "\x1b]0;owned\x07", "\x1b]8;;http://evil.example\x1b\\x\x1b]8;;\x1b\\", "\x9b31mx",
    "\x9d0;owned\x9c", "\x1bP1;1|x\x1b\\", "\x1b[1;1Hfedmaba: fine", "\x1b[?25l", "\x1bc",
    "\x08" * 9, "bob\rfedmaba: all is well", "a\nfedmaba: all is well", "a\r\nb", "\x07", "\x00",
    "a\x00b", "\x7f", "\x85x", "\x0b", "\x0c", "\t", "a\tb", "\u2028x", "\u2029x", "\u202eevil",
    "\u2066x", "\u200fx", "\u061cx", "\ufeffx", "\u200b", "\ud800", "a\udc80b", "\udfff\ud800",
    "\ufffe", "\x1f", "\x1b[38;5;196mred\x1b[0m", "\x1b", "\u009b2J", "\x1b]52;c;ZXZpbA==\x07",
    "\u0600x", "\U000e0041",
    # LaTeX
    r"\input{/etc/passwd}", r"\write18{touch RAN-tex}", r"\immediate\write18{id}", r"a$\foo$", "$",
    "$$", r"$\frac$", "$x^{$", r"$\mathrm{x}$", "a_b", "a^b", "%", "100%", "#", "#1", "&", "a & b",
    "{", "}", "{}", "}{", r"\\", r"a \\ b", "\\", r"\end{tabular}\input{x}", r"\verb|x|", "~",
    r"^^5cinput{x}", r"\catcode`\@=11", r"\csname input\endcsname", r"\def\x{y}", r"\newline",
    r"\$", r"\%", r"\&", r"\_", r"\{", r"\textbackslash", r"\\\\input", r"$\unknown{a}$",
    r"\begin{x}",
    # Markdown
    "[x](javascript:alert(1))", "![x](http://evil.example/x.png)", "<http://evil.example>", "`",
    "``", "`a`", "|", r"\|", "| a | b |", "\n| a | b |\n", "# head", "a\n\n# head",
    "[a]: javascript:x", "<b>x</b>", "<!-- x", "**x**", "_x_", "~~x~~", "`|`", "\\`", "a  \nb",
    "1. x", "- x", "> x", "---", "[x](data:text/html,<script>alert(1)</script>)",
    "[x]( javascript:x )", "\\[x](y)", "&lt;b&gt;", "&#60;script&#62;", "[![x](y)](javascript:z)",
    "<a href=javascript:x>y</a>", "&#x6a;avascript:x",
    # a spreadsheet
    "=1+1", "=cmd|' /C calc'!A0", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "bob\r=cmd|x",
    "bob\n=cmd|x", "\uff1d1+1", "\uff0b1", "\uff0d1+1", "\uff201", " =1", "\xa0=1", '"=1', '","=1',
    ",=1", ";=1", "\x0b=1", "\u2028=1", '=HYPERLINK("http://evil.example","x")', "\ufe661",
    "\u207c1", "\ufeff=1", "\u200b=1", "'=1", "a,b", 'a"b', '"', '""', "\x00=1", "%0A=1",
    "\u3000=1", "\x85=1", "=1\x00", "\x1c=1", "-", "+", "=", "@", "--", "-1e5x", "\u2212 1",
    "\ufe62 1", "\ufe6b x",
    # a page, a drawing
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", '"><img src=x onerror=a()>',
    "' onmouseover='a()", '" onload="a()', "<svg onload=a()>", "<svg><script>a()</script></svg>",
    "javascript:alert(1)", "</title><script>a()</script>", "</style><script>a()</script>", "]]>",
    "</text><script>a()</script>", "<![CDATA[", "<?xml?>", "<!ENTITY x>", "&x;", "&amp;", "&", "<",
    ">", "</", "<!", "<iframe srcdoc=x>", "<base href=//evil.example>", "{{7*7}}", "{% raw %}",
    "${1}", "<meta http-equiv=refresh content=0>", r"\u003cscript\u003e", "<a href='data:,x'>",
    "--><script>", "<math><mtext></p><script>", "<foreignObject>",
    "<use href='http://evil.example'/>", "{#", "#}",
    # markup of the terminal's library, formats, names
    "[red]x", "[/]", "[/red]", "[link=http://evil.example]x[/link]", "[bold", ":smile:", r"\[x]",
    "[@click=app.bell]x", "%s%n", "%(x)s", "{0}", "{x.y}", "{0.__class__}", "_hidden", "__proto__",
    "constructor", "toString", "None", "nan", "1e999", "", " ", "  x  ", ".", "..", "../../x",
    "/etc/passwd", "C:\\x", "CON", "-rf", "--out", "$(touch RAN-shell)", "`touch RAN-shell`",
    "~root", "x" * 5000, "\u00e9" * 3000, "e" + "\u0301" * 400, "\U0001f600" * 300, "\u4e16\u754c",
    "a b" * 999, "\ufdfa" * 20, "\u202e" * 50, "a" * 200 + "\x1b[2J",
)  # fmt: skip
SHOWN: tuple[tuple[str, ...], ...] = (
    ("table", "run"), ("table", "run", "--to", "markdown"), ("table", "run", "--to", "latex"),
    ("table", "run", "--to", "csv"), ("export", "run", "-o", "out"),
    ("report", "run", "-o", "out.html"), ("watch", "run"),
    ("figure", "rounds", "run", "-o", "out.svg"),
    ("figure", "distribution", "run", "-o", "out.svg"),
    ("table", "run", "--to", "latex", "--against", "fedmaba"),
    ("table", "run", "--to", "markdown", "--against", "fedmaba"), ("resume", "run", "--quiet"),
    ("figure", "heterogeneity", "run", "-o", "out.svg"),
    ("figure", "weights", "run", "-o", "out.svg"),
    ("table", "run", "--against", "fedmaba"), ("export", "run", "-o", "out"),
    ("figure", "tradeoff", "run", "-o", "out.svg"),
)  # fmt: skip
KEPT: tuple[tuple[str, ...], ...] = (
    ("reproduce", "--from", "run", "--out", "out"),
    ("reproduce", kinds.TARGET, "--from", "run", "--out", "out"),
)
KINDS = ("done", "half", "attacked", "diverged", "archive", "begun")


def hostile() -> list[str]:
    """Every string alone, behind a name and before one."""
    found = [*CORE, *(f"bob{s}" for s in CORE), *(f"{s}bob" for s in CORE)]
    return list(dict.fromkeys(found))


def cases(seed: int, templates: Path) -> Iterator[Case]:
    """Every string in some place through some output, then in others, without end."""
    rng = random.Random(seed)
    strings, turn = hostile(), rng.randrange(1000)
    while True:
        rng.shuffle(strings)
        for i, text in enumerate(strings):
            kind, place = list(PLACES)[(i + turn) % len(PLACES)]
            words = rng.choice(KEPT if kind == "archive" else SHOWN)
            spoil = functools.partial(PLACES[kind, place], text)
            what, may = f"{place} = {_short(text)}", ()
            told = words
            if place == "name of the folder":
                if not _nameable(text):
                    continue
                told = tuple(f"./{text}" if w == "run" else w for w in words)
                may = (text,)
            plain = "bob" if text.strip() else text
            check = functools.partial(_check, templates, kind, place, plain, words)
            yield Case(what, kind, told, spoil, check, may=may)
        turn += 1


def _short(text: str) -> str:
    return ascii(text if len(text) < 60 else text[:40] + f"... of {len(text)}")


def _nameable(text: str) -> bool:
    """Whether a folder can have this name."""
    try:
        size = len(os.fsencode(text))
    except UnicodeEncodeError:
        return False
    taken = ("", ".", "..", "home", "outside", "run", "tiny.npz", "out")
    return size < 200 and not set("/\x00") & set(text) and text not in taken


# --- where a string can stand -------------------------------------------------------------------


def _runs(key: str) -> Callable[[str, Path], None]:
    """A word of runs.json, in every run of the first label; its tables follow their label."""

    def put(text: str, folder: Path) -> None:
        from fedmaba.results.run_folder import run_file_stem

        file = folder / "run" / "runs.json"
        told = json.loads(file.read_text())
        first = told["runs"][0]["label"]
        for i, run in enumerate(told["runs"]):
            if run["label"] != first:
                continue
            before = (
                folder / "run" / "clients" / f"{run_file_stem(i, run['label'], run['seed'])}.npz"
            )
            run[key] = text
            after = (
                folder / "run" / "clients" / f"{run_file_stem(i, run['label'], run['seed'])}.npz"
            )
            before.rename(after)
        file.write_text(json.dumps(told))

    return put


def _checkpoint(key: str) -> Callable[[str, Path], None]:
    """The same in a checkpoint, with the right checksum."""

    def put(text: str, folder: Path) -> None:
        (file,) = (folder / "run" / "checkpoint").glob("*.ckpt")
        content = file.read_bytes()
        header, held = formats.take_apart(content[40:])
        outer = header["__metadata__"]
        told = json.loads(outer["fedmaba"])
        if key == "info":
            held = {n.replace("info.kl", f"info.{text}"): a for n, a in held.items()}
        else:
            told["runs"][0][key] = text
        outer = {**outer, "fedmaba": json.dumps(told)}
        file.write_bytes(formats.seal(content[:8], save(held, outer)))

    return put


def _about(*path: str | int) -> Callable[[str, Path], None]:
    """A word of about.json."""

    def put(text: str, folder: Path) -> None:
        file = folder / "run" / "about.json"
        told = json.loads(file.read_text())
        _set(told, path, text)
        file.write_text(json.dumps(told))

    return put


def _set(told: Any, path: tuple[str | int, ...], text: str) -> None:
    for key in path[:-1]:
        told = told[key]
    if path[-1] == "+":  # a key of its own
        told[text] = text
    else:
        told[path[-1]] = text


def _line(key: str) -> Callable[[str, Path], None]:
    """A word of rounds.jsonl: a strategy's name, or what one of its figures is called."""

    def put(text: str, folder: Path) -> None:
        file = folder / "run" / "rounds.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            if key == "strategy" and line["strategy"] == "fedavg":
                line["strategy"] = text
            elif key == "figure":
                line[text] = 1.0
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return put


def _table(text: str, folder: Path) -> None:
    """The name of a figure in a finished run's tables."""
    for file in (folder / "run" / "clients").glob("*fedmaba*.npz"):
        held = formats.members(file.read_bytes())
        name = text.encode("utf-8", "replace").decode()
        renamed = [(n.replace("info.kl", f"info.{name}"), c) for n, c in held]
        file.write_bytes(formats.zipped(renamed))


def _toml(key: str) -> Callable[[str, Path], None]:
    """A word of experiment.toml."""

    def put(text: str, folder: Path) -> None:
        file = folder / "run" / "experiment.toml"
        safe = "".join(f"\\u{ord(c):04x}" if ord(c) < 32 or c in '"\\\x7f' else c for c in text)
        new = f'{key} = ["{safe}"]' if key == "strategies" else f'{key} = "{safe}"'
        whole = re.sub(rf"(?m)^{key} = .*$", lambda found: new, file.read_text(), count=1)
        file.write_bytes(whole.encode("utf-8", "surrogatepass"))

    return put


def _archive(*path: str | int) -> Callable[[str, Path], None]:
    """A word of what an archive of `reproduce` says of itself."""

    def put(text: str, folder: Path) -> None:
        file = folder / "run" / kinds.ARCHIVE
        held = dict(formats.members(file.read_bytes()))
        array = np.load(io.BytesIO(held["about.npy"]), allow_pickle=False)
        told = json.loads(array.tobytes())
        _set(told, path, text)
        held["about.npy"] = formats.plain(np.frombuffer(json.dumps(told).encode(), np.uint8))
        file.write_bytes(formats.zipped(list(held.items())))

    return put


def _rename(text: str, folder: Path) -> None:
    (folder / "run").rename(folder / text)


PLACES: dict[tuple[str, str], Callable[[str, Path], None]] = {
    **{("done", f"{key} in runs.json"): _runs(key) for key in ("label", "diverged", "deploy")},
    **{("diverged", f"{key} in runs.json"): _runs(key) for key in ("label", "diverged")},
    **{
        ("half", f"{key} in the checkpoint"): _checkpoint(key)
        for key in ("label", "diverged", "deploy", "info")
    },
    **{
        (kind, f"{'.'.join(map(str, path))} in about.json"): _about(*path)
        for kind in ("done", "half", "attacked")
        for path in (
            ("data", "name"), ("data", "clients", 0), ("data", "classes", 0), ("command", 2),
            ("repeat",), ("device",), ("versions", "torch"), ("versions", "+"), ("model", "path"),
            ("data", "sha256"), ("partition", "+"), ("hostile", "+"),
        )
    },
    ("half", "strategy in rounds.jsonl"): _line("strategy"),
    ("begun", "strategy in rounds.jsonl"): _line("strategy"),
    ("begun", "figure in rounds.jsonl"): _line("figure"),
    ("half", "figure in rounds.jsonl"): _line("figure"),
    ("done", "figure in the tables"): _table,
    **{
        (kind, f"{key} in experiment.toml"): _toml(key)
        for kind in ("done", "half", "begun")
        for key in ("name", "strategies", "model", "device")
    },
    **{(kind, "name of the folder"): _rename for kind in ("done", "half", "begun")},
    **{
        ("archive", f"{'.'.join(map(str, path))} in the archive"): _archive(*path)
        for path in (("runs", 0, "label"), ("runs", 0, "diverged"), ("runs", 0, "deploy"),
                     ("command",), ("device",), ("target",), ("data", "name"), ("dtype",))
    },
}  # fmt: skip


# --- the verdict --------------------------------------------------------------------------------


@functools.cache
def _benign(
    templates: Path, kind: str, place: str, words: tuple[str, ...], text: str
) -> dict[str, str]:
    """The same output with a plain word in the same place."""
    chosen = ("report", "run", "-o", "out.html") if words[0] == "watch" else words
    renamed = place == "name of the folder"
    line = [f"./{text}" if renamed and w == "run" else w for w in chosen]
    with scratch() as folder, inside(folder):
        shutil.copytree(templates / kind / "run", "run")
        PLACES[kind, place](text, folder)
        code, out, _ = call(*line)
        if code not in (0, 65):  # a plain word is refused there: the page as it was
            shutil.rmtree("run")
            shutil.copytree(templates / kind / "run", "run")
            _, out, _ = call(*line)
        return {"stdout": out, **_files(folder)}


def _files(folder: Path) -> dict[str, str]:
    """What -o named, by file; of a folder, each."""
    paths = sorted([*folder.glob("out.*"), *folder.glob("out/**/*")])
    read = {str(p.relative_to(folder)): p.read_bytes() for p in paths if p.is_file()}
    return {
        name: content.decode("utf-8", "surrogateescape")
        for name, content in read.items()
        if not name.endswith((".png", ".pdf"))
    }


def _check(
    templates: Path, kind: str, place: str, plain: str, words: tuple[str, ...], result: Result
) -> Iterable[str]:
    """What each output holds that it must not."""
    head = " ".join(w for w in words if w not in ("run", "-o", "out.html", "out.svg", "out"))
    for said in outputs.odd(result.err):
        yield f"stderr of {head}: {said}"
    form = words[words.index("--to") + 1] if "--to" in words else ""
    if result.code not in (0, 65):
        return
    like = {} if words[0] == "resume" else _benign(templates, kind, place, words, plain)
    if not form:
        for said in outputs.odd(result.out):
            yield f"terminal, {head}: {said}"
    if form and like.get("stdout"):
        reader = {"csv": outputs.in_csv, "latex": outputs.in_latex, "markdown": outputs.in_markdown}
        for said in reader[form](result.out, like["stdout"]):
            yield f"{form}: {said}"
    for name, text in _files(result.folder).items():
        if name.endswith(".csv"):
            for said in outputs.in_csv(text, like.get(name)):
                yield f"{words[0]}, {Path(name).name}: {said}"
        elif name.endswith(".svg"):
            for said in outputs.in_svg(text):
                yield f"{words[0]}, SVG: {said}"
        elif name.endswith((".html", ".htm")):
            for said in outputs.in_html(text, like.get(name, "")):
                yield f"page: {said}"
        elif name.endswith(".md") and name in like:
            for said in outputs.in_markdown(text, like[name]):
                yield f"{words[0]}, {name}: {said}"
    if result.page is not None:
        text = result.page.decode("utf-8", "surrogateescape")
        if result.status == 200:
            for said in outputs.in_html(text, like.get("out.html", "")):
                yield f"watch: {said}"
        else:
            for said in outputs.odd(text):
                yield f"watch, line: {said}"
