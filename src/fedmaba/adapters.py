"""LoRA adapters on a frozen model, read and written as `peft` writes them, without needing it.

A row of the simulator is then an adapter; the frozen base is held once for all rows. What an
adapter computes is in `rows.lora`.

peft's format is a folder with two files. `adapter_config.json` says rank, alpha and the names of
the layers; `adapter_model.safetensors` has `base_model.model.LAYER.lora_A.weight` and `lora_B`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedmaba.errors import InputError
from fedmaba.results import array_files, files, run_folder
from fedmaba.rows.lora import LoraLinear as LoraLinear
from fedmaba.rows.lora import add_lora as add_lora
from fedmaba.rows.lora import put_adapter
from fedmaba.rows.weights import can_train_from

KEY_PREFIX = "base_model.model."
CONFIG_FILE, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_CONFIG_BYTES = 1 << 20
# Entries of a configuration that change what an adapter computes, with the only value known here.
PLAIN_LORA: dict[str, Any] = {
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "lora_bias": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layer_replication": None,
    "target_parameters": None,
}


def load_adapter(model: nn.Module, folder: str | Path) -> nn.Module:
    """Freeze a model and give it the adapter of a folder in peft's format; returns the model."""
    folder = Path(folder)
    config = _read_config(folder / CONFIG_FILE)
    weights = _read_weights(folder / WEIGHTS)
    names = {n.removesuffix(".lora_A.weight") for n in weights if n.endswith(".lora_A.weight")}
    rank, alpha = config["r"], config["lora_alpha"]
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    model.requires_grad_(False)
    for name in sorted(names):
        if name not in dict(model.named_modules()):
            raise InputError(f"{folder}: the model has no layer {name!r}: give the adapter's base")
        if type(model.get_submodule(name)) is not nn.Linear:
            kind = type(model.get_submodule(name)).__name__
            raise InputError(f"{folder}: layer {name!r} is a {kind}: only linear layers are known")
        # This is compared before memory is taken for a rank that the file only claims.
        if (own := tuple(weights[f"{name}.lora_A.weight"].shape))[:1] != (rank,):
            raise InputError(
                f"{folder}: {name}.lora_A.weight has shape {own}, but {CONFIG_FILE} says r={rank}: "
                "give the two files of one adapter"
            )
        put_adapter(model, name, rank, scale, float(config.get("lora_dropout") or 0.0))
    state = model.state_dict()
    for name, value in weights.items():
        like = state.get(name)
        if like is None or like.shape != value.shape:
            there = "nothing" if like is None else f"shape {tuple(like.shape)}"
            raise InputError(
                f"{folder}: {name} has shape {tuple(value.shape)}, but the model has {there} "
                "there: give the adapter's base"
            )
        numbers = value.is_floating_point() and can_train_from(value.numpy(), like.dtype)
        if like.is_floating_point() and not numbers:
            raise InputError(
                f"{folder}: {name} has values that are no numbers, or too large to train from: "
                "restore the file"
            )
    model.load_state_dict(weights, strict=False)
    for name, p in model.named_parameters():
        p.requires_grad_(name in weights)
    return model


def save_adapter(
    folder: str | Path, model: nn.Module, weights: Mapping[str, Any] | str | Path | None = None
) -> None:
    """Write the adapter of a model into a folder, in peft's format.

    `weights` are the values, by name or as a .safetensors file of a run folder; without them, the
    model's own.
    """
    layers = {n: m for n, m in model.named_modules() if isinstance(m, LoraLinear)}
    if not layers:
        raise InputError("the model has no adapter: make it with add_lora or load_adapter")
    kinds = {(m.rank, m.scale, _dropout(m)) for m in layers.values()}
    if len(kinds) > 1:
        raise InputError(f"adapters of several kinds (rank, scale, dropout) {sorted(kinds)}: "
                         "peft's files have one")  # fmt: skip
    ((rank, scale, dropout),) = kinds
    values = _values(model, weights)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    if missing := [name for name in trained if name not in values]:
        raise InputError(f"the weights lack {missing[0]!r}: give those of a run of this model")
    whole = sorted({n.rpartition(".")[0] for n in trained if ".lora_" not in n})
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": scale * rank,
        "lora_dropout": dropout,
        "target_modules": sorted(layers),
        "modules_to_save": whole or None,
        "inference_mode": True,
        "task_type": None,
        **{name: value for name, value in PLAIN_LORA.items() if name not in ("target_parameters",)},
    }
    import safetensors.torch

    body = {KEY_PREFIX + name: values[name].detach().cpu().contiguous().clone() for name in trained}
    files.write(Path(folder) / WEIGHTS, safetensors.torch.save(body, {"format": "pt"}))
    files.write(Path(folder) / CONFIG_FILE, json.dumps(config, indent=2, sort_keys=True).encode())


def _dropout(layer: LoraLinear) -> float:
    return layer.dropout.p if isinstance(layer.dropout, nn.Dropout) else 0.0


def _values(model: nn.Module, weights: Mapping[str, Any] | str | Path | None) -> dict[str, Tensor]:
    if weights is None:
        return dict(model.state_dict())
    if isinstance(weights, str | Path):
        return _load(Path(weights))
    return {name: torch.as_tensor(value) for name, value in weights.items()}


def _read_config(path: Path) -> dict[str, Any]:
    with run_folder.reading(path, "give a folder in peft's format"):
        config = files.parse_json(files.read(path, MAX_CONFIG_BYTES, links=True))
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else None
        raise InputError(f"{path}: peft_type is {kind!r}: only LORA adapters are known")
    config = {"r": 8, "lora_alpha": 8, **config}  # as peft takes them where they are not said
    for name, plain in PLAIN_LORA.items():
        if (value := config.get(name, plain)) != plain and (value or plain):
            raise InputError(f"{path}: {name}={value!r} is not known here: train it without")
    rank, alpha = config["r"], config["lora_alpha"]
    if type(rank) is not int or rank < 1 or not _is_number(alpha):
        raise InputError(f"{path}: r={rank!r}, lora_alpha={alpha!r}: they must be numbers above 0")
    dropout = config.get("lora_dropout") or 0.0
    if not _is_number(dropout) or not 0 <= dropout < 1:
        raise InputError(f"{path}: lora_dropout={dropout!r}: it must lie from 0 to below 1")
    return config


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of an adapter's file, by the model's own names."""
    found = _load(path)
    wrong = [name for name in found if not name.startswith(KEY_PREFIX)]
    if wrong or not any(name.endswith(".lora_A.weight") for name in found):
        what = f"{wrong[0]!r} does not begin with {KEY_PREFIX!r}" if wrong else "it has no lora_A"
        raise InputError(f"{path}: {what}: give a LoRA adapter in peft's format")
    odd = [
        n for n in found if ".lora_" in n and not n.endswith((".lora_A.weight", ".lora_B.weight"))
    ]
    if odd:
        raise InputError(
            f"{path}: {odd[0]!r} is not known here: only adapters of linear layers are"
        )
    return {name.removeprefix(KEY_PREFIX): value for name, value in found.items()}


def _load(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, which must be plain and as large as it says."""
    with run_folder.reading(path, "give a .safetensors file of weights"):
        found = array_files.read_weights(path)
    return {name: torch.from_numpy(value) for name, value in found.items()}
