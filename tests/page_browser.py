"""A page in a real Chromium, and a run to look at: what the tests of pages in a browser share."""

import json
import shutil
import time
from pathlib import Path

import pytest

import fedmaba
from fedmaba.report import html

webdriver = pytest.importorskip("selenium.webdriver", reason="pip install selenium")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
IN_A_BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="apt-get install chromium chromium-driver"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1400,1000",
]  # fmt: skip


class Page:
    """A browser with one page open."""

    def __init__(self, folder: Path) -> None:
        self.downloads = folder / "downloads"
        self.downloads.mkdir()
        options = webdriver.ChromeOptions()
        options.binary_location = BROWSER
        for flag in [*FLAGS, f"--user-data-dir={folder / 'profile'}"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(DRIVER)
        self.driver = webdriver.Chrome(options=options, service=service)
        behaviour = {"behavior": "allow", "downloadPath": str(self.downloads)}
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)

    def open(self, address: Path | str) -> None:
        self.driver.get_log("performance")
        self.driver.get(f"file://{address}" if isinstance(address, Path) else address)
        self.drawn()

    def drawn(self) -> None:
        self.until("document.documentElement.dataset.drawn === 'yes'")

    def until(self, condition: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not self.js(f"return {condition}"):
            assert time.monotonic() < end, condition
            time.sleep(0.03)

    def js(self, code: str, *arguments):
        return self.driver.execute_script(code, *arguments)

    def texts(self, query: str) -> list[str]:
        return self.js(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", query
        )

    def click(self, query: str) -> None:
        self.js("document.querySelector(arguments[0]).click()", query)

    def choose(self, query: str, value: str) -> None:
        self.js(
            "const s = document.querySelector(arguments[0]); s.value = arguments[1];"
            "s.dispatchEvent(new Event('change'))", query, value,
        )  # fmt: skip

    def bring(self, query: str) -> None:
        """Scroll something into the middle of the window."""
        how = "{block: 'center', behavior: 'instant'}"
        self.js(f"document.querySelector(arguments[0]).scrollIntoView({how})", query)

    def point(self, figure: str, x: float, y: float) -> str:
        """Move the mouse to a place of a figure, in shares of its size; what the tip says."""
        self.bring(figure)
        box = self.js(
            "const b = document.querySelector(arguments[0] + ' svg').getBoundingClientRect();"
            "return [b.left, b.top, b.width, b.height]", figure,
        )  # fmt: skip
        at = {"x": box[0] + x * box[2], "y": box[1] + y * box[3]}
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **at})
        return self.js(
            "const t = document.querySelector('#tip'); return t.hidden ? '' : t.textContent"
        )

    def key(self, figure: str, key: str) -> str:
        """Press a key on a figure; what the tip says."""
        return self.js(
            "const c = document.querySelector(arguments[0] + ' .chart');"
            "const t = document.querySelector('#tip');"
            "c.focus(); c.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[1]}));"
            "return t.hidden ? '' : t.textContent", figure, key,
        )  # fmt: skip

    def file(self, name: str) -> Path:
        """A download, when it is whole: until then the name is an empty file's."""
        path, end = self.downloads / name, time.monotonic() + 10
        while not path.exists() or not path.stat().st_size:
            assert time.monotonic() < end, name
            time.sleep(0.05)
        return path

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses asked for since `open`, but for the page itself and what it made up."""
        seen = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        asked = [e["params"] for e in seen if e["method"] == "Network.requestWillBeSent"]
        urls = [p["request"]["url"] for p in asked if p.get("type") != "Document"]
        urls += [p["request"]["url"] for p in asked if p.get("type") == "Document"][1:]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    opened = Page(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.driver.quit()


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> tuple[Path, Path]:
    """A run on real images, and its report."""
    folder = tmp_path_factory.mktemp("real") / "run"
    fedmaba.compare(
        ["fedavg", "afl", "fedmaba"], out=folder, data="sample", clients=20, rounds=6,
        eval_every=2, seeds=2, model="softmax",
    )  # fmt: skip
    out = folder.parent / "report.html"
    html.write_page([folder], out)
    return folder, out
