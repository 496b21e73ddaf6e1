"""`fedmaba flower new DIR`: writes an app that runs as it is. Works without the internet."""

from __future__ import annotations

from contextlib import suppress
from importlib import resources
from pathlib import Path

from fedmaba.deploy.settings import read_dp
from fedmaba.errors import InputError, SaveFailed

PACKAGE = "fairapp"
# what an app with secure sums has in place of what stands in the template
SECURE = {
    "client_app.py": [("classes=CLASSES)", "classes=CLASSES, secure=True)")],
    "pyproject.toml": [("\nsecure = false ", "\nsecure = true  ")],
}
# scores have no noise, so where the server sees nothing else without noise, it asks for none
BOTH = {"pyproject.toml": [("\nevaluate = true ", "\nevaluate = false")]}


def private(dp: str) -> dict[str, list[tuple[str, str]]]:
    """What an app with a promise of privacy has in place of what stands in the template."""
    told = f'\ndp = "{dp}"'
    extras = ("fedmaba[sim,flower]", "fedmaba[sim,flower,privacy]")
    return {"pyproject.toml": [('\ndp = ""'.ljust(33), told.ljust(32) + " "), extras]}


def new(folder: Path, secure: bool = False, dp: str = "", task: str = "") -> list[Path]:
    """Write the files of the app into a folder that is new or empty; return their paths.

    `task` is another task.py than the template's.
    """
    dp = ",".join(part.strip() for part in dp.split(",")) if read_dp(dp) else ""
    changes = [*([SECURE] if secure else []), *([private(dp)] if dp else [])]
    changes += [BOTH] if secure and dp else []
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not an empty folder: choose another one")
    source = resources.files("fedmaba.deploy.flower_app") / "template"
    there = folder.exists()
    written: list[Path] = []
    for item in sorted(source.iterdir(), key=lambda entry: entry.name):
        name = item.name.removesuffix(".tmpl")
        target = folder / PACKAGE / name if name.endswith(".py") else folder / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            text = item.read_text(encoding="utf-8")
            for before, after in (pair for one in changes for pair in one.get(name, ())):
                text = text.replace(before, after)
            text = task if task and name == "task.py" else text
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            for path in (*written, target):  # else the folder is not empty at the next try
                with suppress(OSError):
                    path.unlink()
            for path in (folder / PACKAGE, *([] if there else [folder])):
                with suppress(OSError):
                    path.rmdir()
            raise SaveFailed(
                f"{target} could not be written: {error.strerror}: fix that"
            ) from error
        written.append(target)
    return written
