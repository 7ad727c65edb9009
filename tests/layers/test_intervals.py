"""`interval`: the posterior against dense Hessians in float64, coverage, and what has none."""

import itertools
import warnings

import keras
import numpy as np
import pytest
from hypothesis import example, given, settings
from scipy.special import expit
from scipy.stats import norm

from backends import HOSTILE_ROWS, examples
from every_head import FORMULAS, HEADS, STREAMING
from keras_calibration import layers
from keras_calibration._solvers.reference_line import seen_as_logits
from keras_calibration.layers import (
    ILPS,
    BetaCalibration,
    BiasCorrection,
    FieldBias,
    NeuralCalibration,
    PlattScaling,
)

GRID = np.linspace(-5.0, 3.0, 17)


def numpy_of(tensor):
    return keras.ops.convert_to_numpy(tensor)


def made_rows(num_rows=4000, seed=0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1, 1.5, num_rows)
    labels = generator.random(num_rows) < expit(0.8 * logits - 0.3)
    return logits, labels.astype(float), generator.choice([1.0, 2.0], num_rows)


def inverse_hessian(columns, curve, weights, precision):
    one = expit(curve)
    hessian = columns.T @ (columns * (weights * one * (1 - one))[:, None]) + precision
    return np.linalg.inv(hessian)


def ilps_columns(layer, logits):
    knots = layer.get_knots().astype("float64")
    left = np.clip(np.searchsorted(knots, logits, side="right") - 1, 0, len(knots) - 2)
    share = (logits - knots[left]) / np.diff(knots)[left]
    columns = np.zeros((len(logits), len(knots)))
    columns[np.arange(len(logits)), left] = 1 - share
    columns[np.arange(len(logits)), left + 1] = share
    return columns


def ilps_precision(layer):
    # The prior counts in units of the line that nearly calibrates the logits.
    unit = seen_as_logits(layer.histogram).line.scale
    knots = unit * layer.get_knots().astype("float64")
    slopes = np.diff(np.eye(len(knots)), axis=0) / np.diff(knots)[:, None]
    changes = np.diff(slopes, axis=0)
    return layer.smoothness * changes.T @ changes + 0.1 / len(slopes) * slopes.T @ slopes


def regression_of(layer, logits):
    """Columns of the logistic regression that a calibrator is, and the precision of its prior."""
    if isinstance(layer, ILPS):
        return ilps_columns(layer, logits), ilps_precision(layer)
    formula = FORMULAS[type(layer)]
    return np.stack(formula.columns(logits), axis=1), np.diag(formula.precision)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("make", STREAMING)
def test_calibrators_against_the_inverse_hessian_of_the_rows(make, weighted):
    logits, labels, weights = made_rows()
    layer = make(6) if make is ILPS else make()
    layer.fit(logits, labels, sample_weight=weights if weighted else None, weights_are="counts")
    columns, precision = regression_of(layer, logits)
    curve = numpy_of(layer(logits)).astype("float64")
    covariance = inverse_hessian(columns, curve, weights if weighted else np.ones(4000), precision)
    grid_columns, _ = regression_of(layer, GRID)
    expected = np.sqrt(np.einsum("ni,ij,nj->n", grid_columns, covariance, grid_columns))
    received = numpy_of(layer.logit_standard_deviation(GRID))
    np.testing.assert_allclose(received, expected, rtol=2e-3, atol=1e-6)
    lower, upper = layer.interval(GRID, level=0.8)
    fitted = numpy_of(layer(GRID)).astype("float64")
    width = norm.ppf(0.9) * received
    np.testing.assert_allclose(lower, expit(fitted - width), rtol=1e-6)
    np.testing.assert_allclose(upper, expit(fitted + width), rtol=1e-6)


# Field values


def field_rows(num_rows=6000, seed=0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1, 1, num_rows)
    ids = {
        "site": generator.integers(0, 13, num_rows),
        "device": generator.integers(0, 5, num_rows),
    }
    offsets = generator.normal(0, 0.7, 13)
    chances = expit(0.8 * logits + 0.3 + offsets[ids["site"]] + 0.3 * ids["device"])
    return logits, (generator.random(num_rows) < chances).astype(float), ids


