"""FitSettings: how the direct fit of a head trains its network."""

from __future__ import annotations

from dataclasses import dataclass

from calibration_records._check import integer, positive
from keras_calibration._solvers.row_folds import Folds


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """Settings for training the network of a head in its direct fit; other heads ignore them.

    Args:
        folds: Number of folds; `"blocks"` for five blocks of consecutive rows; or the fold number
            of each row (n,), for example to keep all rows of a user or a week in one fold. The
            default is one fold per member, and 3 for a single member. With several members, there
            must be as many folds as members.
        max_epochs: Maximum number of epochs per fold.
        patience: Number of epochs without improvement after which training of a fold stops. With
            more than 100 batches an epoch, `patience * 100 / batches`, rounded up: such an epoch
            counts as several.
        learning_rate: Learning rate of Adam.
        batch_size: Rows per batch; by default about a fiftieth of the rows, between 128 and 2048.
        seed: Seed of the folds and of shuffling; None draws one, which
            `keras.utils.set_random_seed` repeats.
        verbose: 1 shows a progress bar while a network is trained.

    Raises:
        ValueError: If a number is not positive, or not whole where it must be.

    Example:
        >>> FitSettings(max_epochs=20).patience
        5
    """

    folds: Folds | None = None
    max_epochs: int = 100
    patience: int = 5
    learning_rate: float = 1e-3
    batch_size: int | None = None
    seed: int | None = 0
    verbose: int = 0

    def __post_init__(self) -> None:
        """Refuses numbers with which nothing could be trained."""
        for name in ("max_epochs", "patience"):
            integer(name, getattr(self, name), 1)
        positive("learning_rate", self.learning_rate)
        if self.batch_size is not None:
            integer("batch_size", self.batch_size, 1, "Pass None for a fiftieth of the rows.")
