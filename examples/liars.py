"""What clients that lie about their loss, or learn wrong labels, do to the others, and what helps.

python examples/liars.py          six rounds, one seed
python examples/liars.py all      every row of docs/algorithms/fedmaba.md, three seeds
fedmaba reproduce attacks         the same with 100 clients, on a GPU
"""

import sys

import numpy as np

import fedmaba

ROWS = ["fedavg", "fedmaba", "fedmaba:rho=0.1", "fedmaba:trust=usual"]
ATTACKS = [  # what hostile clients do, and how many they are
    (None, ""),
    ("loss=1e6", "10%"),
    ("loss=x3", "10%"),
    ("loss=worst", "10%"),
    ("labels=flip", "10%"),
    ("labels=flip+loss=1e6", "10%"),
    ("loss=1e6", "30%"),
    ("loss=x3", "30%"),
]
SMALL = {"clients": 20, "rounds": 6, "seeds": 1}
ALL = {"clients": 20, "rounds": 16, "seeds": 3}

if __name__ == "__main__":
    size = ALL if "all" in sys.argv else SMALL
    print("honest clients, deployed model; the weight of hostile ones in the last round")
    for does, share in ATTACKS[:2] if size is SMALL else ATTACKS:
        liars = {"attack": does, "hostile": share} if does else {}
        history = fedmaba.compare(ROWS, eval_every=size["rounds"], **liars, **size)
        print(f"\n{does or 'nobody is hostile'}" + (f", {share} of the clients" if does else ""))
        for row in history.summary():
            runs = [run for run in history.runs if run.label == row.label]
            hostile = [run.weights()[-1, run.test_size == 0].sum() for run in runs]
            print(
                f"{row.label:20} {row.mean.variance:6.1f} %²  mean {row.mean.accuracy:4.1f} %  "
                f"worst {row.mean.worst:4.1f} %  weight {np.mean(hostile):.2f}"
            )
