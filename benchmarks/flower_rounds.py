"""Where the time of a round goes on Flower: real processes on this machine, a site each.

    python benchmarks/flower_rounds.py                     3 and 10 sites, three rounds
    python benchmarks/flower_rounds.py --sites 5 --rounds 10

It needs flwr and Linux. Flower starts a process for each message to a site. The first lines say how
many seconds of one core a process needs until it has imported what a site needs. The table has what
such a process needs in all, training included, and how long a round takes: medians, the latter
without the first round. Seconds of a core change little when others use the machine, those of a
round do.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from fedmaba.data.federation import Federation
from fedmaba.deploy.flower_app.demo import watch, write_site
from fedmaba.deploy.flower_app.net import Net
from fedmaba.deploy.flower_app.new import new

# what a site's process imports, one after another
STAGES = {
    "Python": "",
    "Flower": "import flwr.supernode.cli",
    "fedmaba and PyTorch": "import flwr.supernode.cli, fedmaba.flower, fedmaba.deploy.client",
}


def start_seconds(code: str) -> float:
    """Seconds of one core of a Python process with this code; the least of three."""
    found = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


class ClientProcesses:
    """Watches the processes of the sites of one federation, by their environment."""

    def __init__(self, folder: Path) -> None:
        self.mark, self.seconds = str(folder).encode(), dict[str, float]()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def __enter__(self) -> ClientProcesses:
        self.thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.ended.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.ended.wait(0.1):
            for path in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):  # it has ended
                    if b"flwr-clientapp" not in (path / "cmdline").read_bytes():
                        continue
                    if self.mark not in (path / "environ").read_bytes():
                        continue
                    stat = (path / "stat").read_text().rsplit(")", 1)[1].split()
                    used = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
                    self.seconds[path.name] = max(used, self.seconds.get(path.name, 0.0))


def measure(sites: int, rounds: int) -> tuple[float, float]:
    """Seconds of one core of a site's process, and of a round; medians."""
    with tempfile.TemporaryDirectory(prefix="fedmaba-rounds-") as place:
        folder = Path(place)
        new(folder / "app")
        fed = Federation.make("sample", "shards:2", clients=sites)
        with Net(folder) as net, ClientProcesses(folder) as processes:
            for c in range(sites):
                write_site(folder / f"site-{c}.npz", fed, c)
                net.register(f"site-{c}")
                net.supernode(f"site-{c}", data=str(folder / f"site-{c}.npz"))
            settings = {"rounds": rounds, "sites": sites, "state": str(folder / "state")}
            watch(net, net.submit(folder / "app", settings), folder / "state", lambda text: None)
        lines = (folder / "state" / "timing.jsonl").read_text().splitlines()
        took = statistics.median([json.loads(line)["seconds"] for line in lines][1:])
        return statistics.median(processes.seconds.values()), took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    asked = parser.parse_args()
    told = {"flwr": importlib.metadata.version("flwr"), "cores": os.cpu_count()}
    told |= {"start_seconds": {}, "rounds": []}
    print(f"flwr {importlib.metadata.version('flwr')}, {os.cpu_count()} cores")
    for name, code in STAGES.items():
        told["start_seconds"][name] = start_seconds(code)
        print(f"a process with {name}: {told['start_seconds'][name]:.1f} s of a core", flush=True)
    print("| sites | a site's process, s of a core | a round, s |\n|---|---|---|")
    for sites in asked.sites:
        used, took = measure(sites, asked.rounds)
        told["rounds"].append({"sites": sites, "process_seconds": used, "round_seconds": took})
        print(f"| {sites} | {used:.1f} | {took:.1f} |", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
