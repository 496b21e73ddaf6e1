"""Where the mean loss's gradient ends under FedMABA, and at what rate it gets there.

Theorems 3, 4 and 9 and Corollary 3 of docs/theory/proofs.md, on small federations in numpy with
the weights of FedMABA.weigh.

python examples/theory_convergence.py [FIGURE.svg]
"""

import numpy as np

import theory
from fedmaba.strategies.fedmaba import FedMABA
from fedmaba.strategies.simplex import largest_entry
from theory import Array, Clients, drawn, train


def two(rho: float, eta_b: float) -> tuple[Clients, float]:
    """Theorem 4's clients, of which the second always does worse, and delta_rho."""
    delta = largest_entry(2, rho) - 0.5
    level = 2 + 2 / eta_b * np.arctanh(2 * delta)
    return Clients(np.ones(2), np.array([[1.0], [-1.0]]), np.array([0.0, level])), delta


def floor(alpha: float, rho: float, eta_b: float, step=0.3, rounds=200) -> tuple[float, float]:
    """Least squared gradient of the mean over all rounds, and Theorem 4's value of it."""
    clients, delta = two(rho, eta_b)
    models, _ = train(clients, FedMABA(alpha, eta_b, rho), -np.ones(1), rounds, step)
    return float((models**2).min()), (2 * alpha * delta) ** 2


def ending(alpha: float, rho: float, eta_b: float, rounds: int = 1500) -> float:
    """The mean's squared gradient after training 20 quadratic clients in full batches."""
    models, _ = train(drawn(20), FedMABA(alpha, eta_b, rho), np.zeros(5), rounds, 0.05)
    return drawn(20).mean_gradient(models[-1])


SETTINGS = (  # N, m, K, alpha, rho, sigma
    *((20, 20, 1, 0.5, 1.0, 0.0), (20, 20, 5, 0.5, 0.3, 0.3), (20, 5, 1, 0.5, 0.5, 0.3)),
    *((20, 5, 5, 0.2, 0.5, 0.3), (20, 10, 10, 0.8, 0.1, 0.1), (50, 50, 5, 0.5, 1.0, 1.0)),
)


def bound(
    K: int, m: int, step: float, rate: float, rounds: int, start: float, alpha: float, rho: float,
    sigma: float, far: float, spread: float, share: float,
) -> float:  # fmt: skip
    """Theorem 3 with L = 1; far and spread are zeta_inf^2 and zeta^2."""
    bias = min(2 * rho, 4) * alpha**2 * far
    chance = spread / m * share + sigma**2 * (1 + alpha**2 * theory.chi2(m, rho)) / (m * K)
    move = 2 * start / (step * rounds) + 2 * step * chance
    if K == 1:
        return move + bias
    drift, noise = (rate * (K - 1)) ** 2 * far, rate**2 * (K - 1) * sigma**2
    return 1.1 * move + 2.2 * bias + 9.1 * drift + 2.3 * noise


def theorem3(N, m, K, alpha, rho, sigma, rounds=400) -> tuple[float, float]:
    """The mean over rounds of the mean's squared gradient, and the bound, on waves."""
    clients, w = drawn(N, seed=N + m, waves=True), np.full(5, 2.0)
    step = min(0.5, np.sqrt(m / rounds))
    rate = min(1 / (8 * K), 1 / (np.sqrt(rounds) * K)) if K > 1 else step
    cohort = None if m == N else m
    models, _ = train(
        clients, FedMABA(alpha, 0.5, rho), w, rounds, step, K, rate, cohort, sigma, seed=m
    )
    gradients = np.array([clients.gradients(v) for v in models[:-1]])
    mean = gradients.mean(1)
    apart = ((gradients - mean[:, None]) ** 2).sum(2)
    return float((mean**2).sum(1).mean()), bound(
        K, m, step, rate, rounds, clients.losses(w).mean() - clients.level.mean(), alpha, rho,
        sigma, apart.max(), apart.mean(1).max(), (N - m) / (N - 1),
    )  # fmt: skip


def noise_factor(rho: float, alpha: float, rounds: int = 3000) -> tuple[float, float]:
    """Clients alike but for their level: the gradient's mean square over that of alpha = 0."""
    n, d = 20, 20
    clients = Clients(np.ones(n), np.zeros((n, d)), np.linspace(0, 1, n))
    squares, weights = [], np.empty(0)
    for a in (0.0, alpha):
        strategy = FedMABA(a, theory.fast(clients.level), rho)
        models, weights = train(clients, strategy, np.zeros(d), rounds, 0.5, noise=1.0)
        squares.append((models**2).mean())
    return squares[1] / squares[0], n * float(weights[-1] @ weights[-1])


def local_steps(K: int, rounds: int, seeds: int = 3) -> float:
    """FedAvg at the paper's steps with 5 of 50 clients in a round: mean squared gradient."""
    clients, m = drawn(50, seed=11), 5
    found = []
    for seed in range(seeds):
        rate = 1 / (np.sqrt(rounds) * K)
        models, _ = train(
            clients, FedMABA(alpha=0.0), np.zeros(5), rounds, np.sqrt(m * K) * rate * K, K,
            rate, m, seed=seed,
        )  # fmt: skip
        found.append(np.mean([clients.mean_gradient(w) for w in models[:-1]]))
    return float(np.mean(found))


