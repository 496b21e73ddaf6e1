"""The page in Chromium where clients train alone beside shared models, and where nothing is known.

Also what a stranger disliked: words on words, numbers broken in two, a table without its head.
"""

import numpy as np
import pytest

import page_browser
from fedmaba.report import data, html, page_data
from fedmaba.results.history import History
from report_cases import one

pytestmark = page_browser.IN_A_BROWSER
page = page_browser.page
LABELS = ("fedavg", "fedprox", "afl", "term", "fedfv", "gifair", "fedmaba:alpha=0.8,eta_b=0.1")


def beside_alone() -> History:
    """Seven strategies near one another, and clients alone far above them."""
    rng, runs = np.random.default_rng(3), []
    for label, mean in [*((x, 0.6 + 0.005 * i) for i, x in enumerate(LABELS)), ("local", 0.95)]:
        for seed in range(3):
            spread = 0.005 if label == "local" else 0.04
            run = one(label, np.clip(rng.normal(mean, spread, 20), 0, 1), seed)
            if label == "local":
                for name in ("accuracy", "loss"):
                    run.tables[f"personal.{name}"] = run.tables[f"deployed.{name}"]
            runs.append(run)
    return History(runs)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "r.html"
    out.write_text(html.page([data.source_of(beside_alone())]), encoding="utf-8")
    return out


BOX = "const b = t.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom];"


def test_clients_alone_squash_no_other_and_are_not_on_the_front(page, alone):
    page.open(alone)
    assert "local" not in page.texts("#verdict h1")[0]
    assert (
        "Not compared: local, which hands out no shared model." in page.texts("#verdict .remark")[0]
    )
    assert page.js("return document.querySelector('#slide-to').selectedOptions[0].text") != "local"
    assert "It leaves out local" in page.texts("#tradeoff .intro")[0]
    note = "local: no shared model; scores of each client's own."
    assert page.texts("#summary .key")[0].endswith(note)  # below a table where it may be bold
    assert page.js("return !!document.querySelector('#fig-tradeoff .zoom')")
    low, high = page.js(
        "const b = document.querySelector('#fig-tradeoff .zoom').getBoundingClientRect();"
        "return [b.top, b.bottom];"
    )
    names = "[...document.querySelectorAll('#fig-tradeoff text.name')]"
    local = page.js(f"const t = {names}.find((t) => t.textContent.includes('local')); {BOX}")
    assert not low < local[1] < high  # above the frame
    corner = page.js(f"const t = document.querySelector('#fig-tradeoff .corner'); {BOX}")
    for box in page.js(f"return {names}.map((t) => {{ {BOX} }})"):
        apart = box[2] <= corner[0] or box[0] >= corner[2] or box[3] <= corner[1] + 2
        assert apart or box[1] >= corner[3] - 2  # no name on the words of the corner
    page.js("document.querySelector('#models [data-model=personal]').click()")
    page.drawn()
    assert page.texts("#verdict h1")[0].startswith("local")
    assert "It leaves out" not in page.texts("#tradeoff .intro")[0]
    assert note not in page.texts("#summary .key")[0]
    assert page.complaints() == []


def test_a_section_with_nothing_to_show_is_one_line(page, alone):
    page.open(alone)  # a history in memory holds no weights and no labels
    seen = page.js(
        "return [...document.querySelectorAll('#weights > *, #weights figure')]"
        ".filter((e) => e.getClientRects().length && e.innerText.trim()).map((e) => e.innerText)"
    )
    assert [" ".join(text.split()) for text in seen] == [
        "Weights", "Client by round These results hold no weights.",
    ]  # fmt: skip
    assert page.js("return document.querySelector('#gains .tools').getClientRects().length")


def test_on_a_phone_no_number_is_broken_and_no_name_is_struck_through(page, alone):
    phone = {"width": 390, "height": 840, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        page.open(alone)
        page.js("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        tall = page.js(  # of a text, without the name above it
            "return [...document.querySelectorAll('.costs td')].map((t) => {"
            "const r = document.createRange(); r.selectNodeContents(t);"
            "return r.getClientRects().length; })"
        )
        assert tall
        assert max(tall) == 1
        assert page.js("return document.documentElement.scrollWidth") <= 390
        rights, left = page.js(
            "const boxes = (what) => [...document.querySelectorAll(`#fig-hist ${what}`)]"
            ".map((e) => e.getBoundingClientRect());"
            "return [boxes('text.name').map((b) => b.right),"
            "Math.min(...boxes('path').map((b) => b.left))]"
        )
        assert len(rights) == 8
        assert max(rights) <= left
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_on_paper_a_table_stays_with_its_head(page, alone):
    page.open(alone)
    page.js("dispatchEvent(new Event('beforeprint'))")
    kept = "return getComputedStyle(document.querySelector('#table')).breakInside"
    assert page.js(kept) == "avoid"
    page.js("dispatchEvent(new Event('afterprint'))")


def test_the_page_knows_who_hands_out_no_model():
    tree = page_data.tree([data.source_of(beside_alone())])
    assert [one["label"] for one in tree["strategies"] if one["alone"]] == ["local"]
