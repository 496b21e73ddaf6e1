"""The page in Chromium with many strategies: slider, isolate, state in the address, size."""

import re
import time

import numpy as np
import pytest

import page_browser
from fedmaba.report import data, html
from fedmaba.results.history import GrowingArray, History, RunHistory
from fedmaba.strategies import BUILT_IN as KNOWN

pytestmark = page_browser.IN_A_BROWSER
page, real = page_browser.page, page_browser.real


def many(strategies: int, clients: int, rounds: int, seeds: int = 1) -> History:
    """Runs of 200 test examples a client, all reporting losses."""
    rng, runs = np.random.default_rng(1), []
    labels = [KNOWN[i % 10] + (f":x={i // 10}" if i >= 10 else "") for i in range(strategies)]
    for k, label in enumerate(labels):
        for seed in range(seeds):
            run = RunHistory(label, seed, "poly:8", np.full(clients, 200))
            level = np.clip(rng.normal(0.75 - 0.004 * k, 0.02 + 0.005 * k, clients), 0, 1)
            rise = 1 - np.exp(-8 * np.arange(1, rounds + 1) / rounds)
            noise = rng.normal(0, 0.01, (rounds, clients))
            accuracy = np.rint(200 * np.clip(level * rise[:, None] + noise, 0, 1)) / 200
            found = {
                "round": np.arange(1, rounds + 1), "evaluated": np.arange(1, rounds + 1),
                "client": np.tile(np.arange(clients), (rounds, 1)),
                "weight": rng.dirichlet(np.full(clients, 5.0 + k), rounds),
                "reported_loss": rng.gamma(2, 0.5, (rounds, clients)),
            }  # fmt: skip
            for model in data.MODELS:
                found |= {f"{model}.accuracy": accuracy, f"{model}.loss": 1.5 - accuracy}
            run.tables = {name: GrowingArray(table) for name, table in found.items()}
            runs.append(run)
    return History(runs)


@pytest.fixture(scope="module")
def thirty(tmp_path_factory):
    out = tmp_path_factory.mktemp("thirty") / "r.html"
    out.write_text(html.page([data.source_of(many(30, 100, 400))]), encoding="utf-8")
    return out


def test_thirty_strategies_are_painted_soon_and_stay_small(page, thirty):
    """30 strategies x 100 clients x 400 rounds; the time is that of an idle machine."""
    assert thirty.stat().st_size < 5_000_000
    times = []
    for _ in range(3):
        page.open(thirty)
        paint = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
        times.append(page.js(paint))
    assert min(times) < 1500, times
    assert len(page.texts("#chips button")) == 31  # and "show all"
    clipped = page.js("const c = document.querySelector('#chips'); return c.scrollHeight")
    assert clipped > page.js("return document.querySelector('#chips').clientHeight")  # scrolls
    assert page.js("return document.documentElement.scrollWidth") <= 1400
    names = page.js(
        "return [...document.querySelectorAll('#fig-tradeoff text.name')].map(t => {"
        "const b = t.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; })"
    )
    assert len(names) == 30
    over = [
        (a, b)
        for i, a in enumerate(names)
        for b in names[:i]
        if min(a[2], b[2]) - max(a[0], b[0]) > 2 and min(a[3], b[3]) - max(a[1], b[1]) > 5
    ]
    assert len(over) <= 2, over
    assert page.js("return !!document.querySelector('#fig-tradeoff .zoom')")
    assert page.complaints() == []


def test_thirty_strategies_have_a_legend_in_which_no_two_look_alike(page, thirty):
    page.open(thirty)
    legend = "[...document.querySelectorAll('#rounds .legend button')]"
    assert len({*page.js(f"return {legend}.map(b => b.querySelector('svg').outerHTML)")}) == 30
    assert page.js(f"return {legend}.every(b => b.getBoundingClientRect().width > 40)")
    cut = "return document.querySelector('#chips').scrollHeight - document.querySelector('#chips')"
    assert page.texts("#more-chips") == ["all 30 ▾"]
    assert page.js(f"{cut}.clientHeight") > 20
    page.click("#more-chips")
    assert page.js(f"{cut}.clientHeight") <= 4
    assert page.texts("#more-chips") == ["fewer ▴"]
    weak = "return [...document.querySelectorAll('#fig-variance g.weak')].length"
    assert 0 < page.js(weak) < 30  # those to look at first are drawn thick
    assert shown(page, "variance") != []  # and named at their ends


