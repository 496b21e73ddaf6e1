"""One's own examples with their owners as a federation: arrays, or a file with a client column.

python examples/own_data.py
"""

import numpy as np

import fedmaba

rng = np.random.default_rng(0)
client = rng.integers(0, 8, size=1600)  # who owns each example
centre = rng.normal(size=(8, 4))  # clients see the world differently
x = rng.normal(size=(1600, 4)) + centre[client]
y = (x.sum(axis=1) + 0.5 * client > 2).astype(int)

federation = fedmaba.Federation.from_arrays(x, y, client)
print(fedmaba.compare(["fedavg", "fedmaba"], data=federation, model="softmax", rounds=10, seeds=1))

np.savez("mine.npz", x=x, y=y, client=client)
print(fedmaba.compare(["fedavg", "afl"], data="mine.npz", model="softmax", rounds=10, seeds=1))
