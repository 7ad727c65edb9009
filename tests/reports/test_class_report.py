"""Every number of the report of `calibrate_scores` for classes, computed from the rows."""

import numpy as np
import pytest
from scipy import optimize, special, stats

from keras_calibration import calibrate_scores
from printed import check_numbers
from row_references import auc, mean_and_error

NUM_ROWS, NUM_CLASSES = 900, 3


def fitted_temperature(logits, labels, w):
    """The inverse temperature with the lowest log loss."""

    def loss(scale):
        return -w @ np.sum(labels * special.log_softmax(scale * logits, axis=1), axis=1)

    return optimize.minimize_scalar(loss, (0.5, 1.0), tol=1e-12).x


class Judged:
    """The figures of class logits; rows of a class against the others where a figure is binary."""

    def __init__(self, labels, cells, w):
        self.labels, self.cells, self.w = labels, cells, w

    def losses(self, logits):
        return -np.sum(self.labels * special.log_softmax(logits, axis=1), axis=1)

    def row(self, logits, identity):
        p, w = special.softmax(logits, axis=1), self.w
        change = mean_and_error(self.losses(logits) - self.losses(identity), w)
        brier = np.average(np.sum((p - self.labels) ** 2, axis=1), weights=w)
        areas = [auc(y, special.logit(q), w) for y, q in zip(self.labels.T, p.T, strict=True)]
        ratios = (w @ p) / (w @ self.labels)
        far = np.argmax(np.abs(np.log(ratios)))
        error = mean_and_error(p[:, far] - ratios[far] * self.labels[:, far], w)[1]
        error /= np.average(self.labels[:, far], weights=w)
        ece = np.mean(self.field_ece(self.labels, p))
        loss = np.average(self.losses(logits), weights=w)
        return [loss, *change, brier, np.mean(areas), ece, ratios[far], error, (5.0, 5.0)]

    def field_ece(self, labels, p):
        """For each class, the mean over the rows of the errors of pairs of a site and a fold."""
        sums = [np.abs(np.bincount(self.cells, self.w * r)).sum() for r in (labels - p).T]
        return np.array(sums) / self.w.sum()

    def chance(self, logits):
        """As in the binary report, each the mean over the classes."""
        p, rng = special.softmax(logits, axis=1), np.random.default_rng(5)
        draws = np.array([self.field_ece(rng.random(p.shape) < p, p) for _ in range(400)])
        mean, deviation = draws.mean(), draws.std(axis=0).mean()
        errors = []
        for y, q in zip(self.labels.T, p.T, strict=True):
            parts = self.w * (y - q), self.w**2 * q * (1 - q)
            residual, variance = (np.bincount(self.cells, part) for part in parts)
            scale = np.sqrt(variance)
            folded = stats.foldnorm.mean(np.abs(residual) / scale, scale=scale)
            errors.append(np.sqrt(np.sum(residual**2 + variance - folded**2)) / self.w.sum())
        noise = 0.6 * deviation
        beyond = np.mean(self.field_ece(self.labels, p)) - mean
        return [(mean, noise), (deviation, 0.4 * deviation)], [(beyond, noise), np.mean(errors)]


@pytest.mark.parametrize("is_weighted", [False, True])
def test_every_number(is_weighted):
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(NUM_ROWS, NUM_CLASSES)) * 2 + [0.3, 0.0, -0.4]
    site, fold = rng.integers(0, 3, NUM_ROWS), np.arange(NUM_ROWS) % 3
    gumbel = -np.log(-np.log(rng.random(logits.shape)))
    labels = np.eye(NUM_CLASSES)[np.argmax(0.6 * logits + gumbel, axis=1)]
    w = rng.uniform(0.5, 2, NUM_ROWS) if is_weighted else np.ones(NUM_ROWS)
    crossed = np.empty(logits.shape)
    for number in range(3):
        new, seen = fold == number, fold != number
        crossed[new] = fitted_temperature(logits[seen], labels[seen], w[seen]) * logits[new]

    options = {"fields": ["site"], "methods": "temperature", "folds": fold, "from_logits": True}
    rows = logits, labels.argmax(axis=1), {"site": site}, w if is_weighted else None
    model = calibrate_scores(*rows, verbose=0, **options)
    judged = Judged(labels, site * 3 + fold, w)
    rows = [judged.row(eta, logits) for eta in (logits, crossed)]
    (floor, after), (_, before) = judged.chance(crossed), judged.chance(logits)
    check_numbers(str(model.report), [rows, [NUM_ROWS, 3], floor, before, after])
