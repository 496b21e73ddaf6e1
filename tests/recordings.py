"""A GPU's recordings on a CPU: a replay does again what the first call did, with new inputs.

The function, its spec and the tensors that stay are those of the FIRST call: a number that is not
part of the key and slips into a recording goes stale here as it would on a GPU.
"""

from types import SimpleNamespace

import torch

from fedmaba.rows.cuda_graphs import Buffers, GraphCache, Recording


class Replays(GraphCache):
    """Every call is recorded when it first comes; a replay overwrites the result before it."""

    def __init__(self):
        super().__init__(torch.device("cpu"), recordable=True)
        self.on, self.wanted, self.count = True, 1, 0

    def _record(self, function, spec, held, inputs):
        buffers, first = Buffers(inputs, self.device), []

        def replay():
            out = function(spec, *held, *buffers.tensors)
            self.count += bool(first)
            if not first:
                first.append(out)
                recording.out = out
                return
            old = first[0]
            for a, b in zip(old, out, strict=True) if isinstance(out, tuple) else [(old, out)]:
                a.copy_(b)

        recording = Recording(SimpleNamespace(replay=replay), buffers, None, tuple(held))
        return recording

    _record_part = _record

    def forget(self):
        for kept in (self.recordings, self.parts, self.buffers, self.seen, self.unlike):
            kept.clear()


class Parts(Replays):
    """No round has the shape of another: only parts of work are recorded."""

    def _make_room(self):
        return False

    def shapes_rarely_repeat(self, kind):
        return True
