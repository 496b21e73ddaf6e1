"""Helpers for the tests of data sets: one-line refusals, damaged copies, a network of files."""

from __future__ import annotations

import io
import urllib.error

import numpy as np
import pytest

from fedmaba.data import downloads
from fedmaba.errors import InputError


def says(name_or_call, *words: str) -> str:
    """The one line of the InputError, which has all the words."""
    with pytest.raises(InputError) as caught:
        name_or_call()
    text = str(caught.value)
    assert "\n" not in text
    assert not [word for word in words if word not in text], text
    return text


def mutations(raw: bytes, count: int, seed: int):
    """Truncated, flipped, spliced and lengthened copies."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        out = bytearray(raw)
        at = int(rng.integers(len(out)))
        if i % 4 == 0:
            out = out[:at]
        elif i % 4 == 1:
            for spot in rng.integers(len(out), size=int(rng.integers(1, 6))):
                out[spot] ^= int(rng.integers(1, 256))
        elif i % 4 == 2:
            out[at:at] = rng.bytes(int(rng.integers(1, 40)))
        else:
            out[at : at + 8] = b"\xff" * 8
        yield bytes(out)


def refusal(call) -> str:
    """The line of the InputError, empty if there was none; any other exception goes on."""
    try:
        call()
    except InputError as err:
        return str(err)
    return ""


class Reply(io.BytesIO):
    headers = {"Content-Length": "7"}  # noqa: RUF012


def serve(monkeypatch, files: dict[str, bytes]) -> list[str]:
    """A network that has these files; returns the list of what was asked for."""
    asked: list[str] = []

    def urlopen(request, timeout):
        assert timeout
        assert request.full_url.startswith("https://")
        asked.append(request.full_url.rsplit("/", 1)[-1])
        if asked[-1] not in files:
            raise urllib.error.HTTPError(request.full_url, 404, "Not Found", {}, None)
        return Reply(files[asked[-1]])

    monkeypatch.setattr(downloads.urllib.request, "urlopen", urlopen)
    return asked