def test_worst_and_best_have_one_range(page, real):
    page.open(real[1])
    ticks = "#fig-{} svg > g:first-child text"
    worst, best = (page.texts(ticks.format(name)) for name in ("worst", "best"))
    assert worst == best


def test_pointing_at_a_strategy_greys_the_rest_in_all_charts(page, thirty):
    page.open(thirty)
    page.js(
        "document.querySelectorAll('#chips button')[3].dispatchEvent(new Event('pointerenter'))"
    )
    for figure in ("dots", "hist", "tradeoff", "variance", "heat"):
        cold = page.js(
            "return [...document.querySelectorAll(`#fig-${arguments[0]} svg [data-k]`)].map(n => "
            "[n.dataset.k, n.classList.contains('cold')])", figure,
        )  # fmt: skip
        assert {k for k, grey in cold if not grey} == {"3"}, figure
        assert len({k for k, grey in cold if grey}) == 29, figure
    page.js(
        "document.querySelectorAll('#chips button')[3].dispatchEvent(new Event('pointerleave'))"
    )
    assert page.js("return document.querySelectorAll('.cold').length") == 0


def shown(page, figure):
    code = (
        f"return [...document.querySelectorAll('#fig-{figure} text.name')].map(t => t.textContent)"
    )
    return page.js(code)


