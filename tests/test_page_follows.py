"""In a browser: the page follows its switches, and stays legible with many strategies."""

import pytest

import fedmaba
import page_browser
import test_page_switches
from fedmaba.report import html
from group_cases import compare, people
from test_page_switches import switches

pytestmark = page_browser.IN_A_BROWSER
page = page_browser.page
own = test_page_switches.own


def test_groups_and_gains_follow_model_round_and_selection(page, own):
    tree, _ = switches(own[0])
    page.open(own[1])
    for model, at in (("deployed", "last"), ("personal", "best"), ("last", "last5")):
        page.click(f"[data-model={model}]")
        page.choose("#at", at)
        page.drawn()
        now = tree["groups"][0]["shown"][f"{model}.{at}"]["tables"]
        want = [text for made in now for row in made["rows"] for text in row["cells"]]
        assert page.texts("#groups-shown .costs tbody :is(th, td)") == want
        assert page.texts("#groups-shown caption")[0] == now[0]["title"]
        gained = tree["alone"][f"{model}.{at}"]["rows"]
        assert page.texts("#alone tbody th") == [row["label"] for row in gained]
        assert page.texts("#alone tbody td") == [t for row in gained for t in row["cells"][1:]]
        assert page.texts("#table tbody td:nth-child(3)") == [
            row["cells"][1][0] for row in tree["tables"][f"{model}.{at}"]["rows"]
        ]
    page.click("#chips button:nth-child(2)")
    page.drawn()
    assert {t.partition(":")[0] for t in page.texts("#groups-shown .costs tbody th")} == {"ditto"}
    assert len(page.texts("#groups-shown .cells")) == 1
    assert page.texts("#alone tbody th") == ["ditto"]
    assert "model=last" in page.js("return location.hash")
    assert page.complaints() == []


def test_curves_run_over_what_was_spent(page, own, tmp_path):
    compare(["fedavg", "scaffold"], people(), out=tmp_path / "run", seeds=2, speed="100")
    html.write_page([tmp_path / "run"], tmp_path / "spent.html")
    page.open(tmp_path / "spent.html")
    assert page.texts("#along option") == ["rounds", "gigabytes sent", "hours"]
    page.choose("#along", "gigabytes")
    page.drawn()
    assert "along=gigabytes" in page.js("return location.hash")
    for figure in page.texts("#rounds figure svg"):
        assert "gigabytes, down and up" in figure
    assert " GB" in page.key("#fig-variance", "ArrowRight")
    page.open(own[1])
    assert page.js("return document.querySelector('#along').parentNode.hidden")
    assert page.complaints() == []


def test_the_address_brings_own_models_back(page, own):
    page.open(f"file://{own[1]}#model=personal&at=best")
    page.driver.refresh()
    page.drawn()
    pressed = page.texts("#models [aria-pressed=true]")
    assert pressed == ["personal models"]
    assert page.texts("#summary-caption")[0].startswith("Each client under its own model")


def test_three_models_fit_on_a_phone(page, own):
    size = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.open(own[1])
    wide = page.js("return document.documentElement.scrollWidth")
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= 360


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Fourteen strategies, two of whose names differ in the middle, some nearly even."""
    folder = tmp_path_factory.mktemp("many") / "run"
    names = [f"fedmaba:alpha=0.{i},eta_b=0.1,loss_at=mean" for i in (2, 8)]
    names += ["fedavg", "qffl:q=0.05", "qffl:q=0.1", "afl:lam=0.5"]
    names += [f"fedprox:mu=0.{i}" for i in range(1, 9)]
    fedmaba.compare(
        names, out=folder, data="sample", clients=5, rounds=3, eval_every=1, seeds=2,
        model="softmax", minibatch=100,
    )  # fmt: skip
    out = folder.parent / "many.html"
    html.write_page([folder], out)
    return out


def test_no_two_strategies_have_the_same_shortened_name(page, many):
    page.open(many)
    for name in ("dots", "hist", "tradeoff"):
        seen = page.texts(f"#fig-{name} text.name")
        assert len({*seen}) >= 14, seen
        assert sum("…" in text for text in seen) >= 2, seen


def test_weights_that_are_nearly_equal_are_said_and_not_drawn(page, many):
    page.open(many)
    note = page.texts("#weights-note")[0]
    assert "Nearly alike, so not drawn: " in note
    assert "qffl:q=0.1 (" in note
    drawn = page.texts("#fig-heat text.name")
    assert "afl:lam=0.5" in drawn
    assert "qffl:q=0.1" not in drawn
    assert note.count("do not add up to 1") == 1  # of several strategies, once
    assert page.js(  # the words along the panels are no longer than a panel
        "return [...document.querySelectorAll('#fig-heat .side')].every(side => "
        "side.getBoundingClientRect().height < "
        "document.querySelector('#fig-heat image').getBoundingClientRect().height)"
    )


def test_the_same_of_several_strategies_is_said_once(page, many):
    page.open(many)
    lines = page.texts("#binding p")
    assert len(lines) == len({line.partition(":  ")[2] or line for line in lines})
    assert sum("was never reached" in line for line in lines) == 1
    assert lines[0].count("eta_b=0.1") == 2


def test_lines_of_small_figures_have_their_names(page, many):
    page.open(many)
    assert "fedavg" in page.texts("#fig-effective text.name")


def test_dots_use_the_room_they_have(page, own):
    page.open(own[1])
    first = "return Number(document.querySelector('#fig-dots svg > g text').textContent)"
    assert page.js(first) >= 10  # of the axis: nobody is served worse
