"""The paper's network, its training, and the task that every method gets.

Every column is an id, embedded in 256 dimensions by default; the embeddings are concatenated and
passed through two ReLU layers of 200 units. Numeric columns become ids by quantiles of the training
rows.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from calibration_task import CalibrationTask, NetworkSize
from training import RowModel, Rows, inputs_of, train_one_epoch

from data_folder import TIME_COLUMNS, read_data_folder
from keras_calibration.layers import FieldNetwork, NeuralCalibration
from quantile_buckets import quantile_buckets

MIN_STEPS, MAX_BATCH_SIZE = 150, 512


class Split(NamedTuple):
    """The parts of a data set; its fields are those of `CalibrationTask`."""

    name: str
    field: str
    num_values: Mapping[str, int]
    train: Rows
    development: Rows
    test: Rows


def read_split(folder: Path, field: str | None, max_rows: int | None = None) -> Split:
    """Reads a data folder and turns every column into ids.

    Args:
        folder: Folder with a `meta.json`.
        field: Column whose calibration counts; None for the first of `fields` in `meta.json`.
        max_rows: Number of rows to use, the last ones in the order of the split; None for all.

    Returns:
        The first 60 % of the rows, the next 20 % and the last 20 %.
    """
    table = read_data_folder(folder, field, TIME_COLUMNS.get(folder.name), max_rows=max_rows)
    features = {name: np.asarray(table.features[name], np.int32) for name in table.num_values}
    num_values = dict(table.num_values)
    for name in table.numeric:
        values = np.asarray(table.features[name], np.float64)
        features[name], num_values[name] = quantile_buckets(values, table.parts["train"])

    def rows(part: str) -> Rows:
        chosen = table.parts[part]
        columns = {name: column[chosen] for name, column in features.items()}
        return Rows(columns, table.labels[chosen])

    parts = (rows(part) for part in ("train", "development", "test"))
    return Split(folder.name, table.fields[0], num_values, *parts)


def field_network(num_values: Mapping[str, int], size: NetworkSize, seed: int) -> FieldNetwork:
    """The paper's network as a layer: features by name to logits (batch, 1), at first 0."""
    return FieldNetwork(
        num_values,
        embedding_dim=size.embedding_dim,
        hidden_units=size.hidden_units,
        regularization=0.0,
        dropout=0.0,
        seed=seed,
    )


def default_batch_size(num_rows: int) -> int:
    """The largest power of two, up to 512, with at least 150 steps an epoch.

    The paper does not give its batch size, and trains for one epoch on millions of rows. In an
    epoch of a few steps, a base model learns next to nothing.
    """
    batch_size = MAX_BATCH_SIZE
    while batch_size > 1 and num_rows < MIN_STEPS * batch_size:
        batch_size //= 2
    return batch_size


def base_head(num_values: Mapping[str, int], size: NetworkSize, seed: int) -> NeuralCalibration:
    """The paper's network as a head that adds it to the logits it gets, built."""
    head = NeuralCalibration(None, field_network(num_values, size, seed))
    head.build((None, 1), {name: (None,) for name in num_values})
    return head


def make_task(
    split: Split,
    size: NetworkSize,
    batch_size: int | None,
    seed: int,
    compiled: dict[str, RowModel],
    name: str = "base",
) -> CalibrationTask:
    """Trains the base model for one epoch on the training rows.

    Args:
        split: The data.
        size: Size of the base model.
        batch_size: Rows of a training batch; None for `default_batch_size`.
        seed: Seed of the initial weights and of the order of the rows.
        compiled: The models of earlier tasks of this data set, an empty dict at first.
        name: Name of the base model among them.

    Returns:
        The task, with the logits of the development and test rows.
    """
    batch_size = batch_size or default_batch_size(len(split.train.labels))
    columns = tuple(split.num_values)
    train, development, test = (
        inputs_of(np.zeros_like(part.labels), part, columns)
        for part in (split.train, split.development, split.test)
    )
    head = base_head(split.num_values, size, seed)
    if name in compiled:
        compiled[name].start_anew(head)
    else:
        compiled[name] = RowModel(head, columns)
    model = compiled[name]
    train_one_epoch(model, train, split.train.labels, batch_size, seed)
    ids = {column: keras.Input((), dtype="int32", name=column) for column in columns}
    return CalibrationTask(
        **split._asdict(),
        base=keras.Model(ids, model.head.field_network(ids)),
        development_logits=model.predict_logits(development),
        test_logits=model.predict_logits(test),
        seed=seed,
        size=size,
        batch_size=batch_size,
        compiled=compiled,
    )
