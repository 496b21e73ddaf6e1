"""An LSTM for characters: an embedding, a recurrent layer, and a linear layer to the characters.

The sizes are those of LEAF's Shakespeare (Caldas et al., 2018): 8 numbers a character, two layers
of 256; the small one has one layer of 64. It predicts the character after the last one, or the next
one at each position.
"""

from typing import Any

from torch import Tensor, nn


class CharacterLSTM(nn.Module):
    """Tokens (n, T) -> outputs (n, classes) after the last one, or (n, T, classes) after each."""

    def __init__(
        self, vocabulary: int, classes: int, each: bool = False, size: int = 256, layers: int = 2
    ) -> None:
        super().__init__()
        self.each = each
        self.embedding = nn.Embedding(vocabulary, 8)
        self.lstm = nn.LSTM(8, size, layers, batch_first=True)
        self.last = nn.Linear(size, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        found, _ = self.lstm(self.embedding(tokens))
        out: Tensor = self.last(found if self.each else found[:, -1])
        return out


def lstm(shape: Any, classes: int, target: Any = None) -> nn.Module:
    """LSTM for characters: an embedding of 8, two layers of 256"""
    return _made(shape, classes, target, size=256, layers=2)


def lstm_small(shape: Any, classes: int, target: Any = None) -> nn.Module:
    """small LSTM for characters, for a CPU: an embedding of 8, one layer of 64"""
    return _made(shape, classes, target, size=64, layers=1)


def _made(shape: Any, classes: int, target: Any, size: int, layers: int) -> nn.Module:
    each = target is not None and target.task == "sequence"
    vocabulary = max(shape.vocabulary, classes)  # One site of many may lack the last characters.
    return CharacterLSTM(vocabulary, classes, each, size, layers)