def dense_deviations(head, logits, labels, ids, weights, new_logits, new_ids):
    """Root mean squares about the fit, by the inverse of the whole Hessian at each set of spreads.

    The mean of the posterior at each set of spreads is that of the quadratic at the fitted values;
    its evidence weights the sets.
    """

    def columns_of(curve, values):
        # The last value of each field is "other", without an offset.
        dummies = [np.eye(n + 1)[np.minimum(values[f], n)][:, :n] for f, n in head.fields.items()]
        return np.concatenate([curve[:, None], np.ones((len(curve), 1)), *dummies], axis=1)

    columns, new_columns = columns_of(logits, ids), columns_of(new_logits, new_ids)
    one = expit(numpy_of(head(logits, ids))[:, 0].astype("float64"))
    hessian = columns.T @ (columns * (weights * one * (1 - one))[:, None])
    gradient = columns.T @ (weights * (one - labels))
    slope, bias = (float(numpy_of(variable)) for variable in (head._slope, head._bias))
    fitted = np.concatenate([[slope - 1, bias], *(head.get_offsets(f) for f in head.fields)])
    squares, evidences = [], []
    grid = np.geomspace(3e-3, 8, 40)
    for scales in itertools.product(grid, repeat=len(head.fields)):
        offset_precision = np.repeat(np.array(scales) ** -2, list(head.fields.values()))
        precision = np.concatenate([[1e-3, 0], offset_precision])
        covariance = np.linalg.inv(hessian + np.diag(precision))
        slopes = gradient + precision * fitted
        moved = new_columns @ (covariance @ slopes)
        square = moved**2 + np.einsum("ni,ij,nj->n", new_columns, covariance, new_columns)
        # An unknown value has an offset too, of which only the prior is known.
        for (field, number), scale in zip(head.fields.items(), scales, strict=True):
            square += np.where(new_ids[field] >= number, scale**2, 0.0)
        squares.append(square)
        prior = 2 * np.log(scales).sum() - np.log1p(np.square(scales)).sum()
        volume = np.linalg.slogdet(covariance)[1] + np.log(offset_precision).sum()
        quadratic = slopes @ covariance @ slopes - precision @ fitted**2
        evidences.append(prior + 0.5 * (volume + quadratic))
    shares = np.exp(np.array(evidences) - max(evidences))
    return np.sqrt(shares @ np.array(squares) / shares.sum())


@pytest.mark.parametrize("weighted", [False, True])
def test_one_field_against_the_inverse_of_the_whole_hessian(weighted):
    logits, labels, ids = field_rows()
    weights = np.random.default_rng(1).choice([0.0, 1.0, 2.0], 6000) if weighted else np.ones(6000)
    # Site 11 has no rows, and 12 is above the vocabulary.
    site = {"site": np.where(ids["site"] == 11, 3, ids["site"])}
    head = FieldBias({"site": 12})
    head.fit(logits, labels, site, weights, weights_are="counts")
    new = {"site": np.arange(14)}
    new_logits = np.linspace(-3, 2, 14)
    expected = dense_deviations(head, logits, labels, site, weights, new_logits, new)
    received = numpy_of(head.logit_standard_deviation(new_logits, new))
    assert received.shape == (14, 1)
    # The covariance of an offset and the line, which is negative, is left out.
    ratio = received[:, 0] / expected
    assert 0.99 < ratio.min()
    assert ratio.max() < 1.1
    spread = head.get_deviations()["site"]
    assert (received[11:, 0] >= 0.98 * spread).all()
    assert (received[:11, 0] < 0.3 * spread).all()


def test_two_crossed_fields_are_nearly_exact():
    logits, labels, ids = field_rows()
    head = FieldBias({"site": 13, "device": 5})
    head.fit(logits, labels, ids)
    new = {name: values.ravel() for name, values in zip(ids, np.indices((14, 6)), strict=True)}
    new_logits = np.zeros(84)
    expected = dense_deviations(head, logits, labels, ids, np.ones(6000), new_logits, new)
    received = numpy_of(head.logit_standard_deviation(new_logits, new))[:, 0]
    ratio, is_known = received / expected, (new["site"] < 13) & (new["device"] < 5)
    assert 0.97 < ratio[is_known].min()
    assert ratio[is_known].max() < 1.15
    # What the offset of an unknown device would tell about the mean of all is left out.
    assert 0.9 < ratio[~is_known].min()
    assert ratio[~is_known].max() < 1.01


