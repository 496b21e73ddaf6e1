"""Runs that start from given weights: a file, a state dict or a module."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors.torch import save_file
from torch import nn

import fedmaba
from fedmaba.errors import InputError
from fedmaba.experiment import starting
from fedmaba.results import array_files
from fedmaba.rows import models
from run_folders import SMALL, asked, play

pytestmark = pytest.mark.usefixtures("few_threads")


def deployed(folder: Path) -> Path:
    """The deployed model of a folder's first run."""
    return sorted(folder.glob("models/*-deployed.safetensors"))[0]


def first_model(session) -> dict[str, np.ndarray]:
    """The named weights that the first run starts from."""
    layout, at = session.batch.rows.layout, session.batch.progress
    return {name: w.numpy() for name, w in layout.unpack(at.model[0]).items()}


@pytest.fixture(scope="module")
def trained(tiny_npz, tmp_path_factory) -> Path:
    """The deployed model of a short run."""
    out = tmp_path_factory.mktemp("trained") / "run"
    fedmaba.compare("fedavg", data=str(tiny_npz), model="mlp", out=out, **SMALL)
    return deployed(out)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_model_of_one_run_is_the_start_of_the_next(dtype, tiny_npz, tmp_path):
    fedmaba.compare(
        "fedavg", data=str(tiny_npz), model="mlp", out=tmp_path / "one", dtype=dtype, **SMALL
    )
    file = deployed(tmp_path / "one")
    session = starting.prepare(
        asked(tiny_npz, model="mlp", init=str(file), seeds=2, machine__dtype=dtype)
    )
    session.close()
    want, got = safetensors.numpy.load_file(file), first_model(session)
    assert want.keys() == got.keys()
    for name, value in want.items():
        assert value.dtype == got[name].dtype == dtype
        np.testing.assert_array_equal(got[name], value)
    at = session.batch.progress
    assert all(torch.equal(row, at.model[0]) for row in (*at.model, *at.deployed))  # every seed


def test_a_path_a_state_dict_and_a_module_are_the_same_start(trained, tiny_npz):
    module = models.build_model(models.mlp, (6,), 3, 99)
    named = {n: torch.from_numpy(a) for n, a in safetensors.numpy.load_file(trained).items()}
    module.load_state_dict(named)
    given = [str(trained), trained, named, module, {n: t.numpy() for n, t in named.items()}]
    tables = [
        fedmaba.compare("fedavg", data=str(tiny_npz), model="mlp", init=init, **SMALL)
        for init in given
    ]
    other = fedmaba.compare("fedavg", data=str(tiny_npz), model="mlp", **SMALL)
    first = tables[0].runs[0]
    for table in tables[1:]:
        for name, value in first.arrays().items():
            np.testing.assert_array_equal(table.runs[0].arrays()[name], value, name)
    unlike = [
        n for n, v in other.runs[0].arrays().items() if not np.array_equal(v, first.arrays()[n])
    ]
    assert unlike
    assert other.runs[0].of != first.of  # rows of one table would not be pooled


WEIGHTS = {"1.weight": (200, 6), "1.bias": (200,), "3.weight": (200, 200), "3.bias": (200,)}
WEIGHTS |= {"5.weight": (3, 200), "5.bias": (3,)}


def arrays(**changes):
    made = {name: np.zeros(shape, np.float32) for name, shape in WEIGHTS.items()}
    made |= {name.replace("_", "."): value for name, value in changes.items()}
    return {name: value for name, value in made.items() if value is not None}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"3_bias": None}, "lacks '3.bias' of the model"),
        ({"9_bias": np.zeros(2, np.float32)}, "has '9.bias', which the model lacks"),
        ({"3_weight": np.zeros((200, 199), np.float32)},
         r"'3.weight' has shape (200, 199), but the model has (200, 200)"),
        ({"5_bias": np.zeros(3, np.int64)}, "'5.bias' is of int64, but weights are floats"),
        ({"5_bias": np.array([0, np.nan, 0], np.float32)}, "'5.bias' has values that are not fin"),
        ({"5_bias": np.array([0, -1e300, 0])}, "'5.bias' has values up to 1e+300, whose squares"),
    ],
)  # fmt: skip
def test_weights_of_another_model_are_refused_by_the_first_wrong_name(change, said, call, tiny_npz):
    safetensors.numpy.save_file(arrays(**change), "w.safetensors")
    answer = call("compare", "fedavg", "--data", str(tiny_npz), "--init", "w.safetensors",
                  "--out", "run")  # fmt: skip
    assert answer.code == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert not Path("run").exists()


