"""The file formats of a run folder, taken apart and put together by hand, with hostile values.

Nothing here uses fedmaba's own readers and writers: a file is described by the places in it that
can hold another value, and each place yields the file's bytes with a hostile one put in.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import random
import re
import struct
import tomllib
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

HOLE = "@@hole@@"
DEEP = 10_000
JSON = {  # a value's name and its text
    "null": "null", "true": "true", "false": "false", "-1": "-1", "0": "0", "1.5": "1.5",
    "2 ** 63": str(2**63), "1e308": "1e308", "1e999": "1e999", "NaN": "NaN",
    "-Infinity": "-Infinity", "5,000 digits": "9" * 5000, "-5,000 digits": "-" + "9" * 5000,
    "an empty string": '""', "100,000 letters": '"' + "x" * 100_000 + '"',
    "a lone surrogate": r'"\ud800"', "a string with NUL": r'"a\u0000b"', "a path": '"../outside"',
    "a number as a string": '"1"', "[]": "[]", "a list": "[1, 2, 3]", "lists of lists": "[[1], []]",
    "a list of null": "[null]", "a deep list": "[" * DEEP + "]" * DEEP, "{}": "{}",
    "an object": '{"a": {"b": [null]}}', "a deep object": '{"a":' * DEEP + "1" + "}" * DEEP,
    "an object of odd keys": r'{"": 1, "\ud800": 2, "-1": [], "nan": {}}',
}  # fmt: skip
TOML = {
    "true": "true", "-1": "-1", "0": "0", "1.5": "1.5", "1e308": "1e308", "nan": "nan",
    "-inf": "-inf", "5,000 digits": "9" * 5000, "2 ** 64": str(2**64), "an empty string": '""',
    "100,000 letters": '"' + "x" * 100_000 + '"', "a surrogate": r'"\ud800"',
    "a string with NUL": r'"a\u0000b"', "escape codes": r'"\u001b[2Jx"', "a path": '"../outside"',
    "[]": "[]", "a list": "[1, 2, 3]", "lists of lists": '[["a"], []]',
    "a deep list": "[" * DEEP + "]" * DEEP, "{}": "{}", "a table": "{a = {b = [1]}}",
    "deep tables": "{a=" * DEEP + "1" + "}" * DEEP, "a date": "1979-05-27T07:32:00Z",
    "a bare word": "fedavg", "nothing": "", "a million digits": "1" * 10**6,
    "a module": '"mine:Made"', "a hundred thousand seeds": '"0-100000"',
}  # fmt: skip
PICKLE = b"cposix\nmkdir\n(S'RAN-pickle'\ntR."  # would make a folder if it were ever loaded


class Place(NamedTuple):
    """Somewhere in a file, and how the file reads with another value there."""

    file: str
    what: str
    content: Callable[[], bytes]


def places(folder: Path, file: Path) -> Iterator[Place]:
    """All that can be changed in a file, by its format."""
    name, content = str(file.relative_to(folder)), file.read_bytes()
    if file.suffix == ".json":
        yield from _json(name, content)
    elif file.suffix == ".jsonl":
        yield from _jsonl(name, content)
    elif file.suffix == ".toml":
        yield from _toml(name, content)
    elif file.suffix == ".npz":
        yield from _npz(name, content)
    elif file.suffix == ".ckpt":
        sealed = functools.partial(seal, content[:8])
        yield from _safetensors(name, content[40:], sealed)
        yield from _damaged(name, content[40:], sealed)
    elif file.suffix == ".safetensors":
        yield from _safetensors(name, content, lambda body: body)
    if content and file.suffix != ".ckpt":  # without its checksum, `damage` looks at that
        yield from _damaged(name, content, lambda changed: changed)


def seal(magic: bytes, body: bytes) -> bytes:
    """A checkpoint with the right checksum."""
    return magic + hashlib.sha256(body).digest() + body


def mutate(good: bytes, rng: random.Random) -> bytes:
    """The bytes with some of them changed, lost, added or moved."""
    bad, n = bytearray(good), len(good)
    kind = rng.randrange(7)
    if kind <= 2:  # flips
        for _ in range(1 if kind else rng.randint(2, 8)):
            bad[rng.randrange(n)] ^= 1 << rng.randrange(8)
    elif kind == 3:  # a lost block
        at, size = rng.randrange(n), rng.choice([1, 16, 512, 4096])
        bad[at : at + size] = bytes(len(bad[at : at + size]))
    elif kind == 4:
        bad += rng.randbytes(rng.randint(1, 64))
    elif kind == 5:
        at = rng.randrange(n)
        bad[at : at + rng.randint(1, 64)] = b""
    else:  # two blocks that changed places
        a, b, size = rng.randrange(n), rng.randrange(n), 64
        bad[a : a + size], bad[b : b + size] = bad[b : b + size], bad[a : a + size]
    return bytes(bad)


def _damaged(name: str, content: bytes, build: Callable[[bytes], bytes]) -> Iterator[Place]:
    """The file cut, with other bytes, and of another kind."""
    for i in range(40):
        rng = random.Random(f"{name}/{i}")
        yield Place(name, f"{name} = damaged {i}", lambda r=rng: build(mutate(content, r)))
        yield Place(name, f"{name} = cut {i}", lambda r=rng: content[: r.randrange(len(content))])
    for i, other in enumerate((b"\0" * 100, b"PK\x03\x04" + bytes(50), b"[" * 100_000, b"null")):
        yield Place(name, f"{name} = other {i}", lambda o=other: o)


# --- JSON ---------------------------------------------------------------------------------------


def spots(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each value of a tree lies; of a long list, only the ends."""
    yield path
    if isinstance(tree, dict):
        for key in tree:
            yield from spots(tree[key], (*path, key))
    elif isinstance(tree, list):
        for i in sorted({0, len(tree) - 1}) if tree else ():
            yield from spots(tree[i], (*path, i))


