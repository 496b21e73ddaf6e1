"""Recurrent layers with weights per row: steps of products, with a backward pass written by hand.

What the inputs give to the gates is one product for all steps, and so is the gradient of each
weight matrix. Only the product with the state is taken step by step. All steps of a layer are one
operation to torch: a compiler that looked into 80 steps would need minutes. Sequences are
(B, T, ...), and in an operation (rows, B, T, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from fedmaba.rows.inductor import as_kernel

Operation = Callable[..., tuple[Tensor, ...]]


def _flat(x: Tensor, axis: int | None, many: int) -> Tensor:
    """Merge the axis of vmap into the first axis, which is that of the rows."""
    x = x.expand(many, *x.shape) if axis is None else x.movedim(axis, 0)
    return x.flatten(0, 1)


def _operation(
    name: str, inputs: str, outputs: int, like: Callable[..., Any]
) -> Callable[[Operation], Operation]:
    """Make a function of tensors (rows, ...) one operation to torch, which looks no further.

    `like` says, of the function's inputs, which tensors have the shapes and types of its outputs.
    """

    def make(function: Operation) -> Operation:
        schema = ", ".join(f"Tensor {word}" for word in inputs.split())
        schema = f"({schema}) -> ({', '.join(['Tensor'] * outputs)})"
        made = torch.library.custom_op(f"fedmaba::{name}", function, mutates_args=(), schema=schema)

        def rows(info: Any, axes: Any, *args: Tensor) -> Any:
            many = info.batch_size
            found = made(*(_flat(a, axis, many) for a, axis in zip(args, axes, strict=True)))
            return tuple(v.unflatten(0, (many, -1)) for v in found), (0,) * outputs

        made.register_fake(like)
        made.register_vmap(rows)
        return made

    return make


def _one(operation: Operation, *args: Tensor) -> tuple[Tensor, ...]:
    """What an operation gives for one row; nobody asks for its own derivative."""
    with torch.no_grad():
        return tuple(v[0] for v in operation(*(a[None] for a in args)))


class _Steps(Function):
    """An operation of one row; many rows are computed by torch.func.vmap."""

    generate_vmap_rule = True


def _past(first: Tensor, states: Tensor) -> Tensor:
    """The state before each step, (..., T, H)."""
    return torch.cat([first.unsqueeze(-2), states[..., :-1, :]], -2)


def _weight_gradient(g: Tensor, past: Tensor) -> Tensor:
    return g.flatten(0, 1).t() @ past.flatten(0, 1)


def _states_like(given: Tensor, w: Tensor) -> Tensor:
    """An empty tensor for the states of a layer, (rows, B, T, H)."""
    return w.new_empty(*given.shape[:3], w.shape[2])


def _lstm_step(z: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    i, f, u, o = z.chunk(4, -1)
    i, f, u, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(u), torch.sigmoid(o)
    c = f * c + i * u
    return torch.cat([i, f, u, o], -1), c, (o * torch.tanh(c)).to(z.dtype)


def _lstm_step_back(
    gates: Tensor, c: Tensor, past: Tensor, own: Tensor, dh: Tensor, dc: Tensor
) -> tuple[Tensor, Tensor]:
    i, f, u, o = gates.chunk(4, -1)
    bent, dh = torch.tanh(c), own + dh
    dc = dc + dh * o * (1 - bent * bent)
    moved = [dc * u * i * (1 - i), dc * past * f * (1 - f), dc * i * (1 - u * u)]
    return torch.cat([*moved, dh * bent * o * (1 - o)], -1).to(gates.dtype), dc * f


@_operation(
    "lstm_steps",
    "given w h c",
    3,
    lambda given, w, h, c: (
        _states_like(given, w),
        torch.empty_like(given, memory_format=torch.contiguous_format),
        c.new_empty(*given.shape[:3], w.shape[2]),
    ),
)
def lstm_steps(given: Tensor, w: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States h, gates, and states c, of every step."""
    given, c, turned = given.contiguous(), c.contiguous(), w.mT
    gates, hs, cs = [], [], []
    for t in range(given.shape[2]):
        z = torch.baddbmm(given[:, :, t], h, turned)
        step = as_kernel(_lstm_step, z, c)
        gate, c, h = step(z, c)
        gates.append(gate)
        hs.append(h)
        cs.append(c)
    return torch.stack(hs, 2), torch.stack(gates, 2), torch.stack(cs, 2)


