import math

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from backends import JIT_COMPILE, ON_TENSORFLOW, digits, examples, few_lengths
from keras_calibration.metrics import RollingCalibratedLoss
from keras_calibration.models import FieldMetricsModel

NUM_PERIODS = 5
KEY = "month_rolling_calibrated_loss"


def sigmoid(logits):
    return 0.5 * (1 + np.tanh(0.5 * logits))


def fitted_bias(labels, predictions, weights, loss):
    if loss == "quadratic":
        return np.average(labels - predictions, weights=weights)
    if not np.sum(weights * labels) > 0 or not np.sum(weights * (1 - labels)) > 0:
        return math.nan
    return brentq(
        lambda c: np.sum(weights * (sigmoid(predictions + c) - labels)), -99, 99, xtol=1e-12
    )


def table(labels, predictions, period, weights=None, loss="log"):
    """Weight, bias and mean loss by period, period after period."""
    weights = np.ones(len(labels)) if weights is None else weights
    rows, before = [], None
    for number in range(NUM_PERIODS):
        here = period == number
        y, p, w = labels[here], predictions[here], weights[here]
        if not w.sum() > 0:
            rows.append((0.0, math.nan, math.nan))
            continue
        if before is None:
            rows.append((w.sum(), math.nan, math.nan))
        else:
            bias = fitted_bias(*before, loss)
            shifted = p + bias
            if loss == "quadratic":
                errors = (y - shifted) ** 2
            else:
                softplus = np.maximum(shifted, 0) + np.log1p(np.exp(-np.abs(shifted)))
                errors = softplus - y * shifted
            rows.append((w.sum(), bias, np.average(errors, weights=w)))
        before = y, p, w
    return rows


def reference(labels, predictions, period, weights=None, loss="log"):
    rows = table(labels, predictions, period, weights, loss)
    used = [number for number, (weight, *_) in enumerate(rows) if weight > 0][1:]
    if not used:
        return math.nan
    return np.average([rows[i][2] for i in used], weights=[rows[i][0] for i in used])


def update(metric, labels, predictions, period, weights=None, batch_size=None):
    batch_size = batch_size or max(len(labels), 1)
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        part_weights = None if weights is None else weights[part]
        metric.update_state(labels[part], predictions[part], part_weights, field=period[part])
    return metric


def make(loss, **arguments):
    return RollingCalibratedLoss(NUM_PERIODS, loss, from_logits=loss == "log", **arguments)


def score(labels, predictions, period, weights=None, batch_size=None, loss="log", **arguments):
    metric = make(loss, **arguments)
    return float(update(metric, labels, predictions, period, weights, batch_size).result())


def draw(loss):
    rng = np.random.default_rng(0)
    period = rng.integers(0, NUM_PERIODS, 2001)
    predictions = rng.normal(-1, 1.5, 2001)
    labels = predictions + 0.3 * period + rng.normal(size=2001)
    if loss == "log":
        labels = (rng.random(2001) < sigmoid(predictions + 0.3 * period)).astype(float)
    return labels, predictions, period, rng.exponential(size=2001)


@pytest.fixture(scope="module", params=["log", "quadratic"])
def loss(request):
    return request.param


@pytest.fixture(scope="module")
def rows(loss):
    return draw(loss)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("empty", [(), (0,), (1,), (2, 3), (4,), (0, 2)], ids=str)
def test_equals_reference(rows, loss, weighted, empty):
    kept = ~np.isin(rows[2], empty)
    labels, predictions, period, weights = (array[kept] for array in rows)
    weights = weights if weighted else None
    expected = reference(labels, predictions, period, weights, loss)
    metric = make(loss)
    for batch_size in (None, 97):
        metric.reset_state()
        update(metric, labels, predictions, period, weights, batch_size)
        assert float(metric.result()) == pytest.approx(expected, abs=digits(1e-8))
    received = metric.per_period()
    assert received.dtype.names == ("weight", "bias", "loss")
    np.testing.assert_allclose(
        np.array(received.tolist()),
        table(labels, predictions, period, weights, loss),
        rtol=digits(1e-7),
        atol=digits(1e-8),
    )


def test_rows_of_weight_0_make_no_period(rows, loss):
    labels, predictions, period, weights = rows
    weights = np.where(period == 2, 0.0, weights)
    kept = period != 2
    without = score(*(array[kept] for array in (labels, predictions, period, weights)), loss=loss)
    result = score(labels, predictions, period, weights, loss=loss)
    assert result == pytest.approx(without, abs=digits(1e-10))


