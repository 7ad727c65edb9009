"""What a method gets: a data set, its split, and a base model trained on the training rows."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
from numpy.typing import NDArray
from training import RowModel, Rows


class NetworkSize(NamedTuple):
    """Size of a network.

    Args:
        embedding_dim: Embedding size of every column.
        hidden_units: Units of the ReLU layers after the embeddings.
    """

    embedding_dim: int = 256
    hidden_units: tuple[int, ...] = (200, 200)


@dataclasses.dataclass(frozen=True, eq=False)
class CalibrationTask:
    """One data set, split, with a base model trained on the training rows under one seed.

    Args:
        name: Name of the data set.
        field: Column whose calibration counts (z in the paper).
        num_values: Number of ids of each column.
        train: The first 60 % of the rows.
        development: The next 20 %.
        test: The last 20 %.
        base: Maps a dict of ids to logits, shape (batch, 1); not to be trained further in place.
        development_logits: Logits of `base`, shape (n,).
        test_logits: Logits of `base`, shape (n,).
        seed: Seed of the base model, and of what a method draws.
        size: Size of the base model, and of the networks that a method trains.
        batch_size: Rows of a training batch.
        compiled: Name → model that a method trains. The tasks of a data set share these models,
            each trained anew for each seed, and so also the weights of `base`: use one task after
            the other.
    """

    name: str
    field: str
    num_values: Mapping[str, int]
    train: Rows
    development: Rows
    test: Rows
    base: keras.Model
    development_logits: NDArray[np.float32]
    test_logits: NDArray[np.float32]
    seed: int
    size: NetworkSize
    batch_size: int
    compiled: dict[str, RowModel] = dataclasses.field(default_factory=dict)

    def model(
        self,
        name: str,
        head: keras.layers.Layer,
        columns: Sequence[str] = (),
        auxiliary_loss: keras.layers.Layer | None = None,
    ) -> RowModel:
        """The compiled model of this name, with the weights of a new head of its form."""
        if name in self.compiled:
            self.compiled[name].start_anew(head)
        else:
            self.compiled[name] = RowModel(head, columns, auxiliary_loss)
        return self.compiled[name]


# A row of the tables: returns the logits of the test rows, shape (n,).
Method = Callable[[CalibrationTask], NDArray[np.float32]]
