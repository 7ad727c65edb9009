"""`score` against the metrics fed in one piece, and against NumPy."""

import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from backends import digits
from keras_calibration import scoring
from keras_calibration.metrics import CalibratedLogLoss, FieldECE, FieldRCE
from keras_calibration.scoring import score
from keras_calibration.scoring.batch import Batch

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


def pieces(sizes, weights, columns=4):
    start = 0
    for size in sizes:
        rows = slice(start, start + size)
        start += size
        yield (
            Y[rows],
            P[rows].reshape(-1, 1),
            None if weights is None else weights[rows],
            {name: ids[rows] for name, ids in FIELDS.items()},
        )[:columns]
    assert start == N


def assert_same(scores, expected):
    assert list(scores) == list(expected)
    assert all(type(value) is float for value in scores.values())
    for name, value in expected.items():
        assert scores[name] == pytest.approx(value, rel=digits(1e-12)), name


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("weights", [None, W], ids=["plain", "weighted"])
@pytest.mark.parametrize("chunk_rows", [2**17, 1000, 7 * 11])
def test_arrays_in_chunks(weights, chunk_rows):
    batch = Batch(Y, P, weights, FIELDS)
    scores = score(batch, metrics(), field_metrics(), chunk_rows=chunk_rows, verbose=0)
    assert_same(scores, in_one_piece(weights))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("weights", [None, W], ids=["plain", "weighted"])
@pytest.mark.parametrize("sizes", [[1, 2, 0, 3000, 2000], [N], [1000] * 5 + [3]], ids=str)
def test_a_generator_of_batches_is_consumed_once(weights, sizes):
    batches = pieces(sizes, weights)
    scores = score(batches, metrics(), field_metrics(), chunk_rows=1500, verbose=0)
    assert_same(scores, in_one_piece(weights))
    with pytest.raises(ValueError, match="make a new one"):
        score(batches, metrics(), verbose=0)


def test_a_tf_dataset_and_a_list_of_lists():
    columns = (Y, P, W, {"site": SITE, "hour": HOUR})
    dataset = tf.data.Dataset.from_tensor_slices(columns).batch(640)
    scores = score(dataset, metrics(), field_metrics(), verbose=0)
    assert_same(scores, in_one_piece(W))
    lists = [[Y[:9].tolist(), P[:9].tolist()], [Y[9:], tf.constant(P[9:])]]
    expected = in_one_piece(None)
    assert_same(score(lists, metrics(), verbose=0), dict(list(expected.items())[:2]))


def test_memory_mapped_arrays(tmp_path):
    np.save(tmp_path / "p.npy", P)
    mapped = np.load(tmp_path / "p.npy", mmap_mode="r")
    scores = score((Y, mapped), metrics(), chunk_rows=999, verbose=0)
    assert_same(scores, dict(list(in_one_piece(None).items())[:2]))


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_keras_metrics_weigh_rows_not_batches(shape):
    # A flat batch would be the classes of one row to them.
    keras_metrics = {
        "log_loss": keras.metrics.BinaryCrossentropy(),
        "accuracy": keras.metrics.BinaryAccuracy(),
        "auc": keras.metrics.AUC(num_thresholds=1000),
    }
    columns = tuple(column.reshape(shape) for column in (Y, P, W))
    scores = score(columns, keras_metrics, chunk_rows=1024, verbose=0)
    losses = -np.where(Y == 1, np.log(P), np.log1p(-P))
    assert scores["log_loss"] == pytest.approx(np.average(losses, weights=W), rel=1e-5)
    assert scores["accuracy"] == pytest.approx(np.average((P > 0.5) == Y, weights=W), rel=1e-5)
    order = np.argsort(P)
    below = np.cumsum((W * (1 - Y))[order])
    auc = np.sum((W * Y)[order] * below) / (np.sum(W * Y) * below[-1])
    assert scores["auc"] == pytest.approx(auc, abs=1e-3)


