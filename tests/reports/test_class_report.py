"""Every number of the report of `calibrate_scores` for classes, computed from the rows."""

import numpy as np
from scipy import optimize, special, stats

from keras_calibration import calibrate_scores
from printed import check_numbers
from row_references import auc, mean_and_error

NUM_ROWS, NUM_CLASSES = 900, 3


def fitted_temperature(logits, labels):
    """The inverse temperature with the lowest log loss."""

    def loss(scale):
        return -np.sum(labels * special.log_softmax(scale * logits, axis=1))

    return optimize.minimize_scalar(loss, (0.5, 1.0), tol=1e-12).x


class Judged:
    """The figures of class logits; rows of a class against the others where a figure is binary."""

    def __init__(self, labels, cells):
        self.labels, self.cells, self.ones = labels, cells, np.ones(len(labels))

    def losses(self, logits):
        return -np.sum(self.labels * special.log_softmax(logits, axis=1), axis=1)

    def row(self, logits, identity):
        p = special.softmax(logits, axis=1)
        change = mean_and_error(self.losses(logits) - self.losses(identity), self.ones)
        brier = np.mean(np.sum((p - self.labels) ** 2, axis=1))
        areas = [
            auc(y, special.logit(q), self.ones) for y, q in zip(self.labels.T, p.T, strict=True)
        ]
        ratios = p.sum(axis=0) / self.labels.sum(axis=0)
        far = np.argmax(np.abs(np.log(ratios)))
        error = mean_and_error(p[:, far] - ratios[far] * self.labels[:, far], self.ones)[1]
        error /= self.labels[:, far].mean()
        ece = np.mean(self.field_ece(self.labels, p))
        loss = self.losses(logits).mean()
        return [loss, *change, brier, np.mean(areas), ece, ratios[far], error, (5.0, 5.0)]

    def field_ece(self, labels, p):
        """For each class, the mean over the rows of the errors of pairs of a site and a fold."""
        sums = [np.abs(np.bincount(self.cells, r)).sum() for r in (labels - p).T]
        return np.array(sums) / len(p)

    def chance(self, logits):
        """As in the binary report, each the mean over the classes."""
        p, rng = special.softmax(logits, axis=1), np.random.default_rng(5)
        draws = np.array([self.field_ece(rng.random(p.shape) < p, p) for _ in range(400)])
        mean, deviation = draws.mean(), draws.std(axis=0).mean()
        errors = []
        for y, q in zip(self.labels.T, p.T, strict=True):
            residual, variance = (np.bincount(self.cells, part) for part in (y - q, q * (1 - q)))
            scale = np.sqrt(variance)
            folded = stats.foldnorm.mean(np.abs(residual) / scale, scale=scale)
            errors.append(np.sqrt(np.sum(residual**2 + variance - folded**2)) / len(p))
        noise = 0.6 * deviation
        beyond = np.mean(self.field_ece(self.labels, p)) - mean
        return [(mean, noise), (deviation, 0.4 * deviation)], [(beyond, noise), np.mean(errors)]


def test_every_number():
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(NUM_ROWS, NUM_CLASSES)) * 2 + [0.3, 0.0, -0.4]
    site, fold = rng.integers(0, 3, NUM_ROWS), np.arange(NUM_ROWS) % 3
    gumbel = -np.log(-np.log(rng.random(logits.shape)))
    labels = np.eye(NUM_CLASSES)[np.argmax(0.6 * logits + gumbel, axis=1)]
    crossed = np.empty(logits.shape)
    for number in range(3):
        new = fold == number
        crossed[new] = fitted_temperature(logits[~new], labels[~new]) * logits[new]

    options = {"fields": ["site"], "methods": "temperature", "folds": fold, "from_logits": True}
    model = calibrate_scores(logits, labels.argmax(axis=1), {"site": site}, verbose=0, **options)
    judged = Judged(labels, site * 3 + fold)
    rows = [judged.row(eta, logits) for eta in (logits, crossed)]
    (floor, after), (_, before) = judged.chance(crossed), judged.chance(logits)
    check_numbers(str(model.report), [rows, [NUM_ROWS, 3], floor, before, after])
