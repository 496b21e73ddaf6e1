"""The page in a real Chromium: filled, usable, silent, and deaf to hostile names."""

import base64
import csv
import json
import os
import re
import subprocess
import sys
import threading
import time
from xml.etree import ElementTree

import numpy as np
import pytest

import escape_cases
import fedmaba
import page_browser
import report_cases
from fedmaba import cli
from fedmaba.report import data, escape, html, watch
from fedmaba.results.history import History, RunHistory
from report_cases import PAYLOADS

pytestmark = page_browser.IN_A_BROWSER
page, real = page_browser.page, page_browser.real
SECTIONS = [
    "verdict", "summary", "distribution", "tradeoff", "rounds", "weights", "gains", "client",
    "heterogeneity", "setup",
]  # fmt: skip


def lane_dots(page) -> list[tuple[float, float]]:
    """Where the clients are drawn, lane by lane."""
    paths = page.js(
        "return [...document.querySelectorAll('#fig-dots svg > g[data-k] path')].map(p => "
        "p.getAttribute('d'))"
    )
    found = [re.findall(r"M([\d.]+) ([\d.]+)h0", path) for path in paths]
    return [(float(x), float(y)) for lane in found for x, y in lane]


def test_every_section_is_there_and_filled_and_nothing_is_asked_for(page, real):
    page.open(real[1])
    ids = page.js("return [...document.querySelectorAll('main > section')].map(s => s.id)")
    assert ids == SECTIONS
    figures = page.js("return [...document.querySelectorAll('figure')].map(f => f.dataset.figure)")
    assert len(figures) == 18
    drawn = page.js(
        "return [...document.querySelectorAll('figure')].filter(f => f.querySelector("
        "'svg path, svg rect, svg circle, svg image')).map(f => f.dataset.figure)"
    )
    listed = "[...document.querySelectorAll('figure.none')].map(f => f.dataset.figure)"
    silent = page.js(f"return {listed}")
    assert sorted(drawn + silent) == sorted(figures)
    assert silent == ["number-0"]  # the multiplier is 0 throughout
    assert page.texts("figure.none .chart") == ["0 in every round."]
    assert len(lane_dots(page)) == 120
    assert (
        "was never reached" in page.texts("#binding")[0]
        or "was reached in" in page.texts("#binding")[0]
    )
    assert re.search(
        r"20 clients under 2 seeds \(40 cases\): \d+ gain", page.texts("#gains-text")[0]
    )
    assert "Each client holds" in page.texts("#labels-text")[0]
    assert page.requests() == []
    assert page.complaints() == []


def test_the_numbers_are_those_of_the_table_command(page, real, capsys, monkeypatch):
    page.open(real[1])
    monkeypatch.setenv("COLUMNS", "200")
    for model in ("deployed", "last"):
        page.click(f"#models [data-model={model}]")
        for at in ("last", "best", "last5"):
            page.choose("#at", at)
            monkeypatch.setattr(
                sys, "argv", ["fedmaba", "table", str(real[0]), "--model", model, "--at", at]
            )
            with pytest.raises(SystemExit):
                cli.main()
            printed = capsys.readouterr().out
            rows = page.js(
                "return [...document.querySelectorAll('#table tbody tr')].map(r => "
                "[...r.children].map(c => c.textContent))"
            )
            assert len(rows) == 3
            for row in rows:
                line = next(l for l in printed.splitlines() if l.split()[:1] == [row[0]])
                assert re.split(r"\s{2,}", line.strip()) == row[:-1]
            caption = page.texts("#summary-caption")[0]
            assert caption.lower() in " ".join(printed.lower().split())
    page.click("#models [data-model=deployed]")


def test_sorting_goes_both_ways_and_says_so(page, real):
    page.open(real[1])
    cells = "document.querySelectorAll('#table tbody td:nth-child(2)')"
    column = f"return [...{cells}].map(c => parseFloat(c.textContent))"
    page.click("#table [data-sort='0']")
    values = page.js(column)
    assert values == sorted(values)
    assert (
        page.js("return document.querySelector('#table th:nth-child(2)').ariaSort") == "ascending"
    )
    page.click("#table [data-sort='0']")
    assert page.js(column) == sorted(values, reverse=True)
    page.click("#table [data-sort=label]")
    assert page.texts("#table tbody th") == ["afl", "fedavg", "fedmaba"]