def at_paper_steps(alpha: float, rounds: int) -> tuple[float, float]:
    """Mean squared gradient over a run: of the mean and, with best responses, of the mixture."""
    clients = drawn(20)
    strategy = FedMABA(alpha, eta_b=1e4, rho=1.0)
    models, weights = train(
        clients, strategy, np.zeros(5), rounds, 0.5 / np.sqrt(rounds), noise=0.3
    )
    of_mixture = [
        ((q @ clients.gradients(w)) ** 2).sum() for q, w in zip(weights, models, strict=False)
    ]
    return float(np.mean([clients.mean_gradient(w) for w in models[:-1]])), float(
        np.mean(of_mixture)
    )


def noisy_losses(alpha: float, rho: float, rounds=8000, step=0.02, sigma=1.0) -> Array:
    """Two clients all alike, F = w^2 / 2, whose reports see the noise of the round's gradients.

    A batch's loss is w^2 / 2 + xi (9 - w): its gradient is w - xi, and who draws a large xi reports
    a large loss. The squared mean gradient at the end, its prediction and Theorem 9's bound.
    """
    rng, w, tail = np.random.default_rng(0), 0.0, []
    strategy = FedMABA(alpha, eta_b=1e4, rho=rho, loss_at="mean")
    state = strategy.init(2)
    for t in range(rounds):
        xi = sigma * rng.choice([-1.0, 1.0], 2)
        coef, state, _ = strategy.weigh(state, theory.replies(w * w / 2 + xi * (9 - w)))
        w -= step * (w - coef @ xi)
        if t > rounds // 4:
            tail.append(w)
    delta = largest_entry(2, rho) - 0.5
    return np.array([np.mean(tail), alpha * delta * sigma, 2 * alpha * delta * sigma]) ** 2


def draw(left, right, laws) -> None:
    for alpha in (0.0, 0.1, 0.5):
        models, _ = train(drawn(20), FedMABA(alpha), np.zeros(5), 400, 0.05)
        left.semilogy([drawn(20).mean_gradient(w) for w in models], label=f"alpha {alpha}")
    left.set(xlabel="round", ylabel="mean's squared gradient")
    for name, (x, y) in laws.items():
        right.loglog(x, y, "o-", ms=3, label=f"over {name}")
    right.set(xlabel="alpha, or rho", ylabel="where it ends")
    for ax in (left, right):
        ax.legend()


if __name__ == "__main__":
    print("Theorem 4: least squared gradient of the mean; exact; Theorem 3's alpha^2 beta^2")
    for alpha, rho in ((0.5, 0.01), (0.5, 0.1), (1.0, 0.1), (1.0, 0.5)):
        ends = [floor(alpha, rho, eta_b) for eta_b in (0.1, 0.5, 5.0)]
        most = 2 * rho * alpha**2
        print(
            f"alpha {alpha} rho {rho}, eta_b 0.1 0.5 5: "
            + " ".join(f"{end:.6f}" for end, _ in ends)
            + f"; {ends[0][1]:.6f}; {most:.6f}"
        )
    alphas, radii = (0.05, 0.1, 0.2, 0.4), (0.001, 0.01, 0.03, 0.1)
    laws = {
        "alpha": (alphas, [ending(a, 0.1, 2.0) for a in alphas]),
        "rho": (radii, [ending(0.2, r, 2.0) for r in radii]),
    }
    for name, (x, y) in laws.items():
        print(f"20 clients: slope of the end in {name} {theory.slopes(x, y):.2f}")
    print("eta_b 0.5 2 8:", *(f"{ending(0.2, 0.1, e):.8f}" for e in (0.5, 2.0, 8.0)))
    print("Theorem 3:  N   m   K alpha  rho sigma  measured   bound")
    for s in SETTINGS:
        N, m, K, alpha, rho, sigma = s
        found, most = theorem3(*s)
        print(f"{N:14} {m:3} {K:3} {alpha:5} {rho:4} {sigma:5} {found:9.4f} {most:7.3f}")
    for rho in (0.1, 1.0):
        for alpha in (0.5, 1.0):
            seen, told = noise_factor(rho, alpha)
            print(f"noise, rho {rho} alpha {alpha}: factor {seen:.3f}, predicted {told:.3f}")
    print("5 of 50 clients at the paper's steps, mean squared gradient for K = 1, 4, 16")
    for rounds in (400, 1600):
        print(f"T {rounds:4}: " + " ".join(f"{local_steps(K, rounds):.4f}" for K in (1, 4, 16)))
    horizons = (400, 1600, 6400)
    for name, power in (("(NKT)^(-1/4)", -0.25), ("1/2", 0.0)):
        rows = np.array([at_paper_steps((20 * T) ** power if power else 0.5, T) for T in horizons])
        mean, both = theory.slopes(horizons, rows)
        print(f"alpha {name}: slope in T of the mean's {mean:.2f}, of the mixture's {both:.2f}")
    for alpha, rho in ((0.5, 0.1), (1.0, 0.1), (1.0, 0.5)):
        end, told, most = noisy_losses(alpha, rho)
        print(
            f"noise in reports, alpha {alpha} rho {rho}: {end:.4f}, predicted {told:.4f}, "
            f"at most {most:.4f}"
        )
    theory.figure(draw, 2, laws)
