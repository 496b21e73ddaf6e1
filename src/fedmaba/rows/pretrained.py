"""Text models of a Hugging Face folder: its encoder, the mean over tokens, and a new linear head.

`hf:FOLDER` trains all of it, `hf:FOLDER,train=head` the head alone, and `hf:FOLDER,rank=8,on=query`
adapters of the layers `query` and the head; with `rank=2|4|8` clients have different ranks. The
folder's files are read, none of its code is run.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedmaba.data.model_folder import CONFIG, PREFIX, settings
from fedmaba.data.text import INPUTS
from fedmaba.errors import InputError, error_line, installed, unknown, usable
from fedmaba.rows.lora import add_lora

KINDS = ("bert", "distilbert", "roberta", "xlm-roberta")
WEIGHTS = "model*.safetensors"
OPTIONS = ("train", "rank", "on", "alpha", "dropout", "average")


class TextModel(nn.Module):
    """An encoder of tokens; outputs are a linear layer of the mean over the tokens of a text."""

    def __init__(self, encoder: nn.Module, width: int, outputs: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, outputs)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        # A mask of four axes is taken as it is; one of two is looked at, which rows cannot do.
        seen = attention_mask[:, None, None, :].to(self.head.weight.dtype)
        hidden = (1 - seen) * torch.finfo(seen.dtype).min
        found = self.encoder(input_ids=input_ids.long(), attention_mask=hidden).last_hidden_state
        weight = seen[:, 0, 0, :, None]
        out: Tensor = self.head((found * weight).sum(1) / weight.sum(1).clamp(min=1))
        return out


class Adapters(NamedTuple):
    """Which layers get an adapter, and what kind of."""

    layers: tuple[str, ...]
    rank: tuple[int, ...]  # of clients
    alpha: float
    dropout: float
    average: Any  # which `add_lora` checks


class Pretrained:
    """The factory of a text model; the files are read once, and frozen weights are held once."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.folder, self.adapters, self.head_alone = _parsed(name)
        self.config = _checked(self.folder)

    def __call__(self, shape: Any, outputs: int) -> TextModel:
        if not isinstance(shape, dict) or set(shape) != set(INPUTS):
            raise InputError(
                f"model {self.__name__} reads a column of text: name it with --text, or give "
                f"arrays {' and '.join(INPUTS)}"
            )
        frozen = {id(p): p for p in self.encoder.parameters() if not p.requires_grad}
        encoder = copy.deepcopy(self.encoder, dict(frozen))
        model = TextModel(encoder, encoder.config.hidden_size, outputs)
        if (how := self.adapters) is not None:
            add_lora(model, train=["head"], **how._asdict())
        return model

    @cached_property
    def encoder(self) -> Any:
        """The encoder as the folder has it."""
        with installed(
            "--model hf: wants transformers: in a clone of fedmaba, pip install '.[hf]'"
        ):
            from transformers import AutoModel
        try:  # What is drawn here is thrown away: whoever reads first must not draw another head.
            with torch.random.fork_rng(devices=[]), _quiet():
                model, told = AutoModel.from_pretrained(
                    self.folder,
                    local_files_only=True,
                    use_safetensors=True,
                    dtype=torch.float32,
                    output_loading_info=True,
                )
        except Exception as err:  # transformers raises many kinds
            raise InputError(f"{self.folder}: {error_line(err)}: restore the folder") from None
        if missing := [name for name in told["missing_keys"] if not name.startswith("pooler.")]:
            raise InputError(
                f"{self.folder}: its weights lack {sorted(missing)[0]!r}: restore them"
            )
        if hasattr(model, "pooler"):
            model.pooler = None  # It reads the first token alone, and the mean over all is taken.
        return model.requires_grad_(self.adapters is None and not self.head_alone)

    @cached_property
    def sha256(self) -> str:
        """The digest of the files that decide the model."""
        digest = hashlib.sha256()
        with usable(self.folder, "make it readable, or name another"):
            for path in (self.folder / CONFIG, *sorted(self.folder.glob(WEIGHTS))):
                with path.open("rb") as handle:
                    digest.update(hashlib.file_digest(handle, "sha256").digest())
        return digest.hexdigest()


def _parsed(name: str) -> tuple[Path, Adapters | None, bool]:
    """The folder that a name says, and what is trained of it."""
    folder, *words = name.removeprefix(PREFIX).split(",")
    told: dict[str, str] = {}
    for word in words:
        key, _, told[key] = (part.strip() for part in word.partition("="))
        if key not in OPTIONS:
            raise unknown(f"option of model {PREFIX}{folder}", key, OPTIONS)
    if told.get("train", "head") != "head" or ("train" in told and len(told) > 1):
        raise InputError(f"model {name!r}: say train=head alone, or rank=8,on=query|value, or none")
    if "train" in told or not told:
        return Path(folder), None, bool(told)
    if "on" not in told:
        raise InputError(f"model {name!r}: say which layers get an adapter, as on=query|value")
    try:
        rank = tuple(int(one) for one in told.get("rank", "8").split("|"))
        alpha, dropout = float(told.get("alpha", max(rank))), float(told.get("dropout", "0"))
    except ValueError as err:
        raise InputError(f"model {name!r}: {err}: give numbers, as rank=8,alpha=16") from None
    if not 0 <= dropout < 1:
        raise InputError(f"model {name!r}: dropout={dropout:g} must lie from 0 to below 1")
    layers = tuple(layer.strip() for layer in told["on"].split("|"))
    return Path(folder), Adapters(layers, rank, alpha, dropout, told.get("average")), False


def _checked(folder: Path) -> dict[str, Any]:
    """The settings of a folder that can be loaded."""
    config = settings(folder, CONFIG)
    if not config:
        raise InputError(f"{folder} has no {CONFIG}: name the folder of a Hugging Face model")
    if (kind := config.get("model_type")) not in KINDS:
        raise InputError(f"{folder}: model_type {kind!r}: it must be one of {', '.join(KINDS)}")
    if not any(folder.glob(WEIGHTS)):
        raise InputError(
            f"{folder} has no weights in .safetensors; pickles (.bin, .pt) may run code and "
            "are not read: write it anew with save_pretrained of transformers"
        )
    return config


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars and warnings of transformers: what matters of them is an error here."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
