"""Which random changes of training images a run asks for: flips and crops. No torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedmaba.data import trees
from fedmaba.data.trees import Shapes
from fedmaba.errors import InputError

WORDS = "say flip, crop:4 or flip,crop:4"


@dataclass(frozen=True)
class Augmentation:
    """Which changes are drawn."""

    flip: bool = False  # mirror left and right, for half of the examples
    crop: int = 0  #      pixels of black border on each side, of which the old size is cut out

    def check(self, shape: Shapes) -> None:
        """Refuse inputs (shape of one) that are no images, or too small for such a border."""
        one = trees.shape_leaves(shape)
        if not isinstance(one, trees.Shape) or one.kind != "f" or len(one) != 3:
            raise InputError(
                f"augment={self}: it wants images of (channels, height, width), but the data have "
                f"shape {trees.in_words(shape)}: leave it out"
            )
        if self.crop >= min(one[1:]):
            raise InputError(
                f"augment={self}: the border is as wide as the images of shape {tuple(one)}, "
                "which could leave nothing of them: take a smaller one"
            )

    def __str__(self) -> str:
        words = ["flip"] * self.flip + [f"crop:{self.crop}"] * (self.crop > 0)
        return ",".join(words)


def parse_augment(text: str) -> Augmentation:
    """Read `flip`, `crop:4` or both."""
    found: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"flip|(crop):([1-9][0-9]{0,3})", part.strip())
        name = match and (match[1] or "flip")
        if match is None or name is None or name in found:
            raise InputError(f"augment={text!r}: {WORDS}")
        found[name] = int(match[2] or 1)
    return Augmentation("flip" in found, found.get("crop", 0))
