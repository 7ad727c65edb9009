"""`score` against the metrics fed in one piece, and against NumPy."""

import keras
import numpy as np
import pytest

from backends import digits
from keras_calibration import scoring
from keras_calibration.metrics import CalibratedLogLoss, FieldECE, FieldRCE
from keras_calibration.scoring import score

RNG = np.random.default_rng(0)
N = 501
LOGITS = RNG.normal(-1, 1.5, N)
P = 1 / (1 + np.exp(-LOGITS))
Y = (RNG.random(N) < 1 / (1 + np.exp(0.4 - LOGITS))).astype("int8")
W = RNG.exponential(size=N)
SITE = RNG.integers(0, 30, N)
HOUR = RNG.integers(0, 24, N).astype("int16")
FIELDS = {"site": SITE, "hour": HOUR, "not needed": np.array(["x"] * N)}


def metrics():
    return [CalibratedLogLoss(), CalibratedLogLoss(num_folds=1, name="in_sample")]


def field_metrics():
    return {"site": [FieldECE(30), FieldRCE(30)], "hour": FieldECE(24)}


def in_one_piece(weights):
    results = {}
    for metric in metrics():
        metric.update_state(Y, P, weights)
        results[metric.name] = float(metric.result())
    for name, metric, ids in [
        ("site_field_ece", FieldECE(30), SITE),
        ("site_field_rce", FieldRCE(30), SITE),
        ("hour_field_ece", FieldECE(24), HOUR),
    ]:
        metric.update_state(Y, P, weights, field=ids)
        results[name] = float(metric.result())
    return results


def assert_same(scores, expected):
    assert list(scores) == list(expected)
    assert all(type(value) is float for value in scores.values())
    for name, value in expected.items():
        assert scores[name] == pytest.approx(value, rel=digits(1e-12)), name


@pytest.fixture
def chunk_size(request, monkeypatch):
    monkeypatch.setattr("keras_calibration.scoring.updates.CHUNK_SIZE", request.param)
    return request.param


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, W], ids=["plain", "weighted"])
@pytest.mark.parametrize("chunk_size", [2**17, 100, 7 * 11], indirect=True)
def test_arrays_in_chunks(weights, chunk_size):
    scores = score((Y, P, weights, FIELDS), metrics(), field_metrics(), verbose=0)
    assert_same(scores, in_one_piece(weights))


@pytest.mark.parametrize("chunk_size", [128], indirect=True)
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_keras_metrics_weigh_rows_not_batches(shape, chunk_size):
    # A flat batch would be the classes of one row to them.
    keras_metrics = {
        "log_loss": keras.metrics.BinaryCrossentropy(),
        "accuracy": keras.metrics.BinaryAccuracy(),
        "auc": keras.metrics.AUC(num_thresholds=1000),
    }
    columns = tuple(column.reshape(shape) for column in (Y, P, W))
    scores = score(columns, keras_metrics, verbose=0)
    losses = -np.where(Y == 1, np.log(P), np.log1p(-P))
    assert scores["log_loss"] == pytest.approx(np.average(losses, weights=W), rel=1e-5)
    assert scores["accuracy"] == pytest.approx(np.average((P > 0.5) == Y, weights=W), rel=1e-5)
    order = np.argsort(P)
    below = np.cumsum((W * (1 - Y))[order])
    auc = np.sum((W * Y)[order] * below) / (np.sum(W * Y) * below[-1])
    assert scores["auc"] == pytest.approx(auc, abs=1e-3)


def test_metrics_start_anew_and_keep_their_state():
    metric = CalibratedLogLoss(num_folds=1)
    metric.update_state([1, 0], [0.9, 0.9])
    score((Y, P), metric, verbose=0)
    single = CalibratedLogLoss(num_folds=1)
    single.update_state(Y, P)
    np.testing.assert_array_equal(metric.bias, single.bias)
    site = FieldECE(30)
    for _ in range(2):
        scores = score((Y, P, None, FIELDS), field_metrics={"site": site}, verbose=0)
    assert_same(scores, {"site_field_ece": in_one_piece(None)["site_field_ece"]})


def test_more_rows_than_float32_counts():
    # 2²⁴ + 2¹⁸ rows: a plain float32 sum would stop at 2²⁴.
    rows = 2**24 + 2**18
    labels = np.zeros(rows, "int8")
    labels[: rows // 4] = 1
    half = np.broadcast_to(np.float32(0.5), rows)
    metric = CalibratedLogLoss(num_folds=1)
    score((labels, half), metric, verbose=0)
    assert float(keras.ops.sum(metric._moments.value()[:, :2])) == rows


LOSS, SITES = CalibratedLogLoss(), {"site": FieldECE(30)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((Y[:0], P[:0]), LOSS), "Received: none"),
        ((([1, 0], [0.5]), LOSS), "'labels': 2, 'predictions': 1"),
        (((Y, P, W[:7]), LOSS), "'sample_weight': 7"),
        ((Y, LOSS), "Received: ndarray"),
        (([(Y, P), (Y, P)], LOSS), "`update_state` of the metrics"),
        (((Y, np.stack([P, P], axis=1)), LOSS), "`y_pred` must have shape"),
        (((Y, P, None, {"hour": HOUR}), (), SITES), r"Received: no 'site'\. Available: 'hour'\."),
        (((Y, P, None, {"site": SITE[:3]}), (), SITES), "'site': 3"),
        (((Y, P), [FieldECE(30)]), "field_metrics="),
        (((Y, P, None, {"site": SITE.astype(str)}), (), SITES), "strings|JAX value|numeric types"),
        (((Y, P),), "`metrics` and"),
        (((Y, P), [LOSS, LOSS]), "different names"),
        (((Y, P), {"site_field_ece": LOSS}, SITES), r"twice: \['site_field_ece'\]"),
    ],
    ids=range(13),
)
def test_what_cannot_be_scored(arguments, message):
    # JAX itself refuses strings, by a TypeError.
    with pytest.raises((ValueError, TypeError), match=message):
        score(*arguments, verbose=0)


def test_functions_of_arrays():
    expected = in_one_piece(W)
    assert scoring.calibrated_log_loss(Y, P, W) == expected["calibrated_log_loss"]
    in_sample = scoring.calibrated_log_loss(Y, LOGITS, W, num_folds=1, from_logits=True)
    assert in_sample == pytest.approx(expected["in_sample"], rel=digits(1e-9))
    for site in (SITE, SITE.reshape(-1, 1), np.char.add("site ", SITE.astype(str)), SITE * 10**12):
        assert scoring.field_ece(Y, P, site, W) == pytest.approx(expected["site_field_ece"])
        assert scoring.field_rce(Y, P, site, W) == pytest.approx(expected["site_field_rce"])
    assert scoring.field_rce(Y, P, SITE, epsilon=1.0) < scoring.field_rce(Y, P, SITE)
    for function in (scoring.field_ece, scoring.field_rce):
        with pytest.raises(ValueError, match="Received: none"):
            function([], [], [])
