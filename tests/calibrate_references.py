"""What `calibrate` does, in plain NumPy and SciPy: its fits, its choice, and its figures."""

import functools

import numpy as np
from scipy import optimize, special, stats

from keras_calibration.layers import ILPS, FieldBias
from row_references import auc, fitted_line, losses_of, mean_and_error, segment_figures


def fitted_field_bias(logits, y, w, columns, fields=("site",), **options):
    layer = FieldBias(
        dict.fromkeys(fields, 4), calibrator=ILPS(smoothness="auto", monotonic="strict"), **options
    )
    time = {"time": columns["time"]} if options else {}
    layer.fit(logits, y, {"site": columns["site"]}, w, **time)
    return lambda new, of: np.asarray(layer(new, {"site": of["site"]}), np.float64).reshape(-1)


FITS = {
    "bias": functools.partial(fitted_line, has_scale=False),
    "temperature": functools.partial(fitted_line, has_shift=False),
    "platt": fitted_line,
    "field_bias": fitted_field_bias,
    "ilps+level": functools.partial(fitted_field_bias, fields=(), follows_time=True),
}


class Judged:
    """The figures of cross-fitted logits; `of` holds those of each candidate, identity first."""

    def __init__(
        self, logits, y, site, fold, methods, w=None, groups=None, time=None, blocks=False
    ):
        self.y, self.site, self.fold, self.num_rows = y, site, fold, len(y)
        self.w = np.ones(len(y)) if w is None else w
        self.groups = [] if groups is None else [groups]
        self.num_folds, self.is_forward = fold.max() + 1, time is not None
        self.of = {"identity": logits} | {name: np.zeros(len(y)) for name in methods}
        columns = {"site": site} | ({} if time is None else {"time": time})
        shares = np.ones(len(y))
        for number in range(self.is_forward, self.num_folds):
            is_scored = fold == number
            fits = fold < number if self.is_forward else ~is_scored
            shares[is_scored] = fits.mean()
            seen, new = ({n: c[part] for n, c in columns.items()} for part in (fits, is_scored))
            for name in methods:
                at = FITS[name](logits[fits], y[fits], self.w[fits], seen)
                self.of[name][is_scored] = at(logits[is_scored], new)
        degrees = np.inf if groups is None else len(np.unique(groups)) - 1
        self.needed = stats.t.isf(0.01, degrees)
        self.has_blocks = blocks or self.is_forward
        if self.is_forward:  # what was scored; a fit to few rows counts less
            late = fold > 0
            self.of = {name: values[late] for name, values in self.of.items()}
            self.y, self.site, self.w = y[late], site[late], (self.w * shares)[late]
            self.fold = fold[late] - 1
        if self.has_blocks:
            self.groups = [self.fold]
            self.needed = stats.t.isf(0.05, self.fold.max())

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
        best = np.argmin(losses @ w)
        gain, error = mean_and_error(losses[0] - losses[best], w, *(g[rows] for g in self.groups))
        if posterior[0] > 0.5 or (self.has_blocks and gain <= error):
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
        columns = np.stack([*self.of.values()])
        if np.count_nonzero(weights) == 1:
            return 0.0
        # The total of the labels; of blocks of time, that of the parts.
        total = weights @ special.expit(columns) if self.is_forward else self.y
        mean = weights @ columns
        return optimize.brentq(lambda c: self.w @ (special.expit(mean + c) - total), -9, 9)

    def decide(self):
        """Chooses as the docstring of `calibrate` says; adds the blend to `of` if one is used."""
        columns, identity = np.stack([*self.of.values()]), self.of["identity"]
        folds = range(self.fold.max() + 1)
        by_fold = [self.weights_on(self.fold != number) for number in folds]
        fits = np.stack([weights @ columns + self.bias(weights) for weights in by_fold])
        masses = np.bincount(self.fold, self.w) / self.w.sum()
        mean = masses @ by_fold
        mean = np.where(mean < 0.02, 0, mean) / mean[mean >= 0.02].sum()
        of_fits = [self.w @ losses_of(self.y, eta) / self.w.sum() for eta in fits]
        choice_error = np.sqrt(self.fold.max() * np.var(of_fits))
        blend = fits[self.fold, np.arange(len(self.y))]
        slope, error = self.slope(blend)
        self.evidence = slope / max(np.hypot(error, choice_error), 1e-300)
        ratio = self.evidence / self.needed
        share = max(1 - ratio**-3, 0) if ratio > 0 else 0
        self.share = 1.0 if share > 0.98 or (share and self.has_blocks) else share
        blend = identity + self.share * (blend - identity)
        change, error = self.change(blend)
        self.chosen, self.weights = "identity", {"identity": 1.0}
        if mean[0] < 1 and self.share > 0 and change < -error:
            self.served_bias = self.share * self.bias(mean)
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
        lacking = max(self.needed - self.evidence, 0) / 2 * error
        self.smallest = max(self.needed / 2 * error, gain + lacking)

    def cells(self):
        """The field value and fold of each row, as one number."""
        return np.unique(self.site * self.num_folds + self.fold, return_inverse=True)[1]

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
            folds = [rows & (self.fold == number) for number in range(self.fold.max() + 1)]
            parts = np.array([figures(part) for part in folds])
            error = np.average(parts[:, 3], weights=[self.w[part].sum() for part in folds])
            together = stats.combine_pvalues(parts[:, 5], "fisher").pvalue
            deviations = max(stats.norm.isf(together / 8), 0)
            found.append([*name, *figures(rows)[:3], error, deviations, together])
        off = sorted((f for f in found if f[-1] <= 0.05 / len(found)), key=lambda f: -f[-2])
        return [*off[0][:-1], *[len(off) - 1] * (len(off) > 1)] if off else []
