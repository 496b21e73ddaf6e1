"""Pictures of the README: python tools/pictures.py RUN (Chromium, selenium and Pillow needed).

RUN is the folder of a finished run; a few rounds of the same experiment are played again to show
the terminal half-way. `--page` and `--screen` make only these.
"""

from __future__ import annotations

import base64
import io
import math
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME

from fedmaba.experiment import config, experiment_file
from fedmaba.experiment import session as experiment
from fedmaba.report import html, terminal

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--hide-scrollbars --window-size=1240,1000"
)


def browser(folder: str) -> Any:
    """A fresh headless Chromium."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in [*FLAGS.split(), f"--user-data-dir={folder}/profile"]:
        options.add_argument(flag)
    return webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )


def shoot(driver: Any, name: str, width: int, top: str, height: int) -> None:
    """The page from the section `top` on, as a PNG."""
    from PIL import Image

    metrics = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    time.sleep(1)
    driver.execute_script(
        "document.documentElement.style.scrollBehavior = 'auto';"
        "document.querySelector(arguments[0]).scrollIntoView()",
        top,
    )
    metrics["height"] = height
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    time.sleep(1)
    driver.execute_script("document.querySelector(arguments[0]).scrollIntoView()", top)
    time.sleep(0.5)
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    target = IMAGES / f"{name}.png"
    picture.save(target, optimize=True)
    print(target, target.stat().st_size)


def moving(driver: Any, width: int = 760, frames: int = 24) -> None:
    """All clients on their way from the reference to the fairest strategy and back, as a GIF."""
    from PIL import Image

    metrics = {"width": width, "height": 1400, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.execute_cdp_cmd(  # no pulse: a frame looks the same each time
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]},
    )
    time.sleep(1)
    box = driver.execute_script(
        "document.documentElement.style.scrollBehavior = 'auto';"
        "const f = document.querySelector('#fig-dots');"
        "for (const e of f.querySelectorAll('figcaption, .acts')) e.style.display = 'none';"
        "f.scrollIntoView({block: 'center'}); const b = f.getBoundingClientRect();"
        "return {x: 0, y: b.top + scrollY - 6, width: innerWidth, height: b.height + 12, scale: 1}"
    )
    seen, eased = [], [(1 - math.cos(math.pi * i / frames)) / 2 for i in range(frames + 1)]
    for share in eased:
        driver.execute_script(
            "const s = document.querySelector('#slide'); s.value = arguments[0];"
            "s.dispatchEvent(new Event('input'))",
            round(1000 * share),
        )
        how = {"format": "png", "clip": box, "captureBeyondViewport": True}
        shot = driver.execute_cdp_cmd("Page.captureScreenshot", how)
        seen.append(Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB"))
    tall = seen[0].height
    sample = Image.new("RGB", (width, 3 * tall))
    for i, one in enumerate((seen[0], seen[frames // 2], seen[-1])):
        sample.paste(one, (0, i * tall))
    palette = sample.quantize(128, dither=Image.Dither.NONE)
    both = [seen[0], *seen, *[seen[-1]] * 2, *reversed(seen[1:-1])]
    cells = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in both]
    still = {0: 1400, len(seen): 1400}  # ms at both ends
    times = [still.get(i, 60) for i in range(len(cells))]
    target = IMAGES / "clients.gif"
    cells[0].save(
        target, save_all=True, append_images=cells[1:], duration=times, loop=0, optimize=True
    )
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    print(target, target.stat().st_size)


def page(run: Path) -> None:
    """Pictures of the report: two that stand still, and one that moves."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.html"
        html.write_page([run], out)
        driver = browser(folder)
        try:
            driver.get(f"file://{out}")
            moving(driver)
            driver.get(f"file://{out}")
            shoot(driver, "report-light", 1240, "#verdict", 1120)
            driver.find_element("id", "theme").click()
            shoot(driver, "report-dark", 1240, "#distribution", 1050)
        finally:
            driver.quit()


def screen(run: Path, share: float = 0.6) -> None:
    """The terminal part of the way through the same experiment."""
    asked = config.build(experiment_file.read_toml(run / "experiment.toml"))
    session = experiment.prepare(asked)
    pace = terminal.Pace(session.batch)
    for snapshot in session.rounds():
        pace.reach(snapshot.round + 1)
        if pace.done >= share * pace.rounds:
            break
    console = Console(record=True, width=96, file=io.StringIO(), force_terminal=True)
    console.print(terminal.dashboard(session, pace))
    text = console.export_svg(title="fedmaba compare", theme=SVG_EXPORT_THEME)
    text = re.sub(r"@font-face \{.*?\}\s*", "", text, flags=re.S)  # nothing from elsewhere
    (IMAGES / "terminal.svg").write_text(text, encoding="utf-8")
    print(IMAGES / "terminal.svg", len(text))


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    if "--screen" not in sys.argv:
        page(Path(sys.argv[1]))
    if "--page" not in sys.argv:
        screen(Path(sys.argv[1]))