def test_the_table_can_be_copied_in_three_forms(page, real):
    page.open(real[1])
    page.js(
        "window.copied = []; Object.defineProperty(navigator, 'clipboard', "
        "{value: {writeText: t => { window.copied.push(t); return Promise.resolve(); }}})"
    )
    for kind in ("latex", "markdown", "csv"):
        page.click(f"[data-copy={kind}]")
    page.until("window.copied.length === 3")
    latex, markdown, table = page.js("return window.copied")
    assert latex.count("\\\\") == 4
    assert "\\textbf{" in latex
    assert latex.startswith("% \\usepackage{booktabs}\n%")
    assert "$\\pm$" in latex
    assert markdown.splitlines()[0].startswith("| strategy | variance %²")
    assert "**" in markdown
    assert table.splitlines()[0].startswith(
        "strategy,variance %²,sd of variance %²,accuracy %,sd of"
    )


def test_pointing_shows_values_by_mouse_and_by_keys(page, real):
    page.open(real[1])
    for figure, word in {
        "#fig-variance": "round", "#fig-hist": "of 40", "#fig-ecdf": "at or below",
        "#fig-heat": "weight", "#fig-gains": "points", "#fig-labels": "training examples",
        "#fig-client-accuracy": "round",
    }.items():  # fmt: skip
        assert word in page.point(figure, 0.3, 0.5), figure
    assert "round 6" in page.key("#fig-accuracy", "ArrowRight")
    assert "round 4" in page.key("#fig-accuracy", "ArrowLeft")
    assert re.match(r"round \d: (fedavg|afl|fedmaba) [\d.]+.%", page.texts("#say")[0])
    label = page.js("return document.querySelector('#fig-accuracy .chart').ariaLabel")
    assert "fedmaba ends at" in label


def test_a_click_on_a_client_opens_it(page, real):
    page.open(real[1])
    before = page.texts("#client-text")[0]
    page.bring("#fig-dots")
    corner = page.js(
        "const b = document.querySelector('#fig-dots svg').getBoundingClientRect();"
        "return [b.x, b.y]"
    )
    x, y = lane_dots(page)[19]
    at = {"x": corner[0] + x, "y": corner[1] + y, "button": "left", "clickCount": 1}
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        page.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, **at})
    after = page.texts("#client-text")[0]
    assert after != before
    name = re.match(r"client (\d+), seed (\d)", after)
    assert name
    assert page.js("return document.querySelector('#client-which').value") == name[1]
    away = {"type": "mouseMoved", "x": 0, "y": 0}  # so that it points at no bar
    page.driver.execute_cdp_cmd("Input.dispatchMouseEvent", away)
    page.choose("#client-which", "3")
    assert page.texts("#client-text")[0].startswith("client 3,")
    page.key("#fig-gains", "ArrowRight")
    page.key("#fig-gains", "Enter")
    assert not page.texts("#client-text")[0].startswith("client 3,")


def test_strategies_can_be_hidden_and_the_theme_switched(page, real):
    page.open(real[1])
    page.click("#chips button:nth-child(2)")
    page.drawn()
    assert len(lane_dots(page)) == 80  # of the reference and of the one
    page.click("#chips button:nth-child(2)")
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = page.js(paper)
    page.click("#theme")
    assert page.js(paper) != light
    assert page.js("return document.documentElement.dataset.theme") == "dark"
    page.click("#theme")
    assert page.js(paper) == light
    assert page.complaints() == []


def test_every_figure_downloads_as_a_picture_and_as_data(page, real):
    import xml.etree.ElementTree as tree

    page.open(real[1])
    figures = page.js("return [...document.querySelectorAll('figure')].map(f => f.dataset.figure)")
    for name in figures:
        time.sleep(0.25)  # the browser lets a page start ten downloads a second
        page.click(f"#fig-{name} [data-act=csv]")
        table = page.file(f"{name}.csv").read_text()
        assert len(table.splitlines()) > 1, name
        if name == "number-0":  # a line of text
            continue
        page.click(f"#fig-{name} [data-act=svg]")
        picture = tree.fromstring(page.file(f"{name}.svg").read_text())
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"
        text = page.file(f"{name}.svg").read_text()
        assert "var(--" not in text, name  # it needs no style sheet
        assert not re.search(r'(?:href|src)="(?!data:)', text)
        page.click(f"#fig-{name} [data-act=table]")
        assert len(page.texts(f"#fig-{name} .data tbody tr")) >= 1
    clients = (page.downloads / "dots.csv").read_text().splitlines()
    assert len(clients) == 1 + 120
    assert page.requests() == []
    assert page.complaints() == []


def test_there_is_no_half_round(page, tmp_path):
    history = fedmaba.compare(["fedavg"], model="softmax", rounds=4, eval_every=2, seeds=1)
    (tmp_path / "r.html").write_text(html.page([data.source_of(history)]))
    page.open(tmp_path / "r.html")
    assert page.texts("#fig-variance svg text[text-anchor=middle]") == ["2", "3", "4"]


