"""What the tests of the report share: two hundred hostile names and a long history.

Each name would run a script in a careless page, and set `window.hit`.
"""

import numpy as np

from fedmaba.results.history import History, RunHistory

HIT = "window.hit=1"
CORES = [
    f"<script>{HIT}</script>",
    f"</script><script>{HIT}</script>",
    f"<img src=x onerror={HIT}>",
    f"<svg onload={HIT}>",
    f"<svg><script>{HIT}</script></svg>",
    f"<iframe srcdoc='<script>parent.{HIT}</script>'></iframe>",
    f"<a href=javascript:{HIT} autofocus onfocus={HIT}>x</a>",
    f"<math><mtext><style><img src=x onerror={HIT}></style></mtext></math>",
    f"<details open ontoggle={HIT}>",
    f"<input autofocus onfocus={HIT}>",
    f"<body onload={HIT}>",
    f"<object data='data:text/html,<script>{HIT}</script>'></object>",
    f"<base href='javascript:{HIT}//'>",
    f"<meta http-equiv=refresh content='0;url=javascript:{HIT}'>",
    f"<link rel=stylesheet href='http://192.0.2.1/{HIT}'>",
    f"<style>@import 'http://192.0.2.1/{HIT}'</style>",
    f"<template><script>{HIT}</script></template>",
    f"<noscript><p title='</noscript><img src=x onerror={HIT}>'>",
    f"<!--<script>{HIT}</script>-->",
    f"javascript:{HIT}",
]
FRONTS = [
    "",
    '">',
    "'>",
    "-->",
    "]]>",
    "</title>",
    "</style>",
    "</textarea>",
    "\\u003c/",
    "{{7*7}}",
]
PAYLOADS = [front + core for front in FRONTS for core in CORES]


def history(
    labels=("fedavg", "afl", "term", "qffl:q=0.1", "fedmaba:alpha=0.8"),
    seeds=2, clients=100, rounds=2000, every=1,
) -> History:  # fmt: skip
    """Made-up runs that converge; each strategy is a little fairer than the one before."""
    rng, runs = np.random.default_rng(0), []
    for k, label in enumerate(labels):
        for seed in range(seeds):
            run = RunHistory(label, seed, "poly:8", np.full(clients, 100))
            evaluated = np.arange(every, rounds + 1, every)
            level = np.clip(rng.normal(0.75, 0.14 - 0.02 * k, clients), 0, 1)
            rise = 1 - np.exp(-8 * evaluated / rounds)
            noise = rng.normal(0, 0.01, (len(evaluated), clients))
            accuracy = np.clip(level * rise[:, None] + noise, 0, 1)
            loss = (1.5 - accuracy).astype(np.float32)
            run.tables = {
                "round": list(np.arange(1, rounds + 1)),
                "client": [np.arange(clients)] * rounds,
                "weight": list(rng.dirichlet(np.full(clients, 5.0 + k), rounds)),
                "reported_loss": list(rng.gamma(2, 0.5, (rounds, clients))),
                "evaluated": list(evaluated),
            }
            for model in ("deployed", "last"):
                run.tables[f"{model}.accuracy"] = list(accuracy)
                run.tables[f"{model}.loss"] = list(loss)
            if label.startswith("fedmaba"):
                run.tables["info.lambda"] = list(np.maximum(0, rng.normal(0.2, 0.1, rounds)))
                run.tables["info.kl"] = list(rng.uniform(0.9, 1, rounds))
            runs.append(run)
    return History(runs)
