"""Files of a run folder that somebody else made: what is odd in them is one line, soon, in little
memory. Every field of every JSON gets values of other types, every table other numbers.
"""

import copy
import hashlib
import io
import json
import re
import resource
import shutil
import struct
import subprocess
import sys
import zipfile
from functools import partial

import numpy as np
import pytest

from fedmaba.errors import InputError, reason
from fedmaba.experiment import experiment_file, starting
from fedmaba.report import data, export, html
from fedmaba.results import array_files, files, run_folder, schema
from run_folders import asked, begun, play

slow = partial(pytest.param, marks=pytest.mark.slow)  # repeats what a quicker case shows
ODD = (None, -1, 1.5, "x", [], {}, [[]], True, 10**18, ["a"], {"a": 1}, 1e308, "9" * 30)


@pytest.fixture(scope="module")
def folders(tiny_npz, tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    few = {"strategies": ["fedmaba"], "seeds": 1, "train__rounds": 4, "save__every": 2}
    play(begun(asked(tiny_npz, **few), root / "done"))
    play(begun(asked(tiny_npz, **few), root / "half"), stop_after=3)
    return root


@pytest.fixture
def half(folders, tmp_path):
    return shutil.copytree(folders / "half", tmp_path / "half")


@pytest.fixture
def done(folders, tmp_path):
    out = shutil.copytree(folders / "done", tmp_path / "done")
    about = json.loads((out / "runs.json").read_text())
    del about["files"]  # a liar would have noted the digests of the lies
    (out / "runs.json").write_text(json.dumps(about))
    return out


def shown(folder):
    """All that is made of a folder; whether it could be, or was refused in one line."""
    try:
        html.page([data.load_run_folder(folder)])
        export.write_export(folder, folder / "csv")
        str(run_folder.load_history(folder))
    except InputError as error:
        short(str(error))
        return False
    return True


def short(text, begins="", ends=""):
    """An error of one line."""
    assert "\n" not in text
    assert len(text) < 800
    assert re.search(begins, text)
    assert text.endswith(ends)


def resumed(folder):
    """Whether a run goes on, or was refused in one line."""
    try:
        session = starting.resume(folder)
    except InputError as error:
        short(str(error))
        return False
    session.close()
    return True


def places(tree, at=()):
    """Every key of a tree, lists by their first."""
    yield at
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree[:1])
    for key, value in inner:
        if isinstance(value, dict | list):
            yield from places(value, (*at, key))
        else:
            yield (*at, key)


def twisted(tree):
    """The tree with each of its values replaced by each odd one, or left out."""
    for at in places(tree):
        for odd in (*ODD, ...) if at else ODD:
            out = copy.deepcopy(tree)
            inner = out
            for key in at[:-1]:
                inner = inner[key]
            if not at:
                out = odd
            elif odd is ...:
                del inner[at[-1]]
            else:
                inner[at[-1]] = odd
            yield at, odd, out


# --- JSON --------------------------------------------------------------------------------------


def test_a_value_of_another_type_in_about_json_is_named(done):
    file = done / "about.json"
    refused = 0
    for at, _, tree in twisted(json.loads(file.read_text())):
        file.write_text(json.dumps(tree))
        try:
            run_folder.load_about(done)
        except InputError as error:
            refused += 1
            short(str(error), rf"about\.json cannot be read \({at[0] if at else 'no JSON'}")
    assert refused > 150


@pytest.mark.parametrize("every", [10, slow(1)])
def test_a_value_of_another_type_in_runs_json_is_one_line(every, done):
    file = done / "runs.json"
    trees = [tree for *_, tree in twisted(json.loads(file.read_text()))][::every]
    refused = sum([not shown(done) for tree in trees if put(file, tree)])
    assert refused > 60 // every


def put(file, tree):
    file.write_text(json.dumps(tree))
    return True


def test_about_json_of_any_content_is_shown_or_refused(half):
    file = half / "about.json"
    good = json.loads(file.read_text())
    for n, (*_, tree) in enumerate(twisted(good)):
        if n % 25 == 0:  # the page takes its time
            put(file, tree)
            shown(half)
    put(file, good)
    assert shown(half)


