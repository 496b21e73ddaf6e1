"""The page of a real federation in Chromium, while its server holds the folder and at its end."""

import threading
import time

import pytest

import federations
import page_browser
from fedmaba.report import watch

pytestmark = page_browser.IN_A_BROWSER
page = page_browser.page
# Where the dots stand on the axis, by the numbers below it: first and last.
DOTS = """
const at = t => { const b = t.getBoundingClientRect();
  return [Number(t.textContent), b.left + b.width / 2]; };
const all = [...document.querySelectorAll('#fig-dots svg > g:first-child text')].map(at);
const ticks = all.filter(([v]) => Number.isFinite(v)), [a, x] = ticks[0], [b, y] = ticks.at(-1);
const svg = document.querySelector('#fig-dots svg'), box = svg.getBoundingClientRect();
const scale = box.width / svg.viewBox.baseVal.width;
const d = document.querySelector('#fig-dots g[data-k] path').getAttribute('d');
const left = [...d.matchAll(/M([\\d.]+) /g)].map(m => box.left + Number(m[1]) * scale);
return [left.map(px => a + (px - x) * (b - a) / (y - x)), ticks];
"""


@pytest.fixture
def going(tmp_path):
    """A federation of six rounds, two of which have ended, and its page."""
    made = federations.server(tmp_path / "clinics", rounds=6)
    federations.play(made, 2)
    with watch.serve(tmp_path / "clinics") as server:
        threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
        yield server, made
        server.shutdown()
    made.close()


def test_a_federation_is_watched_round_by_round_to_its_end(page, going):
    server, made = going
    page.open(server.url)
    assert page.driver.title == "2/6 · clinics · fedmaba"
    strip = page.texts("#strip")[0]
    assert strip.startswith("running")
    assert "round 2 of 6" in strip
    assert "kill" not in page.texts("#live")[0]  # it would end the server of all sites
    assert page.texts("#live code")[0].startswith("flwr run APP LINK --stream --run-config")
    # sites tell the accuracy of the model they receive: that of the round before
    assert "so far, round 1 of 6" in page.texts("#verdict-text")[0]
    (words,) = page.texts("#sites > p:nth-of-type(2)")
    assert words == "Round 2 of 6: 2 of 3 sites answered, without west."
    sites = "#sites table:not(.words) tbody"
    assert page.texts(f"{sites} th") == ["north", "south", "west"]
    assert page.texts(f"{sites} tr:nth-child(3) td:nth-child(2)") == ["1 of 2"]
    assert page.texts("#models [aria-pressed=true]") == ["last model"]  # none is handed out yet
    dots, ticks = page.js(DOTS)
    told = [100 * federations.accuracy(c, 2) for c in range(2)]  # west missed that round
    assert sorted(dots)[:2] == pytest.approx(told, abs=0.3), (dots, ticks)
    page.js("scrollTo(0, 500)")
    federations.play(made, 1)
    wrote = time.monotonic()
    page.until("document.title.startsWith('3/6')", 10)
    page.drawn()
    assert time.monotonic() - wrote < 5  # 2 s where nothing else runs
    assert "Round 3 of 6: 3 of 3 sites answered." in page.texts("#sites")[0]
    assert page.key("#fig-accuracy", "ArrowRight") == "round 2fedmaba:alpha=0.863.00\u00a0%"
    assert page.js("return scrollY") > 300
    federations.play(made, 3)
    federations.end(made, {"north": 0.5, "south": 0.7, "west": 0.9})
    page.until("document.title.startsWith('✓')", 10)
    page.drawn()
    assert page.js("return document.querySelector('#strip').hidden")
    assert page.texts("#live")[0].strip() == ""
    assert "Deployed model" in page.texts("#summary-caption")[0]
    assert page.complaints() == []
    page.driver.get("about:blank")


def test_before_the_first_round_it_says_who_is_waited_for(page, tmp_path):
    made = federations.server(tmp_path / "new", rounds=6)
    try:
        with watch.serve(tmp_path / "new") as server:
            threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
            page.open(server.url)
            assert page.driver.title == "0/6 · new · fedmaba"
            assert "No round of 6 has ended yet." in page.texts("#sites")[0]
            federations.play(made, 1)
            page.until("document.title.startsWith('1/6')", 10)
            page.drawn()
            assert "Round 1 of 6: 3 of 3 sites answered." in page.texts("#sites")[0]
            federations.play(made, 1)
            page.until("document.title.startsWith('2/6')", 10)
            page.drawn()
            assert "so far, round 1 of 6" in page.texts("#verdict-text")[0]
            assert page.complaints() == []
            page.driver.get("about:blank")
            server.shutdown()
    finally:
        made.close()
