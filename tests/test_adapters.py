"""LoRA adapters: rows of them share one frozen base; files are those of peft."""

import json
import math
import os
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from torch import nn

from fedmaba.adapters import LoraLinear, add_lora, load_adapter, save_adapter
from fedmaba.errors import InputError
from fedmaba.rows.base import constants
from plain_loop import PLAN, one, played, vector
from test_frozen_weights import PlainFrozen, frozen


class Attention(nn.Module):
    """One block of a transformer, over the lines of an image."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        seen = self.norm(x)
        weight = self.q(seen) @ self.k(seen).transpose(-1, -2) / x.shape[-1] ** 0.5
        return x + weight.softmax(-1) @ self.v(seen)


class Transformer(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.blocks = nn.ModuleList(Attention(8) for _ in range(2))
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = x.flatten(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(1))


def base(classes=4):
    return frozen(Transformer(classes))


def adapted(shape, classes):
    return add_lora(base(classes), ["q", "v"], rank=2, alpha=3, train=["head"])


TRAINED = {
    *(f"blocks.{i}.{n}.lora_{k}.weight" for i in (0, 1) for n in "qv" for k in "AB"),
    "head.weight",
    "head.bias",
}


class PlainTransformer(PlainFrozen):
    def forward(self, model, x, key=None):
        return model(x)


@pytest.mark.slow
def test_rows_of_adapters_are_the_plain_loop(fed, few_threads):
    specs, plan = ["fedavg", "fedmaba"], replace(PLAN, rounds=2, participants=3)
    batch, _ = played(specs, fed, plan, adapted)
    for r, spec in enumerate(specs):
        plain = PlainTransformer(one(spec), 3, fed, plan, adapted).run()
        mine = vector(batch, batch.progress.model[r])
        assert float((mine - plain.path[-1]).norm() / mine.norm()) < 1e-9
    # the memory: the base once, and rows of adapters
    layout, model = batch.rows.layout, batch.rows.model
    assert set(layout.names) == TRAINED
    assert sum(map(torch.Size.numel, layout.shapes)) == 2 * 2 * (2 * 8 + 8 * 2) + 64 * 4 + 4
    names = {name for name, _ in model.named_parameters()}
    assert set(constants(model)) == names - TRAINED
    assert batch.progress.model.shape == (2, layout.size)


def test_an_adapter_changes_nothing_at_first_and_is_alpha_over_rank_times_b_a():
    x = torch.randn(3, 1, 8, 8)
    model = adapted((1, 8, 8), 4)
    layer = model.blocks[1].v
    assert isinstance(layer, LoraLinear)
    torch.testing.assert_close(model(x), base()(x))
    nn.init.uniform_(layer.lora_B.weight)
    merged = base()
    with torch.no_grad():
        merged.blocks[1].v.weight += 1.5 * layer.lora_B.weight @ layer.lora_A.weight
    torch.testing.assert_close(model(x), merged(x))


@pytest.mark.parametrize("rslora", [False, True])
def test_an_adapter_is_written_and_read_as_peft_does(rslora, tmp_path):
    model = adapted((1, 8, 8), 4)
    for p in model.parameters():
        if p.requires_grad:
            nn.init.uniform_(p)
    save_adapter(tmp_path / "a", model)
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "bias": "none"}.items() <= config.items()
    assert config["modules_to_save"] == ["head"]
    assert config["target_modules"] == [f"blocks.{i}.{n}" for i in (0, 1) for n in "qv"]
    found = safetensors.torch.load_file(tmp_path / "a" / "adapter_model.safetensors")
    assert set(found) == {f"base_model.model.{name}" for name in TRAINED}
    assert found["base_model.model.blocks.0.q.lora_A.weight"].shape == (2, 8)
    if rslora:
        config |= {"use_rslora": True, "lora_alpha": 3 / math.sqrt(2)}
        (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(config))
    again = load_adapter(base(), tmp_path / "a")
    x = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(again(x), model(x))
    assert {n for n, p in again.named_parameters() if p.requires_grad} == TRAINED


def test_weights_of_a_run_become_an_adapter(tmp_path):
    model = adapted((1, 8, 8), 4)
    given = {name: torch.ones_like(value) for name, value in model.state_dict().items()}
    safetensors.torch.save_file(given, tmp_path / "deployed.safetensors")
    save_adapter(tmp_path / "a", model, tmp_path / "deployed.safetensors")
    again = load_adapter(base(), tmp_path / "a")
    assert bool((again.blocks[0].q.lora_B.weight == 1).all())
    assert torch.equal(again.blocks[0].q.weight, base().blocks[0].q.weight)


def write(folder, config=None, weights=None):
    """An adapter's folder, changed in places."""
    save_adapter(folder, adapted((1, 8, 8), 4))
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **(config or {})}))
    if weights is not None:
        safetensors.torch.save_file(weights, folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    ("config", "weights", "message"),
    [
        ({"peft_type": "IA3"}, None, "peft_type is 'IA3': only LORA"),
        ({"use_dora": True}, None, "use_dora=True is not known"),
        ({"rank_pattern": {"q": 3}}, None, "rank_pattern="),
        ({"r": 0}, None, "r=0"),
        ({"r": 3}, None, "blocks.*lora_A.* has shape"),
        ({"lora_dropout": 2}, None, "lora_dropout=2"),
        (
            {"r": 10**9},
            None,
            "lora_A.weight has shape .* but adapter_config.json says r=1000000000",
        ),
        (None, {"q.lora_A.weight": torch.zeros(2, 8)}, "does not begin with 'base_model.model.'"),
        (None, {"base_model.model.head.weight": torch.zeros(4, 64)}, "has no lora_A"),
        (None, {"base_model.model.no.lora_A.weight": torch.zeros(2, 8)}, "has no layer 'no'"),
        (None, {"base_model.model.blocks.0.norm.lora_A.weight": torch.zeros(2, 8)}, "LayerNorm"),
    ],
)
def test_an_adapter_that_does_not_fit_is_one_line(config, weights, message, tmp_path):
    write(tmp_path / "a", config, weights)
    with pytest.raises(InputError, match=message) as caught:
        load_adapter(base(), tmp_path / "a")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30, torch.zeros(2, 8, dtype=torch.int64)])
