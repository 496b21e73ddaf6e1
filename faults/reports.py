"""Random reports to every strategy: no crash, finite weights and states, the KL ball kept."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np

from faults.common import Say, Tally, progress
from fedmaba import strategies
from fedmaba.strategies.base import Replies, Strategy
from fedmaba.strategies.simplex import kl_uniform

VARIANTS = [
    "fedavg", "fedsgd", "fedprox:mu={0.001|1|100}", "qffl:q={0|0.005|0.1|1|5|50}",
    "qffl:mode=sgd,q={0.1|2}", "afl:lam={0|0.01|1|1000}", "term:T={0|0.1|5|1000}",
    "term:normalise=reference,T={0.1|5|1000}",
    "fedmgda:epsilon={0|0.1|1},eta={0.01|1|100},decay={0.5|1}", "propfair:M={0.5|5}",
    "fedfv:alpha={0|0.1|1},tau={0|1|3}",
    "fedmaba:alpha={0|0.5|1},eta_b={0|0.5|1000},rho={0|0.001|0.1|1|20},loss_at={start|mean|end}",
    "fedmaba:ball=global,rho={0.01|1},eta_b={0.5|100}",
    "fedmaba:trust=usual,ball={cohort|global},eta_b={0.5|100}",
    "fedmaba:sync=overwrite,rho={0.1|1},eta_b={0.5|100}",
    "fedmaba:ball=literal,rho={0.1|1|5},eta_b={0.5|100}",
]  # fmt: skip


def pick(spec: str, rng: random.Random) -> Strategy:
    """A strategy of a variant, one of each choice."""
    while "{" in spec:
        before, _, rest = spec.partition("{")
        choices, _, after = rest.partition("}")
        spec = before + rng.choice(choices.split("|")) + after
    return strategies.parse(spec)[0]


def numbers(n: int, rng: random.Random, np_rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Losses of many kinds, all finite and none negative."""
    kind = rng.randrange(9)
    if kind <= 2:
        out = np_rng.lognormal(0, 1, n)
    elif kind == 3:
        out = 10.0 ** np_rng.uniform(-300, 300, n)
    elif kind == 4:
        out = np.zeros(n)
    elif kind == 5:
        out = np.full(n, 10.0 ** rng.uniform(-5, 5))
    elif kind == 6:
        out = np.where(np_rng.random(n) < 0.2, 1e308, np_rng.random(n))
    elif kind == 7:
        out = np.where(np_rng.random(n) < 0.5, 5e-324, 1.0)
    else:
        out = 1.0 + 1e-15 * np_rng.random(n)
    return np.asarray(out, np.float64)


def changes(
    m: int, rng: random.Random, np_rng: np.random.Generator, single: bool
) -> np.ndarray[Any, Any]:
    """Model changes (m, P) of many kinds, such that their products are finite."""
    width = rng.choice([1, 2, 5, 20])
    top = 15 if single else 120  # of a float32 or a float64 run
    out = np_rng.standard_normal((m, width)) * 10.0 ** rng.uniform(-top, top)
    kind = rng.randrange(6)
    if kind == 0:
        out[np_rng.random(m) < 0.5] = 0.0
    elif kind == 1:
        out[:] = out[0]
    elif kind == 2:
        out[::2] = -out[0]
    elif kind == 3:
        out *= 10.0 ** np_rng.uniform(-top / 2, 0, (m, 1))
    return out.astype(np.float32) if single else out


