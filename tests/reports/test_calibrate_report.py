"""Every number that `print(model.report)` of `calibrate_scores` shows, computed from the rows.

The candidates are fitted here to the other folds with SciPy, or by the public `fit` of a layer.
"""

import functools

import numpy as np
import pytest
from scipy import optimize, special, stats

from keras_calibration import calibrate_scores
from keras_calibration.layers import ILPS, FieldBias
from printed import check_numbers
from row_references import auc, mean_and_error, segment_figures


def losses_of(y, logits):
    return np.logaddexp(0, logits) - y * logits


def fitted_line(logits, y, w, _, has_scale=True, has_shift=True):
    """The line of maximal likelihood."""

    def loss(v):
        eta = (v[0] if has_scale else 1.0) * logits + (v[1] if has_shift else 0.0)
        slope = w * (special.expit(eta) - y)
        gradient = [has_scale * slope @ logits, has_shift * slope.sum()]
        return w @ losses_of(y, eta) / w.sum(), np.array(gradient) / w.sum()

    scale, shift = optimize.minimize(loss, [1.0, 0.0], jac=True, options={"gtol": 1e-10}).x
    return lambda new, _: scale * new + shift


def fitted_field_bias(logits, y, w, site):
    layer = FieldBias({"site": 4}, calibrator=ILPS(smoothness="auto", monotonic="strict"))
    layer.fit(logits, y, {"site": site}, w)
    return lambda new, of_site: np.asarray(layer(new, {"site": of_site}), np.float64).reshape(-1)


FITS = {
    "bias": functools.partial(fitted_line, has_scale=False),
    "temperature": functools.partial(fitted_line, has_shift=False),
    "platt": fitted_line,
    "field_bias": fitted_field_bias,
}


