"""`score` against the metrics fed in one piece, and against NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from backends import digits
from keras_calibration import scoring
from keras_calibration.metrics import CalibratedLogLoss, FieldECE, FieldRCE
from keras_calibration.scoring import score

RNG = np.random.default_rng(0)
N = 5003
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
    crossed = {("hour", "site"): FieldECE((24, 30))}
    return {"site": [FieldECE(30), FieldRCE(30)], "hour": FieldECE(24), **crossed}


def in_one_piece(weights):
    results = {}
    for metric in metrics():
        metric.update_state(Y, P, weights)
        results[metric.name] = float(metric.result())
    for name, metric, ids in [
        ("site_field_ece", FieldECE(30), SITE),
        ("site_field_rce", FieldRCE(30), SITE),
        ("hour_field_ece", FieldECE(24), HOUR),
        ("hour_x_site_field_ece", FieldECE(24 * 30), HOUR * 30 + SITE),
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
@pytest.mark.parametrize("chunk_size", [2**17, 1000, 7 * 11], indirect=True)
def test_arrays_in_chunks(weights, chunk_size):
    scores = score((Y, P, weights, FIELDS), metrics(), field_metrics(), verbose=0)
    assert_same(scores, in_one_piece(weights))


@pytest.mark.slow
def test_lists_and_tensors():
    expected = dict(list(in_one_piece(None).items())[:2])
    assert_same(score((Y.tolist(), tf.constant(P)[:, None]), metrics(), verbose=0), expected)


@pytest.mark.parametrize("batches", [[(Y, P), (Y, P)], tf.data.Dataset.from_tensors((Y, P))])
def test_batches_are_for_the_metrics_themselves(batches):
    with pytest.raises(ValueError, match=r"ScoredLog. Received: .*`update_state` of the metrics"):
        score(batches, metrics(), verbose=0)
    metric = CalibratedLogLoss()
    for labels, predictions in batches:
        metric.update_state(labels, predictions)
    assert float(metric.result()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("chunk_size", [999], indirect=True)
def test_memory_mapped_arrays(tmp_path, chunk_size):
    np.save(tmp_path / "p.npy", P)
    mapped = np.load(tmp_path / "p.npy", mmap_mode="r")
    scores = score((Y, mapped), metrics(), verbose=0)
    assert_same(scores, dict(list(in_one_piece(None).items())[:2]))


@pytest.mark.parametrize("chunk_size", [1024], indirect=True)
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


@pytest.mark.parametrize("chunk_size", [128], indirect=True)
def test_several_classes(chunk_size):
    probabilities = RNG.dirichlet(np.ones(3), 500)
    classes = RNG.integers(0, 3, 500)
    metric = keras.metrics.SparseCategoricalCrossentropy(name="loss")
    scores = score((classes, probabilities), metric, verbose=0)
    expected = -np.log(probabilities[np.arange(500), classes]).mean()
    assert scores["loss"] == pytest.approx(expected, rel=1e-5)


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
    assert score((labels, half), NumRows(), verbose=0)["rows"] == rows


class NumRows(CalibratedLogLoss):
    """The number of rows that the state holds."""

    def __init__(self):
        super().__init__(num_folds=1, name="rows")

    def result(self):
        return keras.ops.sum(self._moments.value()[:, :2])


@pytest.mark.slow
@pytest.mark.parametrize("chunk_size", [1000], indirect=True)
def test_progress_bar_counts_rows(capsys, chunk_size):
    score((Y, P), metrics())
    out = capsys.readouterr().out
    assert f"{N}/{N}" in out
    assert "/row" in out
    assert out.endswith("\n")
    score((Y, P), metrics(), verbose=0)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((Y[:0], P[:0]), "Received: none"),
        (([1, 0], [0.5]), "2 of labels, 1 of predictions"),
        ((Y, P, W[:7]), "7 of sample_weight"),
        ((1, 0.5), "a single number as"),
        (Y, "Received: ndarray"),
        ({"labels": Y}, "Received: dict"),
        ((Y,), "tuple with 1 items"),
        ((Y, np.stack([P, P], axis=1)), "one probability per row"),
    ],
    ids=range(8),
)
def test_errors_of_rows(rows, message):
    with pytest.raises(ValueError, match=message):
        score(rows, [CalibratedLogLoss()], verbose=0)


def test_errors_of_fields():
    with pytest.raises(ValueError, match=r"the fields \['site'\].*: the fields \['hour'\]"):
        score((Y, P, None, {"hour": HOUR}), field_metrics=field_metrics(), verbose=0)
    with pytest.raises(ValueError, match=r"Received: the fields \[\]"):
        score((Y, P), (), {"site": FieldECE(30)}, verbose=0)
    with pytest.raises(ValueError, match="3 of field 'site'"):
        score((Y, P, None, {"site": SITE[:3]}), (), {"site": FieldECE(30)}, verbose=0)
    with pytest.raises(ValueError, match="field_metrics="):
        score((Y, P), [FieldECE(30)], verbose=0)
    # JAX itself refuses strings, by a TypeError.
    with pytest.raises((ValueError, TypeError), match=r"strings|JAX value|numeric types"):
        score((Y, P, None, {"site": SITE.astype(str)}), (), {"site": FieldECE(30)}, verbose=0)


def test_errors_of_arguments():
    with pytest.raises(ValueError, match="metrics to compute"):
        score((Y, P), verbose=0)
    with pytest.raises(ValueError, match="different names"):
        score((Y, P), [CalibratedLogLoss(), CalibratedLogLoss()], verbose=0)
    with pytest.raises(ValueError, match="Received: 'auc'"):
        score((Y, P), ["auc"], verbose=0)
    clash = {"site": FieldECE(9, name="ece")}
    with pytest.raises(ValueError, match=r"twice: \['site_ece'\]"):
        score((Y, P), {"site_ece": CalibratedLogLoss()}, clash, verbose=0)


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
