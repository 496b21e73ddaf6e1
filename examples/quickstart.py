"""Compare FedAvg with FedMABA on the embedded sample and look at the result.

python examples/quickstart.py
"""

import fedmaba

history = fedmaba.compare(
    ["fedavg", "fedmaba:alpha=0.8"],
    data="sample",
    partition="shards:2",
    clients=20,
    rounds=10,
    eval_every=5,
    seeds=1,
)
print(history)

for run in history.runs:
    worst = run.accuracy()[-1].argmin()
    print(f"{run.label}: worst served is client {worst}, {100 * run.accuracy()[-1, worst]:.0f} %")