class Judged:
    """The figures of cross-fitted logits; `of` holds those of each candidate, identity first."""

    def __init__(self, logits, y, site, fold, methods, w=None, groups=None):
        self.y, self.site, self.fold = y, site, fold
        self.w = np.ones(len(y)) if w is None else w
        self.groups = [] if groups is None else [groups]
        self.num_folds = fold.max() + 1
        num_free = np.inf if groups is None else len(np.unique(groups)) - 1
        self.needed = stats.t.isf(0.01, num_free)
        self.of = {"identity": logits}
        for name in methods:
            self.of[name] = np.empty(len(y))
            for number in range(self.num_folds):
                fit, seen = fold == number, fold != number
                line = FITS[name](logits[seen], y[seen], self.w[seen], site[seen])
                self.of[name][fit] = line(logits[fit], site[fit])

    def mean(self, values):
        return mean_and_error(values, self.w, *self.groups)

    def change(self, logits):
        return self.mean(losses_of(self.y, logits) - losses_of(self.y, self.of["identity"]))

    def slope(self, logits):
        identity = self.of["identity"]
        return self.mean((self.y - special.expit(identity)) * (logits - identity))

    def weights_on(self, rows):
        """The weights of the candidates by some rows: half by odds, half as they predict best."""
        columns, y, w = np.stack([*self.of.values()])[:, rows], self.y[rows], self.w[rows]
        scale = w.sum() / np.sum(w**2)
        losses = losses_of(y, columns)
        gains = scale * w * (losses[0] - losses)
        if self.groups:
            group = self.groups[0][rows]
            gains = np.stack([gains[:, group == g].sum(axis=1) for g in np.unique(group)], axis=1)
        draws = np.random.default_rng(0).multivariate_normal(
            gains.sum(axis=1), gains.shape[1] * np.cov(gains), 1000, method="svd"
        )
        draws[:, 0] += 2
        posterior = special.softmax(draws, axis=1).mean(axis=0)
        if posterior[0] > 0.5:
            return np.eye(len(posterior))[0]

        def cost(v):
            return scale * w @ losses_of(y, v @ columns) + 1 - v[0]

        starts = [np.full(len(columns), 1 / len(columns)), *np.eye(len(columns))]
        options = {"bounds": [(0, 1)] * len(columns), "options": {"ftol": 1e-13, "maxiter": 500}}
        total = {"type": "eq", "fun": lambda v: v.sum() - 1}
        found = [optimize.minimize(cost, v, constraints=total, **options).x for v in starts]
        best = min([*found, *np.eye(len(columns))], key=cost)
        weights = (posterior + np.where(best < 1e-4, 0, best)) / 2
        return np.where(weights < 0.02, 0, weights) / weights[weights >= 0.02].sum()

    def bias(self, weights):
        mean = weights @ np.stack([*self.of.values()])
        if np.count_nonzero(weights) == 1:
            return 0.0
        return optimize.brentq(lambda c: self.w @ (special.expit(mean + c) - self.y), -9, 9)

    def decide(self):
        """Chooses as the docstring of `calibrate` says; adds the blend to `of` if one is used."""
        columns, identity = np.stack([*self.of.values()]), self.of["identity"]
        by_fold = [self.weights_on(self.fold != number) for number in range(self.num_folds)]
        fits = np.stack([weights @ columns + self.bias(weights) for weights in by_fold])
        masses = np.bincount(self.fold, self.w) / self.w.sum()
        mean = masses @ by_fold
        mean = np.where(mean < 0.02, 0, mean) / mean[mean >= 0.02].sum()
        of_fits = [self.w @ losses_of(self.y, eta) / self.w.sum() for eta in fits]
        choice_error = np.sqrt((self.num_folds - 1) * np.var(of_fits))
        blend = fits[self.fold, np.arange(len(self.y))]
        slope, error = self.slope(blend)
        self.evidence = slope / max(np.hypot(error, choice_error), 1e-300)
        ratio = self.evidence / self.needed
        share = max(1 - ratio**-3, 0) if ratio > 0 else 0
        self.share = 1.0 if share > 0.98 else share
        blend = identity + self.share * (blend - identity)
        change, error = self.change(blend)
        self.chosen, self.weights = "identity", {"identity": 1.0}
        if mean[0] < 1 and self.share > 0 and change < -error:
            mean = self.share * mean + (1 - self.share) * np.eye(len(mean))[0]
            self.weights = {n: part for n, part in zip(self.of, mean, strict=True) if part}
            self.chosen = "blend" if len(self.weights) > 1 else next(iter(self.weights))
            self.of[self.chosen] = blend
            self.expected = change + self.share * (1 - self.share) * slope
            return
        changes = {name: self.change(eta) for name, eta in self.of.items() if name != "identity"}
        best = min(changes, key=lambda name: changes[name][0])
        slope, error = self.slope(self.of[best])
        self.evidence = self.evidence if mean[0] < 1 else slope / error
        gain, error = max(-changes[best][0], 0), changes[best][1]
        self.smallest = max(
            self.needed / 2 * error, gain * max(self.needed / max(self.evidence, 1e-9), 1)
        )

    def cells(self):
        """The field value and fold of each row, as one number."""
        return self.site * self.num_folds + self.fold

    def field_ece(self, y, p):
        return np.abs(np.bincount(self.cells(), self.w * (y - p))).sum() / self.w.sum()

    def row(self, logits):
        """The numbers of a row of the table; the seconds may be any."""
        p, w = special.expit(logits), self.w
        ratio = w @ p / (w @ self.y)
        error = self.mean(p - ratio * self.y)[1] / (w @ self.y / w.sum())
        loss, brier = (
            w @ values / w.sum() for values in (losses_of(self.y, logits), (self.y - p) ** 2)
        )
        area, ece = auc(self.y, logits, w), self.field_ece(self.y, p)
        return [loss, *self.change(logits), brier, area, ece, ratio, error, (5.0, 5.0)]

    def chance(self, logits):
        """F-ECE by chance: mean and deviation by simulation; and beyond it, with its error."""
        p, rng = special.expit(logits), np.random.default_rng(5)
        draws = [self.field_ece(rng.random(len(p)) < p, p) for _ in range(400)]
        mean, deviation = np.mean(draws), np.std(draws)
        residual, variance = (
            np.bincount(self.cells(), part)
            for part in (self.w * (self.y - p), self.w**2 * p * (1 - p))
        )
        # The mean of the absolute value of a normal variable.
        scale = np.sqrt(variance)
        folded = stats.foldnorm.mean(np.abs(residual) / scale, scale=scale)
        error = np.sqrt(np.sum(residual**2 + variance - folded**2)) / self.w.sum()
        # The package draws a hundred times.
        beyond = self.field_ece(self.y, p) - mean, 0.6 * deviation
        return [(mean, 0.6 * deviation), (deviation, 0.4 * deviation)], [beyond, error]

    def still_off(self):
        """The segment that is farthest off beyond chance, and how many more there are."""
        p, one, found = special.expit(self.of[self.chosen]), np.ones(len(self.y)), []

        def figures(rows):
            return segment_figures(*(column[rows] for column in (p, self.y, self.w, one)))[0]

        for name in [[], *([s] for s in np.unique(self.site))]:
            rows = np.isin(self.site, name) if name else np.full(len(p), True)
            if rows.sum() < 100 or np.minimum(p, 1 - p)[rows].sum() < 10:
                continue
            folds = [rows & (self.fold == number) for number in range(self.num_folds)]
            parts = np.array([figures(part) for part in folds])
            error = np.average(parts[:, 3], weights=[self.w[part].sum() for part in folds])
            together = stats.combine_pvalues(parts[:, 5], "fisher").pvalue
            deviations = max(stats.norm.isf(together / 8), 0)
            found.append([*name, *figures(rows)[:3], error, deviations, together])
        off = sorted((f for f in found if f[-1] <= 0.05 / len(found)), key=lambda f: -f[-2])
        return [*off[0][:-1], *[len(off) - 1] * (len(off) > 1)] if off else []