def test_narrow_wide_and_printed_nothing_sticks_out(page, real):
    page.open(real[1])
    for width in (360, 700, 1400):
        page.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        time.sleep(0.4)
        page.drawn()
        assert page.js("return document.documentElement.scrollWidth") <= width
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    printed = page.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")


def test_it_can_be_read_without_seeing_it(page, real):
    page.open(real[1])
    nameless = page.js(
        "return [...document.querySelectorAll('button, select, [tabindex=\"0\"]')].filter("
        "e => !(e.textContent.trim() || e.ariaLabel || e.getAttribute('aria-labelledby') ||"
        " e.labels?.length)).map(e => e.outerHTML.slice(0, 80))"
    )
    assert nameless == []
    assert page.js("return document.documentElement.lang") == "en"
    assert page.js("return document.querySelectorAll('h1').length") == 1
    contrast = page.js(
        """const light = c => { const v = c.match(/[\\d.]+/g).map(Number).slice(0, 3).map(x => {
             x /= 255; return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; });
             return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
           const paper = light(getComputedStyle(document.body).backgroundColor);
           return ['.intro', 'figcaption p', '#table td', '.toc a', '#fig-dots text'].map(q => {
             const e = document.querySelector(q), s = getComputedStyle(e);
             const ink = light(e.tagName === 'text' ? s.fill : s.color);
             return (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05); });"""
    )
    assert min(contrast) >= 4.5


def test_first_paint_of_a_large_report_is_quick(page, tmp_path):
    out = tmp_path / "large.html"
    out.write_text(html.page([data.source_of(report_cases.history())]))
    assert out.stat().st_size < 5_000_000
    times = []
    for _ in range(3):
        page.open(out)
        paint = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
        times.append(page.js(paint))
    assert min(times) < 1000, times
    assert "233 each are embedded" in page.texts(".notes")[0]
    assert page.complaints() == []


def hostile() -> data.Source:
    """Payloads as strategies, clients, classes, folder, versions, hashes and configuration."""
    rng, n = np.random.default_rng(0), len(PAYLOADS)
    runs = []
    for label in PAYLOADS:
        run = RunHistory(
            label, 0, label, np.full(n, 9), diverged="" if rng.random() < 0.9 else label
        )
        accuracy = rng.random((2, n))
        run.tables = {
            "round": [1, 2], "client": [np.arange(n)] * 2, "weight": [np.full(n, 1 / n)] * 2,
            "evaluated": [1, 2], "info.lambda": [0.0, 0.1],
            **{f"{m}.accuracy": list(accuracy) for m in ("deployed", "last")},
            **{f"{m}.loss": list(accuracy) for m in ("deployed", "last")},
        }  # fmt: skip
        run.tables = {k: [np.asarray(v) for v in rows] for k, rows in run.tables.items()}
        runs.append(run)
    about = {
        "command": PAYLOADS,
        "data": {
            "name": PAYLOADS[0], "sha256": PAYLOADS[1], "classes": PAYLOADS, "clients": PAYLOADS,
        },
        "partition": {p: p for p in PAYLOADS},
        "model": {p: p for p in PAYLOADS},
        "device": PAYLOADS[2],
        "versions": {p: p for p in PAYLOADS},
    }  # fmt: skip
    counts = {0: rng.integers(0, 9, (n, n))}
    return data.Source(PAYLOADS[1], History(runs), about, "\n".join(PAYLOADS), counts)


