"""A run in progress in Chromium: a strip that stays in sight, curves that grow in place."""

import os
import re
import threading
import time

import pytest

import page_browser
import report_cases
from fedmaba.experiment import starting
from fedmaba.report import watch

pytestmark = page_browser.IN_A_BROWSER
page = page_browser.page


@pytest.fixture
def cockpit(tiny_npz, tmp_path):
    """A run that goes on when told to, and its server."""
    going = report_cases.session(tiny_npz, rounds=60, save={"every": 50})
    starting.open_run_folder(going, tmp_path / "my run")
    asked: list[bool] = []
    rounds = going.rounds(stop=lambda: bool(asked))
    for _ in range(4):
        next(rounds)
    with watch.serve(tmp_path / "my run") as server:
        threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
        yield server, rounds, asked
        server.shutdown()
    going.close()


def test_the_strip_says_how_far_and_how_to_stop(page, cockpit, tmp_path):
    server, rounds, asked = cockpit
    page.open(server.url)
    strip = page.texts("#strip")[0]
    assert strip.startswith("running")
    assert "round 4 of 60" in strip
    assert re.search(r"[\d.]+ (rounds/s|s a round), \d+:\d\d left", strip)
    assert page.driver.title == "4/60 · my run · fedmaba"
    assert "so far, round 4 of 60" in page.texts("#verdict-text")[0]
    commands = page.js(
        "return [...document.querySelectorAll('#live [data-copy-text]')].map(b =>"
        " b.dataset.copyText)"
    )
    assert commands == [f"kill -INT {os.getpid()}", f"fedmaba resume '{tmp_path / 'my run'}'"]
    page.js("scrollTo(0, 3000)")
    top = "document.querySelector('#strip').getBoundingClientRect().top"
    assert 0 <= page.js(f"return {top}") < 120  # in sight
    assert len(page.js("return [...document.querySelectorAll('#strip .spark path')]")) == 2
    asked.append(True)
    next(rounds, None)  # it stops, saved
    page.until("document.querySelector('#strip b').textContent === 'interrupted'", 10)
    assert "fedmaba resume" in page.js("return document.querySelector('#strip button').title")
    page.driver.get("about:blank")


def test_curves_grow_in_place_soon_after_a_round(page, cockpit):
    server, rounds, _ = cockpit
    page.open(server.url)
    page.js("window.figure = document.querySelector('#fig-variance'); scrollTo(0, 900)")
    page.choose("#against", "worst")
    for _ in range(8):
        next(rounds)
    wrote = time.monotonic()
    page.until("document.title.startsWith('12/60')", 10)
    page.drawn()
    late = time.monotonic() - wrote
    assert late < 4, late  # 2 s where nothing else runs
    assert "round 12" in page.key("#fig-variance", "ArrowRight")
    assert page.js("return window.figure === document.querySelector('#fig-variance')")
    assert page.js("return document.querySelector('#against').value") == "worst"
    assert "so far, round 12 of 60" in page.texts("#verdict-text")[0]
    assert "so far, round 12 of 60" in page.texts("#summary-caption")[0]
    assert "round 12 of 60" in page.texts("#facts")[0]
    assert page.js("return scrollY") > 500
    page.driver.get("about:blank")


def test_before_there_is_a_rate_it_says_so(page, cockpit):
    server, *_ = cockpit
    server.folder.joinpath("timing.jsonl").unlink()
    page.open(server.url)
    assert "estimating the time left" in page.texts("#strip")[0]
    page.driver.get("about:blank")