def put(tree: Any, path: tuple[Any, ...], text: str) -> str:
    """The tree as JSON with this text in the place of one value."""
    if not path:
        return text
    copy = json.loads(json.dumps(tree))
    at = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = HOLE
    return json.dumps(copy, indent=1).replace(f'"{HOLE}"', text)


def drop(tree: Any, path: tuple[Any, ...]) -> str:
    """The tree as JSON without one value."""
    copy = json.loads(json.dumps(tree))
    at = copy
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return json.dumps(copy)


def _get(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def trees(tree: Any) -> Iterator[tuple[str, Callable[[], str]]]:
    """Every value of a JSON tree as every hostile one, missing, and twice."""
    for path in spots(tree):
        where = ".".join(map(str, path)) or "all of it"
        for said, text in JSON.items():
            yield f"{where} = {said}", lambda p=path, t=text: put(tree, p, t)
        if path:
            yield f"{where} = missing", lambda p=path: drop(tree, p)
        if path and isinstance(path[-1], str):
            twice = json.dumps(_get(tree, path)) + f", {json.dumps(path[-1])}: null"
            yield f"{where} = twice", lambda p=path, t=twice: put(tree, p, t)


def _json(name: str, content: bytes) -> Iterator[Place]:
    for what, make in trees(json.loads(content)):
        yield Place(name, f"{name} {what}", lambda m=make: m().encode())


def _jsonl(name: str, content: bytes) -> Iterator[Place]:
    """The first and the last line, and what may lie between lines."""
    lines = content.splitlines() or [b'{"run": 0, "strategy": "fedavg", "seed": 0, "round": 1}']
    for i in sorted({0, len(lines) - 1}):
        for what, make in trees(json.loads(lines[i])):

            def build(i: int = i, make: Callable[[], str] = make) -> bytes:
                one = make().replace("\n", " ").encode()
                return b"\n".join([*lines[:i], one, *lines[i + 1 :], b""])

            yield Place(name, f"{name} line {i} {what}", build)
    odd = {"no line end": content[:-1], "CR": content.replace(b"\n", b"\r"), "NUL": b"\0" * 99}
    odd |= {"bytes that are no text": b"\xff\xfe\n" + content, "100,000 lines": lines[0] + b"\n"}
    odd["100,000 lines"] *= 100_000
    for what, whole in odd.items():
        yield Place(name, f"{name} = {what}", lambda w=whole: w)


# --- TOML ---------------------------------------------------------------------------------------


def _toml(name: str, content: bytes) -> Iterator[Place]:
    text = content.decode()
    tomllib.loads(text)
    for line in re.finditer(r"^([a-z_]+) = (.+)$", text, re.M):
        key = line[1]

        def build(new: str, line: re.Match[str] = line) -> bytes:
            return (text[: line.start()] + new + text[line.end() :]).encode()

        for said, value in TOML.items():
            yield Place(
                name,
                f"{name} {key} = {said}",
                lambda k=key, v=value, b=build: b(f"{k} = {v}"),
            )
        more = {"missing": "", "twice": f"{line[0]}\n{line[0]}", "a tab": f"{key}\t=\t{line[2]}\t"}
        more["a tab inside"] = f"{key} = {line[2][0]}\t{line[2][1:]}"
        more["an unknown key"] = f"{line[0]}\n{key}_of_mine = 1"
        for said, new in more.items():
            yield Place(name, f"{name} {key} = {said}", lambda n=new, b=build: b(n))
    for head in re.finditer(r"^\[([a-z]+)\]$", text, re.M):
        for said, new in {"a list": f"[[{head[1]}]]", "deep": f"[{head[1]}{'.a' * 5000}]"}.items():
            whole = text[: head.start()] + new + text[head.end() :]
            yield Place(name, f"{name} [{head[1]}] = {said}", lambda w=whole: w.encode())


# --- arrays -------------------------------------------------------------------------------------


def npy(shape: str, kind: str, data: bytes) -> bytes:
    """A .npy file whose header says what it is told to say."""
    head = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data


def plain(array: np.ndarray[Any, Any]) -> bytes:
    """A .npy file of an array."""
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=False)
    return out.getvalue()


