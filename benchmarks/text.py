"""LoRA on a text model beside a plain loop with transformers and peft: start, memory, speed.

Both train a BERT with random weights on random tokens. In a round of FedAvg each client makes the
same number of steps on batches of the same size; its adapter and head are averaged. Each side runs
in processes of its own, in turn; the medians and their ratio are printed. Seconds are those of the
processor, imports among them, so that other work on the machine matters less.

    python benchmarks/text.py                 width 64, 2 blocks: a minute or two on a CPU
    python benchmarks/text.py --width 384 --blocks 6 --tokens 64

Needs fedmaba's extra hf, and peft. Writes text.json into --out. Before its first round fedmaba also
tries the model, and after the last one it evaluates the clients.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY, CLASSES, RANK, LR = 1000, 2, 8, 0.01


def folder(asked: argparse.Namespace, path: str) -> None:
    """A BERT with random weights."""
    from transformers import BertConfig, BertModel

    heads = max(2, asked.width // 32)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=asked.width, num_hidden_layers=asked.blocks,
        num_attention_heads=heads, intermediate_size=4 * asked.width, max_position_embeddings=512,
    )  # fmt: skip
    BertModel(config).save_pretrained(path)


def examples(asked: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random tokens, their mask and classes: (clients * each, ...)."""
    draw, n = np.random.default_rng(0), asked.clients * asked.each
    ids = draw.integers(5, VOCABULARY, (n, asked.tokens))
    mask = np.arange(asked.tokens) < draw.integers(asked.tokens // 2, asked.tokens + 1, (n, 1))
    return np.where(mask, ids, 0), mask, draw.integers(CLASSES, size=n)


def ours(asked: argparse.Namespace, path: str) -> list[float]:
    """Seconds until the first round ends, and of each later round."""
    began = time.process_time()
    from fedmaba import strategies
    from fedmaba.data.dataset import Dataset
    from fedmaba.data.federation import Federation
    from fedmaba.data.partition import Split
    from fedmaba.simulation import engine

    ids, mask, y = examples(asked)
    x = {"input_ids": ids, "attention_mask": mask}
    rows = np.arange(len(y)).reshape(asked.clients, asked.each)
    nobody = tuple(rows[0][:0] for _ in rows)
    tests = (rows[0][:1], *nobody[1:])  # as little evaluation as there can be
    split = Split((rows[0][1:], *rows[1:]), nobody, tests)
    data = Dataset("random", x, y, len(y), tuple(map(str, range(CLASSES))))
    plan = engine.Plan(
        rounds=asked.rounds, minibatch=asked.minibatch, steps=asked.steps, lr=LR, lr_decay=1.0,
        eval_every=asked.rounds, device="cpu", threads=asked.threads,
    )  # fmt: skip
    run = engine.Run(strategies.parse("fedavg")[0], 0, Federation(data, split), ("last",))
    batch = engine.start([run], plan, f"hf:{path},rank={RANK},on=query|value")
    print(batch.rows.path, file=sys.stderr)
    seconds = []
    for _ in engine.simulate(batch):
        seconds.append(time.process_time() - began)
        began = time.process_time()
    return seconds


def plain(asked: argparse.Namespace, path: str) -> list[float]:
    """The same by the plain loop: one model, each client's adapter loaded, trained and averaged."""
    began = time.process_time()
    import torch
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.set_num_threads(asked.threads)
    ids, mask, y = (torch.from_numpy(v) for v in examples(asked))
    net: Any = AutoModelForSequenceClassification.from_pretrained(path, num_labels=CLASSES)
    adapters = LoraConfig(
        task_type="SEQ_CLS", r=RANK, lora_alpha=RANK, target_modules=["query", "value"]
    )
    net = get_peft_model(net, adapters).train()
    trained = [p for p in net.parameters() if p.requires_grad]
    seconds = []
    for _ in range(asked.rounds):
        start = [p.detach().clone() for p in trained]
        mean = [torch.zeros_like(p) for p in trained]
        for client in range(asked.clients):
            with torch.no_grad():
                for p, value in zip(trained, start, strict=True):
                    p.copy_(value)
            optimiser = torch.optim.SGD(trained, lr=LR)
            order = client * asked.each + torch.randperm(asked.each)
            for k in range(asked.steps):
                at = order[k * asked.minibatch : (k + 1) * asked.minibatch]
                optimiser.zero_grad()
                net(input_ids=ids[at], attention_mask=mask[at].long(), labels=y[at]).loss.backward()
                optimiser.step()
            for total, p in zip(mean, trained, strict=True):
                total += p.detach() / asked.clients
        with torch.no_grad():
            for p, value in zip(trained, mean, strict=True):
                p.copy_(value)
        seconds.append(time.process_time() - began)
        began = time.process_time()
    assert get_peft_model_state_dict(net)
    return seconds


def measured(side: str, asked: argparse.Namespace, path: str) -> dict[str, float]:
    """One side in a process of its own."""
    words = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--folder", path]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"  {side}: {found}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = {"width": 64, "blocks": 2, "tokens": 32, "clients": 10, "each": 81, "minibatch": 16}
    sizes |= {"steps": 5, "rounds": 4, "threads": 1, "times": 3}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--side", choices=("ours", "plain"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        seconds = {"ours": ours, "plain": plain}[asked.side](asked, asked.folder)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        round_ = statistics.median(seconds[1:])
        print(json.dumps({"first_s": seconds[0], "round_s": round_, "peak_mib": peak}))
        return
    found: dict[str, list[dict[str, float]]] = {"ours": [], "plain": []}
    with tempfile.TemporaryDirectory() as path:
        folder(asked, path)
        for _ in range(asked.times):
            for side, figures in found.items():
                figures.append(measured(side, asked, path))
    keys = found["ours"][0]
    middle = {s: {k: statistics.median(f[k] for f in v) for k in keys} for s, v in found.items()}
    ratio = {key: middle["ours"][key] / middle["plain"][key] for key in keys}
    for key in keys:
        line = f"{key}: fedmaba {middle['ours'][key]:.2f}, plain {middle['plain'][key]:.2f}"
        print(f"{line}, ratio {ratio[key]:.2f}")
    told = {name: getattr(asked, name) for name in sizes}
    about = {"asked": told, "found": found, "median": middle, "ratio": ratio}
    Path(asked.out, "text.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
