"""A logistic regression beside the click models."""

import time
from typing import Any

from id_table import Rows
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from end_record import end_record

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
    return end_record(REGRESSION, 0, metrics, len(rows.held_out), configuration=configuration)