def test_figures_worked_out_by_hand():
    metric = RollingCalibratedLoss(3, "quadratic")
    # The biases are 3 and -1; the errors 1 + 1 and 4.
    metric.update_state([3, 3, 3, 1, 0], [0, 0, 1, -3, -1], field=[0, 0, 1, 1, 2])
    np.testing.assert_allclose(metric.per_period()["bias"], [math.nan, 3.0, 3.0])
    assert float(metric.result()) == pytest.approx((1 + 1 + 4) / 3)
    metric = RollingCalibratedLoss(2)
    # ¼ in the first period, so that a prediction of ½ becomes ¼ in the second.
    metric.update_state([1, 0, 0, 0, 1], [0.5] * 5, field=[0, 0, 0, 0, 1])
    assert float(metric.result()) == pytest.approx(math.log(4), abs=digits(1e-7))


def test_order_of_the_rows_changes_nothing(rows, loss):
    order = np.random.default_rng(1).permutation(2001)
    shuffled = [array[order] for array in rows]
    expected = score(*rows, loss=loss)
    assert score(*shuffled, batch_size=50, loss=loss) == pytest.approx(expected, abs=digits(1e-11))


@pytest.mark.parametrize("bad_id", [-1, NUM_PERIODS, 99, math.nan, 2.0**40])
def test_a_period_outside_gives_nan(rows, loss, bad_id):
    labels, predictions, period, weights = (array[:200] for array in rows)
    period = period.astype(np.float64)
    assert math.isfinite(score(labels, predictions, period, weights, loss=loss))
    period[3] = bad_id
    assert math.isnan(score(labels, predictions, period, weights, loss=loss))


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("place", range(NUM_PERIODS))
@pytest.mark.parametrize(
    ("label", "prediction", "weight"),
    [
        (math.nan, 0.5, 1.0),
        (math.inf, 0.5, 1.0),
        (1.0, math.nan, 1.0),
        (1.0, math.inf, 1.0),
        (0.0, -math.inf, 1.0),
        (1.0, 0.5, -1.0),
        (1.0, 0.5, math.nan),
        (0.0, math.nan, 0.0),
    ],
)
def test_one_bad_row_gives_nan(rows, loss, place, label, prediction, weight):
    labels, predictions, period, weights = (array[:200].copy() for array in rows)
    row = np.flatnonzero(period == place)[0]
    labels[row], predictions[row], weights[row] = label, prediction, weight
    assert math.isnan(score(labels, predictions, period, weights, 50, loss=loss))


@pytest.mark.parametrize(("label", "probability"), [(2.0, 0.5), (1.0, 1.5), (0.0, -0.1)])
def test_what_is_no_probability_gives_nan(label, probability):
    metric = RollingCalibratedLoss(3)
    metric.update_state([0, 1, 1, 0, 1], [0.5, 0.4, 0.3, 0.2, 0.1], field=[0, 0, 1, 1, 2])
    assert math.isfinite(float(metric.result()))
    metric.update_state([label], [probability], field=[2])
    assert math.isnan(float(metric.result()))


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("place", range(NUM_PERIODS))
def test_one_class_gives_nan_where_it_corrects(label, place):
    labels, logits, period, weights = draw("log")
    labels = np.where(period == place, label, labels)
    result = score(labels, logits, period, weights)
    if place == NUM_PERIODS - 1:
        assert result == pytest.approx(reference(labels, logits, period, weights), abs=digits(1e-8))
    else:
        assert math.isnan(result)


def test_nothing_to_score_gives_nan(rows, loss):
    labels, predictions, _, weights = rows
    assert math.isnan(float(make(loss).result()))
    assert np.isnan(make(loss).per_period()["loss"]).all()
    for place in range(NUM_PERIODS):
        assert math.isnan(score(labels, predictions, np.full(2001, place), weights, loss=loss))
    period = np.arange(2001) % NUM_PERIODS
    assert math.isnan(score(labels, predictions, period, np.zeros(2001), loss=loss))


