"""Make the embedded sample of Fashion-MNIST from a folder with the publisher's four idx files.

    python benchmarks/make_sample.py FOLDER [--out src/fedmaba/data/sample]

Takes the first 600 training and the first 200 test images of each class, in the publisher's order,
and writes them as idx files compressed with xz. Prints each file's uncompressed size and SHA-256,
which `fedmaba.data.published` holds, so a sample made anew can be compared with the shipped one.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
from pathlib import Path

import numpy as np

PER_CLASS = {"train": 600, "t10k": 200}
CLASSES = 10
LARGEST = 3_000_000  # bytes of one compressed file: the package stays small


def first_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
    """The rows of the first `count` examples of every class, in the original order."""
    rows = [np.flatnonzero(labels == c)[:count] for c in range(CLASSES)]
    return np.sort(np.concatenate(rows))


def make(folder: Path, out: Path) -> None:
    """Write the four compressed files of the sample into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    for part, count in PER_CLASS.items():
        images = np.fromfile(folder / f"{part}-images-idx3-ubyte", np.uint8)[16:]
        labels = np.fromfile(folder / f"{part}-labels-idx1-ubyte", np.uint8)[8:]
        rows = first_of_each_class(labels, count)
        pixels = images.reshape(-1, 28, 28)[rows]  # (n, 28, 28)
        files = {
            f"{part}-images-idx3-ubyte": np.array([0x803, *pixels.shape], ">u4").tobytes()
            + pixels.tobytes(),
            f"{part}-labels-idx1-ubyte": np.array([0x801, len(rows)], ">u4").tobytes()
            + labels[rows].tobytes(),
        }
        for name, raw in files.items():
            # xz keeps no time stamp, so the same images always give the same file
            packed = lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME)
            if len(packed) > LARGEST:
                raise SystemExit(f"{name}.xz: {len(packed)} bytes, but at most {LARGEST} may ship")
            (out / f"{name}.xz").write_bytes(packed)
            print(name, len(raw), hashlib.sha256(raw).hexdigest(), f"packed {len(packed)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    here = Path(__file__).resolve().parent.parent
    parser.add_argument("--out", type=Path, default=here / "src/fedmaba/data/sample")
    arguments = parser.parse_args()
    make(arguments.folder, arguments.out)
