"""Residual networks for small images, such as CIFAR's, with GroupNorm in place of BatchNorm.

He et al., 2016: resnet8 has three stages of one block (16, 32, 64 channels), resnet18 four stages
of two blocks (64 to 512). BatchNorm's statistics are over the examples of one client, which differ
from those of the others; GroupNorm normalises each example by itself (Hsieh et al., 2020).
"""

from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inside: int, out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(groups, out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, out, 1, stride, bias=False), nn.GroupNorm(groups, out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A first convolution, stages that halve the image, the mean over places, a linear layer."""

    def __init__(
        self, channels: int, classes: int, widths: tuple[int, ...], blocks: int, groups: int
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False)
        self.norm = nn.GroupNorm(groups, widths[0])
        stages: list[nn.Module] = []
        inside = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                stages.append(Block(inside, width, stride, groups))
                inside = width
        self.blocks = nn.Sequential(*stages)
        self.last = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.conv(x))))
        out: Tensor = self.last(x.mean((2, 3)))
        return out


def resnet8(shape: tuple[int, ...], classes: int) -> nn.Module:
    """residual network of 8 layers with GroupNorm, for small images"""
    return ResNet(shape[0], classes, (16, 32, 64), blocks=1, groups=8)


def resnet18(shape: tuple[int, ...], classes: int) -> nn.Module:
    """residual network of 18 layers with GroupNorm, for small images"""
    return ResNet(shape[0], classes, (64, 128, 256, 512), blocks=2, groups=32)