@pytest.mark.parametrize("make", [PlattScaling, lambda: ILPS(6), BetaCalibration])
def test_under_a_field_without_effect_the_curve_keeps_its_interval(make):
    logits, labels, _ = made_rows()
    site = {"site": np.arange(4000) % 4}
    head, curve = FieldBias({"site": 4}, make()), make()
    head.fit(logits, labels, site)
    curve.fit(logits, labels)
    assert head.get_deviations()["site"] < 0.01
    received = numpy_of(head.logit_standard_deviation(GRID, {"site": np.zeros(17, int)}))[:, 0]
    # What the offset could still be adds the same variance at every logit, or nearly.
    added = received**2 - numpy_of(curve.logit_standard_deviation(GRID)) ** 2
    assert added.min() > 0
    assert added.max() < 0.09**2


@pytest.mark.parametrize("num_rows", [0, 1, 10, 300])
def test_coverage_of_field_values(num_rows, fitted_field):
    """600 values of each size: a covariance wrong by a factor of 1.5 gives 89 % or 98.4 %."""
    head, true_logits = fitted_field
    size = [0, 1, 10, 300].index(num_rows)
    values = np.arange(600) + 600 * size
    logits = np.random.default_rng(1).normal(-1, 1, 600)
    lower, upper = head.interval(logits, {"site": values})
    truth = expit(true_logits(logits, values))[:, None]
    covered = np.mean((lower <= truth) & (truth <= upper))
    assert 0.918 < covered < 0.979


@pytest.mark.parametrize(("num_values", "rate", "spread"), [(300, 0.12, 0.1), (50, 0.0025, 0.5)])
def test_coverage_where_the_spread_is_hard_to_see(num_values, rate, spread):
    """With the spread taken as known, the two cells have a coverage of 76 and 84 %."""
    generator = np.random.default_rng(5)
    covered = []
    for _ in range(6):
        offsets = generator.normal(0, spread, num_values)
        num_rows = round((100 if rate > 0.01 else 400) * num_values)
        site = generator.integers(0, num_values, num_rows)
        logits = generator.normal(np.log(rate), 0.7, num_rows)
        labels = generator.random(num_rows) < expit(logits + offsets[site])
        head = FieldBias({"site": num_values})
        head.fit(logits, labels, {"site": site})
        new = np.full(num_values, np.log(rate))
        lower, upper = head.interval(new, {"site": np.arange(num_values)})
        truth = expit(new + offsets)[:, None]
        covered.append(np.mean((lower <= truth) & (truth <= upper)))
    assert 0.9 < np.mean(covered) < 0.99


@pytest.fixture(scope="module")
def fitted_field():
    generator = np.random.default_rng(3)
    offsets = generator.normal(0, 0.7, 2400)

    def true_logits(logits, values):
        return 0.9 * logits + 0.2 + offsets[values]

    site = np.repeat(np.arange(2400), np.repeat([0, 1, 10, 300], 600))
    logits = generator.normal(-1, 1, len(site))
    labels = generator.random(len(site)) < expit(true_logits(logits, site))
    head = FieldBias({"site": 2400})
    head.fit(logits, labels, {"site": site})
    return head, true_logits


# When there is an interval, and when not


def fitted(make):
    logits, labels, _ = made_rows()
    layer = make()
    layer.fit(logits, labels)
    return layer


def fitted_head():
    logits, labels, ids = field_rows()
    head = FieldBias({"site": 13}, ILPS(5))
    head.fit(logits, labels, ids)
    return head, logits[:50], {"site": ids["site"][:50]}


@pytest.mark.parametrize("make", [PlattScaling, lambda: ILPS(5), lambda: FieldBias({"site": 13})])
def test_weights_that_are_not_counts_are_refused(make):
    logits, labels, ids = field_rows()
    weights = 1 / np.random.default_rng(0).uniform(0.05, 1, len(logits))
    layer = make()
    features = (ids,) if isinstance(layer, FieldBias) else ()
    layer.fit(logits, labels, *features, sample_weight=weights)
    with pytest.raises(ValueError, match=r"`interval`.*unequal"):
        layer.interval(logits[:5], *({"site": ids["site"][:5]} for _ in features))
    layer.fit(logits, labels, *features, sample_weight=np.ceil(weights), weights_are="counts")
    layer.interval(logits[:5], *({"site": ids["site"][:5]} for _ in features))


def test_updates_keep_an_interval_while_the_weights_are_counts():
    logits, labels, weights = made_rows()
    layer = PlattScaling()
    layer.fit(logits, labels, sample_weight=weights, weights_are="counts")
    layer.update(logits, labels, forget=0.3)
    layer.interval(GRID)
    layer.update(logits, labels, sample_weight=0.3 * weights)
    layer.update(logits, labels, sample_weight=weights, weights_are="counts")
    with pytest.raises(ValueError, match=r"`interval`.*unequal"):
        layer.interval(GRID)