def campaign(count: int, seed: int, say: Say) -> Tally:
    """`count` reports to each strategy of `VARIANTS`, in short federations that carry state."""
    tally = Tally()
    show = progress(say, "reports")
    per = dict.fromkeys(strategies.REGISTRY, 0)
    many = {n: sum(v.split(":")[0] == n for v in VARIANTS) for n in per}
    highest = -1.0
    for number, variant in enumerate(VARIANTS):
        name = variant.split(":")[0]
        rng, np_rng = random.Random(f"{seed}/{variant}"), np.random.default_rng([seed, number])
        goal = -(-count // many[name])
        done = 0
        while done < goal:
            strategy = pick(variant, rng)
            n = rng.choice(
                [1, 2, 3, 8, 20] if strategy.needs().changes == "gram" else [1, 2, 9, 50]
            )
            state, past = strategy.init(n), np.zeros(0, np.int64)
            past_round = np.zeros(0, np.int64)
            single = rng.random() < 0.7
            for t in range(rng.randint(1, 12)):
                m = rng.randint(1, n)
                who = np.sort(np_rng.choice(n, m, replace=False)).astype(np.int64)
                needs = strategy.needs()
                seen: dict[str, Any] = {}
                if needs.loss != "none":
                    seen["loss"] = numbers(m, rng, np_rng)
                stays = (past_round >= t - needs.keep_rounds) & ~np.isin(past, who)
                past, past_round = past[stays], past_round[stays]
                change = changes(m + len(past), rng, np_rng, single)
                if needs.changes == "norms":
                    seen["norms"] = np.square(change.astype(np.float64)).sum(1)
                if needs.changes == "gram":
                    gram = (change @ change.T).astype(np.float64)
                    if not np.isfinite(gram).all():
                        continue
                    seen["gram"] = (gram + gram.T) / 2
                    seen["past_client"], seen["past_round"] = past, past_round
                size = np_rng.integers(1, rng.choice([2, 100, 10**9]), m)
                lr = rng.choice([0.0, 1e-320, *10.0 ** np_rng.uniform(-6, 1, 18)])  # 0: underflow
                replies = Replies(t, float(lr), n, who, size, **seen)
                why = ""
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("error")
                        warnings.filterwarnings("ignore", message="fedmaba: ball=literal")
                        decision = strategy.weigh(state, replies)
                except Exception as error:
                    why = f"{error!r}"
                else:
                    why, kl = _wrong(strategy, decision, n, m, who)
                    highest = max(highest, kl)
                    state = decision.state
                case = f"seed {seed}, {strategy.label()}, round {t}, report {done} of {variant}"
                tally.check(not why, f"{why}: {case}")
                if why:
                    tally.counts[f"lost: {name}: {why[:60]}"] += 1
                done += 1
                per[name] += 1
                if why:
                    break
                if needs.keep_rounds:
                    past = np.concatenate([past, who])
                    past_round = np.concatenate([past_round, np.full(m, t)])
            show(sum(per.values()), count * len(per), tally)
    tally.counts.update(per)
    tally.figures = {"least per strategy": min(per.values()), "largest KL - rho": highest}
    return tally


def _wrong(strategy: Strategy, decision: Any, n: int, m: int, who: Any) -> tuple[str, float]:
    """What is wrong with a decision, and by how much its KL exceeds rho."""
    coef = decision.coef
    if coef.dtype != np.float64 or len(coef) < m or not np.isfinite(coef).all():
        return f"weights {coef}", -1.0
    for name, value in decision.state.items():
        if not np.isfinite(value).all():
            return f"state {name} {value}", -1.0
    if (total := strategy.total()) is not None and abs(coef.sum() - total) > 1e-9 * total:
        return f"the weights sum to {coef.sum()}, not {total}", -1.0
    over = -1.0
    if isinstance(strategy, strategies.FedMABA):
        if strategy.ball in ("cohort", "literal"):
            over = max(over, kl_uniform(coef / coef.sum()) - strategy.rho)
        if strategy.ball == "cohort" and strategy.alpha == 1:
            over = max(over, kl_uniform(coef / strategy.eta_s) - strategy.rho)
        if strategy.ball == "global":
            over = max(over, kl_uniform(decision.state["p"]) - strategy.rho)
        if over > 1e-9:
            return f"KL is {over:.3g} above rho", over
    return "", over
