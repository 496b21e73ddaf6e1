"""BlazeFL on a GPU: the job of its own benchmark. HOW is single, threads or processes.

Examples are ready tensors. Its own script opens a file for each client, and flips, crops and
normalises one image at a time on the CPU, which would only take longer.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp
from blazefl.contrib import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgPartitionType,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from blazefl.core import FilteredDataset, IPCMode, ModelSelector, PartitionedDataset
from blazefl.reproducibility import setup_reproducibility
from gpu_common import PARALLEL, Turns, allow_tf32, asked, job, model, read
from torch.utils.data import DataLoader

SEED = 42
allow_tf32()


class Selector(ModelSelector):
    def select_model(self, model_name):
        with torch.random.fork_rng([]):
            torch.manual_seed(SEED)
            return model(model_name)


class Examples(PartitionedDataset):
    """Knows where the examples are, and holds none, because it is sent to processes."""

    def __init__(self, name, folder, small):
        self.name, self.folder, self.it = name, folder, job(name, small)

    def get_dataset(self, type_, cid):
        x, y = read(self.name, self.folder)
        n = self.it.clients * self.it.each
        first = n if type_ == FedAvgPartitionType.TEST else cid * self.it.each
        last = len(x) if type_ == FedAvgPartitionType.TEST else first + self.it.each
        images, labels = (np.array(part[first:last]) for part in (x, y))
        return FilteredDataset(list(range(len(images))), torch.from_numpy(images), labels.tolist())

    def set_dataset(self, type_, cid, dataset):
        """Nothing about a client's examples changes."""

    def get_dataloader(self, type_, cid, batch_size=None, generator=None):
        dataset = self.get_dataset(type_, cid)
        return DataLoader(dataset, batch_size, shuffle=True, generator=generator)


def main():
    name, how, folder, device, small = asked()
    it = job(name, small)
    parallel = min(PARALLEL, it.participants // 2)
    setup_reproducibility(SEED)
    data = Examples(name, folder, small)
    common = {"model_selector": Selector(), "model_name": name, "dataset": data, "device": device}
    common |= {"num_clients": it.clients, "batch_size": it.minibatch, "seed": SEED}
    training = {**common, "epochs": it.epochs, "lr": it.lr}
    server = FedAvgBaseServerHandler(
        **common, global_round=1_000_000, sample_ratio=it.participants / it.clients
    )
    kept = Path(tempfile.mkdtemp(dir=folder))
    if how == "single":
        trainer = FedAvgBaseClientTrainer(**training)
    elif how == "threads":
        trainer = FedAvgThreadPoolClientTrainer(**training, num_parallels=parallel)
    else:
        trainer = FedAvgProcessPoolClientTrainer(
            **training,
            num_parallels=parallel,
            share_dir=kept / "share",
            state_dir=kept / "state",
            ipc_mode=IPCMode.SHARED_MEMORY,
        )
    turns = Turns(1, it.participants * it.epochs, device)
    if how != "processes":  # whose processes are new in each round
        trainer.local_process(server.downlink_package(), list(range(2)))
        trainer.uplink_package()
    turns.tick()
    while not server.if_stop():
        chosen = server.sample_clients()
        trainer.local_process(server.downlink_package(), chosen)
        for reply in trainer.uplink_package():
            server.load(reply)
        server.get_summary()
        turns.tick()


if __name__ == "__main__":
    mp.set_start_method("spawn")
    main()
