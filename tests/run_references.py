"""Figures of two pipelines from values of their runs, in plain NumPy and SciPy."""

import itertools

import numpy as np
from scipy import optimize, stats


class Looked:
    """The figures of a difference B − A, from values of runs; by another road than the package."""

    def __init__(self, a, b, paired, confidence=0.95):
        self.value = b.mean() - a.mean()
        if paired:
            test = stats.ttest_rel(b, a)
            self.error = np.sqrt(np.sum((b - a - self.value) ** 2) / (len(a) * (len(a) - 1)))
            self.variance = self.error**2 * len(a)
        else:
            test = stats.ttest_ind(b, a, equal_var=False)
            self.variance = np.var(a, ddof=1) + np.var(b, ddof=1)
            self.error = np.sqrt(np.var(a, ddof=1) / len(a) + np.var(b, ddof=1) / len(b))
        self.degrees, self.p, self.paired = test.df, test.pvalue, paired
        self.ends = [*test.confidence_interval(confidence)]

    def half(self, confidence):
        return stats.t.ppf((1 + confidence) / 2, self.degrees) * self.error

    def detectable(self, level):
        return self.half(level) + stats.t.ppf(0.8, self.degrees) * self.error

    def seeds(self, level, effect=None):
        """The first number of seeds whose smallest detectable effect is at most `effect`."""
        for num in itertools.count(2):
            degrees = (num - 1) * (1 if self.paired else 2)
            quantiles = stats.t.ppf((1 + level) / 2, degrees) + stats.t.ppf(0.8, degrees)
            if quantiles * np.sqrt(self.variance / num) <= abs(effect or self.value):
                return max(num, 6 if self.paired else 4)


def wins_of_independent_runs(a, b, level, sign=1):
    """The share of pairs that B wins, and Newcombe's interval: |share − t| = z √V(t)."""
    share = np.mean([(sign * y < sign * x) + 0.5 * (x == y) for x in a for y in b])
    z, mean_num = stats.t.ppf((1 + level) / 2, len(a) * len(b)), (len(a) + len(b)) / 2 - 1

    def excess(t):
        spread = t * (1 - t) * (1 + mean_num * ((1 - t) / (2 - t) + t / (1 + t)))
        return abs(share - t) - z * np.sqrt(spread / (len(a) * len(b)))

    # Shares of 0 and 1 are solutions too.
    low = optimize.brentq(excess, 0, min(share, 1 - 1e-9)) if share else 0.0
    high = optimize.brentq(excess, max(share, 1e-9), 1) if share < 1 else 1.0
    return [share, low, high]


def wins_of_shared_seeds(a, b, level, sign=1):
    """The share of seeds under which B wins, and its mid-p interval, from binomial masses."""
    wins, num = int(np.sum(sign * b < sign * a)), len(a)

    def mid_p(count, t):
        masses = stats.binom.pmf(np.arange(num + 1), num, t)
        return masses[count + 1 :].sum() + 0.5 * masses[count] - (1 - level) / 2

    low = optimize.brentq(lambda t: mid_p(wins, t), 0, 1) if wins else 0.0
    high = 1 - optimize.brentq(lambda t: mid_p(num - wins, t), 0, 1) if wins < num else 1.0
    return [wins / num, low, high]


def surviving_part(plain, calibrated, paired, level):
    """ΔC / ΔL with Fieller's ends, as roots of |ΔC − r ΔL| = t SE(C − r L) found by search."""
    changes = [pair[1].mean() - pair[0].mean() for pair in (calibrated, plain)]
    share = changes[0] / changes[1]
    looks = {}

    def look(r):
        return looks.setdefault(
            r, Looked(*(c - r * p for p, c in zip(plain, calibrated, strict=True)), paired)
        )

    t = stats.t.ppf((1 + level) / 2, look(share).degrees)

    def excess(r):
        return abs(changes[0] - r * changes[1]) - t * look(r).error

    ends = [share, share]
    for number, side in enumerate((-0.01, 0.01)):
        while excess(ends[number]) < 0:
            ends[number] = share + side
            side *= 2
    return [share, *(optimize.brentq(excess, share, end) for end in ends)]


def bias_part(plain, calibrated, level):
    """Cov(L, L − C) / Var(L) within pipelines, with a jackknife that leaves out shared seeds."""

    def ratio(keep):
        kept = [(p[keep], (p - c)[keep]) for p, c in zip(plain, calibrated, strict=True)]
        above = sum(np.sum((p - p.mean()) * (g - g.mean())) for p, g in kept)
        return above / sum(np.sum((p - p.mean()) ** 2) for p, _ in kept)

    everyone = np.arange(len(plain[0]))
    ratios = np.array([ratio(np.delete(everyone, seed)) for seed in everyone])
    error = np.sqrt((len(ratios) - 1) / len(ratios) * np.sum((ratios - ratios.mean()) ** 2))
    half = stats.t.ppf((1 + level) / 2, len(ratios) - 1) * error
    return [ratio(everyone) + side * half for side in (0, -1, 1)]
