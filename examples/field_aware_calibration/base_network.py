"""The paper's network, its training, and the task that every method gets.

Every column is an id, embedded in 256 dimensions; the embeddings are concatenated and passed
through two ReLU layers of 200 units. Numeric columns become ids by quantiles of the training rows.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from calibration_task import CalibrationTask, NetworkSize, Rows
from numpy.typing import NDArray

from keras_calibration.layers import FieldNetwork

sys.path.append(str(Path(__file__).parents[1]))
from data_folder import read_data_folder
from quantile_buckets import quantile_buckets

LEARNING_RATE = 1e-3
PREDICTED_TOGETHER = 8192
MIN_STEPS, MAX_BATCH_SIZE = 150, 512


class Split(NamedTuple):
    """The parts of a data set; its fields are those of `CalibrationTask`."""

    name: str
    field: str
    num_values: Mapping[str, int]
    train: Rows
    development: Rows
    test: Rows


def read_split(folder: Path, field: str | None) -> Split:
    """Reads a data folder and turns every column into ids.

    Args:
        folder: Folder with a `meta.json`.
        field: Column whose calibration counts; None for the first of `fields` in `meta.json`.

    Returns:
        The first 60 % of the rows, the next 20 % and the last 20 %.
    """
    table = read_data_folder(folder, field)
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


def build_network(num_values: Mapping[str, int], size: NetworkSize, seed: int) -> keras.Model:
    """The paper's network as a model that maps a dict of ids to logits (batch, 1).

    Args:
        num_values: Number of ids of each column.
        size: Embedding size and hidden units.
        seed: Seed of the initial weights.

    Returns:
        A model, not compiled.
    """
    inputs = {name: keras.Input((), dtype="int32", name=name) for name in num_values}
    return keras.Model(inputs, field_network(num_values, size, seed)(inputs))


def train_one_epoch(
    model: keras.Model,
    inputs: Mapping[str, NDArray[np.generic]],
    labels: NDArray[np.float32],
    batch_size: int,
    seed: int,
) -> None:
    """Trains a model that returns logits for one epoch, with a fresh Adam.

    Args:
        model: The model, trained in place.
        inputs: Its inputs by name, which are shuffled.
        labels: 0 or 1, shape (n,).
        batch_size: Rows of a batch.
        seed: Seed of the order of the rows.
    """
    keras.utils.set_random_seed(seed)
    model.compile(
        keras.optimizers.Adam(LEARNING_RATE),
        keras.losses.BinaryCrossentropy(from_logits=True),
    )
    model.fit(inputs, labels, batch_size=batch_size, verbose=0)


def logits_of(model: keras.Model, rows: Rows) -> NDArray[np.float32]:
    """Logits of the rows, shape (n,)."""
    logits = []
    # Called directly: `predict` would trace every model of every seed anew, which takes longer.
    for start in range(0, len(rows.labels), PREDICTED_TOGETHER):
        part = slice(start, start + PREDICTED_TOGETHER)
        columns = {name: column[part] for name, column in rows.features.items()}
        logits.append(keras.ops.convert_to_numpy(model(columns, training=False)))
    return np.concatenate(logits).reshape(-1)


def default_batch_size(num_rows: int) -> int:
    """The largest power of two, up to 512, that makes an epoch of at least 150 steps.

    The paper does not give its batch size, and trains for one epoch on millions of rows. In an
    epoch of a few steps, a base model learns next to nothing.
    """
    batch_size = MAX_BATCH_SIZE
    while batch_size > 1 and num_rows < MIN_STEPS * batch_size:
        batch_size //= 2
    return batch_size


def make_task(
    split: Split, size: NetworkSize, batch_size: int | None, seed: int
) -> CalibrationTask:
    """Trains the base model for one epoch on the training rows.

    Args:
        split: The data.
        size: Size of the base model.
        batch_size: Rows of a training batch; None for `default_batch_size`.
        seed: Seed of the initial weights and of the order of the rows.

    Returns:
        The task, with the logits of the development and test rows.
    """
    batch_size = batch_size or default_batch_size(len(split.train.labels))
    base = build_network(split.num_values, size, seed)
    train_one_epoch(base, *split.train, batch_size, seed)
    return CalibrationTask(
        **split._asdict(),
        base=base,
        development_logits=logits_of(base, split.development),
        test_logits=logits_of(base, split.test),
        seed=seed,
        size=size,
        batch_size=batch_size,
    )