def numbers_of_report(judged, forced=None):
    """All numbers, from the table to the last note."""
    rows = [judged.row(logits) for logits in judged.of.values()]
    weights = sorted(judged.weights.values(), reverse=True)
    notes = [len(judged.y), judged.num_folds]
    notes += weights if len(weights) > 1 else []
    if forced is None:
        notes += [judged.evidence, judged.needed]
        if judged.chosen == "identity":
            notes += [notes[0], judged.smallest]
        else:
            notes += [*[judged.share] * int(judged.share < 1), judged.expected]
    before = judged.chance(judged.of["identity"])[1]
    floor, after = judged.chance(judged.of[judged.chosen])
    return [rows, notes, floor, before, after, judged.still_off()]


def rows_of(num, scale, shift, spread, seed=0):
    rng = np.random.default_rng(seed)
    logits, site = rng.normal(-1.0, 1.2, num), rng.choice(4, num, p=[0.4, 0.3, 0.2, 0.1])
    true = scale * logits + shift + spread * np.array([0.5, -0.4, 0.1, -1.0])[site]
    labels = (rng.random(num) < special.expit(true)).astype(float)
    return logits, labels, site, rng.integers(0, 3, num)


CURVES = ["bias", "temperature", "platt"]


@pytest.mark.parametrize(
    ("world", "methods", "kind"),
    [
        ((3000, 0.7, 0.4, 0.0), CURVES, "plain"),
        ((1500, 0.9, 0.1, 0.0), CURVES, "plain"),  # a share of the change
        ((800, 1.0, 0.0, 0.0), ["bias", "platt"], "plain"),  # no change
        ((3000, 0.9, 0.1, 0.8), ["bias", "platt"], "importance"),  # segments still off
        ((1500, 0.9, 0.1, 0.8), CURVES, "counts"),
        ((2400, 0.8, 0.2, 0.1), CURVES, "groups"),
        ((2000, 0.9, 0.2, 0.7), ["platt", "field_bias"], "plain"),
        ((1000, 0.9, 0.3, 0.0), ["platt"], "forced"),
    ],
)
def test_every_number(world, methods, kind):
    logits, y, site, fold = rows_of(*world)
    options = {"fields": ["site"], "methods": methods, "folds": fold, "from_logits": True}
    judging, times = {}, np.ones(len(y), int)
    if kind == "counts":  # of coarse columns, in which chance makes rows equal
        logits, times = logits.round(), np.random.default_rng(1).integers(1, 4, len(y))
        options |= {"sample_weight": times, "weights_are": kind}
    if kind == "importance":
        judging = {"w": np.random.default_rng(1).uniform(0.5, 2.0, len(y))}
        options |= {"sample_weight": judging["w"]}
    if kind == "groups":
        groups = np.random.default_rng(1).integers(0, 60, len(y))
        fold = groups % 3
        judging = {"groups": groups}
        options |= {"groups": groups, "folds": fold}
    if kind == "forced":
        options["methods"] = methods[0]
    model = calibrate_scores(logits, y, {"site": site}, verbose=0, **options)
    judged = Judged(*(np.repeat(c, times) for c in (logits, y, site, fold)), methods, **judging)
    if kind == "forced":
        judged.chosen, judged.weights = methods[0], {methods[0]: 1.0}
    else:
        judged.decide()
    print(model.report)
    check_numbers(str(model.report), numbers_of_report(judged, kind == "forced" or None))