def test_a_click_isolates_and_stands_in_the_address(page, real):
    page.open(real[1])
    page.click("#chips button:nth-child(3)")
    page.drawn()
    assert shown(page, "variance") == ["fedmaba"]
    assert shown(page, "dots") == ["fedavg", "fedmaba"]  # the reference to slide from
    assert page.js("return location.hash") == "#only=fedmaba" or "only=fedmaba" in page.js(
        "return location.hash"
    )
    page.click("#chips button:nth-child(2)")  # a second one joins it
    page.drawn()
    assert set(shown(page, "variance")) == {"afl", "fedmaba"}
    assert page.js("return document.querySelector('#all').hidden") is False
    page.click("#all")
    page.drawn()
    assert len(shown(page, "variance")) == 3
    assert page.js("return document.querySelector('#all').hidden") is True
    page.js(
        "document.querySelector('#fig-variance text.name')"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    page.drawn()
    assert len(shown(page, "variance")) == 1


def test_selection_model_and_round_come_back_from_the_address(page, real):
    page.open(real[1])
    page.click("#models [data-model=last]")
    page.choose("#at", "last5")
    page.choose("#against", "worst")
    page.click("#chips button:nth-child(2)")
    page.drawn()
    address = page.js("return location.href")
    caption, lead = page.texts("#summary-caption"), page.texts("#verdict-text")
    page.driver.get("about:blank")
    page.open(address)
    assert page.texts("#summary-caption") == caption
    assert "mean of the last five" in caption[0]
    assert page.texts("#verdict-text") == lead
    assert shown(page, "variance") == ["afl"]
    values = (
        "['at', 'against', 'slide-to'].map(i => document.getElementById(i).selectedOptions[0].text)"
    )
    assert page.js(f"return {values}") == ["mean of last five", "worst 5 % of clients", "afl"]
    pressed = "document.querySelector('#models [aria-pressed=true]').dataset.model"
    assert page.js(f"return {pressed}") == "last"
    page.js("location.hash = '#model=no&at=no&only=nobody&to=%3Cscript%3E'")  # says nothing
    page.until("document.querySelector('#at').value === 'last'")
    assert page.complaints() == []


def movers(page):
    """Where the moving clients are: x and y of each, the glowing ones apart."""
    paths = page.js(
        "return [...document.querySelectorAll('.movers path')].map(p => [p.getAttribute('class'),"
        " p.getAttribute('d')])"
    )
    return {kind or "still": re.findall(r"M([\d.]+) ([\d.]+)h0", d) for kind, d in paths}


def test_the_slider_moves_every_client_and_the_worst_glow(page, real):
    page.open(real[1])
    start = movers(page)
    assert len(start["still"]) + len(start["worst"]) == 40  # clients of two seeds
    assert len(start["worst"]) == len(start["halo"]) == 2  # one of 20 in each
    rows = dict(
        zip(page.texts("#table tbody th"), page.texts("#table td:nth-child(2)"), strict=True)
    )
    said = page.texts("#slide-text")[0]
    assert said.startswith(f"fedavg: variance {rows['fedavg'].split(' ')[0]} %²")
    to = page.js("return document.querySelector('#slide-to').selectedOptions[0].text")
    move = (
        "const s = document.querySelector('#slide'); s.value = arguments[0];"
        "s.dispatchEvent(new Event('input'))"
    )
    page.js(move, 500)
    middle = movers(page)
    assert "50 % of the way" in page.texts("#slide-text")[0]
    page.js(move, 1000)
    end = movers(page)
    assert page.texts("#slide-text")[0].startswith(f"{to}: variance {rows[to].split(' ')[0]} %²")
    xs, ys = (
        [{p[i] for p in where["still"] + where["worst"]} for where in (start, end)] for i in (0, 1)
    )
    assert xs[0] != xs[1]
    assert ys[0].isdisjoint(ys[1])  # another line of the picture
    assert middle["still"] not in (start["still"], end["still"])
    ways = [np.array(at["worst"], float) for at in (start, middle, end)]
    np.testing.assert_allclose(ways[1], (ways[0] + ways[2]) / 2, atol=0.11)  # the same clients


def test_play_moves_and_honours_reduced_motion(page, real):
    page.open(real[1])
    page.click("#play")
    page.until("document.querySelector('#slide').value > 0")
    page.until("document.querySelector('#slide').value === '1000'")
    page.until("document.querySelector('#play').textContent === '▶ Play'")
    feature = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": feature})
    try:
        page.open(real[1])
        page.click("#play")
        assert page.js("return document.querySelector('#slide').value") == "1000"  # at once
        halo = "getComputedStyle(document.querySelector('.movers .halo')).animationName"
        assert page.js(f"return {halo}") == "none"
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    page.open(real[1])
    assert page.js(f"return {halo}") == "halo"


def test_weights_stand_side_by_side_in_one_order(page, real):
    page.open(real[1])
    assert len(page.js("return [...document.querySelectorAll('#fig-heat image')]")) == 2
    assert "1.00 × in every round with fedavg" in page.texts("#weights-note")[0]
    time.sleep(0.1)
    first = page.key("#fig-heat", "ArrowRight")
    rows = page.js(
        "const d = JSON.parse(document.querySelector('#data').textContent);"
        "const r = d.runs.find(r => r.strategy === d.reference && r.seed === 0);"
        "const raw = atob(r.final['deployed.last'].data); return [...raw].map(c => c.charCodeAt(0))"
    )
    assert f"client {rows.index(min(rows))}," in first  # the one that fedavg serves worst


def test_the_histogram_of_many_strategies_is_no_row_of_flat_lines(page, thirty):
    """Each row's fullest band is as dark as can be, and axes leave out bands nobody is in."""
    page.open(thirty)
    rows = page.js(
        "return [...document.querySelectorAll('#fig-hist g[data-k]')].map(g =>"
        " [...g.querySelectorAll('rect')].map(r => [Number(r.getAttribute('fill-opacity')),"
        " r.getBoundingClientRect().height, r.getBoundingClientRect().width]))"
    )
    assert len(rows) == 30
    assert all(max(o for o, *_ in row) > 0.999 for row in rows)
    assert min(h for row in rows for _, h, _ in row) > 10
    wide = page.js("return document.querySelector('#fig-hist svg').clientWidth")
    assert min(w for row in rows for *_, w in row) > wide / 40  # of 20 bands some are empty