def test_weights_that_nothing_can_train_from_are_refused(value, tmp_path):
    write(tmp_path / "a")
    file = tmp_path / "a" / "adapter_model.safetensors"
    weights = safetensors.torch.load_file(file)
    name = next(name for name in weights if "lora_A" in name)
    weights[name] = value if isinstance(value, torch.Tensor) else weights[name].fill_(value)
    safetensors.torch.save_file(weights, file)
    with pytest.raises(InputError, match=r"lora_A.weight has values that are no numbers, or too"):
        load_adapter(base(), tmp_path / "a")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "hole", "twice"])
def test_a_file_that_is_none_is_refused_at_once(kind, name, tmp_path):
    write(tmp_path / "a")
    file = tmp_path / "a" / name
    body = file.read_bytes()
    if kind == "twice":
        first = '"r": 2,' if name.endswith("json") else '"__metadata__":{"format":"pt"},'
        start = 0 if name.endswith("json") else 8
        text = body[start:].replace(first.encode(), 2 * first.encode(), 1)
        length = (int.from_bytes(body[:start], "little") + len(first)) if start else 0
        file.write_bytes(length.to_bytes(start, "little") + text)
    else:
        file.unlink()
        os.mkfifo(file) if kind == "pipe" else file.touch()
    if kind == "hole":
        with open(file, "r+b") as opened:
            opened.write((100).to_bytes(8, "little"))
            opened.truncate(100 << 30)
    said = {"pipe": "a pipe where a plain", "hole": "a hole|at most", "twice": "is there twice"}
    with pytest.raises(InputError, match=said[kind]) as caught:
        load_adapter(base(), tmp_path / "a")
    assert "\n" not in str(caught.value)


def test_what_cannot_have_an_adapter_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"rank=1000000000: layer .* a rank of at most 8"):
        add_lora(base(), ["q"], rank=10**9)
    with pytest.raises(InputError, match="'norm' of the model is LayerNorm: name linear layers"):
        add_lora(base(), ["norm"])
    with pytest.raises(InputError, match="'nowhere' of the model is nothing"):
        add_lora(base(), ["nowhere"])
    with pytest.raises(InputError, match="train='tail'"):
        add_lora(base(), ["q"], train=["tail"])
    with pytest.raises(InputError, match="rank=0"):
        add_lora(base(), ["q"], rank=0)
    with pytest.raises(InputError, match="name the linear layers"):
        add_lora(base(), [])
    with pytest.raises(InputError, match="no adapter"):
        save_adapter(tmp_path, base())
    with pytest.raises(InputError, match="lack 'blocks"):
        save_adapter(tmp_path, adapted((1, 8, 8), 4), {})
    with pytest.raises(InputError, match="give a folder in peft's format"):
        load_adapter(base(), tmp_path / "nowhere")
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(InputError, match=r"cannot be read \(.*give a folder in peft"):
        load_adapter(base(), tmp_path)


def test_peft_itself_reads_what_is_written(tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not a dependency")
    model = adapted((1, 8, 8), 4)
    nn.init.uniform_(model.blocks[0].q.lora_B.weight)
    save_adapter(tmp_path / "a", model)
    theirs = peft.PeftModel.from_pretrained(base(), str(tmp_path / "a"))
    x = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(theirs(x), model(x))
