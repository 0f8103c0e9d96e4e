"""Pieces of one big buffer, many at a time: big-endian integers, and runs of bytes as Arrow arrays. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PAD = 16
"""Zero bytes behind the data, so that an integer or a uuid can be read at every place of it."""


def padded(parts: list[bytes]) -> Bytes:
    """The parts one after another, with the pad behind them."""
    return np.frombuffer(b"".join([*parts, bytes(PAD)]), np.uint8)


def gathered(data: Bytes, at: Ints, kind: str) -> Any:
    """What begins at ``at``, seen as ``kind`` (``>i4``, ``V16`` …), one for each place."""
    dtype = np.dtype(kind)
    # A view in which every byte begins a value: numpy reads unaligned, one gather instead of one for each byte.
    view: Any = np.ndarray((len(data) - dtype.itemsize + 1,), dtype, data, 0, (1,))
    return view[at]


def integers(data: Bytes, at: Ints, kind: str) -> Ints:
    """The big-endian integers (``>i4``, ``>u2`` …) that begin at ``at``, one for each place."""
    found: Ints = gathered(data, at, kind).astype(np.int64)
    return found


@dataclass(frozen=True, slots=True)
class Slices:
    """``data[start : start + length]`` for each row; NULL where ``valid`` is False."""

    data: Bytes
    starts: Ints
    lengths: Ints
    valid: Mask

    def binary(self) -> Any:
        """An Arrow binary array, copied once by Arrow itself.

        The buffer is seen as alternating values and gaps between them, whose every second element is then taken. That
        needs values in buffer order without overlap, which rows of a message stream are, with one rare exception.
        """
        count = len(self.starts)
        ends = self.starts + self.lengths
        if count == 0 or np.any(self.starts[1:] < ends[:-1]):
            pairs = zip(self.starts.tolist(), ends.tolist(), self.valid.tolist(), strict=True)
            return pa.array([self.data[a:b].tobytes() if ok else None for a, b, ok in pairs], pa.binary())
        offsets = np.empty(2 * count, np.int32)
        offsets[0::2], offsets[1::2] = self.starts, ends
        buffers: Any = [None, *map(_buffer, (offsets, self.data))]
        alternating = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
        wanted: Any = pa.array(
            np.arange(0, 2 * count - 1, 2, dtype=np.int32), mask=None if self.valid.all() else ~self.valid
        )
        return alternating.take(wanted)


def _buffer(array: Any) -> pa.Buffer:
    """Arrow's view of an array's memory, without a copy."""
    return pa.py_buffer(array)