def test_files_that_are_no_safetensors_are_one_line(call, tiny_npz):
    torch.save({"a": torch.zeros(1)}, "new.pt")
    torch.save({"a": torch.zeros(1)}, "old.bin", _use_new_zipfile_serialization=False)
    Path("noise.safetensors").write_bytes(b"\xff" * 100)
    Path("short.safetensors").write_bytes(b"abc")
    Path("folder.safetensors").mkdir()
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    Path("cut.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    Path("list.safetensors").write_bytes((2).to_bytes(8, "little") + b"[]")
    said = {
        "new.pt": "safetensors.torch.save_file(torch.load(",
        "old.bin": "was written by torch.save",
        "noise.safetensors": "its header is too long",
        "short.safetensors": "its header is too long",
        "cut.safetensors": "larger or smaller than the file",
        "list.safetensors": "its header is no JSON object",
        "folder.safetensors": "init=folder.safetensors",
        "none.safetensors": "No such file",
        " ": "it is empty",
    }
    for name, words in said.items():
        answer = call("compare", "fedavg", "--data", str(tiny_npz), "--init", name, "--out", "run")
        assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
        assert words in answer.err, answer.err
        assert not Path("run").exists()


def test_half_precision_files_are_read(tmp_path):
    values = torch.randn(3, 5)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        path = tmp_path / f"{dtype}.safetensors"
        save_file({"a": values.to(dtype), "n": torch.tensor([3])}, path)
        found = array_files.read_weights(path)
        np.testing.assert_array_equal(found["a"], values.to(dtype).to(torch.float64).numpy())
        assert found["n"].tolist() == [3]


@pytest.mark.parametrize("init", [3, [1], {"a": 1}, {1: torch.zeros(2)}, {"a": np.array(["x"])}])
def test_objects_that_are_no_weights_are_one_line(init, tiny_npz):
    with pytest.raises(InputError, match="init") as error:
        fedmaba.compare("fedavg", data=str(tiny_npz), init=init, **SMALL)
    assert "\n" not in str(error.value)


def test_buffers_and_frozen_constants_may_be_given(tiny_npz):
    class Scaled(nn.Module):
        def __init__(self, shape, classes):
            super().__init__()
            self.last = nn.Linear(shape[0], classes)
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x):
            return self.last(x) * self.scale

    given = Scaled((6,), 3).state_dict()
    fedmaba.compare("fedavg", data=str(tiny_npz), model=Scaled, init=given, **SMALL)
    del given["scale"]
    fedmaba.compare("fedavg", data=str(tiny_npz), model=Scaled, init=given, **SMALL)


def test_a_resumed_run_needs_the_file_that_it_was_begun_with(trained, tiny_npz, tmp_path, call):
    copy = tmp_path / "start.safetensors"
    copy.write_bytes(trained.read_bytes())
    whole, out = tmp_path / "whole", tmp_path / "run"
    some = {"strategies": ["fedavg"], "seeds": 1, "train__rounds": 4, "save__every": 1}
    words = asked(tiny_npz, model="mlp", init=str(copy), **some)
    for folder, last in ((whole, 9), (out, 2)):
        session = starting.prepare(words)
        starting.open_run_folder(session, folder)
        play(session, last)
    about = json.loads((out / "about.json").read_text())
    assert len(about["init"]) == 64
    named = safetensors.numpy.load_file(copy)
    safetensors.numpy.save_file({n: a + 1e-6 for n, a in named.items()}, copy)
    answer = call("resume", str(out))
    assert answer.code == 2
    assert f"the weights of init={copy} are others than when {out} was begun" in answer.err
    safetensors.numpy.save_file(named, copy)  # the same weights, though maybe not the same bytes
    assert call("resume", str(out), "--quiet").code == 0
    assert deployed(out).read_bytes() == deployed(whole).read_bytes()
