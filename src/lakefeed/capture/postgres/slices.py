"""Many messages in one padded buffer, and their columns: the input of the decoders of stream and copy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakefeed.errors import DecodeError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Array = Any  # pyarrow's stubs know arrays by their scalar type, which is decided here at run time

PAD = 16  # zero bytes after the data, so that an integer or a uuid can be read at every offset


def numbers(data: Bytes, at: Ints, sent: str, made: Any = np.int64) -> Any:
    """The values of type ``sent`` (``>i4``, ``V16`` …) at the given offsets, converted to the dtype ``made``."""
    dtype = np.dtype(sent)
    # A view in which a value starts at every byte: numpy reads unaligned, in one gather instead of one per byte.
    view: Any = np.ndarray((len(data) - dtype.itemsize + 1,), dtype, data, 0, (1,))
    return view[at].astype(made, copy=False)


@dataclass(frozen=True)
class Messages:
    """Messages, one after another, in one padded buffer."""

    data: Bytes
    begins: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, which: slice | Mask) -> Messages:
        return Messages(self.data, self.begins[which], self.ends[which])

    @cached_property
    def kinds(self) -> Bytes:
        """The first byte of each message."""
        return self.data[self.begins]

    def message(self, index: int) -> bytes:
        return self.data[self.begins[index] : self.ends[index]].tobytes()


def as_messages(parts: list[bytes]) -> Messages:
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    ends = np.cumsum(lengths)
    return Messages(np.frombuffer(b"".join([*parts, bytes(PAD)]), np.uint8), ends - lengths, ends)


def join(runs: Sequence[Messages] = ()) -> Messages:
    """Several runs of messages as one: decoding them together is cheaper."""
    runs = [run for run in runs if len(run)]
    if len(runs) < 2:
        return runs[0] if runs else as_messages([])
    # Only the part of each buffer that its run occupies.
    pieces = [run.data[run.begins[0] : run.ends[-1]] for run in runs]
    ends = np.cumsum([len(piece) for piece in pieces])
    moved = [(run, end - run.ends[-1]) for run, end in zip(runs, ends, strict=True)]
    return Messages(
        np.concatenate([*pieces, np.zeros(PAD, np.uint8)]),
        np.concatenate([run.begins + by for run, by in moved]),
        np.concatenate([run.ends + by for run, by in moved]),
    )


@dataclass(frozen=True, slots=True)
class Slices:
    """A column: ``data[start : start + length]`` for each row; NULL where ``valid`` is False."""

    data: Bytes
    starts: Ints
    lengths: Ints
    valid: Mask

    def take(self, rows: Ints) -> Slices:
        return Slices(self.data, self.starts[rows], self.lengths[rows], self.valid[rows])

    def then(self, more: Slices) -> Slices:
        """These rows, followed by ``more`` of the same data."""
        starts, lengths = np.append(self.starts, more.starts), np.append(self.lengths, more.lengths)
        return Slices(self.data, starts, lengths, np.append(self.valid, more.valid))

    def binary(self) -> Array:
        """An Arrow binary array, which Arrow copies once: the buffer is viewed as alternating values and gaps, of which
        every second one is taken. That requires values in buffer order without overlap. Rows of a message stream are,
        except those that share a value: an old row serves as delete and as before image, and completes a new one."""
        count, starts, lengths = len(self.starts), self.starts, self.lengths
        if not count:
            return pa.array([], pa.binary())
        wanted: Any = np.arange(count)
        if np.any(starts[1:] < starts[:-1] + lengths[:-1]):
            starts, first, wanted = np.unique(starts, return_index=True, return_inverse=True)
            lengths = lengths[first]
        offsets: Any = np.zeros(2 * len(starts), np.int32)
        offsets[0::2], offsets[1::2] = starts, starts + lengths
        data: Any = self.data
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        alternating = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
        return alternating.take(pa.array(2 * wanted, mask=None if self.valid.all() else ~self.valid))


def copied_columns(rows: Messages, count: int) -> tuple[Slices, ...]:
    """The columns of rows in COPY's binary form: a column count (int16), then for each column a length (int32, -1 for
    NULL) and that many bytes. DecodeError if the rows do not have ``count`` columns."""
    offset, ends = rows.begins + 2, rows.ends
    if np.any(offset > ends) or np.any(numbers(rows.data, rows.begins, ">i2") != count):
        raise DecodeError(f"a copied row does not have {count} columns")
    found = []
    for _ in range(count):
        starts, lengths = offset + 4, numbers(rows.data, offset, ">i4")
        offset = starts + np.maximum(lengths, 0)
        if np.any(lengths < -1) or np.any(offset > ends):
            raise DecodeError("a copied row ends too early, or a value has a negative length")
        found.append(Slices(rows.data, starts, offset - starts, lengths >= 0))
    if np.any(offset != ends):
        raise DecodeError("a copied row has excess bytes")
    return tuple(found)
