"""Independent computations in NumPy float64, which the stories are held against."""

import numpy as np


def sigmoid(logits):
    """`1 / (1 + exp(-l))` in float64."""
    return 1 / (1 + np.exp(-np.asarray(logits, "float64")))


def log_loss(labels, probabilities, weights=None):
    """The weighted mean of `-log` of what was given to what happened."""
    losses = -(labels * np.log(probabilities) + (1 - labels) * np.log1p(-probabilities))
    return float(np.average(losses, weights=weights))


def platt(logits, labels, weights=None):
    """Scale and bias of the least log loss, and its Hessian, by Newton's method."""
    weights = np.ones(len(labels)) if weights is None else weights
    columns = np.stack([logits, np.ones(len(logits))], axis=1)
    parameters = np.zeros(2)
    for _ in range(50):
        p = sigmoid(columns @ parameters)
        hessian = (columns * (weights * p * (1 - p))[:, None]).T @ columns
        parameters = parameters - np.linalg.solve(hessian, columns.T @ (weights * (p - labels)))
    return parameters, hessian


def field_ece(labels, probabilities, field, weights=None):
    """Field-ECE by pandas, in which a missing value is a value of its own."""
    import pandas as pd

    weights = np.ones(len(labels)) if weights is None else weights
    rows = pd.DataFrame({"residual": weights * (labels - probabilities), "field": field})
    sums = rows.groupby("field", dropna=False, observed=True)["residual"].sum()
    return float(sums.abs().sum() / np.sum(weights))
