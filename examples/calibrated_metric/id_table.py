"""A data folder as rows of ids: numeric columns are cut into buckets."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_folder import read_data_folder
from quantile_buckets import quantile_buckets


class Rows(NamedTuple):
    """Rows of ids for training and evaluation.

    Args:
        train: Ids of the training rows, int32 `(num_train, num_columns)`.
        train_labels: Their labels, 0 or 1.
        held_out: Ids of the rows for evaluation.
        held_out_labels: Their labels.
        columns: Name of each column; the numeric columns are the last ones.
        num_ids: Number of ids of each column.
        num_numeric: Number of numeric columns.
    """

    train: NDArray[np.int32]
    train_labels: NDArray[np.float32]
    held_out: NDArray[np.int32]
    held_out_labels: NDArray[np.float32]
    columns: tuple[str, ...]
    num_ids: tuple[int, ...]
    num_numeric: int


def read_rows(folder: Path, num_held_out: int, *, mixing: float = 0.0) -> Rows:
    """All columns of a table as ids; the last rows of its own split are held out.

    The buckets of a numeric column are quantiles, in ascending order. Missing values have the last
    bucket for themselves.

    Args:
        folder: A data folder, see `read_data_folder`.
        num_held_out: Number of rows for evaluation.
        mixing: From 0, where the rows keep their own order, to 1, where they are shuffled. In
            between, rows are sorted by (1 − mixing) t + mixing u, where t is their place in their
            own order, from 0 to 1, and u is uniform in [0, 1] (seed 0).

    Raises:
        ValueError: `num_held_out` is not between 0 and the number of rows, or `mixing` is not
            between 0 and 1.
    """
    table = read_data_folder(folder)
    num_rows = len(table.labels)
    if not 0 < num_held_out < num_rows:
        raise ValueError(
            f"Argument `num_held_out` must be between 0 and the {num_rows} rows of {folder}. "
            f"Received: num_held_out={num_held_out}."
        )
    if not 0 <= mixing <= 1:
        raise ValueError(f"Argument `mixing` must be between 0 and 1. Received: mixing={mixing}.")
    uniform = np.random.default_rng(0).random(num_rows)
    order = np.argsort((1 - mixing) * np.arange(num_rows) / num_rows + mixing * uniform)
    columns, num_ids = [], []
    for name in table.num_values:
        columns.append(np.asarray(table.features[name], np.int32)[order])
        num_ids.append(table.num_values[name])
    for name in table.numeric:
        values = np.asarray(table.features[name], np.float64)[order]
        ids, number = quantile_buckets(values, slice(-num_held_out))
        columns.append(ids)
        num_ids.append(number)
    ids, labels = np.stack(columns, axis=1), table.labels[order]
    return Rows(
        train=ids[:-num_held_out],
        train_labels=labels[:-num_held_out],
        held_out=ids[-num_held_out:],
        held_out_labels=labels[-num_held_out:],
        columns=(*table.num_values, *table.numeric),
        num_ids=tuple(num_ids),
        num_numeric=len(table.numeric),
    )
