"""How often a model is right or wrong about each group of people, client by client."""

from __future__ import annotations

import numpy as np
import torch

from fedmaba.data import groups
from fedmaba.simulation.batch import Batch, RunParts
from fedmaba.simulation.client_scores import outputs_of_clients
from fedmaba.simulation.part import IntArray, ModelsOf


def group_counts(
    batch: Batch,
    parts: RunParts,
    r: int,
    models: ModelsOf,
    clients: IntArray | None = None,
    *,
    shared: bool,
) -> IntArray:
    """(n, G, K) examples of each client of run r and each group, by what its model predicts.

    Of two classes K is 4, label * 2 + prediction; of more classes K is 2: wrong, right. Ranks share
    the work. `shared` says that all clients have the same model.
    """
    fed, part = batch.runs[r].federation, parts.parts[r]
    data, two = fed.data, fed.data.target.outputs == 2
    who = np.arange(len(part.size)) if clients is None else clients
    place = np.zeros(len(part.size), np.int64)
    place[who] = np.arange(len(who))
    shape = len(who), len(groups.names(fed)), 4 if two else 2
    found = np.zeros(shape, np.int64)
    for told in outputs_of_clients(batch, parts, r, models, who[part.size[who] > 0], shared=shared):
        best = told.outputs[:, : data.target.outputs].argmax(1)  # a model may have spare outputs
        label = told.y.astype(np.int64)
        kind = 2 * label + best if two else (best == label).astype(np.int64)
        owner = np.repeat(place[told.clients], part.size[told.clients])
        group = groups.of_examples(fed, part, told.clients)
        at = np.ravel_multi_index((owner, group, kind), shape)
        found += np.bincount(at, minlength=found.size).reshape(shape)
    whole = torch.from_numpy(found)
    batch.ranks.sum(whole)
    return whole.numpy()
