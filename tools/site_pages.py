"""What programs write in the pages: a hook of mkdocs fills it in when the site is built.

The repository keeps one line for each block. It begins with a comment that says what goes there:

    <!-- code NAME -->                    what the code says of itself, by tools/reference.py
    <!-- speed NAME -->                   a table of measured speeds, by tools/speed.py
    <!-- made NAME -->                    a table over many targets, by experiments/pages.py
    <!-- reproduce TARGET TABLE ... -->   tables of one target of the paper, by experiments/pages.py

The rest of the line is for readers of the plain file. It tells which command prints the block.
"""

from __future__ import annotations

import html
import multiprocessing
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "experiments")]

import pages as result_pages  # noqa: E402
from tools import reference, speed  # noqa: E402

BLOCK = re.compile(r"^<!-- (code|speed|made|reproduce) ([^>\n]+) -->.*$", re.M)
ITEM = re.compile(r'(<nav class="md-nav md-nav--secondary.*?</nav>)', re.S)
MATH = re.compile(r"\\\((.+?)\\\)")

Block = tuple[str, str]  # its kind and its words


def quick(kind: str, words: str) -> str:
    """A block that takes no time: of the code, or of measured speeds."""
    return (reference.BLOCKS if kind == "code" else speed.TABLES)[words]()


def filled(text: str, made: dict[Block, str]) -> str:
    """A page with its blocks; those not in `made` stay as they are."""
    return BLOCK.sub(lambda m: made.get((m[1], m[2]), m[0]), text)


def with_code(text: str) -> str:
    """A page with what the code says of itself."""
    every = [found for found in BLOCK.findall(text) if found[0] == "code"]
    return filled(text, {found: quick(*found) for found in every})


# --- what mkdocs calls ---------------------------------------------------------------------------

MADE: dict[Block, str] = {}
LISTED_ON = {  # by folder: a link to the page that lists the pages there
    "adr": "[All decisions](index.md)\n\n",
    "algorithms": "[All algorithms](index.md)\n\n",
    "theory": "[Theory](../theory.md)\n\n",
}


def on_files(files: Any, config: Any) -> Any:
    """Make every block of every page, on all cores, and add its pictures to the site."""
    from mkdocs.structure.files import File

    every = {
        found
        for file in files.documentation_pages()
        for found in BLOCK.findall(file.content_string)
    }
    slow = sorted(found for found in every if found[0] in ("made", "reproduce"))
    MADE.update({found: quick(*found) for found in every.difference(slow)})
    result_pages.load()  # once, for all processes
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        done = pool.map(result_pages.block, *([one[k] for one in slow] for k in (0, 1)))
        for found, (text, pictures) in zip(slow, done, strict=True):
            MADE[found] = text
            for path, content in pictures.items():
                files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with its blocks; one that the navigation has not links to the page that lists it."""
    folder, _, name = page.file.src_uri.rpartition("/")
    back = "" if name == "index.md" else LISTED_ON.get(folder, "")
    return back + filled(markdown, MADE)


def on_post_page(output: str, **_: Any) -> str:
    """Mark formulas in the table of contents as those of the text are, for assets/math.js."""
    return ITEM.sub(lambda m: MATH.sub(_formula, m[1]), output)


def _formula(found: re.Match[str]) -> str:
    return f'<span class="arithmatex">{html.escape(html.unescape(found[0]))}</span>'
