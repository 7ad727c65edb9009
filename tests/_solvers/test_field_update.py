"""The update of a fit: its optimum, its posterior and its forgetting beside dense references."""

import numpy as np
import pytest
from scipy import optimize
from scipy.special import expit

from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.field_offsets import OffsetRows
from keras_calibration._solvers.field_update import Belief, Known, update_field_offsets
from keras_calibration._solvers.level import LevelEnd, next_level_column
from keras_calibration._solvers.numeric_column import numeric_column

KNOTS = np.array([-1.0, 0.0, 0.5, 2.0])


def belief(generator, size):
    return Belief(
        generator.normal(0, 0.5, size),
        1 + generator.exponential(20.0, size),
        generator.uniform(-0.3, 0.9, (size, 2)),
    )


def make_known(generator, sizes, with_curve, with_level):
    root = generator.normal(0, 0.3, (5, 5)) if with_curve else np.zeros((0, 0))
    square = generator.normal(size=(2, 2))
    return Known(
        line=np.array([0.8, -0.3]),
        information=30 * (square @ square.T + 0.1 * np.eye(2)),
        spreads=np.linspace(0.3, 0.7, len(sizes)),
        offsets=[belief(generator, size) for size in sizes],
        curves=belief(generator, len(root)),
        root=root,
        level=(0.2, np.array([0.1, 0.4])) if with_level else (0.0, np.zeros(2)),
        ends=np.zeros(0, int),
    )


class Dense:
    """The same model with all parameters in one vector: line, all coefficients, level."""

    def __init__(self, known, logits, ids, numbers, level):
        self.known = known
        num_rows, blocks = len(logits), []
        for spread, each, own in zip(known.spreads, known.offsets, ids, strict=True):
            blocks.append(spread * np.eye(len(each.means) + 1)[own][:, :-1])
        if len(known.root):
            hats = [np.interp(numbers, KNOTS, each) for each in np.eye(len(KNOTS))]
            missing = np.isnan(numbers)
            hats = np.where(missing, 0.0, np.nan_to_num(hats))
            blocks.append(np.vstack([hats, missing]).T @ known.root)
        self.beliefs = [*known.offsets, *([known.curves] if len(known.root) else [])]
        self.responses = np.vstack([np.zeros((0, 2)), *(each.responses for each in self.beliefs)])
        self.precisions = np.concatenate([[], *(each.precisions for each in self.beliefs)])
        self.means = np.concatenate([known.line, *(each.means for each in self.beliefs)])
        line = np.c_[logits, np.ones(num_rows)]
        self.design = np.hstack([line, *blocks])
        self.num_known = self.design.shape[1]
        if level is not None:
            # What the level responds to the line is a part of the line's own effect.
            self.design[:, :2] -= known.level[1]
            at_rows = [level.column.at_rows(each) for each in level.column.basis.T]
            self.design = np.hstack([self.design, np.stack(at_rows, axis=1)])
        self.fixed = np.hstack([line, *blocks]) @ self.means

    def precision(self):
        """Of all parameters: the line, and the coefficients less what responds to it."""
        size = self.design.shape[1]
        matrix = np.eye(size)
        known = slice(2, self.num_known)
        matrix[known, :2] = self.responses
        diagonal = np.ones(size)
        diagonal[known] = self.precisions
        found = matrix.T @ (diagonal[:, None] * matrix)
        found[:2, :2] += self.known.information - np.eye(2)
        return found

    def fit(self, labels, weights):
        """The change of all parameters, and the inverse Hessian there."""
        prior = self.precision()

        def objective(change):
            eta = self.fixed + self.design @ change
            loss = weights @ (np.logaddexp(0, eta) - labels * eta)
            gradient = self.design.T @ (weights * (expit(eta) - labels)) + prior @ change
            return loss + 0.5 * change @ prior @ change, gradient

        start = np.zeros(len(prior))
        found = optimize.minimize(
            objective, start, jac=True, method="BFGS", options={"gtol": 1e-8, "maxiter": 5000}
        ).x
        one = expit(self.fixed + self.design @ found)
        hessian = (self.design.T * (weights * one * (1 - one))) @ self.design + prior
        return found, np.linalg.inv(hessian)


def world(seed, sizes, with_curve, with_level, num_rows=300):
    generator = np.random.default_rng(seed)
    known = make_known(generator, sizes, with_curve, with_level)
    logits = generator.normal(-1, 1.5, num_rows)
    ids = [generator.integers(0, size + 1, num_rows) for size in sizes]
    numbers = np.where(generator.random(num_rows) < 0.1, np.nan, generator.normal(size=num_rows))
    weights = generator.integers(1, 4, num_rows).astype(float)
    labels = (generator.random(num_rows) < expit(logits + 0.7)).astype(float)
    level = None
    if with_level:
        times = 7.5 + generator.integers(0, 4, num_rows)
        level = next_level_column(LevelEnd(7.0, 1.0, 0.3, 0.25), known.level[0], times, weights)
        assert len(level.knots) == 4
    rows = Rows(logits, labels, weights)
    return rows, ids, known, numbers, level


WORLDS = {
    "one field": ([6], False, False),
    "two fields": ([6, 3], False, False),
    "curve": ([], True, False),
    "field and curve": ([4], True, False),
    "level": ([], False, True),
    "field and level": ([6], False, True),
    "all": ([6, 3], True, True),
}


