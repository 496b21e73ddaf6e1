"""How the page looks in Chromium: contrast, colours, phone, paper, downloaded pictures."""

import base64
import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pytest

import page_browser
from fedmaba.report import html

pytestmark = page_browser.IN_A_BROWSER
page, real = page_browser.page, page_browser.real
CONTRAST = """
const light = c => { const v = c.match(/[\\d.]+/g).map(Number).slice(0, 3).map(x => {
  x /= 255; return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; });
  return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
const back = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
  if (!/rgba\\(.*, 0\\)/.test(c)) return c; } };
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), low = [];
while (walk.nextNode()) {
  const e = walk.currentNode.parentElement, s = getComputedStyle(e);
  const seen = walk.currentNode.data.trim() && e.getClientRects().length;
  if (!seen || e.closest('script, style')) continue;
  const ink = light(e instanceof SVGElement ? s.fill : s.color), paper = light(back(e));
  const ratio = (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05);
  if (ratio < 4.5) low.push([walk.currentNode.data.trim().slice(0, 30), ratio.toFixed(2)]);
}
return low;
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_can_be_read(page, real, theme):
    feature = [{"name": "prefers-color-scheme", "value": theme}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": feature})
    try:
        page.open(real[1])
        page.click("#chips button:nth-child(1)")
        page.drawn()
        assert page.js(CONTRAST) == []
        page.click("#all")
        page.drawn()
        assert page.js(CONTRAST) == []
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def linear(color: str):
    part = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIE L*a*b* of linear RGB."""
    to = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.asarray(to) @ rgb / (0.95047, 1.0, 1.08883))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_colours_stay_apart_for_who_sees_no_green():
    """Deuteranopia as Machado et al. (2009) simulate it; 10 is a difference seen at a glance."""
    simulate = np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    )  # fmt: skip
    style = (html.PAGE / "style.css").read_text()
    palettes = re.findall(r"--s0: .*?--s9: #\w+;", style, re.S)
    assert len(palettes) == 3  # light, and dark by the system or by choice
    for palette in palettes:
        colors = re.findall(r"--s\d: (#\w{6})", palette)
        assert len(colors) == 10
        seen = [lab(np.clip(simulate @ linear(c), 0, 1)) for c in colors]
        for (a, one), (b, other) in itertools.combinations(zip(colors, seen, strict=True), 2):
            assert np.linalg.norm(one - other) > 10, (a, b)
    assert "http" not in style.replace("http-equiv", "")
    assert "Inter" not in style  # a font that few machines have


def test_lines_carry_markers(page, real):
    page.open(real[1])
    for k in range(3):
        marks = f"#fig-accuracy g[data-k='{k}'] :is(circle, polygon)"
        assert len(page.js(f'return [...document.querySelectorAll("{marks}")]')) == 3  # evaluations


@pytest.mark.parametrize("width", [360, 390])
def test_on_a_phone_nothing_is_cut(page, real, width):
    size = {"width": width, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.open(real[1])
        assert page.js("return document.documentElement.scrollWidth") <= width
        out = page.js(
            "return [...document.querySelectorAll('#table td, #table th, .costs td, .toc')]"
            ".filter(e => { const b = e.getBoundingClientRect(); return b.width && (b.left < 0 ||"
            " b.right > innerWidth + 1); }).map(e => e.textContent)"
        )
        assert out == []
        hidden = page.js(  # a value stands inside its own cell, and not on its name
            "document.querySelectorAll('details').forEach(d => { d.open = true; });"
            "return [...document.querySelectorAll('#table td, #more td, .costs td')].filter(e => {"
            "const r = document.createRange(); r.selectNodeContents(e);"
            "const [b, o] = [r, e].map(x => x.getBoundingClientRect());"
            "return b.width && (b.left < o.left - 1 || b.right > o.right + 1); })"
            ".map(e => `${e.dataset.name}: ${e.textContent}`)"
        )
        assert hidden == []
        assert page.js("return getComputedStyle(document.querySelector('.toc')).display") == "flex"
        cell = "getComputedStyle(document.querySelector('#table td'), '::before').content"
        assert page.js(f"return {cell}") == '"variance %²"'
        whole = page.js(  # set-up and commands are seen whole, and copied as one line
            "return [...document.querySelectorAll('.command code, #setup pre, #chips, .controls')]"
            ".filter(c => c.scrollWidth > c.clientWidth).map(c => c.textContent)"
        )
        assert whole == []
        assert all("\n" not in text for text in page.texts(".command code"))
        page.click(".toc a[href='#setup']")
        page.until("document.querySelector('#setup').getBoundingClientRect().top < 200")
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_printed_it_has_legends_and_few_pages(page, real):
    page.open(real[1])
    page.js(
        "addEventListener('beforeprint', () => { window.paper = [...document.querySelectorAll("
        "'.legend')].map(l => [getComputedStyle(l).display, l.textContent]); window.wide = "
        "[...document.querySelectorAll('.pair figure')].map(f =>"
        " f.getBoundingClientRect().width); })"
    )
    a4 = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True}
    pdf = base64.b64decode(page.driver.execute_cdp_cmd("Page.printToPDF", a4)["data"])
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert 2 <= pages <= 8
    legends = page.js("return window.paper")
    assert len(legends) == 4
    assert all(l == ["flex", "runfedavgaflfedmaba"] for l in legends)  # the run's name, and whose
    assert max(page.js("return window.wide")) < 360  # two columns
    page.until("document.documentElement.dataset.print === undefined")


def test_a_downloaded_picture_says_what_it_shows(page, real):
    page.open(real[1])
    for name in ("accuracy", "heat"):
        (page.downloads / f"{name}.svg").unlink(missing_ok=True)
        page.click(f"#fig-{name} [data-act=svg]")
        text = page.file(f"{name}.svg").read_text()
        words = [
            "".join(t.itertext()) for t in ElementTree.fromstring(text).iter() if "text" in t.tag
        ]
        title = page.texts(f"#fig-{name} h3")[0]
        assert words[0] == title
        assert words[1].startswith("run; deployed model")
        want = {"afl", "fedmaba"} | ({"fedavg"} if name == "accuracy" else set())
        assert want <= set(words[2 : 2 + len(want)])  # the legend
        assert "var(--" not in text


def test_second_best_is_marked_alike_everywhere(page, real):
    page.open(real[1])
    page.js(
        "window.copied = []; Object.defineProperty(navigator, 'clipboard', "
        "{value: {writeText: t => { window.copied.push(t); return Promise.resolve(); }}})"
    )
    page.click("[data-copy=latex]")
    page.until("window.copied.length === 1")
    second = page.texts("#table .r1")
    marked = re.findall(r"\\underline\{([^}]*)\}", page.js("return window.copied[0]"))
    assert [m.replace("$\\pm$", "±") for m in marked] == second
    assert "underline" in page.js(
        "return getComputedStyle(document.querySelector('#table .r1')).textDecorationLine"
    )
