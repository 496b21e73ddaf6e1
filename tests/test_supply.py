"""The lock of the runtime set, and that an artifact other than the one locked is refused."""

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()


def locked() -> dict[str, list[str]]:
    """The hashes of each locked package."""
    whole = re.sub(r"\\\n", " ", re.sub(r"^ *#.*\n", "", LOCK, flags=re.M))
    out = {}
    for line in whole.split("\n"):
        if line.strip():
            found = re.fullmatch(
                r"([a-z0-9-]+)==[0-9a-z.]+((?: +--hash=sha256:[0-9a-f]{64})+) *", line
            )
            assert found, line  # nothing but pins and hashes: no options, no addresses
            out[found[1]] = re.findall(r"sha256:(\w+)", found[2])
    return out


def test_the_lock_covers_what_the_package_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [re.match(r"[\w-]+", d)[0].lower() for d in project["dependencies"]]
    assert len(wanted) >= 5
    assert set(wanted) <= set(locked())
    assert "://" not in LOCK
    assert len(locked()["numpy"]) > 20  # of every platform, not of the one it was made on


def wheel(path: Path, word: str) -> bytes:
    """A package with nothing in it but a word."""
    with zipfile.ZipFile(path, "w") as z:
        info = "honest-1.0.dist-info"
        z.writestr("honest.py", f"WORD = {word!r}\n")
        z.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: honest\nVersion: 1.0\n")
        z.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        z.writestr(f"{info}/RECORD", "")
    return path.read_bytes()


@pytest.mark.slow
def test_a_tampered_wheel_is_refused(tmp_path):
    path = tmp_path / "honest-1.0-py3-none-any.whl"
    digest = hashlib.sha256(wheel(path, "mine")).hexdigest()
    lock = tmp_path / "lock"
    lock.write_text(f"honest==1.0 --hash=sha256:{digest}\n")
    words = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "install"]
    words += ["--no-index", "--find-links", str(tmp_path), "--require-hashes", "--no-deps"]
    words += ["-r", str(lock), "--target", str(tmp_path / "out")]
    assert subprocess.run(words, capture_output=True).returncode == 0
    wheel(path, "theirs")
    words[-1] = str(tmp_path / "again")
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "again" / "honest.py").exists()