@pytest.mark.parametrize(
    ("saved", "every"), [(True, 30), (False, 30), slow(True, 3), slow(False, 3)]
)
def test_a_line_of_any_content_is_shown_or_refused(saved, every, half):
    if not saved:
        shutil.rmtree(half / "checkpoint")
    file = half / "rounds.jsonl"
    *before, last = file.read_text().splitlines()
    assert json.loads(before[-1])["deployed"]
    refused = 0
    for n, (*_, tree) in enumerate(twisted(json.loads(before[-1]))):
        if n % every == 0:
            file.write_text("\n".join([*before, last, json.dumps(tree)]) + "\n")
            refused += not shown(half)
    assert refused > 60 // every


BAD = {
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep in a key": b'{"data": ' + b'{"a": ' * 60 + b"1" + b"}" * 61,
    "digits": b'{"chunk": ' + b"9" * 5_000 + b"}",
    "more digits": b'{"chunk": ' + b"9" * 50 + b"}",
    "NaN": b'{"chunk": NaN}',
    "infinite": b'{"chunk": 1e999}',
    "surrogate": b'{"device": "\\ud800"}',
    "no UTF-8": b'{"device": "\xff"}',
    "BOM": b'\xef\xbb\xbf{"chunk": 1}',
    "nothing": b"",
    "null": b"null",
    "many": b"[" + b"[]," * 3_000_000 + b"1]",
}


@pytest.mark.parametrize("name", BAD)
def test_json_that_no_run_writes_is_one_line(name, tmp_path):
    (tmp_path / "about.json").write_bytes(BAD[name])
    with pytest.raises(InputError, match=r"about\.json cannot be read \(") as found:
        run_folder.load_about(tmp_path)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 500


def test_a_line_without_an_end_is_not_read_whole(half):
    with open(half / "rounds.jsonl", "r+b") as file:
        file.seek(0, 2)
        file.truncate(file.tell() + 10**9)
    with pytest.raises(InputError, match=r"rounds\.jsonl cannot be read \(line 1 .*has more than"):
        data.load_run_folder(half)


def test_too_many_strategies_are_refused_at_once(done):
    about = json.loads((done / "runs.json").read_text())
    about["runs"] *= 10_001
    put(done / "runs.json", about)
    with pytest.raises(InputError, match=r"runs\.json cannot be read \(runs.*at most 10000"):
        run_folder.load_history(done)
    about["runs"] = [{**about["runs"][0], "label": "x" * 5_000}]
    put(done / "runs.json", about)
    with pytest.raises(InputError, match=r"runs\.0\.label.*at most 2000 characters"):
        run_folder.load_history(done)


def test_no_run_is_begun_that_could_not_be_read(tiny_npz, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "MAX_RUNS", 2)
        with pytest.raises(InputError, match=r"8 runs.*at most 2 runs"):
            begun(asked(tiny_npz), tmp_path / "many")
    assert not (tmp_path / "many").exists()


