"""Recurrent layers with weights per row: steps of products, with a backward pass written by hand.

What the inputs give to the gates is one product for all steps, and so is the gradient of each
weight matrix. Only the product with the state is taken step by step. Sequences are (B, T, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F


class _Steps(Function):
    """An operation of one row; many rows are computed by torch.func.vmap."""

    generate_vmap_rule = True


def _past(first: Tensor, states: Tensor) -> Tensor:
    """The state before each step, (B, T, H)."""
    return torch.cat([first[:, None], states[:, :-1]], 1)


def _weight_gradient(g: Tensor, past: Tensor) -> Tensor:
    return g.flatten(0, 1).t() @ past.flatten(0, 1)


class LstmSteps(_Steps):
    """(B, T, 4H) given to the gates -> states h (B, T, H) and the last c; the rest is kept."""

    @staticmethod
    def forward(
        given: Tensor, w: Tensor, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        turned, gates, hs, cs = w.t(), [], [], []
        for t in range(given.shape[1]):
            i, f, u, o = (given[:, t] + h @ turned).chunk(4, -1)
            i, f, u, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(u), torch.sigmoid(o)
            c = f * c + i * u
            h = (o * torch.tanh(c)).to(w.dtype)
            gates.append(torch.cat([i, f, u, o], -1))
            hs.append(h)
            cs.append(c)
        return torch.stack(hs, 1), c, torch.stack(gates, 1), torch.stack(cs, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        hs, _, gates, cs = output
        ctx.mark_non_differentiable(gates, cs)
        ctx.save_for_backward(*inputs[1:], hs, gates, cs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (w, h, c, hs, gates, cs), (dhs, dc, _, _) = ctx.saved_tensors, grads
        dh, moved, past = torch.zeros_like(dhs[:, 0]), [], _past(c, cs)
        for t in reversed(range(hs.shape[1])):
            i, f, u, o = gates[:, t].chunk(4, -1)
            bent = torch.tanh(cs[:, t])
            dh = dhs[:, t] + dh
            dc = dc + dh * o * (1 - bent * bent)
            g = [dc * u * i * (1 - i), dc * past[:, t] * f * (1 - f), dc * i * (1 - u * u)]
            moved.append(torch.cat([*g, dh * bent * o * (1 - o)], -1).to(w.dtype))
            dc, dh = dc * f, moved[-1] @ w
        whole = torch.stack(moved[::-1], 1)
        return whole, _weight_gradient(whole, _past(h, hs)), dh, dc


class GruSteps(_Steps):
    """(B, T, 3H) given to the gates, weights and bias of the state -> states h (B, T, H)."""

    @staticmethod
    def forward(given: Tensor, w: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        turned, gates, hs = w.t(), [], []
        for t in range(given.shape[1]):
            xr, xz, xn = given[:, t].chunk(3, -1)
            hr, hz, hn = (h @ turned + b).chunk(3, -1)
            r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
            n = torch.tanh(xn + r * hn)
            h = (n + z * (h - n)).to(w.dtype)
            gates.append(torch.cat([r, z, n, hn], -1))
            hs.append(h)
        return torch.stack(hs, 1), torch.stack(gates, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        hs, gates = output
        ctx.mark_non_differentiable(gates)
        ctx.save_for_backward(inputs[1], inputs[3], hs, gates)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (w, h, hs, gates), dhs = ctx.saved_tensors, grads[0]
        dh, past, inputs, states = torch.zeros_like(dhs[:, 0]), _past(h, hs), [], []
        for t in reversed(range(hs.shape[1])):
            r, z, n, hn = gates[:, t].chunk(4, -1)
            dh = dhs[:, t] + dh
            dn = dh * (1 - z) * (1 - n * n)
            dr, dz = dn * hn * r * (1 - r), dh * (past[:, t] - n) * z * (1 - z)
            inputs.append(torch.cat([dr, dz, dn], -1).to(w.dtype))
            states.append(torch.cat([dr, dz, dn * r], -1).to(w.dtype))
            dh = dh * z + states[-1] @ w
        given, own = torch.stack(inputs[::-1], 1), torch.stack(states[::-1], 1)
        return given, _weight_gradient(own, past), own.sum((0, 1)), dh


class RnnSteps(_Steps):
    """(B, T, H) given to the state -> states h (B, T, H), by tanh or ReLU."""

    @staticmethod
    def forward(given: Tensor, w: Tensor, h: Tensor, relu: bool) -> Tensor:
        turned, hs = w.t(), []
        for t in range(given.shape[1]):
            h = given[:, t] + h @ turned
            h = torch.relu(h) if relu else torch.tanh(h)
            hs.append(h)
        return torch.stack(hs, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.relu = inputs[3]
        ctx.save_for_backward(inputs[1], inputs[2], output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (w, h, hs), dhs = ctx.saved_tensors, grads[0]
        dh, moved = torch.zeros_like(dhs[:, 0]), []
        for t in reversed(range(hs.shape[1])):
            y, dh = hs[:, t], dhs[:, t] + dh
            moved.append(dh * (y > 0) if ctx.relu else dh * (1 - y * y))
            dh = moved[-1] @ w
        whole = torch.stack(moved[::-1], 1)
        return whole, _weight_gradient(whole, _past(h, hs)), dh, None


def _lstm(given: Tensor, w: Tensor, b: Tensor | None, state: list[Tensor]) -> list[Tensor]:
    hs, c, _, _ = LstmSteps.apply(_plus(given, b), w, *state)  # type: ignore[no-untyped-call]
    return [hs, hs[:, -1], c]


def _gru(given: Tensor, w: Tensor, b: Tensor | None, state: list[Tensor]) -> list[Tensor]:
    b = torch.zeros_like(w[:, 0]) if b is None else b
    hs, _ = GruSteps.apply(given, w, b, state[0])  # type: ignore[no-untyped-call]
    return [hs, hs[:, -1]]


def _rnn(
    given: Tensor, w: Tensor, b: Tensor | None, state: list[Tensor], relu: bool
) -> list[Tensor]:
    hs: Tensor = RnnSteps.apply(_plus(given, b), w, state[0], relu)  # type: ignore[no-untyped-call]
    return [hs, hs[:, -1]]


def _plus(x: Tensor, b: Tensor | None) -> Tensor:
    return x if b is None else x + b


Steps = Callable[[Tensor, Tensor, Tensor | None, list[Tensor]], list[Tensor]]
STEPS: dict[Any, Steps] = {
    torch.lstm: _lstm,
    torch.gru: _gru,
    torch.rnn_tanh: lambda x, w, b, state: _rnn(x, w, b, state, False),
    torch.rnn_relu: lambda x, w, b, state: _rnn(x, w, b, state, True),
}
CELLS: dict[Any, Any] = {
    torch.lstm_cell: torch.lstm,
    torch.gru_cell: torch.gru,
    torch.rnn_tanh_cell: torch.rnn_tanh,
    torch.rnn_relu_cell: torch.rnn_relu,
}


def layer(
    kind: Any,
    mask: Callable[[Tensor, float], Tensor],
    low: torch.dtype | None,
    x: Tensor,
    state: Tensor | Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    dropout: float,
    training: bool,
    both_ways: bool,
    batch_first: bool = False,
) -> tuple[Tensor, ...]:
    """What torch.lstm, torch.gru, torch.rnn_tanh or torch.rnn_relu gives."""
    sides, many = 1 + both_ways, 4 if bias else 2
    if isinstance(state, Tensor) and not isinstance(weights, Sequence):
        raise NotImplementedError("packed sequences have no row form")
    if len(weights) != many * layers * sides:
        raise NotImplementedError("an LSTM with proj_size has no row form")
    begin = [state] if isinstance(state, Tensor) else list(state)
    y, last = x if batch_first else x.transpose(0, 1), []
    for number in range(layers):
        outs = []
        for side in range(sides):
            at = number * sides + side
            own = list(weights[at * many : (at + 1) * many])
            out, *end = _one_way(kind, low, y.flip(1) if side else y, own, [s[at] for s in begin])
            outs.append(out.flip(1) if side else out)
            last.append(end)
        y = torch.cat(outs, -1) if both_ways else outs[0]
        if dropout and training and number + 1 < layers:
            y = y * mask(y, dropout)
    return y if batch_first else y.transpose(0, 1), *map(torch.stack, zip(*last, strict=True))


def _one_way(
    kind: Any, low: torch.dtype | None, x: Tensor, weights: list[Tensor], state: list[Tensor]
) -> list[Tensor]:
    if low is not None:  # an LSTM's c stays as it is
        x, state, weights = (
            x.to(low),
            [state[0].to(low), *state[1:]],
            [w.to(low) for w in weights],
        )
    given = F.linear(x, weights[0], weights[2] if len(weights) > 2 else None)
    return STEPS[kind](given, weights[1], weights[3] if len(weights) > 2 else None, state)


def cell(
    kind: Any,
    low: torch.dtype | None,
    x: Tensor,
    state: Tensor | Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Any:
    """What torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell or torch.rnn_relu_cell gives."""
    weights = [w for w in (w_ih, w_hh, b_ih, b_hh) if w is not None]
    begin = [state] if isinstance(state, Tensor) else list(state)
    _, *end = _one_way(CELLS[kind], low, x[:, None], weights, begin)
    return end[0] if isinstance(state, Tensor) else tuple(end)
