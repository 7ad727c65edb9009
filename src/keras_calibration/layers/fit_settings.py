"""FitSettings: how a direct fit trains the network of a head."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """How the direct fit of a head trains its network. Heads without a network need none of it.

    Args:
        folds: Number of folds, by default one for each member, 3 for a single one; `"blocks"`,
            five stretches of rows in their own order; or the number of the fold of each row (n,):
            rows of one user or week in one fold, say. More members than one need as many folds.
        max_epochs: Largest number of epochs of a fold.
        patience: Epochs without a gain after which a fold ends.
        learning_rate: Adam's learning rate.
        batch_size: Rows of a batch; by default 128 to 2048, about a fiftieth of the rows.
        seed: Seed of the folds and of the order of the rows; None draws one.

    Example:
        >>> FitSettings(max_epochs=20).patience
        5
    """

    folds: Any = None
    max_epochs: int = 100
    patience: int = 5
    learning_rate: float = 1e-3
    batch_size: int | None = None
    seed: int | None = 0