def test_hostile_names_run_nothing_and_ask_for_nothing(page, tmp_path):
    assert len(set(PAYLOADS)) == 200
    out = tmp_path / "hostile.html"
    out.write_text(html.page([hostile()]), encoding="utf-8")
    page.open(out)
    assert page.texts("#table tbody th")[1].startswith(PAYLOADS[1])
    assert set(page.texts("#chips button")) == {*PAYLOADS, "show all"}
    for figure in ("dots", "heat", "gains", "labels", "client-labels"):
        assert page.key(f"#fig-{figure}", "ArrowRight")
        page.click(f"#fig-{figure} [data-act=table]")
        page.click(f"#fig-{figure} [data-act=svg]")
    page.js(
        "document.querySelector('#fig-labels svg')"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    for i in range(0, 200, 20):
        page.choose("#client-which", str(i))
        assert page.texts("#client-text")[0].startswith(PAYLOADS[i])
    page.click("[data-copy=markdown]")
    assert page.js("return window.hit === undefined")
    assert page.js("return document.scripts.length") == 2
    assert (
        page.js("return document.querySelectorAll('iframe, object, base, img, math').length") == 0
    )
    assert page.js("return document.querySelectorAll('link').length") == 1  # the icon, our own
    assert page.requests() == []
    assert page.complaints() == []


def test_what_is_copied_or_downloaded_of_hostile_names_is_obeyed_by_nothing(page, tmp_path):
    """As the same tables from Python; there 500 names are tried."""
    names = ["bob\r=cmd|' /C calc'!A0", "＝1+1", "x;=1", "@x", 'a",=1', "b\x1b\x00\ud800", "</b>|"]
    names.append(r"a$\foo$ \input{x}")
    source = data.Source("x", escape_cases.history(names), escape_cases.about(names))
    (tmp_path / "r.html").write_text(html.page([source]), encoding="utf-8")
    page.open(tmp_path / "r.html")
    page.js(
        "window.copied = []; Object.defineProperty(navigator, 'clipboard', "
        "{value: {writeText: t => { window.copied.push(t); return Promise.resolve(); }}})"
    )
    for kind in ("latex", "markdown", "csv"):
        page.click(f"[data-copy={kind}]")
    page.until("window.copied.length === 3")
    latex, markdown, table = page.js("return window.copied")
    for name in names:
        assert f"\n{escape.for_latex(name)} & " in latex
        assert f"\n| {escape.for_markdown(name)} | " in markdown
    for name in ("dots.csv", "dots.svg"):  # of another test
        (page.downloads / name).unlink(missing_ok=True)
    page.click("#fig-dots [data-act=csv]")
    clients = page.file("dots.csv").read_text()
    for text, many in ((table, len(names)), (clients, 4 * 2 * len(names))):
        rows = list(csv.reader(re.split(r"\r\n|\r|\n", text.strip())))
        assert len(rows) == 1 + many
        assert {len(row) for row in rows} == {len(rows[0])}
        assert not any(c.startswith(tuple("=+-@＝＋－＠")) for row in rows for c in row)
        assert not any(part.startswith("=") for part in text.split(";"))
    page.click("#fig-dots [data-act=svg]")
    assert ElementTree.fromstring(page.file("dots.svg").read_text()).tag.endswith("svg")
    assert page.complaints() == []


def test_scores_of_another_size_are_in_no_figure_called_per_cent(page, tmp_path):
    history = report_cases.history(seeds=2, clients=9, rounds=4)
    for run in history.runs:
        for model in ("deployed", "last"):
            run.tables[f"{model}.accuracy"] = [7 * row for row in run.tables[f"{model}.accuracy"]]
    (tmp_path / "r.html").write_text(html.page([data.source_of(history)]), encoding="utf-8")
    page.open(tmp_path / "r.html")
    said = page.texts("#main svg text")
    assert "accuracy" in said
    assert {text for text in said if "%" in text} == {"share of clients, %"}
    for figure in ("dots", "accuracy", "worst", "tradeoff", "gains", "client-accuracy", "variance"):
        assert "%" not in page.key(f"#fig-{figure}", "ArrowRight"), figure
    assert "%" not in page.texts("#client-text")[0] + page.texts("#gains-text")[0]
    xs = [x for x, _ in lane_dots(page)]
    assert max(xs) - min(xs) > 300  # not squeezed
    assert page.complaints() == []


def test_a_live_run_renews_its_page(page, tmp_path):
    """A second process trains; the page follows it to the end without being reloaded."""
    folder = tmp_path / "live"
    words = "compare fedavg fedmaba --data sample --clients 20 --model softmax --rounds 100"
    words += f" --eval-every 5 --checkpoint-every 20 --seeds 1 --quiet --out {folder}"
    train = subprocess.Popen(
        [sys.executable, "-m", "fedmaba", *words.split()], stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while not (folder / "rounds.jsonl").exists():
            assert time.monotonic() < end
            time.sleep(0.1)
        with watch.serve(folder) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            page.open(server.url)
            page.js("window.same = true")
            assert "is running" in page.texts(".live")[0]
            first = page.texts(".live")[0]
            page.until(f"document.querySelector('.live')?.textContent !== {json.dumps(first)}")
            train.wait(120)
            page.until("!document.querySelector('.live')")
            page.until("document.querySelectorAll('#fig-dots .movers path').length === 3")
            assert page.js("return window.same") is True
            assert set(page.requests()) <= {server.url, f"{server.url}version"}
            page.js("window.stop()")
            page.driver.get("about:blank")
            server.shutdown()
    finally:
        train.kill()
        train.wait()
    assert page.complaints() == []
