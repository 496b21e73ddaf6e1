"""A small federation with two groups of people that are served unequally."""

import numpy as np

import fedmaba

SMALL = {
    "rounds": 3,
    "eval_every": 1,
    "minibatch": 5,
    "device": "cpu",
    "lr": 0.2,
    "dtype": "float64",
}


def people(groups=2, classes=2, validation=0.0, lonely=(), **more):
    """Five clients; the second feature misleads about the second group. Some have one group."""
    rng = np.random.default_rng(1)
    client = np.repeat(np.arange(5), 60)
    group = rng.integers(groups, size=300)
    group[np.isin(client, lonely)] = 0
    x = rng.normal(size=(300, 4)).astype(np.float32)
    told = x[:, 0] + np.where(group > 0, -1.0, 1.0) * x[:, 1] + 0.3 * client + rng.normal(size=300)
    y = np.digitize(told, np.linspace(-0.5, 1.5, classes - 1) if classes > 2 else [0.3])
    names = np.array(["women", "men", "others", "unsaid"])[group]
    return fedmaba.Federation.from_arrays(x, y, client, group=names, validation=validation, **more)


def compare(strategies=("fedavg",), given=None, **options):
    given = people() if given is None else given
    options = {"seeds": 1, **SMALL, **options}
    return fedmaba.compare(list(strategies), data=given, model="softmax", **options)
