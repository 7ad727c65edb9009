"""Sums over the rows of each cell: a bin, a field value or a line."""

from __future__ import annotations

from collections.abc import Sequence

from keras import ops

from keras_calibration._ops.compiled import runs_on_gpu
from keras_calibration._typing import Tensor

# Measured on an H100: 501 cells in 256 parts take 45 % of the time of one part.
_MOST_PARTS_ON_GPU, _MOST_CELLS_ON_GPU = 256, 1 << 17


def sums_by_cell(
    columns: Sequence[Tensor], cell: Tensor, num_cells: int, num_parts: int | None = None
) -> Tensor:
    """Sums of columns of rows by cell, shape (num_cells, columns), first in interleaved parts.

    On a GPU, rows are added at the same time by atomic operations, and rows of the same cell and
    part wait for each other. The default is one part on a CPU. On a GPU, it is up to 256 parts, as
    many as 131,072 cells allow.
    """
    if runs_on_gpu():
        rows = ops.stack(columns, axis=1)
        num_parts = num_parts or min(_MOST_PARTS_ON_GPU, _MOST_CELLS_ON_GPU // num_cells)
    else:
        # On a CPU, XLA is three times as fast if columns are stacked one below the other and
        # transposed. On a GPU, it would write that to memory, three to nine times the bytes.
        rows = ops.transpose(ops.stack(columns, axis=0))
    if not num_parts or num_parts == 1:
        return ops.segment_sum(rows, cell, num_segments=num_cells)
    # Neighbouring rows, often of one cell, go to different parts: they add to different addresses.
    part = ops.arange(ops.shape(cell)[0], dtype="int32") % num_parts
    sums = ops.segment_sum(rows, cell + part * num_cells, num_segments=num_parts * num_cells)
    return ops.sum(ops.reshape(sums, (num_parts, num_cells, len(columns))), axis=0)