def _same(array: np.ndarray[Any, Any], value: float) -> np.ndarray[Any, Any]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return np.full(array.shape, value).astype(array.dtype)


def arrays(array: np.ndarray[Any, Any]) -> dict[str, Callable[[], np.ndarray[Any, Any]]]:
    """What may stand for an array that safetensors can hold, too."""
    a = array
    line = a.reshape(-1)
    found: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
        "NaN": lambda: np.full(a.shape, np.nan),
        "inf": lambda: np.full(a.shape, np.inf, np.float32),
        "1e308": lambda: np.full(a.shape, 1e308),
        "-1": lambda: _same(a, -1),
        "zeros": lambda: np.zeros_like(a),
        "the largest": lambda: np.full(a.shape, np.iinfo(np.int64).max),
        "the least": lambda: np.full(a.shape, np.iinfo(np.int64).min),
        "halves": lambda: _same(a, 0).astype(np.float64) + 0.5,
        "bytes": lambda: _same(a, 1).astype(np.uint8),
        "uint64": lambda: np.full(a.shape, 2**64 - 1, np.uint64),
        "bools": lambda: np.ones(a.shape, np.bool_),
        "float16": lambda: np.ones(a.shape, np.float16),
        "no rows": lambda: a[:0] if a.ndim else a.reshape(1)[:0],
        "a row less": lambda: a[:-1] if a.ndim else a.reshape(1),
        "a row more": lambda: np.concatenate([a, a[-1:]]) if a.ndim and len(a) else np.zeros(3),
        "flat": lambda: line,
        "a scalar": lambda: np.array(1.0),
        "another axis": lambda: a[None],
        "no columns": lambda: a.reshape((*a.shape, 1))[..., :0],
        "rows turned round": lambda: a[::-1].copy() if a.ndim else a,
        "8 million rows": lambda: np.zeros((8_000_000,), np.int8),
        "40 axes of one": lambda: np.resize(line, 1).reshape((1,) * 40),
    }
    return found


RAW: dict[str, Callable[[], bytes]] = {  # .npy files that no writer makes
    "a declared terabyte": lambda: npy("(1000000000000,)", "'<f8'", b"\0" * 64),
    "a declared plane": lambda: npy("(3000000, 3000000)", "'<f8'", b"\0" * 64),
    "a shape past 64 bits": lambda: npy(f"({2**70},)", "'<f8'", b"\0" * 64),
    "a shape of 5,000 digits": lambda: npy(f"({'9' * 5000},)", "'<f8'", b"\0" * 64),
    "a negative shape": lambda: npy("(-1, 3)", "'<f8'", b"\0" * 64),
    "a shape of floats": lambda: npy("(1.5,)", "'<f8'", b"\0" * 64),
    "a shape of names": lambda: npy("('a',)", "'<f8'", b"\0" * 64),
    "objects": lambda: npy("(1,)", "'|O'", PICKLE),
    "a wide string": lambda: npy("(1,)", "'|S999999999'", b"x"),
    "wide strings, many": lambda: npy("(1000000,)", "'<U100000000'", b"x"),
    "an unknown kind": lambda: npy("(1,)", "'<q9'", b"\0" * 64),
    "records": lambda: npy("(2,)", "[('a', '<f8'), ('b', '<i4')]", b"\0" * 24),
    "names": lambda: plain(np.array(["a", "b"])),
    "dates": lambda: plain(np.array(["2001-01-01"], "M8[D]")),
    "complex numbers": lambda: plain(np.ones(3, complex)),
    "another byte order": lambda: plain(np.arange(4, dtype=">i8")),
    "long doubles": lambda: plain(np.ones(3, np.longdouble)),
    "no header": lambda: b"\x93NUMPY\x01\x00\xff\xff",
    "version 9": lambda: b"\x93NUMPY\x09\x00" + bytes(200),
    "a header of code": lambda: npy("(__import__('os').mkdir('RAN-header'),)", "'<f8'", b""),
    "a deep header": lambda: npy("(" * 9000 + ")" * 9000, "'<f8'", b""),
    "text": lambda: b"hello\n",
    "nothing": lambda: b"",
}