@pytest.mark.parametrize("name", WORLDS)
def test_an_update_is_the_optimum_of_its_penalised_loss(name):
    rows, ids, known, numbers, level = world(0, *WORLDS[name])
    columns = [numeric_column(numbers, KNOTS)] if len(known.root) else []
    rows = OffsetRows(rows.logits, rows.labels, rows.weights, ids, columns)
    fit = update_field_offsets(rows, known, level)
    dense = Dense(known, rows.logits, ids, numbers, level)
    change, covariance = dense.fit(rows.labels, rows.row_weights)
    expected = dense.fixed + dense.design @ change
    found = fit.logits(rows)
    if level is not None:
        found = found + level.column.at_rows(fit.curves[-1])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose([fit.slope, fit.bias], known.line + change[:2], atol=1e-5)
    assert fit.converged
    # The variance of each row's logit is exact for one effect. With more, the variance of an offset
    # is taken given the other effects.
    of_rows = np.einsum("ni,ij,nj->n", dense.design, covariance, dense.design)
    all_columns = [*columns, *([] if level is None else [level.column])]
    variances = variance_of_rows(fit, rows.logits, ids, all_columns)
    is_exact = len(ids) + len(all_columns) == 1 or not ids
    np.testing.assert_allclose(variances, of_rows, rtol=2e-3 if is_exact else 0.3)


def variance_of_rows(fit, logits, ids, columns):
    """By the formula of `FieldPosterior`, without the level of now where it is no part of η."""
    found = fit.posterior
    across = np.stack([logits, np.ones_like(logits)], axis=1)
    total = np.zeros(len(logits))
    for number, own in enumerate(ids):
        variances = np.append(found.variances[number], 0.0)
        total = total + variances[own]
        across = across - np.vstack([found.responses[number], np.zeros(2)])[own]
    factors = 0.0
    for number, column in enumerate(columns):
        total = total + column.at_rows(found.curve_variances[number])
        responses, factor = found.curve_responses[number], found.curve_factors[number]
        across = across - np.stack([column.at_rows(each) for each in responses.T], axis=1)
        factors = factors + np.stack([column.at_rows(each) for each in factor.T], axis=1)
    total = total + np.sum(np.square(factors), axis=1) if len(columns) else total
    return total + np.sum((across @ found.factor) ** 2, axis=1)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("name", ["one field", "field and curve", "two fields"])
def test_forgetting_multiplies_the_log_likelihood(name, share):
    rows, ids, known, numbers, _ = world(1, *WORLDS[name])
    dense = Dense(known, rows.logits, ids, numbers, None)
    prior = np.eye(len(dense.means))
    prior[:2, :2] = 0.0
    expected = (1 - share) * (dense.precision() - prior) + prior
    after = known.after_forgetting(share)
    other = Dense(after, rows.logits, ids, numbers, None)
    np.testing.assert_allclose(other.precision(), expected, rtol=1e-9, atol=1e-9)
    # The old optimum is that of likelihood and prior together.
    right = -share * prior @ dense.means
    change = np.linalg.lstsq(expected, right, rcond=None)[0]
    np.testing.assert_allclose(other.means, dense.means + change, rtol=1e-7, atol=1e-9)


def test_what_is_not_known_of_the_level_grows_as_it_is_forgotten():
    known = make_known(np.random.default_rng(0), [3], False, True)
    assert known.after_forgetting(0.75).level[0] == pytest.approx(2 * known.level[0])
    assert known.after_forgetting(1.0).level[0] == 0.0
    assert np.all(known.after_forgetting(1.0).information == 0.0)


def test_a_level_goes_on_from_its_end():
    end = LevelEnd(7.0, 1.0, 0.3, 0.25)
    one = next_level_column(end, 0.2, np.array([8.0, 8.5, 8.9]), None)
    # Two days later: the variances of the end, of the walk, and, on that day alone, of a deviation.
    np.testing.assert_allclose(one.knots, [8.9])
    covariance = one.column.basis @ one.column.basis.T
    lasting = 0.2**2 + 0.3**2 * 1.9
    np.testing.assert_allclose(covariance, [[lasting + 0.25**2, lasting], [lasting, lasting]])
    three = next_level_column(end, 0.0, np.array([7.0, 8.0, 9.0]), None)
    walk = three.column.basis[:, 1:4]
    np.testing.assert_allclose((walk @ walk.T)[-1], [0, 0.09, 0.18, 0.18])


def test_a_slope_stays_above_zero():
    rows, ids, known, _, _ = world(2, *WORLDS["one field"])
    rows = OffsetRows(rows.logits, (rows.logits < -1.0).astype(float), rows.weights, ids)
    fit = update_field_offsets(rows, known.after_forgetting(1.0))
    assert 0 < fit.slope < 1e-2


def test_another_curve_makes_the_slope_uncertain():
    known = make_known(np.random.default_rng(0), [3], False, False)
    before, after = (
        np.linalg.inv(each.information) for each in (known, known.with_another_curve(0.1))
    )
    assert after[0, 0] == pytest.approx(before[0, 0] + 0.1 * 0.8**2)
    # At the centre of the rows, the line is known as well as before.
    centre = np.array([known.information[0, 1] / known.information[1, 1], 1.0])
    assert centre @ after @ centre == pytest.approx(centre @ before @ centre)
    np.testing.assert_array_equal(known.with_another_curve(0.0).information, known.information)
