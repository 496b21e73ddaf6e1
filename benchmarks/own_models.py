"""Models of one's own as users write them: the classes that `models.py` measures."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TOKENS, LENGTH = 2000, 50  # kinds of tokens, and how many a text has


class GroupNormCNN(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(4, 32)
        self.conv2, self.norm2 = nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64)
        self.hidden, self.norm = nn.Linear(4096, 128), nn.LayerNorm(128)
        self.out = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        out: Tensor = self.out(F.gelu(self.norm(self.hidden(x.flatten(1)))))
        return out


class Block(nn.Module):
    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(inside, width, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm_a, self.norm_b = nn.GroupNorm(8, width), nn.GroupNorm(8, width)
        plain = stride == 1 and inside == width
        self.short = nn.Identity() if plain else nn.Conv2d(inside, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_b(self.b(F.relu(self.norm_a(self.a(x)))))
        return F.relu(y + self.short(x))


class ResNet(nn.Module):
    def __init__(self, widths: tuple[int, ...], depth: int, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.norm, inside, blocks = nn.GroupNorm(8, widths[0]), widths[0], []
        for stage, width in enumerate(widths):
            for number in range(depth):
                blocks.append(Block(inside, width, 2 if stage and not number else 1))
                inside = width
        self.blocks, self.out = nn.Sequential(*blocks), nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))
        return out


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        many, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(many, length, 3, self.heads, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.project(seen.reshape(many, length, width))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class ViT(nn.Module):
    """Patches of 4 x 4, four layers of width 128."""

    def __init__(self, width: int = 128, depth: int = 4, heads: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.patches, self.out = nn.Conv2d(3, width, 4, 4), nn.Linear(width, classes)
        self.place = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.place
        out: Tensor = self.out(self.layers(tokens).mean(1))
        return out


class LineLSTM(nn.Module):
    """An image as 32 lines."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.steps, self.out = nn.LSTM(96, 128, batch_first=True), nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        lines = x.permute(0, 2, 3, 1).reshape(len(x), 32, 96)
        out: Tensor = self.out(self.steps(lines)[0][:, -1])
        return out


class CharacterLSTM(nn.Module):
    """The next of 80 kinds of characters after 80, as in the Shakespeare task."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(80, 8), nn.Linear(128, classes)
        self.steps = nn.LSTM(8, 128, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.steps(self.embed(x.long()))[0][:, -1])
        return out


class TextCNN(nn.Module):
    """Windows of 3, 4 and 5 tokens, the strongest of each kind, dropout."""

    def __init__(self, width: int = 64, kinds: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        self.windows = nn.ModuleList(nn.Conv1d(width, kinds, n) for n in (3, 4, 5))
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(3 * kinds, classes)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).transpose(1, 2)
        found = torch.cat([F.relu(window(x)).amax(2) for window in self.windows], 1)
        out: Tensor = self.out(self.drop(found))
        return out


class TextGRU(nn.Module):
    def __init__(self, width: int = 64, state: int = 128, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        self.steps, self.out = nn.GRU(width, state, batch_first=True), nn.Linear(state, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.out(self.steps(self.embed(ids))[0][:, -1])
        return out


class Mixing(nn.Module):
    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_places = nn.Sequential(
            nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places)
        )
        self.over_width = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_places(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.over_width(self.norm2(x))
        return out


class Mixer(nn.Module):
    """Patches of 4 x 4, four blocks of width 128."""

    def __init__(self, width: int = 128, depth: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.patches, self.out = nn.Conv2d(3, width, 4, 4), nn.Linear(width, classes)
        self.blocks = nn.Sequential(*(Mixing(64, width) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
        return out


class Inverted(nn.Module):
    """Wider, a depthwise 3 x 3 convolution, narrower; BatchNorm after each."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        inner, self.same = 4 * inside, stride == 1 and inside == width
        self.body = nn.Sequential(
            nn.Conv2d(inside, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.same else y


class MobileNet(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1, bias=False)
        self.norm, widths = nn.BatchNorm2d(16), ((16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 40, 2))
        self.blocks = nn.Sequential(*(Inverted(*one) for one in widths))
        self.out = nn.Linear(40, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu6(self.norm(self.stem(x))))
        out: Tensor = self.out(x.mean((2, 3)))
        return out


class ConvNeXtBlock(nn.Module):
    """A depthwise 7 x 7 convolution, LayerNorm, four times wider and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.spatial(x).permute(0, 2, 3, 1))
        out: Tensor = x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)
        return out


class ConvNeXt(nn.Module):
    """Patches of 4 x 4, three blocks of width 64."""

    def __init__(self, width: int = 64, depth: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, width, 4, 4), nn.Linear(width, classes)
        self.blocks = nn.Sequential(*(ConvNeXtBlock(width) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.blocks(self.stem(x)).mean((2, 3)))
        return out


class Bert(nn.Module):
    """Two blocks of width 128 with random weights, from transformers."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=TOKENS,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=512,
            max_position_embeddings=LENGTH,
        )
        self.body = BertModel(config, add_pooling_layer=False)
        self.out = nn.Linear(128, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.out(self.body(input_ids=ids).last_hidden_state[:, 0])
        return out