def zipped(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A ZIP file of these members; names may repeat."""
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", method) as z:
        warnings.simplefilter("ignore")  # of names that repeat
        for name, content in members:
            z.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, method)
    return out.getvalue()


def members(content: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(content)) as z:
        return [(name, z.read(name)) for name in z.namelist()]


def _npz(name: str, content: bytes) -> Iterator[Place]:
    held = members(content)

    def build(i: int, *new: tuple[str, bytes]) -> bytes:
        return zipped([*held[:i], *new, *held[i + 1 :]])

    for i, (member, inner) in enumerate(held):
        array = np.load(io.BytesIO(inner), allow_pickle=False)
        for said, make in arrays(array).items():

            def whole(i: int = i, member: str = member, make: Any = make) -> bytes:
                return build(i, (member, plain(make())))

            yield Place(name, f"{name} {member} = {said}", whole)
        for said, raw in RAW.items():
            yield Place(
                name,
                f"{name} {member} = {said}",
                lambda i=i, m=member, r=raw: build(i, (m, r())),
            )
        more = {
            "missing": (), "twice": ((member, inner), (member, RAW["text"]())),
            "with a brother": ((member, inner), ("../" + member, inner)),
            "of a long name": (("x" * 60_000 + ".npy", inner),),
            "without its ending": ((member.removesuffix(".npy"), inner),),
        }  # fmt: skip
        for said, new in more.items():
            yield Place(name, f"{name} {member} = {said}", lambda i=i, n=new: build(i, *n))
        try:
            tree = json.loads(array.tobytes()) if array.dtype == np.uint8 else None
        except ValueError:
            tree = None
        if isinstance(tree, dict):  # JSON kept as bytes
            for what, text in trees(tree):

                def inside(i: int = i, member: str = member, text: Any = text) -> bytes:
                    return build(i, (member, plain(np.frombuffer(text().encode(), np.uint8))))

                yield Place(name, f"{name} {member} {what}", inside)
    odd: dict[str, Callable[[], bytes]] = {
        "no members": lambda: zipped([]),
        "100,000 members": lambda: zipped([(f"seed{i}.labels.npy", b"") for i in range(100_000)]),
        "a locked member": lambda: content.replace(
            b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"
        ),
        "another array alone": lambda: plain(np.arange(9)),
        "a pickle": lambda: PICKLE,
    }
    for said, make_odd in odd.items():
        yield Place(name, f"{name} = {said}", make_odd)


# --- safetensors --------------------------------------------------------------------------------


def take_apart(body: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Header and arrays of a safetensors body."""
    return json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")]), load(body)


def framed(header: str, data: bytes) -> bytes:
    text = header.encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def _safetensors(name: str, body: bytes, seal: Callable[[bytes], bytes]) -> Iterator[Place]:
    header, held = take_apart(body)
    length = int.from_bytes(body[:8], "little")
    data = body[8 + length :]
    outer = header.get("__metadata__")
    for what, make in trees(header):

        def build(make: Callable[[], str] = make) -> bytes:
            return seal(framed(make(), data))

        yield Place(name, f"{name} header {what}", build)
    for key, text in (outer or {}).items():
        for what, make in trees(json.loads(text)):

            def inner(key: str = key, make: Callable[[], str] = make) -> bytes:
                told = {**header, "__metadata__": {**header["__metadata__"], key: make()}}
                return seal(framed(json.dumps(told), data))

            yield Place(name, f"{name} meta {what}", inner)
    for tensor, array in held.items():
        for said, other in arrays(array).items():

            def whole(tensor: str = tensor, other: Any = other) -> bytes:
                return seal(save({**held, tensor: other()}, outer))

            yield Place(name, f"{name} {tensor} = {said}", whole)

        def less(tensor: str = tensor) -> bytes:
            return seal(save({n: a for n, a in held.items() if n != tensor}, outer))

        yield Place(name, f"{name} {tensor} = missing", less)
    odd: dict[str, Callable[[], bytes]] = {
        "a header of 2 ** 63 bytes": lambda: seal((2**63).to_bytes(8, "little") + body[8:]),
        "a header of a terabyte": lambda: seal((10**12).to_bytes(8, "little") + body[8:]),
        "nothing in it": lambda: seal(b""),
        "an empty header": lambda: seal(framed("{}", b"")),
        "a pickle": lambda: seal(PICKLE),
    }
    for said, make_odd in odd.items():
        yield Place(name, f"{name} = {said}", make_odd)
