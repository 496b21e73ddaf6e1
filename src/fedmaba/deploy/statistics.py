"""Running statistics and counters of a model, such as BatchNorm's, over the replies of a round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedmaba.deploy.validation import Arrays, Reply, is_statistic


def mean_statistics(
    model: Arrays, replies: Sequence[Reply], coef: NDArray[np.float64] | None = None
) -> Arrays:
    """What they are after a round: the mean over replies by size.

    With `coef` they move as the weights do, by so much of each reply's change.
    """
    share = np.array([r.count for r in replies], np.float64)
    share /= share.sum()
    out: Arrays = {}
    for name, like in model.items():
        if is_statistic(name, like):
            parts = [
                s * r.model[name].astype(np.float64) for s, r in zip(share, replies, strict=True)
            ]
            mean = np.sum(parts, axis=0)
            if coef is not None and like.dtype.kind == "f":
                old = like.astype(np.float64)
                both = zip(coef, replies, strict=True)
                mean = old + np.sum([c * (r.model[name] - old) for c, r in both], axis=0)
                mean = np.maximum(mean, 0) if name.endswith("running_var") else mean
            out[name] = np.asarray(mean if like.dtype.kind == "f" else np.rint(mean)).astype(
                like.dtype
            )
    return out
