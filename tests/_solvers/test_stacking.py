"""Weights of cross-fitted logits: against a grid of all weights, on hostile rows, by chance."""

import itertools

import numpy as np
import pytest
from scipy.special import expit, log_softmax, softmax

from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.stacking import combined_weights, stacked_weights


def nats(weights_of_fits, logits, labels, row_weights, number):
    """`n · loss + 1 - v_0`, from the formula."""
    combined = sum(v * eta for v, eta in zip(weights_of_fits, logits, strict=True))
    if labels.ndim == 1:
        losses = np.logaddexp(0, combined) - labels * combined
    else:
        losses = -(labels * log_softmax(combined, axis=1)).sum(axis=1)
    return number * np.average(losses, weights=row_weights) + 1 - weights_of_fits[0]


def grid(number, steps):
    """All weights that are multiples of 1 / steps."""
    counts = itertools.product(range(steps + 1), repeat=number - 1)
    return [(*c, steps - sum(c)) / np.float64(steps) for c in counts if sum(c) <= steps]


def binary_rows(num_rows, num_fits, seed):
    """Logits of fits of different worth, and labels of a truth between them."""
    generator = np.random.default_rng(seed)
    truth = generator.normal(-1, 1, num_rows)
    noise = generator.normal(0, generator.uniform(0.1, 1.2, num_fits), (num_rows, num_fits)).T
    labels = (generator.random(num_rows) < expit(truth)).astype(float)
    return list(truth * generator.uniform(0.5, 1.5, (num_fits, 1)) + noise), labels


def class_rows(num_rows, num_fits, seed):
    generator = np.random.default_rng(seed)
    truth = generator.normal(0, 1.5, (num_rows, 4))
    labels = np.array([generator.multinomial(1, p) for p in softmax(truth, axis=1)], float)
    scales = generator.uniform(0.1, 1.5, num_fits)
    return [truth + s * generator.normal(size=truth.shape) for s in scales], labels


@pytest.mark.parametrize("make_rows", [binary_rows, class_rows])
@pytest.mark.parametrize(("num_fits", "steps"), [(2, 500), (3, 50)])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_no_weights_of_a_grid_are_better(make_rows, num_fits, steps, is_weighted):
    for seed in range(4):
        logits, labels = make_rows(200, num_fits, seed)
        weights = np.random.default_rng(seed).exponential(size=200) if is_weighted else None
        row_weights = np.ones(200) if weights is None else weights
        number = row_weights.sum() ** 2 / (row_weights**2).sum()
        shares = stacked_weights(logits, Rows(np.zeros(labels.shape), labels, weights))
        assert shares.min() >= 0
        assert shares.sum() == pytest.approx(1, abs=1e-12)
        tried = [nats(v, logits, labels, row_weights, number) for v in grid(num_fits, steps)]
        received = nats(shares, logits, labels, row_weights, number)
        # Weights below 0.01 are left out, which costs little.
        assert received < min(tried) + (1e-4 if shares.all() else 0.02)


def test_the_scale_of_the_weights_does_not_matter():
    logits, labels = binary_rows(500, 3, 0)
    weights = np.random.default_rng(0).exponential(size=500)
    expected = stacked_weights(logits, Rows(np.zeros(500), labels, weights))
    for scale in (1e-30, 1e30):
        received = stacked_weights(logits, Rows(np.zeros(500), labels, scale * weights))
        np.testing.assert_allclose(received, expected, atol=1e-6)


def hostile_rows():
    """Name of a hostile case → logits, labels and weights."""
    generator = np.random.default_rng(0)
    logits, labels = binary_rows(300, 3, 1)
    certain = np.where(generator.random(300) < 0.5, 700.0, -700.0)
    few = np.full(300, 1e-30)
    few[:3] = 1e30
    return {
        "one fit": (logits[:1], labels, None),
        "identical fits": ([logits[0]] * 4, labels, None),
        "certain and wrong": ([*logits, certain], labels, None),
        "the model certain and wrong": ([certain, *logits], labels, None),
        "certain and right": ([*logits, 700 * (2 * labels - 1)], labels, None),
        "all certain": ([certain, -certain, certain], labels, None),
        "weights of any size": (logits, labels, 10.0 ** generator.uniform(-30, 30, 300)),
        "weight on three rows": (logits, labels, few),
        "weights of 0": (logits, labels, (np.arange(300) % 2).astype(float)),
        "soft labels": (logits, generator.random(300), None),
        "one row": ([eta[:1] for eta in logits], labels[:1], None),
    }


