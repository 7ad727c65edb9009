"""The columns of the tables, and the same without each block of test rows.

A side file of the ledger's folder, `jackknife.jsonl`, has a line for each run: its row, seed and
settings, and for each metric its values without each block. The blocks are random, and the same for
all rows and seeds of a data set. `two_way_bootstrap.py` makes intervals from them that cover both
the seeds and the choice of the test rows.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from keras_calibration.metrics import LogLoss
from keras_calibration.scoring import field_ece, field_rce, score

FILE = "jackknife.jsonl"
NUM_BLOCKS = 20
EPSILON = 0.01  # of Field-RCE, as in the paper


def scores(
    logits: NDArray[np.float32], labels: NDArray[np.float32], values: NDArray[np.int32]
) -> dict[str, float]:
    """The columns of the tables."""
    probabilities = expit(logits.astype(np.float64))
    by_field = (labels, probabilities, values)
    return {
        **score((labels, logits), LogLoss(from_logits=True), verbose=0),
        "brier": float(np.mean((labels - probabilities) ** 2)),
        "field_ece": field_ece(*by_field),
        "field_rce": field_rce(*by_field, epsilon=EPSILON),
        "auc": float(roc_auc_score(labels, logits)),
    }


def scores_without_blocks(
    logits: NDArray[np.float32], labels: NDArray[np.float32], values: NDArray[np.int32]
) -> dict[str, list[float]]:
    """The columns of the tables without each of `NUM_BLOCKS` blocks of rows.

    The arguments are those of `scores`.

    Returns:
        Metric → values without the first block, without the second, and so on.
    """
    logit, y = logits.astype(np.float64), labels.astype(np.float64)
    blocks, p = blocks_of_rows(len(y)), expit(logit)
    num_values = int(values.max()) + 1

    def without(column: NDArray[np.float64], of_values: bool = False) -> NDArray[np.float64]:
        """Sums without each block, (blocks, values) or (blocks, 1)."""
        width = num_values if of_values else 1
        places = blocks * width + (values if of_values else 0)
        sums = np.bincount(places, column, minlength=NUM_BLOCKS * width).reshape(NUM_BLOCKS, width)
        return sums.sum(axis=0) - sums

    num_rows = without(np.ones(len(y)))
    rows, positives = without(np.ones(len(y)), True), without(y, True)
    gaps = np.abs(without(y - p, True))
    # A field value without rows has no term.
    shares = rows / np.where(rows > 0, positives + EPSILON * rows, 1)
    columns = {
        "log_loss": without(np.logaddexp(0, logit) - y * logit) / num_rows,
        "brier": without((y - p) ** 2) / num_rows,
        "field_ece": gaps.sum(axis=1, keepdims=True) / num_rows,
        "field_rce": (shares * gaps).sum(axis=1, keepdims=True) / num_rows,
    }
    lists = {metric: column[:, 0].tolist() for metric, column in columns.items()}
    return {**lists, "auc": auc_without_blocks(logit, y, blocks)}


def auc_without_blocks(
    logits: NDArray[np.float64], labels: NDArray[np.float64], blocks: NDArray[np.int64]
) -> list[float]:
    """The AUC without each block: the pairs of all rows less those with a row in the block."""
    order = np.argsort(logits)
    logits, labels, blocks = logits[order], labels[order], blocks[order]
    positives, negatives = labels == 1, labels != 1

    def num_won(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
        """Pairs in which the logit of `first` is higher; a tie counts half."""
        sides = (np.searchsorted(logits[second], logits[first], side) for side in ("left", "right"))
        return float(sum(places.sum() for places in sides) / 2)

    areas, all_won = [], num_won(positives, negatives)
    for block in range(NUM_BLOCKS):
        p, n = positives & (blocks == block), negatives & (blocks == block)
        won = all_won - num_won(p, negatives) - num_won(positives, n) + num_won(p, n)
        num_pairs = (positives.sum() - p.sum()) * (negatives.sum() - n.sum())
        areas.append(float(won / num_pairs))
    return areas


def blocks_of_rows(num_rows: int) -> NDArray[np.int64]:
    """The block of each row, always the same for this number of rows."""
    return np.random.default_rng(0).permutation(np.arange(num_rows) % NUM_BLOCKS)


def append_jackknife(
    folder: Path, record: Mapping[str, Any], without_block: Mapping[str, list[float]]
) -> None:
    """Adds the line of a run to the side file of a ledger's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    line = {
        "pipeline": record["pipeline"],
        "seed": record["seed"],
        "settings": record["configuration"]["settings"],
        "without_block": {
            metric: [round(value, 8) for value in values]
            for metric, values in without_block.items()
        },
    }
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_jackknife(folder: Path) -> dict[str, dict[str, dict[int, dict[str, list[float]]]]]:
    """The side file: settings as JSON with sorted keys → row → seed → metric → values.

    If a run has two lines, the later one counts: the earlier run was interrupted.
    """
    by_settings: dict[str, dict[str, dict[int, dict[str, list[float]]]]] = {}
    path = folder / FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for text in lines:
        line = json.loads(text)
        rows = by_settings.setdefault(json.dumps(line["settings"], sort_keys=True), {})
        rows.setdefault(line["pipeline"], {})[line["seed"]] = line["without_block"]
    return by_settings
