"""A logistic regression beside the click models, and the table of their AUC."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from id_table import Rows
from scipy.stats import t
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from keras_calibration.seeds import Ledger

sys.path.append(str(Path(__file__).parents[1]))
from markdown_table import markdown_table

REGRESSION = "logistic_regression"


def regression_record(rows: Rows, configuration: dict[str, Any]) -> dict[str, Any]:
    """The record of scikit-learn's logistic regression, default penalty, a column for each id."""
    started = time.monotonic()
    encoder = OneHotEncoder(handle_unknown="ignore").fit(rows.train)
    regression = LogisticRegression(max_iter=200)
    regression.fit(encoder.transform(rows.train), rows.train_labels)
    probabilities = regression.predict_proba(encoder.transform(rows.held_out))[:, 1]
    metrics = {
        "val_log_loss": log_loss(rows.held_out_labels, probabilities),
        "val_auc": roc_auc_score(rows.held_out_labels, probabilities),
        "seconds": time.monotonic() - started,
    }
    return {
        "pipeline": REGRESSION,
        "seed": 0,
        "status": "finished",
        "epochs": [0],
        "metrics": {name: [float(value)] for name, value in metrics.items()},
        "configuration": configuration,
        "num_rows": len(rows.held_out),
    }


def auc_table(ledger: Ledger, architectures: Sequence[str]) -> str:
    """The AUC of each architecture, ± half of its 95 % interval; empty without a regression."""
    values: dict[str, list[float]] = {}
    for run in ledger.runs(status="finished"):
        if run["pipeline"] in (REGRESSION, *architectures):
            values.setdefault(run["pipeline"], []).append(run["metrics"]["val_auc"][-1])
    if REGRESSION not in values:
        return ""
    (regression,) = values.pop(REGRESSION)
    lines = [["logistic regression", f"{regression:.4f}", ""]]
    for name in architectures:
        if name in values:
            areas = np.array(values[name])
            text = f"{areas.mean():.4f}"
            if len(areas) > 1:
                half = t.ppf(0.975, len(areas) - 1) * areas.std(ddof=1) / np.sqrt(len(areas))
                text += f" ± {half:.4f}"
            above = f"{(areas > regression).sum()} of {len(areas)} seeds"
            lines.append([name, text, above])
    return markdown_table(["model", "AUC", "above the regression"], lines)