def test_a_head_of_one_calibrator_has_its_interval():
    curve = fitted(PlattScaling)
    head = NeuralCalibration(curve)
    for received, expected in zip(head.interval(GRID), curve.interval(GRID), strict=True):
        assert received.shape == (len(GRID), 1)
        np.testing.assert_array_equal(received[:, 0], expected)
    with pytest.raises(ValueError, match=r"PlattScaling.*`interval`.*not from a fit"):
        NeuralCalibration(PlattScaling()).interval(GRID)


WITHOUT = ("IsotonicRegression", "FieldILPS", "NeuralCalibration", "BlendedHead")
WITHOUT = {name: HEADS[name][0] for name in WITHOUT}
WITHOUT["SamplingCorrection"] = lambda: layers.SamplingCorrection(0.5)


@pytest.mark.parametrize("name", WITHOUT)
def test_layers_without_a_posterior_say_so(name):
    with pytest.raises(ValueError, match=f"^{name} has no interval.*FieldBias"):
        WITHOUT[name]().interval(np.zeros(2), {"site": np.zeros(2, int)})


def test_weights_that_were_changed_since_the_fit_are_refused():
    head, logits, features = fitted_head()
    before = head.interval(logits, features)
    weights = [np.array(weight) for weight in head.get_weights()]
    for weight in (head._slope, head._offsets, head.calibrator._free_values):
        weight.assign(numpy_of(weight) + 1e-3)
        with pytest.raises(ValueError, match=r"`interval`.*trained or set"):
            head.interval(logits, features)
        head.set_weights(weights)
    for received, expected in zip(head.interval(logits, features), before, strict=True):
        np.testing.assert_array_equal(received, expected)


def test_numbers_that_float32_loses_get_the_interval_of_0():
    site, age = np.arange(200) % 2, np.linspace(-1, 1, 200)
    head = FieldBias({"site": 2}, PlattScaling(), numeric=["age"])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Explicitly requested dtype")  # JAX, of float64
        head.fit(np.zeros(200), np.arange(200) % 3 == 0, {"site": site, "age": age})
        pair = (head.interval([0.0], {"site": [0], "age": [x]}) for x in (1e-40, 0.0))
    np.testing.assert_allclose(*pair, rtol=1e-6)


def test_refuses_rows():
    head, logits, _ = fitted_head()
    with pytest.raises(ValueError, match=r"Received: no 'site'"):
        head.interval(logits)
    with pytest.raises(ValueError, match="'logits': 50, 'site': 3"):
        head.interval(logits, {"site": np.zeros(3, int)})
    with pytest.raises(ValueError, match=r"logits of PlattScaling.*\(3, 2\)"):
        fitted(PlattScaling).interval(np.zeros((3, 2)))


@pytest.mark.parametrize("make", STREAMING)
def test_extreme_logits(make):
    layer = fitted(make)
    logits = np.array([-np.inf, -1e30, -800.0, 0.0, 800.0, 1e30, np.inf, np.nan])
    lower, upper = layer.interval(logits)
    assert np.isnan([lower[-1], upper[-1]]).all()
    assert (lower[:-1] <= upper[:-1]).all()
    assert ((lower[:-1] >= 0) & (upper[:-1] <= 1)).all()
    if make is not BiasCorrection:
        assert upper[0] == 0
        assert lower[-2] == 1
    for shape in ((0,), (0, 1), (8, 1)):
        assert layer.interval(logits[: shape[0]].reshape(shape))[0].shape == shape


@pytest.mark.parametrize("make", [BiasCorrection, BetaCalibration, ILPS])
@settings(max_examples=examples(30))
@given(rows=HOSTILE_ROWS)
@example(rows=[(-2.0, 0.0, 1e6), (-2.0, 1.0, 1.0), (0.0, 0.0, 1.0)])  # overflows at ±1e30
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_hostile_rows(make, rows):
    logits, labels, weights = np.array(rows).T
    weights = np.ceil(weights)  # with others, there is no interval
    layer = make()
    try:
        layer.fit(logits, labels, sample_weight=weights, weights_are="counts")
    except ValueError:
        return
    grid = np.array([-1e30, -20.0, 0.0, 20.0, 1e30])
    lower, upper = layer.interval(grid)
    probabilities = expit(numpy_of(layer(grid)).astype("float64"))
    assert (lower <= probabilities).all()
    assert (probabilities <= upper).all()
