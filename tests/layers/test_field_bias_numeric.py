"""Numeric columns of FieldBias, against the optimum that SciPy finds in float64."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit as sigmoid

from backends import examples
from keras_calibration._solvers.field_offsets import OffsetRows, fit_field_offsets
from keras_calibration._solvers.field_spreads import half_cauchy
from keras_calibration._solvers.numeric_column import numeric_column
from keras_calibration.layers import FieldBias

NAN = np.nan


def made_rows(num_rows=4000, seed=0):
    """Logits, labels, a field, and two correlated numbers, the first of which may be missing."""
    generator = np.random.default_rng(seed)
    logits, x = generator.normal(-1, 1, num_rows), generator.normal(0, 1, num_rows)
    z = x + 0.5 * generator.normal(size=num_rows)
    site = generator.integers(0, 6, num_rows)
    x[generator.random(num_rows) < 0.1] = NAN
    effect = np.where(np.isnan(x), 0.7, np.sin(2 * np.nan_to_num(x))) + 0.1 * site
    labels = (generator.random(num_rows) < sigmoid(0.8 * logits + effect)).astype(float)
    return logits, labels, {"site": site, "x": x, "z": z}


def hats(values, knots):
    """Dense design of a column: hat functions, and an indicator of missing values."""
    missing = np.isnan(values)
    columns = [np.where(missing, 0.0, np.interp(values, knots, one)) for one in np.eye(len(knots))]
    return np.column_stack([*columns, missing])


def value_of(curve, values):
    """A curve of `get_curve` at values."""
    knots, at_knots, missing = curve
    return np.where(np.isnan(values), missing, np.interp(values, knots, at_knots))


def curve_precision(knots, line, walk):
    """Precision of a line plus a random walk over the knots, of these deviations and mean 0."""
    gaps = np.diff(knots)
    variances = 1 + gaps / gaps.mean()
    differences = np.diff(np.eye(len(knots)), axis=0)
    covariance = np.linalg.pinv(differences.T @ np.diag(1 / variances) @ differences)
    straight = np.append(0.0, np.cumsum(variances))
    straight = (straight - straight.mean()) / straight.std()
    covariance *= walk**2 / np.mean(np.diag(covariance))
    return np.linalg.pinv(covariance + line**2 * np.outer(straight, straight))


def optimum(logits, labels, weights, ids, knots, designs, deviations):
    """The penalised optimum, from dense arrays: its value, its parameters, and the objective."""
    of_fields, of_columns = np.split(deviations, [len(ids)])
    line, walks = of_columns[:1], of_columns[1:]
    precisions = [curve_precision(k, *line, walk) for k, walk in zip(knots, walks, strict=True)]
    onehots = [np.eye(numbers.max() + 1)[numbers] for numbers in ids]
    sizes = [2, *(design.shape[1] for design in (*onehots, *designs))]

    def parts(parameters):
        line, *rest = np.split(parameters, np.cumsum(sizes[:-1]))
        # The level of a curve is the bias.
        centred = [np.append(v[:-1] - v[:-1].mean(), v[-1]) for v in rest[len(ids) :]]
        return line, rest[: len(ids)], centred

    def objective(parameters):
        line, offsets, curves = parts(parameters)
        fitted = line[0] * logits + line[1]
        penalty = 1e-3 * (line[0] - 1) ** 2
        for onehot, values, deviation in zip(onehots, offsets, of_fields, strict=True):
            fitted = fitted + onehot @ values
            penalty += values @ values / deviation**2
        for design, curve, precision, walk in zip(designs, curves, precisions, walks, strict=True):
            fitted = fitted + design @ curve
            penalty += curve[:-1] @ precision @ curve[:-1] + curve[-1] ** 2 / walk**2
        loss = weights @ (np.logaddexp(0, fitted) - labels * fitted)
        return loss + 0.5 * penalty

    best = minimize(
        objective, np.zeros(sum(sizes)), method="BFGS", options={"gtol": 1e-5, "maxiter": 2000}
    )
    return best.fun, parts(best.x), objective


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_columns", [0, 2])
def test_finds_the_optimum(num_columns, weighted):
    logits, labels, features = made_rows(1500)
    site, x, z = features.values()
    ids = [site, np.arange(1500) % 5]
    weights = np.random.default_rng(1).choice([0.0, 0.5, 3.0], 1500) if weighted else None
    knots = [np.quantile(x[~np.isnan(x)], np.linspace(0, 1, 6)), np.linspace(-2, 2, 4)]
    pairs = list(zip((x, z), knots, strict=True))[:num_columns]
    columns = [numeric_column(column, k) for column, k in pairs]
    rows = OffsetRows(logits, labels, weights, ids=ids, columns=columns)
    fit = fit_field_offsets(rows, [6, 5], half_cauchy(1.0))
    assert fit.converged
    designs = [hats(column, k) for column, k in pairs]
    weights = np.ones(1500) if weights is None else weights
    lowest, (line, offsets, curves), objective = optimum(
        logits, labels, weights, ids, knots[:num_columns], designs, fit.spreads.deviations
    )
    fitted = np.concatenate([[fit.slope, fit.bias], *fit.offsets, *fit.curves])
    assert objective(fitted) <= lowest + 1e-6
    np.testing.assert_allclose([fit.slope, fit.bias], line, atol=2e-4)
    np.testing.assert_allclose(np.concatenate(fit.offsets), np.concatenate(offsets), atol=2e-4)
    curve = fit.slope * logits + fit.bias
    curve += sum(values[numbers] for values, numbers in zip(fit.offsets, ids, strict=True))
    curve += sum(design @ values for design, values in zip(designs, fit.curves, strict=True))
    loss = np.average(np.logaddexp(0, curve) - labels * curve, weights=weights)
    np.testing.assert_allclose(fit.log_loss, loss, rtol=1e-9)
    for received, expected in zip(fit.curves, curves, strict=True):
        np.testing.assert_allclose(received, expected, atol=5e-4)
        assert abs(received[:-1].mean()) < 1e-9


def test_spreads_are_modes_of_the_marginal_likelihood():
    logits, _, features = made_rows(3000)
    x, knots = features["z"], np.r_[np.linspace(-2, 1, 8), 2.5]
    chances = sigmoid(0.8 * logits + 0.6 * x + np.sin(2 * x))
    labels = (np.random.default_rng(1).random(3000) < chances).astype(float)
    columns = [numeric_column(x, knots)]
    rows = OffsetRows(logits, labels, None, columns=columns)
    fit = fit_field_offsets(rows, [], half_cauchy(1.0))
    design = np.column_stack([logits, np.ones(3000), hats(x, knots)[:, :-1]])

    def log_marginal(line, walk):
        """By a Laplace approximation, and the prior."""
        penalty = np.zeros((11, 11))
        penalty[2:, 2:] = curve_precision(knots, line, walk) + 10.0  # the mean is 0
        penalty[0, 0] = 1e-3
        parameters = np.zeros(11)
        for _ in range(30):
            p = sigmoid(design @ parameters)
            hessian = (design.T * (p * (1 - p))) @ design + penalty
            gradient = design.T @ (p - labels) + penalty @ (parameters - np.eye(11)[0])
            parameters = parameters - np.linalg.solve(hessian, gradient)
        curve, away = design @ parameters, parameters - np.eye(11)[0]
        loss = np.sum(np.logaddexp(0, curve) - labels * curve) + 0.5 * away @ penalty @ away
        volume = np.linalg.slogdet(hessian)[1] - np.linalg.slogdet(penalty[2:, 2:])[1]
        return -loss - 0.5 * volume - np.log1p(line**2) - np.log1p(walk**2)

    line, walk = fit.spreads.deviations
    assert fit.deviations == pytest.approx([np.hypot(line, walk)])
    grid = np.geomspace(1e-3, 10, 60)
    highest = max(log_marginal(*pair) for s in grid for pair in ((s, walk), (line, s)))
    assert log_marginal(line, walk) > highest - 0.1


def test_a_column_that_is_the_logit_does_not_stop_the_fit():
    """The curve can be the line; a mix of Hessians of two steps would then not be positive."""
    _, _, features = made_rows(3000)
    generator = np.random.default_rng(0)
    logits = generator.normal(-1, 1.5, 3000)
    labels = (generator.random(3000) < sigmoid(0.5 * logits + np.sin(logits))).astype(float)
    features |= {"x": logits, "z": sigmoid(logits)}
    alone, both = FieldBias({"site": 6}, None, ["x"]), FieldBias({"site": 6}, None, ["x", "z"])
    lower = alone.fit(logits, labels, features).log_loss_in_sample
    assert both.fit(logits, labels, features).log_loss_in_sample == pytest.approx(lower, abs=1e-3)


def test_a_field_that_says_where_a_column_is_missing_converges():
    """Without extrapolation, these passes do not converge within 200."""
    generator = np.random.default_rng(0)
    logits, x = generator.normal(-1, 1, 8000), generator.normal(size=8000)
    site = generator.integers(0, 8, 8000)
    gone = (site < 3) & (generator.random(8000) < 0.995)
    effect = 2 * np.sin(2 * x) * ~gone + np.array([2, -1, 1, 0, -2, 1, -1, 0.5])[site]
    labels = (generator.random(8000) < sigmoid(logits + effect)).astype(float)
    features = {"site": site, "x": np.where(gone, NAN, x)}
    summary = FieldBias({"site": 8}, numeric=["x"]).fit(logits, labels, features)
    assert summary.converged
    assert summary.num_iterations < 100


def test_spreads_are_learnt_near_the_optimum():
    """The first steps to a column that tells all labels are too long, and say little of spreads."""
    generator = np.random.default_rng(0)
    columns = generator.normal(size=(600, 5))[:300]
    columns = np.sqrt(0.7) * columns + np.sqrt(0.3) * columns[:, :1]
    columns[:, 0] = 5 * np.round(12 * np.abs(columns[:, 0]))
    logits, labels = generator.normal(-2, 1, 600)[:300], (columns[:, 0] < 30).astype(float)
    features = {f"x{number}": column for number, column in enumerate(columns.T)}
    head = FieldBias({}, numeric=list(features))
    assert head.fit(logits, labels, features).log_loss_in_sample < 0.01
    deviations = np.array(list(head.get_deviations().values()))
    assert deviations[0] > 5
    assert deviations[1:].max() < 0.1


@pytest.mark.parametrize("kind", ["constant", "missing", "constant or missing", "two values"])
def test_columns_with_little_to_say(kind):
    """A column with less than a line still has one curve, and leaves that of the other as it is."""
    logits, labels, features = made_rows(1500)
    gone = np.isnan(features["x"])
    columns = {
        "constant": np.full(1500, 3.0),
        "missing": np.full(1500, NAN),
        "constant or missing": np.where(gone, NAN, 3.0),
        "two values": np.where(gone, 2.0, 3.0),
    }
    alone, both = FieldBias({}, numeric=["z"]), FieldBias({}, numeric=["z", "other"])
    alone.fit(logits, labels, {"z": features["z"]})
    assert both.fit(logits, labels, {"z": features["z"], "other": columns[kind]}).converged
    knots, values, missing = both.get_curve("other")
    assert len(knots) == (2 if kind == "two values" else 1)
    assert abs(values.mean()) < 1e-6
    lower, upper = both.interval(logits, {"z": features["z"], "other": columns[kind]})
    assert np.isfinite(lower).all()
    assert np.isfinite(upper).all()
    if kind in ("constant", "missing"):
        np.testing.assert_allclose(both.get_curve("z")[1], alone.get_curve("z")[1], atol=1e-4)
    elif kind == "two values":
        assert values[0] > values[1] + 0.2  # `gone` has an effect of 0.7
    else:
        assert missing > 0.2


def test_what_is_beyond_the_knots_is_as_the_outermost():
    logits, labels, features = made_rows()
    head = FieldBias({}, numeric=["x"])
    head.fit(logits, labels, features)
    knots, values, missing = head.get_curve("x")
    x = np.array([-np.inf, -1e300, -3e38, knots[0], knots[-1], 3e38, 1e39, np.inf, NAN])
    expected = np.r_[[values[0]] * 4, [values[-1]] * 4, missing]
    with np.errstate(over="ignore"):  # JAX warns of what is infinite in float32
        received = np.asarray(head(np.zeros(9), {"x": x}))[:, 0]
    np.testing.assert_allclose(received - received[0], expected - values[0], atol=1e-6)
    integers = np.asarray(head(np.zeros(2), {"x": np.array([-1, 10**12])}))[:, 0]
    np.testing.assert_allclose(integers[1] - received[0], values[-1] - values[0], atol=1e-6)


def test_data_frames_booleans_and_gaps():
    logits, labels, features = made_rows(800)
    frame = pd.DataFrame(features)
    frame["x"] = frame["x"].astype(object).where(frame["x"].notna(), None)
    frame["z"] = frame["z"] > 0
    head = FieldBias({"site": 6}, numeric=["x", "z"])
    head.fit(logits, labels, frame)
    np.testing.assert_array_equal(head.get_curve("z")[0], [0, 1])
    arrays = {**features, "z": frame["z"].to_numpy()}
    np.testing.assert_array_equal(head(logits, frame), head(logits, arrays))


HOSTILE = [NAN, -np.inf, np.inf, -8e37, 8e37, -1.0, 0.0, -0.0, 1e-30, 1.0, 1.0, 2.5, 7e7]


@settings(max_examples=examples(60))
@given(st.data())
def test_hostile_columns(data):
    num_rows = data.draw(st.sampled_from([2, 5, 30]))
    column = st.lists(st.sampled_from(HOSTILE), min_size=num_rows, max_size=num_rows)
    kinds = st.one_of(column, st.sampled_from(HOSTILE).map(lambda one: [one] * num_rows))
    features = {"x": np.array(data.draw(kinds)), "z": np.array(data.draw(kinds))}
    labels = np.zeros(num_rows)
    labels[: data.draw(st.integers(1, num_rows - 1))] = 1
    logits = np.linspace(-3, 3, num_rows) * data.draw(st.sampled_from([0.0, 1.0]))
    weights = np.array(
        data.draw(st.lists(st.sampled_from([0.0, 1.0, 3.0]), min_size=num_rows, max_size=num_rows))
    )
    weights[[0, -1]] = 1
    head = FieldBias((), numeric=["x", "z"], num_knots=data.draw(st.sampled_from([2, 3, 64])))
    with np.errstate(over="ignore"):  # JAX warns of what is infinite in float32
        summary = head.fit(logits, labels, features, sample_weight=weights, weights_are="counts")
        numbers = {name: column.astype("float32") for name, column in features.items()}
        received = np.asarray(head(logits, features))[:, 0]
        lower, upper = map(np.ravel, head.interval(logits, features))
    assert summary.converged
    assert all(np.isfinite(weight).all() for weight in head.get_weights())
    expected = sum(value_of(head.get_curve(name), numbers[name]) for name in ("x", "z"))
    zero = {name: np.full(num_rows, NAN) for name in ("x", "z")}
    line = np.asarray(head(logits, zero))[:, 0] - sum(head.get_curve(n)[2] for n in ("x", "z"))
    np.testing.assert_allclose(received, line + expected, rtol=1e-5, atol=1e-4)
    assert np.all((lower <= sigmoid(received) + 1e-6) & (sigmoid(received) <= upper + 1e-6))


def test_few_rows_have_few_knots():
    """Of all columns together, at most half as many as rows; the same with rows as counts."""
    generator = np.random.default_rng(0)
    features = {name: generator.normal(size=400) for name in "abcd"}
    logits, labels = generator.normal(size=400), np.arange(400) % 2
    head = FieldBias((), numeric=list(features))
    head.fit(logits, labels, features)
    assert [len(head.get_curve(name)[0]) for name in features] == [50] * 4
    twice = {name: column[:200] for name, column in features.items()}
    head.fit(logits[:200], labels[:200], twice, np.full(200, 2.0), weights_are="counts")
    assert [len(head.get_curve(name)[0]) for name in features] == [50] * 4
    head.fit(logits[:90], labels[:90], {name: column[:90] for name, column in features.items()})
    assert [len(head.get_curve(name)[0]) for name in features] == [16] * 4