@_operation(
    "lstm_steps_back",
    "w c gates cs dhs dc",
    3,
    lambda w, c, gates, cs, dhs, dc: (
        torch.empty_like(gates),
        w.new_empty(c.shape),
        torch.empty_like(dc, memory_format=torch.contiguous_format),
    ),
)
def lstm_steps_back(
    w: Tensor, c: Tensor, gates: Tensor, cs: Tensor, dhs: Tensor, dc: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of what was given to the gates, and of the first h and c."""
    moved, past, dhs, dc = [], _past(c, cs), dhs.contiguous(), dc.contiguous()
    dh = torch.zeros(c.shape, dtype=w.dtype, device=w.device)
    for t in reversed(range(gates.shape[2])):
        args = gates[:, :, t], cs[:, :, t], past[:, :, t], dhs[:, :, t], dh, dc
        moves, dc = as_kernel(_lstm_step_back, *args)(*args)
        moved.append(moves)
        dh = torch.bmm(moves, w)
    return torch.stack(moved[::-1], 2), dh, dc


class LstmSteps(_Steps):
    """(B, T, 4H) given to the gates -> states h (B, T, H) and the last c; the rest is kept."""

    @staticmethod
    def forward(
        given: Tensor, w: Tensor, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        hs, gates, cs = _one(lstm_steps, given, w, h, c)
        return hs, cs[:, -1].clone(), gates, cs

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        hs, _, gates, cs = output
        ctx.mark_non_differentiable(gates, cs)
        ctx.save_for_backward(*inputs[1:], hs, gates, cs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (w, h, c, hs, gates, cs), (dhs, dc, _, _) = ctx.saved_tensors, grads
        whole, dh, dc = _one(lstm_steps_back, w, c, gates, cs, dhs, dc)
        return whole, _weight_gradient(whole, _past(h, hs)), dh, dc


def _gru_step(given: Tensor, z: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    xr, xz, xn = given.chunk(3, -1)
    hr, hz, hn = z.chunk(3, -1)
    r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
    n = torch.tanh(xn + r * hn)
    return torch.cat([r, z, n, hn], -1), (n + z * (h - n)).to(h.dtype)


def _gru_step_back(
    gates: Tensor, past: Tensor, own: Tensor, dh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r, z, n, hn = gates.chunk(4, -1)
    dh = own + dh
    dn = dh * (1 - z) * (1 - n * n)
    dr, dz = dn * hn * r * (1 - r), dh * (past - n) * z * (1 - z)
    given, state = torch.cat([dr, dz, dn], -1), torch.cat([dr, dz, dn * r], -1)
    return given.to(gates.dtype), state.to(gates.dtype), dh * z


@_operation(
    "gru_steps",
    "given w b h",
    2,
    lambda given, w, b, h: (
        _states_like(given, w),
        given.new_empty(*given.shape[:3], 4 * w.shape[2]),
    ),
)
def gru_steps(given: Tensor, w: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """States h and gates of every step."""
    given, h, turned, gates, hs = given.contiguous(), h.contiguous(), w.mT, [], []
    for t in range(given.shape[2]):
        args = given[:, :, t], torch.baddbmm(b[:, None], h, turned), h
        gate, h = as_kernel(_gru_step, *args)(*args)
        gates.append(gate)
        hs.append(h)
    return torch.stack(hs, 2), torch.stack(gates, 2)


@_operation(
    "gru_steps_back",
    "w past gates dhs",
    3,
    lambda w, past, gates, dhs: (
        w.new_empty(*gates.shape[:3], w.shape[1]),
        w.new_empty(*gates.shape[:3], w.shape[1]),
        w.new_empty(past[:, :, 0].shape),
    ),
)
def gru_steps_back(
    w: Tensor, past: Tensor, gates: Tensor, dhs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of what was given to the gates, of what the state gave, and of the first state."""
    past, dhs, inputs, states = past.contiguous(), dhs.contiguous(), [], []
    dh = torch.zeros(past[:, :, 0].shape, dtype=w.dtype, device=w.device)
    for t in reversed(range(gates.shape[2])):
        args = gates[:, :, t], past[:, :, t], dhs[:, :, t], dh
        given, state, kept = as_kernel(_gru_step_back, *args)(*args)
        inputs.append(given)
        states.append(state)
        dh = torch.baddbmm(kept, state, w)
    return torch.stack(inputs[::-1], 2), torch.stack(states[::-1], 2), dh


class GruSteps(_Steps):
    """(B, T, 3H) given to the gates, weights and bias of the state -> states h (B, T, H)."""

    @staticmethod
    def forward(given: Tensor, w: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        return _one(gru_steps, given, w, b, h)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        hs, gates = output
        ctx.mark_non_differentiable(gates)
        ctx.save_for_backward(inputs[1], inputs[3], hs, gates)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        w, h, hs, gates = ctx.saved_tensors
        past = _past(h, hs)
        given, own, dh = _one(gru_steps_back, w, past, gates, grads[0])
        return given, _weight_gradient(own, past), own.sum((0, 1)), dh


def _tanh_back(y: Tensor, own: Tensor, dh: Tensor) -> Tensor:
    return (own + dh) * (1 - y * y)


def _relu_back(y: Tensor, own: Tensor, dh: Tensor) -> Tensor:
    return (own + dh) * (y > 0)


def _rnn_operations(name: str, bend: Any, back: Any) -> tuple[Operation, Operation]:
    """The forward and backward pass of a plain recurrent layer."""

    @_operation(
        f"rnn_{name}",
        "given w h",
        2,
        lambda given, w, h: (_states_like(given, w), w.new_empty(h.shape)),
    )
    def steps(given: Tensor, w: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        turned, hs = w.mT, []
        for t in range(given.shape[2]):
            h = bend(torch.baddbmm(given[:, :, t], h, turned))
            hs.append(h)
        return torch.stack(hs, 2), h

    @_operation(
        f"rnn_{name}_back",
        "w hs dhs",
        2,
        lambda w, hs, dhs: (torch.empty_like(hs), w.new_empty(hs[:, :, 0].shape)),
    )
    def steps_back(w: Tensor, hs: Tensor, dhs: Tensor) -> tuple[Tensor, Tensor]:
        dh, moved = torch.zeros_like(hs[:, :, 0].contiguous()), []
        for t in reversed(range(hs.shape[2])):
            args = hs[:, :, t], dhs[:, :, t], dh
            moved.append(back(*args))
            dh = torch.bmm(moved[-1], w)
        return torch.stack(moved[::-1], 2), dh

    return steps, steps_back


RNN = {
    False: _rnn_operations("tanh", torch.tanh, _tanh_back),
    True: _rnn_operations("relu", torch.relu, _relu_back),
}


class RnnSteps(_Steps):
    """(B, T, H) given to the state -> states h (B, T, H), by tanh or ReLU."""

    @staticmethod
    def forward(given: Tensor, w: Tensor, h: Tensor, relu: bool) -> Tensor:
        return _one(RNN[relu][0], given, w, h)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.relu = inputs[3]
        ctx.save_for_backward(inputs[1], inputs[2], output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        w, h, hs = ctx.saved_tensors
        whole, dh = _one(RNN[ctx.relu][1], w, hs, grads[0])
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
LAYER_OF_CELL: dict[Any, Any] = {
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
    _, *end = _one_way(LAYER_OF_CELL[kind], low, x[:, None], weights, begin)
    return end[0] if isinstance(state, Tensor) else tuple(end)