@pytest.mark.parametrize(
    "text",
    [
        "a" + ".a" * 20_000 + " = 1",
        "seeds = 0x" + "f" * 100_000,
        "a = " + "[" * 200 + "]" * 200,
        "\n".join("[a" + ".a" * 60 + f".b{n}]" for n in range(3)),
        "x = '''" + "\t" * 300_000,
        'x = { p = """ " # """, a' + ".a" * 20_000 + " = 1}",
        "seeds = \udcff",
    ],
)
def test_toml_that_nobody_writes_is_one_line(text, tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(InputError, match=r"a\.toml is not TOML: ") as found:
        experiment_file.read_toml(file)
    assert "\n" not in str(found.value)


# --- NPZ ---------------------------------------------------------------------------------------

CHANGES = {
    "float": lambda a: a.astype(float),
    "nan": lambda a: np.full(a.shape, np.nan),
    "infinite": lambda a: np.full(a.shape, np.inf),
    "none": lambda a: a[:0],
    "fewer": lambda a: a[:1],
    "wider": lambda a: a[None],
    "flat": np.ravel,
    "negative": lambda a: -a - 1,
    "more": lambda a: a + 100,
    "bool": lambda a: a.astype(bool),
    "single": lambda a: np.array(3),
    "text": lambda a: np.array(["x"]),
    "object": lambda a: np.array([{}], dtype=object),
    "complex": lambda a: a.astype(complex),
    "turned": np.transpose,
    "backwards": lambda a: a[::-1],
    "unsigned": lambda a: a.astype(np.uint64) + np.uint64(2**63),
}
FEW = ("wider",)  # the others take as long, one by one
TYPES = ("text", "object", "complex")  # that no checkpoint can hold


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@pytest.mark.parametrize("change", [n if n in FEW else slow(n) for n in CHANGES])
def test_tables_of_any_content_are_shown_or_refused(change, done):
    for file in (done / "partition.npz", next((done / "clients").iterdir())):
        good = dict(np.load(file, allow_pickle=False))
        for name in good:
            np.savez(file, **{**good, name: CHANGES[change](good[name])})
            shown(done)
            np.savez(file, **{n: a for n, a in good.items() if n != name})
            shown(done)
        np.savez(file, **good)
    assert shown(done)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
@pytest.mark.parametrize("change", [n if n in FEW else slow(n) for n in CHANGES if n not in TYPES])
def test_checkpoints_of_any_content_are_used_or_refused(change, half):
    newest, older = run_folder.checkpoints(half)
    older.unlink()
    good, meta = run_folder.read_checkpoint(newest)
    for n, name in enumerate(good):
        if not name.startswith("state/"):  # a strategy's own business
            forge(newest, {**good, name: np.asarray(CHANGES[change](good[name]))}, meta)
            shown(half) if n % 2 else resumed(half)
    forge(newest, good, meta)
    assert resumed(half)  # writes rounds.jsonl anew
    assert shown(half)


def forge(file, found, meta):
    body = b"".join(run_folder.pack(found, meta))
    file.write_bytes(run_folder.MAGIC + hashlib.sha256(body).digest() + body)


@pytest.mark.parametrize("every", [17, slow(1)])
def test_words_of_a_checkpoint_of_any_content_are_used_or_refused(every, half):
    newest, older = run_folder.checkpoints(half)
    older.unlink()
    good, meta = run_folder.read_checkpoint(newest)
    refused = 0
    for n, (at, _, tree) in enumerate(twisted(meta)):
        if at and n % every == 0:
            forge(newest, good, tree)
            refused += not (resumed(half) if n % 10 == 0 else shown(half) if n % 3 == 0 else True)
    assert refused > 20 // every


def archive(path, member, *, packed=zipfile.ZIP_DEFLATED, name="test_size.npy", more=()):
    with zipfile.ZipFile(path, "w", packed) as z:
        for one, content in [(name, member), *more]:
            z.writestr(one, content)
    return path


def head(shape, descr="<i8", size=0, version=1):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode() + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", size or len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text


def refuse(path, said):
    with pytest.raises(array_files.READ_ERRORS) as found:
        array_files.read_npz(path)
    assert re.search(said, reason(found.value))


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (head("(10**12,)"), "no array of numbers"),
        (head("(1000000000000,)"), "another size than it says"),
        (head("(3,)") + bytes(23), "another size"),
        (head("(3,)") + bytes(25), "another size"),
        (head("(3,)", "|O") + bytes(24), "no array of numbers"),
        (head("(3,)", "<U2") + bytes(24), "no array of numbers"),
        (head("(3,)", "<c16") + bytes(48), "no array of numbers"),
        (head("(3,)", "<f3") + bytes(9), "no array of numbers"),
        (head("(3,)", size=3_000_000_000, version=2) + bytes(24), "no array of numbers"),
        (head("(((((((((3)))))))))"), "no array of numbers"),
        (head("(" + "1, " * 60 + ")") + bytes(8), "60 dimensions"),
        (b"junk", "is no array"),
        (b"", "is no array"),
    ],
)
def test_an_array_that_lies_about_itself_is_refused(member, said, tmp_path):
    refuse(archive(tmp_path / "a.npz", member), said)


