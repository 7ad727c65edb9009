"""BlockLosses: the losses of a run by block of the held-out rows, to draw rows again later."""

import json
import threading
from pathlib import Path
from typing import Any, TypeGuard

import keras
import numpy as np
from numpy.typing import NDArray

from keras_calibration._ops.folds import row_groups
from keras_calibration.metrics import CalibratedLogLoss

FILE = "block_losses.jsonl"
NUM_BLOCKS = 20
DECIMALS = 7
PREDICTED_TOGETHER = 8192


class BlockLosses(keras.callbacks.Callback):
    """Appends a run's losses by block to a file beside the ledger, when its training ends.

    The held-out rows are put into 20 random blocks, the same for all runs. Block b of a loss has
    the value B Σ_{i ∈ b} loss_i / n, where n is the number of all rows that are scored: the mean
    over the B blocks is the loss of the run. A calibrated loss uses the bias that its metric has
    fitted to all rows. Blocks that are drawn again keep this bias; fitting it again would change
    the loss by terms of the order 1/n.

    Args:
        path: The file, created if it is absent.
        pipeline: Name of the pipeline.
        seed: Seed of the run.
        rows: Ids of the held-out rows, `(num_rows, num_columns)`.
        labels: Their labels.
        metrics: Name → arguments of a `CalibratedLogLoss`, `None` for the log loss itself, or
            `{"num_periods": …}` for the rolling calibrated loss.
    """

    lock = threading.Lock()

    def __init__(
        self,
        path: Path,
        pipeline: str,
        seed: int,
        rows: NDArray[np.int32],
        labels: NDArray[np.float32],
        metrics: dict[str, dict[str, Any] | None],
    ) -> None:
        super().__init__()
        self.path, self.pipeline, self.seed = path, pipeline, seed
        self.rows, self.labels, self.metrics = rows, labels, metrics

    def on_train_end(self, logs: Any = None) -> None:
        """Predicts the held-out rows, and writes a line."""
        parts = [
            keras.ops.convert_to_numpy(self.model(self.rows[start : start + PREDICTED_TOGETHER]))
            for start in range(0, len(self.rows), PREDICTED_TOGETHER)
        ]
        logits = np.concatenate(parts)[:, 0]
        losses = {
            name: block_values(*row_losses(self.labels, logits, arguments))
            for name, arguments in self.metrics.items()
        }
        with self.lock:
            append_block_losses(self.path.parent, self.pipeline, self.seed, losses)


def row_losses(
    labels: NDArray[np.float32], logits: NDArray[np.float32], arguments: dict[str, Any] | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The loss of each row, and which rows are scored."""
    bias, scored = np.zeros(len(labels)), np.ones(len(labels), bool)
    if is_rolling(arguments):
        bias, scored = rolling_biases(labels, logits, **arguments)
    elif arguments is not None:
        metric = CalibratedLogLoss(from_logits=True, **arguments)
        metric.update_state(labels, logits)
        sharing = (metric.num_folds, metric.bias_fraction, metric.seed)
        groups = np.asarray(row_groups(keras.ops.arange(len(labels)), *sharing))
        scored = groups == 1 if metric.bias_fraction is not None else scored
        # With a hold-out, only its rows are scored. Of several folds, each has a bias of its own.
        bias = metric.bias[groups * (metric.bias_fraction is None)]
    corrected = logits.astype(np.float64) + bias
    return np.logaddexp(0, corrected) - labels * corrected, scored


def is_rolling(arguments: dict[str, Any] | None) -> TypeGuard[dict[str, int]]:
    """Whether the bias of a period corrects the next one."""
    return arguments is not None and "num_periods" in arguments


def rolling_biases(
    labels: NDArray[np.float32], logits: NDArray[np.float32], num_periods: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The bias of the period before, for each row, and which rows have one.

    A period whose labels are all equal has no bias: the one before stays in use.
    """
    period = np.arange(len(labels)) * num_periods // len(labels)
    biases = np.full(num_periods + 1, np.nan)
    for number in range(num_periods):
        metric = CalibratedLogLoss(num_folds=1, from_logits=True)
        metric.update_state(labels[period == number], logits[period == number])
        (bias,) = metric.bias
        biases[number + 1] = biases[number] if np.isnan(bias) else bias
    row_biases = biases[period]
    scored = ~np.isnan(row_biases)
    return np.where(scored, row_biases, 0), scored


def block_values(losses: NDArray[np.float64], scored: NDArray[np.bool_]) -> list[float]:
    """The values of all blocks, whose mean is the mean loss of the scored rows."""
    block = np.random.default_rng(0).permutation(len(losses)) % NUM_BLOCKS
    values = by_block(losses[scored], block[scored], NUM_BLOCKS)
    return values.round(DECIMALS).tolist()


def by_block(
    losses: NDArray[np.float64], block: NDArray[np.intp], num_blocks: int
) -> NDArray[np.float64]:
    """The values of all blocks, whose mean is the mean of the losses of the scored rows."""
    return num_blocks * np.bincount(block, losses, num_blocks) / len(losses)


def append_block_losses(
    folder: Path, pipeline: str, seed: int, losses: dict[str, list[float]]
) -> None:
    """Adds a run's losses by block to the file beside the ledger."""
    folder.mkdir(parents=True, exist_ok=True)
    line = {"pipeline": pipeline, "seed": seed, "losses": losses}
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_block_losses(folder: Path) -> dict[tuple[str, int], dict[str, list[float]]]:
    """Pipeline and seed → loss → values of the blocks; empty without the file."""
    path = folder / FILE
    if not path.exists():
        return {}
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {(line["pipeline"], line["seed"]): line["losses"] for line in lines}
