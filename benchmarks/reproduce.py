"""The paper's tables and figures by one command, on the clock.

`fedmaba reproduce all` with the paper's rounds and three seeds, without the grid search and without
CIFAR at full participation, in a folder of its own: loading data, compiling kernels, simulating,
evaluating and drawing. Prints a line per batch, writes JSON. Wants the data sets (`fedmaba data`).

    python benchmarks/reproduce.py --dtype tf32 --out reproduce.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedmaba.experiment import laboratory

LEFT_OUT = ("table1-grid", "table2-cifar10", "table3-cifar100", "figure1b-all", "claims")


def told(folder: Path, seconds: float) -> dict[str, Any]:
    """What the files of a run that took so long in all tell of its batches, the longest first."""
    found = sorted(
        laboratory.enter("archive").read_folder(folder), key=lambda b: -b.about["seconds"]
    )
    batches = []
    for batch in found:
        data, train = batch.about["settings"]["data"], batch.about["settings"]["train"]
        clients = data["clients"] if train["participants"] == "all" else train["participants"]
        batches.append(
            {
                "data": data["name"],
                "partition": data["partition"],
                "validation": data["validation"],
                "clients": clients,  # in a round
                "runs": len(batch.keys),
                "seconds": batch.about["seconds"],
                "updates": len({key[:2] for key in batch.keys}) * train["rounds"] * clients,
            }
        )
    about = found[0].about
    return {
        "device": about["device"],
        "dtype": about["dtype"],
        "torch": about["versions"]["torch"],
        "command": about["command"],
        "seconds": seconds,
        "batches": batches,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="tf32")
    parser.add_argument("--out", default="reproduce.json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = ["reproduce", "all", "--without", ",".join(LEFT_OUT), "--seeds", "3"]
        words += ["--device", asked.device, "--dtype", asked.dtype, "--out", folder]
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "fedmaba", *words], check=True)
        found = told(Path(folder), time.perf_counter() - begun)
    for one in found["batches"]:
        what = f"{one['data']}, {one['clients']} clients a round, {one['runs']} runs"
        print(f"{what}: {one['seconds']} s")
    print(f"all of it, {asked.dtype}: {found['seconds']:.0f} s")
    asked.out.write_text(json.dumps(found, indent=2) + "\n")