def test_several_classes():
    probabilities = RNG.dirichlet(np.ones(3), 500)
    classes = RNG.integers(0, 3, 500)
    metric = keras.metrics.SparseCategoricalCrossentropy(name="loss")
    scores = score((classes, probabilities), metric, chunk_rows=128, verbose=0)
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
        scores = score(Batch(Y, P, fields=FIELDS), field_metrics={"site": site}, verbose=0)
    assert_same(scores, {"site_field_ece": in_one_piece(None)["site_field_ece"]})


def test_no_batch_is_kept():
    alive = []

    class Tracked(np.ndarray):
        pass

    def generate():
        for _ in range(40):
            predictions = RNG.random(2000).view(Tracked)
            alive.append(weakref.ref(predictions))
            most.append(sum(reference() is not None for reference in alive))
            yield RNG.random(2000) < predictions, predictions

    most = []
    score(generate(), [CalibratedLogLoss()], chunk_rows=700, verbose=0)
    assert len(most) == 40
    assert max(most) <= 3


def test_more_rows_than_float32_counts():
    # 2²⁴ + 2¹⁸ rows from one batch of 2¹⁸: a plain float32 sum would stop at 2²⁴.
    rows = 2**18
    labels = np.zeros(rows, "int8")
    labels[: rows // 4] = 1
    batch = (labels, np.full(rows, 0.5))
    scores = score((batch for _ in range(65)), FieldECEOfOne(), verbose=0)
    assert scores["rows"] == 65 * rows


class FieldECEOfOne(CalibratedLogLoss):
    """The number of rows that the state holds."""

    def __init__(self):
        super().__init__(num_folds=1, name="rows")

    def result(self):
        return keras.ops.sum(self._moments.value()[:, :2])


def test_progress_bar_counts_rows(capsys):
    score((Y, P), metrics(), chunk_rows=1000)
    out = capsys.readouterr().out
    assert f"{N}/{N}" in out
    assert "/row" in out
    assert out.endswith("\n")
    score(pieces([3000, 2003], None), metrics(), total=N)
    assert f"{N}/{N}" in capsys.readouterr().out
    score(pieces([3000, 2003], None), metrics())
    assert f"{N}/Unknown" in capsys.readouterr().out
    score((Y, P), metrics(), verbose=0)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "Received: none"),
        ((Y[:0], P[:0]), "Received: none"),
        (([1, 0], [0.5]), "batch 0 with 2 of labels, 1 of predictions"),
        ([(Y, P), (Y, P[:9])], "batch 1 with 5003 of labels, 9 of predictions"),
        ((Y, P, W[:7]), "7 of sample_weight"),
        ([(Y, P, W), (Y, P)], "batch 1 without sample_weight, after batches with it"),
        ([(Y, P), (Y, P, W)], "batch 1 with sample_weight, after batches without it"),
        ((1, 0.5), "a single number as"),
        (Y, "batch 0 of type int8"),
        ([{"labels": Y}], "batch 0 of type dict"),
        ([(Y,)], "with 1 items"),
        ((Y, np.stack([P, P], axis=1)), "one probability per row"),
    ],
    ids=range(12),
)
def test_errors_of_batches(batches, message):
    with pytest.raises(ValueError, match=message):
        score(batches, [CalibratedLogLoss()], verbose=0)


def test_errors_of_fields():
    with pytest.raises(ValueError, match=r"the fields \['site'\].*with the fields \['hour'\]"):
        score(Batch(Y, P, fields={"hour": HOUR}), field_metrics=field_metrics(), verbose=0)
    with pytest.raises(ValueError, match="batch 1 with the fields"):
        score([(Y, P, None, FIELDS), (Y, P)], (), {"site": FieldECE(30)}, verbose=0)
    with pytest.raises(ValueError, match="3 of field 'site'"):
        score(Batch(Y, P, None, {"site": SITE[:3]}), (), {"site": FieldECE(30)}, verbose=0)
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
    with pytest.raises(ValueError, match="chunk_rows"):
        score((Y, P), metrics(), chunk_rows=0, verbose=0)
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
