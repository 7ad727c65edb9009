"""Every number that `multicalibration_error` prints, computed from the rows with NumPy."""

import itertools

import numpy as np
import pytest

from keras_calibration.scoring import multicalibration_error
from printed import check_numbers, numbers_of
from row_references import segment_figures


def rows_of():
    """Rows of four sites and a numeric column with missing values; one part is over-predicted."""
    rng = np.random.default_rng(3)
    site, age = rng.choice([1, 2, 3, 8], 4000, p=[0.4, 0.35, 0.24, 0.01]), rng.uniform(18, 80, 4000)
    age[::17] = np.nan
    p = rng.uniform(0.03, 0.4, 4000).round(2)
    factor = np.where((site == 2) & (age < 40), 0.6, 1.0)
    y, group = (rng.random(4000) < factor * p).astype(float), rng.integers(0, 900, 4000)
    return site, age, p, y, rng.integers(1, 4, 4000).astype(float), group


def correlation_of(p, y, group):
    """The mean correlation of two rows of a group; a group of n rows counts as n - 1 pairs."""
    residuals, products, number = (y - p) / np.sqrt(p * (1 - p)), 0.0, 0
    for g in np.unique(group):
        r = residuals[group == g]
        pairs = [a * b for a, b in itertools.permutations(r, 2)]
        if pairs:
            products += np.mean(pairs) * len(r)
            number += len(r)
    return max(products / number, 0.0)


def segments_of(site, age, n):
    """Numbers in its name → rows, for each segment: values, quartiles of the ages, and pairs."""
    present = np.repeat(age, n.astype(int))
    edges = tuple(np.quantile(present[~np.isnan(present)], [0.25, 0.5, 0.75]))
    sites = {(value,): site == value for value in (1, 2, 3)} | {(): site == 8}
    ages = {(a, b): (age > a) & (age <= b) for a, b in itertools.pairwise(edges)}
    ages |= {edges[:1]: age <= edges[0], edges[2:]: age > edges[2], (): np.isnan(age)}
    pairs = [(a + b, one & two) for a, one in sites.items() for b, two in ages.items()]
    return [((), np.full(len(age), True)), *sites.items(), *ages.items(), *pairs]


@pytest.mark.parametrize("kind", ["plain", "importance", "counts", "groups"])
def test_every_number(kind):
    site, age, p, y, weights, group = rows_of()
    w = weights if kind in ("importance", "counts") else np.ones(4000)
    n = weights if kind == "counts" else np.ones(4000)
    options = {"groups": {"groups": group}}.get(kind, {"sample_weight": w})
    options |= {"weights_are": "counts"} if kind == "counts" else {}
    result = multicalibration_error(y, p, {"site": site, "age": age}, **options)

    correlation = correlation_of(p, y, group) if kind == "groups" else 0.0
    segments, sigmas = [], []
    for name, rows in segments_of(site, age, n):
        if n[rows].sum() >= 100 and np.sum((n * np.minimum(p, 1 - p))[rows]) >= 10:
            of_group = (group[rows], correlation) if kind == "groups" else ()
            figures, sigma = segment_figures(*(column[rows] for column in (p, y, w, n)), *of_group)
            segments.append([*name, *figures])
            sigmas.append(sigma)
    all_rows = segments[0]
    segments.sort(key=lambda row: -row[-2])
    shown = segments[:10] + [all_rows] * (all_rows not in segments[:10])
    error, rate = segments[0][-2] * sigmas[0], all_rows[-4]
    head = [error, error / min(rate, 1 - rate)]
    head += [min(1, len(segments) * min(row[-1] for row in segments)), len(segments)]
    check_numbers(str(result), [head, 5 * sigmas[0], shown])
    worst = result.segments[0]
    assert numbers_of(str(worst))[-1] == f"{segments[0][-2]:.1f}"
