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


def read_rows(
    folder: Path,
    num_held_out: int,
    *,
    mixing: float = 0.0,
    fold: int = 0,
    max_rows: int | None = None,
    order_by: str | None = None,
) -> Rows:
    """All columns of a table as ids, with a block of rows held out: the last one for fold 0.

    The buckets of a numeric column are quantiles, in ascending order. Missing values have the last
    bucket for themselves.

    Args:
        folder: A data folder, see `read_data_folder`.
        num_held_out: Number of rows for evaluation.
        mixing: From 0, where the rows keep their own order, to 1, where they are shuffled. In
            between, rows are sorted by (1 − mixing) t + mixing u, where t is their place in their
            own order, from 0 to 1, and u is uniform in [0, 1] (seed 0).
        fold: Which block of `num_held_out` rows is held out, counted from the end. With a fifth of
            the rows, folds 0 to 4 hold out each row once. Only shuffled rows have folds after 0:
            in their own order, a later row must not train a model for an earlier one.
        max_rows: Number of rows, the first ones in this order; `None` for all.
        order_by: Column of the time, where the table does not name it.

    Raises:
        ValueError: `num_held_out` is not between 0 and the number of rows, `mixing` is not between
            0 and 1, or the rows have no such `fold`.
    """
    table = read_data_folder(folder, order_by=order_by)
    num_all = len(table.labels)
    num_rows = min(num_all, max_rows or num_all)
    if not 0 < num_held_out < num_rows:
        raise ValueError(
            f"Argument `num_held_out` must be between 0 and the {num_rows} rows of {folder}. "
            f"Received: num_held_out={num_held_out}."
        )
    if not 0 <= mixing <= 1:
        raise ValueError(f"Argument `mixing` must be between 0 and 1. Received: mixing={mixing}.")
    stop = num_rows - fold * num_held_out
    if not num_held_out <= stop <= num_rows or (fold and mixing < 1):
        raise ValueError(
            "Argument `fold` must be 0, or with `mixing=1` the number of a block of held-out rows. "
            f"Received: fold={fold}, mixing={mixing}, with blocks of {num_held_out} of "
            f"{num_rows} rows."
        )
    is_held_out = np.zeros(num_rows, bool)
    is_held_out[stop - num_held_out : stop] = True
    uniform = np.random.default_rng(0).random(num_all)
    order = np.argsort((1 - mixing) * np.arange(num_all) / num_all + mixing * uniform)[:num_rows]
    columns, num_ids = [], []
    for name in table.num_values:
        columns.append(np.asarray(table.features[name], np.int32)[order])
        num_ids.append(table.num_values[name])
    for name in table.numeric:
        values = np.asarray(table.features[name], np.float64)[order]
        ids, number = quantile_buckets(values, ~is_held_out)
        columns.append(ids)
        num_ids.append(number)
    ids, labels = np.stack(columns, axis=1), table.labels[order]
    return Rows(
        train=ids[~is_held_out],
        train_labels=labels[~is_held_out],
        held_out=ids[is_held_out],
        held_out_labels=labels[is_held_out],
        columns=(*table.num_values, *table.numeric),
        num_ids=tuple(num_ids),
        num_numeric=len(table.numeric),
    )