@pytest.mark.parametrize("name", list(hostile_rows()))
def test_on_hostile_rows_too(name):
    logits, labels, weights = hostile_rows()[name]
    shares = stacked_weights(logits, Rows(np.zeros(labels.shape), labels, weights))
    assert np.isfinite(shares).all()
    assert shares.min() >= 0
    assert shares.sum() == pytest.approx(1)
    row_weights = np.ones(len(labels)) if weights is None else weights
    number = row_weights.sum() ** 2 / (row_weights**2).sum()
    received = nats(shares, logits, labels, row_weights, number)
    tried = [nats(v, logits, labels, row_weights, number) for v in grid(len(logits), 20)]
    assert received <= min(tried) * (1 + 1e-9) + 0.02  # weights below 1e-4 are left out
    for clusters in (None, np.arange(len(labels)) // 60):
        combined = combined_weights(logits, Rows(np.zeros(labels.shape), labels, weights), clusters)
        assert np.isfinite(combined).all()
        assert combined.min() >= 0
        assert combined.sum() == pytest.approx(1)


def test_certain_logits_of_classes():
    generator = np.random.default_rng(0)
    logits, labels = class_rows(200, 2, 0)
    certain = 1400.0 * np.eye(4)[generator.integers(0, 4, 200)] - 700
    shares = stacked_weights([*logits, certain], Rows(np.zeros((200, 4)), labels, None))
    assert shares[2] < 0.05
    shares = stacked_weights([certain, *logits], Rows(np.zeros((200, 4)), labels, None))
    assert shares[0] < 0.05


def coefficients(design, labels):
    """Those of a logistic regression, by Newton's method from the first column as it is."""
    beta = np.eye(design.shape[1])[0]
    for _ in range(8):
        p = expit(design @ beta)
        hessian = (design.T * (p * (1 - p))) @ design + 0.01 * np.eye(len(beta))
        beta += np.linalg.solve(hessian, design.T @ (labels - p))
    return beta


def right_model(num_rows, generator):
    """Logits, and the columns of two calibrations: a curve, and offsets of twelve sites."""
    logits, site = generator.normal(-1, 1, num_rows), generator.integers(0, 12, num_rows)
    curve = np.stack([logits, np.ones(num_rows)], axis=1)
    return logits, [curve, np.concatenate([logits[:, None], np.eye(12)[site]], axis=1)]


@pytest.mark.parametrize("num_rows", [300, 3000])
def test_where_the_model_is_right_it_stays_nearly_as_it_is(num_rows):
    kept, lost = [], []
    for seed in range(30):
        generator = np.random.default_rng(seed)
        logits, designs = right_model(num_rows, generator)
        labels = (generator.random(num_rows) < expit(logits)).astype(float)
        fits = [logits]
        for design in designs:
            fits.append(np.empty(num_rows))
            for fold in range(5):
                held_out = np.arange(num_rows) % 5 == fold
                beta = coefficients(design[~held_out], labels[~held_out])
                fits[-1][held_out] = design[held_out] @ beta
        weights = combined_weights(fits, Rows(logits, labels, None))
        kept.append(weights[0])
        new_logits, new_designs = right_model(10_000, generator)
        parts = [
            design @ coefficients(old, labels)
            for old, design in zip(designs, new_designs, strict=True)
        ]
        combined = np.tensordot(weights, [new_logits, *parts], axes=1)
        divergence = np.logaddexp(0, combined) - np.logaddexp(0, new_logits)
        divergence -= expit(new_logits) * (combined - new_logits)
        lost.append(num_rows * divergence.mean())
    # The offsets alone would lose about six nats.
    assert np.mean(lost) < 1
    assert np.mean(kept) > 0.85
    assert np.median(kept) == 1