@settings(max_examples=examples(25))
@given(
    few_lengths(
        st.tuples(
            st.sampled_from([0.0, 1.0, 0.25]),
            st.floats(-12, 12, width=32),
            st.integers(0, NUM_PERIODS - 1),
            st.sampled_from([0.0, 0.1, 1.0, 2.5]),
        ),
        max_size=24,
    ),
    st.integers(1, 7),
    st.sampled_from(["log", "quadratic"]),
)
def test_equals_reference_on_any_few_rows(rows, batch_size, loss):
    labels, predictions, period, weights = np.array(rows, np.float64).reshape(-1, 4).T
    expected = reference(labels, predictions, period, weights, loss)
    result = score(labels, predictions, period, weights, batch_size, loss=loss)
    assert result == pytest.approx(expected, rel=digits(1e-6), abs=digits(1e-6), nan_ok=True)


def test_shapes_and_dtypes(rows, loss):
    labels, predictions, period, weights = rows
    expected = score(labels, predictions, period, weights, loss=loss)
    for ids in (period[:, None], period.astype("float32"), period.astype("uint8")):
        result = score(labels[:, None], predictions[:, None], ids, weights[:, None], loss=loss)
        assert result == pytest.approx(expected, abs=digits(1e-12))
    assert score(labels, predictions, period, weights, 97, loss, dtype="float32") == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1,), "num_periods=1"),
        ((2.5,), "num_periods"),
        ((3, "hinge"), "loss='hinge'"),
        ((3, "quadratic", True), "from_logits"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RollingCalibratedLoss(*arguments)


def test_rows_that_do_not_align_are_refused(loss):
    metric = make(loss)
    with pytest.raises(ValueError, match="field=period"):
        metric.update_state([0, 1], [0.5, 0.5])
    with pytest.raises(ValueError, match="3 periods"):
        metric.update_state([0, 1], [0.5, 0.5], field=[0, 1, 2])
    with pytest.raises(ValueError, match=r"`y_true` must .* 3 entries"):
        metric.update_state([0, 1, 1], [0.5, 0.5], field=[0, 1])
    if not ON_TENSORFLOW:
        return  # JAX itself refuses strings
    with pytest.raises(ValueError, match="strings"):
        metric.update_state([0, 1], [0.5, 0.5], field=["a", "b"])


def test_shards_merge(rows, loss):
    shards = [
        update(make(loss), *(array[part] for array in rows))
        for part in (slice(0, 500), slice(500, None))
    ]
    into = make(loss)
    into.merge_state(shards)
    assert float(into.result()) == pytest.approx(score(*rows, loss=loss), abs=digits(1e-11))
    with pytest.raises(ValueError, match="configuration"):
        RollingCalibratedLoss(9).merge_state(shards)


def test_config_makes_the_same_metric(loss):
    metric = make(loss, name="rolling", dtype="float32")
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert isinstance(again, RollingCalibratedLoss)
    assert again.get_config() == metric.get_config()
    assert (again.loss, again.from_logits) == (loss, loss == "log")
    assert again._direction == "down"
    config = RollingCalibratedLoss(np.int64(3)).get_config()
    assert type(config["num_periods"]) is int


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("policy", "jit_compile"),
    [
        pytest.param("float32", True, marks=pytest.mark.slow),
        ("mixed_bfloat16", JIT_COMPILE[0]),
    ],
)
def test_in_a_model_that_is_saved_and_loaded(rows, loss, tmp_path, policy, jit_compile):
    labels, predictions, period, weights = rows
    keras.config.set_dtype_policy(policy)
    try:
        inputs = {
            "month": keras.Input((), dtype="int32", name="month"),
            "given": keras.Input((1,), name="given"),
        }
        model = FieldMetricsModel(inputs, keras.layers.Activation("linear")(inputs["given"]))
        from_logits = loss == "log"
        model.compile(
            loss="mse",
            field_metrics={"month": [RollingCalibratedLoss(NUM_PERIODS, loss, from_logits)]},
            jit_compile=jit_compile,
        )
    finally:
        keras.config.set_dtype_policy("float32")
    x = {"month": period.astype("int32"), "given": predictions[:, None].astype("float32")}
    arguments = {"sample_weight": weights.astype("float32"), "batch_size": 667, "verbose": 0}
    scores = model.evaluate(x, labels, return_dict=True, **arguments)
    given = np.asarray(model.predict(x, verbose=0), np.float64)[:, 0]
    assert scores[KEY] == pytest.approx(reference(labels, given, period, weights, loss), rel=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    again = loaded.evaluate(x, labels, return_dict=True, **arguments)
    assert again[KEY] == pytest.approx(scores[KEY], rel=digits(1e-6))