def test_zip_files_that_nobody_writes_are_refused(tmp_path, monkeypatch):
    path, good = tmp_path / "a.npz", head("(3,)") + bytes(24)
    assert array_files.read_npz(archive(path, good))["test_size"].tolist() == [0, 0, 0]
    with pytest.warns(UserWarning, match="Duplicate"):
        archive(path, good, more=[("test_size.npy", good)])
    refuse(path, "of one name")
    refuse(archive(path, good, packed=zipfile.ZIP_BZIP2), "unusual way")
    archive(path, good, packed=zipfile.ZIP_LZMA)
    assert len(array_files.read_npz(path)) == 1
    raw = bytearray(path.read_bytes())
    at = raw.index(b"test_size.npy") + len("test_size.npy") + 5
    raw[at : at + 4] = (2**32 - 1).to_bytes(4, "little")
    path.write_bytes(raw)
    refuse(path, "too much memory to unpack")
    monkeypatch.setattr(array_files, "MAX_MEMBERS", 3)
    refuse(archive(path, good, more=[(f"{n}.npy", good) for n in range(3)]), "too many")
    monkeypatch.setattr(array_files, "MAX_LIST_BYTES", 100)
    refuse(path, "list of members is too long")


def test_a_zip_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(array_files, "FREE_BYTES", 10**6)
    bomb = head("(1250000,)") + bytes(10**7)
    refuse(archive(tmp_path / "a.npz", bomb), "it would unpack to 10,000,000 bytes from")
    honest = np.random.default_rng(0).standard_normal(200_000)  # as much on the disk
    (tmp_path / "b.npz").write_bytes(run_folder.npz({"a": honest}))
    assert np.array_equal(array_files.read_npz(tmp_path / "b.npz")["a"], honest)


def test_small_bombs_in_many_files_are_counted_together(done, monkeypatch):
    monkeypatch.setattr(array_files, "FREE_BYTES", 1)
    monkeypatch.setattr(array_files, "MAX_RATIO", 0)
    with pytest.raises(InputError, match="it would unpack to"):
        run_folder.load_history(done)


@pytest.mark.parametrize("form", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f8", ">i4", "|b1", "|u1", "<f2"])
def test_what_numpy_saves_is_read_as_numpy_reads_it(form, kind, tmp_path):
    want = np.asarray(np.arange(24).reshape(2, 3, 4).astype(kind), order=form)
    some = {"a": want, "none": np.zeros((0, 3), kind), "single": np.array(1, kind)}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **some)
        for name, value in array_files.read_npz(tmp_path / "a.npz").items():
            np.testing.assert_array_equal(value, some[name])
            assert value.dtype == some[name].dtype


# --- how much memory ---------------------------------------------------------------------------

MEASURE = """
import resource, sys
from pathlib import Path
from fedmaba.results import run_folder as record
from fedmaba.errors import InputError
try:
    record.load_about(Path(sys.argv[1]))
    record.load_history(Path(sys.argv[1]))
except InputError as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, error)
"""


@pytest.mark.parametrize("what", [slow("about.json"), "clients"])
def test_the_largest_lies_take_less_than_a_gigabyte(what, done):
    if what == "about.json":  # as much as is parsed
        count = files.MAX_VALUES // 2 - 2
        text = "[" + '{"a": 1},' * count + "1]"
        (done / what).write_text(text)
    else:
        file = next((done / "clients").iterdir())
        out, piece = io.BytesIO(), head("(150000000,)")
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
            z.writestr("test_size.npy", piece)
        raw = out.getvalue()
        size = (len(piece) + 1_200_000_000).to_bytes(4, "little")
        file.write_bytes(raw.replace(len(piece).to_bytes(4, "little") * 2, size * 2))
    words = [sys.executable, "-c", MEASURE, str(done)]
    limit = (lambda: resource.setrlimit(resource.RLIMIT_CPU, (30, 30))) if sys.platform else None
    ended = subprocess.run(words, capture_output=True, text=True, preexec_fn=limit)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout.split()[0]) < 1000
