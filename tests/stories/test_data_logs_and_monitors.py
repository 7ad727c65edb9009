"""Stories of hostile users: arrays, scored logs, monitors and comparisons.

Each was written from the documentation alone, and is held against NumPy, pandas or SciPy. What
fails is marked with what was found.
"""

import datetime
import os
import subprocess
import sys
import threading

import keras
import numpy as np
import pandas as pd
import pytest

import keras_calibration as kc
from calibration_records.cli import main
from stories import references
from stories.references import right_or_refused, sigmoid, value_or_error

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

NUM_ROWS = 2000


class Rows:
    """Scored rows: logits, probabilities, labels, whole weights, sites."""

    def __init__(self, num_rows=NUM_ROWS, seed=0):
        rng = np.random.default_rng(seed)
        self.logits = rng.normal(-1, 1.2, num_rows)
        self.p = sigmoid(self.logits)
        self.y = (rng.random(num_rows) < self.p).astype(int)
        self.weights = rng.integers(0, 4, num_rows)
        self.site = rng.integers(0, 5, num_rows)
        self.order = rng.permutation(num_rows)

    def frame(self, **columns):
        """The rows as a pandas data frame."""
        return pd.DataFrame({"label": self.y, "probability": self.p, **columns})


@pytest.fixture(scope="module")
def rows():
    return Rows()


def _score(labels, predictions, weights=None):
    batch = (labels, predictions) if weights is None else (labels, predictions, weights)
    return kc.scoring.score(batch, kc.metrics.LogLoss(), verbose=0)["log_loss"]


# 1. A user passes arrays of every dtype.


@pytest.mark.parametrize(
    "form",
    [
        lambda y, order: y.astype(bool),
        lambda y, order: y.astype("uint8"),
        lambda y, order: y[:, None],
        lambda y, order: y.tolist(),
        lambda y, order: pd.Series(y, index=order),
        lambda y, order: pd.Series(y, dtype="Int8"),
        lambda y, order: pd.Series(y.astype(bool), dtype="boolean"),
        lambda y, order: pd.Series(y).astype("category"),
    ],
    ids=["bool", "uint8", "column", "list", "series", "Int8", "boolean", "category"],
)
def test_labels_of_many_kinds(form, rows):
    labels = form(rows.y, rows.order)
    assert _score(labels, rows.p) == pytest.approx(references.log_loss(rows.y, rows.p))
    weighted = references.log_loss(rows.y, rows.p, rows.weights)
    index = labels.index if isinstance(labels, pd.Series) else None
    weights = pd.Series(rows.weights, index, dtype="Int64")
    assert _score(labels, rows.p, weights) == pytest.approx(weighted)


def test_labels_and_weights_in_another_order(rows):
    labels, weights = pd.Series(rows.y, index=rows.order), pd.Series(rows.weights)
    expected = references.log_loss(rows.y, rows.p, rows.weights)
    with pytest.warns(UserWarning, match="`labels` and `sample_weight` have the same index in"):
        assert _score(labels, rows.p, weights) == pytest.approx(expected)


@pytest.mark.parametrize("which", range(3))
def test_arrays_of_objects(which, rows):
    columns = [rows.y, rows.p, rows.weights]
    columns[which] = columns[which].astype(object)
    expected = references.log_loss(rows.y, rows.p, rows.weights)
    right_or_refused(lambda: _score(*columns), expected)


# 2. Field values of every kind, by arrays and by a log.

_VALUES = {
    "negative": lambda site: site - 3,
    "near 2⁶⁴": lambda site: site.astype("uint64") + 2**63,
    "fractions": lambda site: site / 3,
    "strings": lambda site: np.array([f"é{value}" for value in site]),
    "category": lambda site: pd.Series(site.astype(str)).astype("category"),
    "dates": lambda site: np.datetime64("2026-01-01") + site,
    "Int64 with NA": lambda site: pd.Series(site, dtype="Int64").where(site != 3, pd.NA),
    "NaN": lambda site: np.where(site == 3, np.nan, site),
}


@pytest.mark.parametrize("kind", _VALUES)
def test_field_values_of_many_kinds(kind, rows):
    values = _VALUES[kind](rows.site)
    expected = references.field_ece(rows.y, rows.p, values, rows.weights)
    found = kc.scoring.field_ece(rows.y, rows.p, values, rows.weights)
    assert found == pytest.approx(expected)
    frame = rows.frame(site=values, w=rows.weights).set_index(rows.order)
    log = kc.logs.ScoredLog(frame, fields=["site"], sample_weight="w")
    assert kc.scoring.score(log, verbose=0)["site_field_ece"] == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["None", "numbers and strings", "string with NA"])
def test_field_values_without_an_order(kind, rows):
    values = {
        "None": [None if value == 3 else str(value) for value in rows.site],
        "numbers and strings": [value if value % 2 else str(value) for value in rows.site],
    }.get(kind)
    if values is None:
        values = pd.Series(rows.site.astype(str), dtype="string").where(rows.site != 3)
    else:
        values = np.array(values, object)
    right_or_refused(
        lambda: kc.scoring.field_ece(rows.y, rows.p, values),
        references.field_ece(rows.y, rows.p, rows.site),
    )


# 3. A numeric column that nobody has cut into ids.


@pytest.mark.parametrize("use", ["metric", "head", "log"])
def test_fractional_ids(use):
    rng = np.random.default_rng(0)
    age = rng.integers(0, 2, NUM_ROWS) + rng.choice([0.2, 0.7], NUM_ROWS)
    labels = (rng.random(NUM_ROWS) < np.where(age % 1 < 0.5, 0.1, 0.7)).astype(int)
    predictions = np.full(NUM_ROWS, 0.4)
    head = kc.layers.FieldBias({"age": 2})
    log = kc.logs.ScoredLog(pd.DataFrame({"label": labels, "probability": predictions, "age": age}))
    calls = {
        "metric": lambda: kc.metrics.FieldECE(2).update_state(labels, predictions, field=age),
        "head": lambda: head.fit(np.zeros(NUM_ROWS), labels, {"age": age}),
        "log": lambda: kc.fit_calibrator(head, log, verbose=0),
    }
    with pytest.raises(ValueError, match=r"age|[Ff]ield"):
        calls[use]()


# 4. Segments of a column that holds None and "None", 1 and "1".


@pytest.mark.parametrize("pair", [(None, "None"), (1, "1")], ids=["missing", "number"])
@pytest.mark.parametrize("use", ["segments", "bars"])
def test_values_that_print_alike(pair, use):
    second = np.arange(NUM_ROWS) % 2
    values = np.empty(NUM_ROWS, object)
    values[second == 0], values[second == 1] = pair
    predictions = np.full(NUM_ROWS, 0.3)
    labels = (np.arange(NUM_ROWS) // 2 % 10 < np.where(second, 1, 5)).astype(int)
    if use == "segments":
        features = {"site": values}
        found = kc.scoring.multicalibration_error(labels, predictions, features, max_depth=1)
        errors = [segment.error for segment in found.segments if segment.name != "all rows"]
        assert errors == pytest.approx([0.2, 0.2])
    else:
        display = kc.plots.FieldDisplay.from_predictions(labels, predictions, values)
        assert sorted(display.curves["predicted"].observed) == pytest.approx([0.1, 0.5])


# 5. Times as they come: zones, texts, seconds, dates.

_START = pd.Timestamp("2026-03-20")
_TIMES = {
    "ns": lambda time: time,
    "Berlin": lambda time: (
        time.tz_localize("UTC").tz_convert("Europe/Berlin").astype("datetime64[us, Europe/Berlin]")
    ),
    "texts with an offset": lambda time: (time + pd.Timedelta("5h30min")).strftime(
        "%Y-%m-%dT%H:%M:%S+05:30"
    ),
    "seconds": lambda time: (time - pd.Timestamp(0)) // pd.Timedelta("1s") + 0.5,
    "objects": lambda time: pd.Series(
        [
            each.astimezone(datetime.timezone(datetime.timedelta(hours=9)))
            for each in time.tz_localize("UTC").to_pydatetime()
        ],
        dtype=object,
    ),
}


@pytest.mark.parametrize("kind", _TIMES)
def test_periods_of_times_of_many_kinds(kind, rows):
    rng = np.random.default_rng(1)
    time = _START + pd.to_timedelta(rng.integers(0, 20 * 86400, NUM_ROWS), unit="s")
    losses = -np.where(rows.y == 1, np.log(rows.p), np.log1p(-rows.p))
    log = kc.logs.ScoredLog(rows.frame(at=_TIMES[kind](time)), timestamp="at")
    for period, code, name in (("day", "D", "%Y-%m-%d"), ("week", "W-SUN", "%Y-%m-%d")):
        starts = time.to_period(code).start_time.strftime(name)
        expected = pd.Series(losses).groupby(starts).mean().to_dict()
        found = kc.scoring.score_by_period(log, kc.metrics.LogLoss(), period, verbose=0)
        assert list(found) == sorted(expected)
        assert {key: each["log_loss"] for key, each in found.items()} == pytest.approx(expected)


# 6. Frames with odd columns.


def test_two_columns_of_one_name(rows):
    both = pd.concat([rows.frame(), pd.DataFrame({"probability": sigmoid(-rows.logits)})], axis=1)
    with pytest.raises(ValueError, match="probability"):
        kc.scoring.score(kc.logs.ScoredLog(both), kc.metrics.LogLoss(), verbose=0)


def test_two_columns_that_differ_in_case(rows):
    frame = rows.frame(site=rows.site, Site=rows.site % 2)
    log = kc.logs.ScoredLog(frame, fields=["Site"])
    expected = references.field_ece(rows.y, rows.p, rows.site % 2)
    found, message = value_or_error(lambda: kc.scoring.score(log, verbose=0)["Site_field_ece"])
    assert found == pytest.approx(expected) or "case" in message
    assert "Site_1" not in (message or "")


@pytest.mark.parametrize("kind", ["bands of pd.cut", "pandas periods"])
def test_columns_that_only_pandas_has(kind, rows):
    if kind == "bands of pd.cut":
        column = pd.Series(pd.IntervalIndex.from_breaks(range(6)).take(rows.site))
    else:
        column = pd.Series(pd.PeriodIndex(np.datetime64("2026-01") + rows.site, freq="M"))
    log = kc.logs.ScoredLog(rows.frame(unused=column))
    found = kc.scoring.score(log, kc.metrics.LogLoss(), verbose=0)["log_loss"]
    assert found == pytest.approx(references.log_loss(rows.y, rows.p))
    values = rows.site.astype(str)
    by_field = kc.logs.ScoredLog(rows.frame(band=column), fields=["band"])
    right_or_refused(
        lambda: kc.scoring.score(by_field, verbose=0)["band_field_ece"],
        references.field_ece(rows.y, rows.p, values),
    )


# 7. Sums of shards, saved, sent and added.


def test_sums_of_shards(rows, tmp_path):
    frame = rows.frame(site=rows.site.astype(str), w=rows.weights, key=np.arange(NUM_ROWS))
    parts = kc.logs.ScoredLog(fields=["site"], sample_weight="w", row_key="key")
    metrics = [kc.metrics.LogLoss(), kc.metrics.CalibratedLogLoss(num_folds=1)]
    queries = kc.scoring.log_queries(parts, metrics)
    sums = [kc.logs.log_sums(parts.of(frame[start::3]), queries) for start in range(3)]
    sums[0].save(tmp_path / "ü sums")
    sums[0] = kc.logs.LogSums.load(tmp_path / "ü sums")
    sums[1] = kc.logs.LogSums.from_bytes(sums[1].to_bytes())
    found = kc.scoring.score(kc.logs.LogSums.merged(sums), metrics, verbose=0)
    corrected = sigmoid(rows.logits + references.bias(rows.logits, rows.y, rows.weights))
    assert found["log_loss"] == pytest.approx(references.log_loss(rows.y, rows.p, rows.weights))
    assert found["calibrated_log_loss"] == pytest.approx(
        references.log_loss(rows.y, corrected, rows.weights), rel=1e-6
    )
    assert found["site_field_ece"] == pytest.approx(
        references.field_ece(rows.y, rows.p, rows.site, rows.weights)
    )


# 8. Eight threads at once.


def test_threads(rows):
    logs = [rows.frame(probability=sigmoid(rows.logits + shift)) for shift in range(8)]
    found = [0.0] * 8

    def run(number):
        log = kc.logs.ScoredLog(logs[number])
        found[number] = kc.scoring.score(log, kc.metrics.LogLoss(), verbose=0)["log_loss"]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [references.log_loss(rows.y, each["probability"].to_numpy()) for each in logs]
    assert found == pytest.approx(expected)


# 9. A monitor of three classes whose names are numbers.


class Classes:
    """Three classes: probabilities, labels, a time."""

    def __init__(self, num_rows=6000):
        rng = np.random.default_rng(2)
        scores = np.exp(rng.normal([1, 0, -1], size=(num_rows, 3)))
        self.p = scores / scores.sum(axis=1, keepdims=True)
        self.y = (self.p.cumsum(axis=1) > rng.random(num_rows)[:, None]).argmax(axis=1)

    def frame(self, names, labels):
        """The log, with a column for each class."""
        columns = dict(zip(names, self.p.T, strict=True))
        return pd.DataFrame({"timestamp": "2026-03-01", **columns, "label": labels})


def _class_rates(report):
    rates = [each.overall for each in report.classes.values()]
    return [(each.num_rows, each.predicted, each.observed) for each in rates]


@pytest.mark.parametrize("kind", ["names", "numbers", "Int64", "category"])
def test_monitor_of_classes(kind):
    world, names = Classes(), ["cat", "dog", "bird"]
    labels = np.array(names)[world.y] if kind in ("names", "category") else world.y
    labels = pd.Series(labels, dtype=kind if kind in ("Int64", "category") else None)
    report = kc.monitor(world.frame(names, labels).sample(frac=1), probability=names, verbose=0)
    expected = [
        (len(world.y), world.p[:, number].mean(), (world.y == number).mean()) for number in range(3)
    ]
    np.testing.assert_allclose(_class_rates(report), expected)
    assert not report.is_alert


def test_class_names_that_are_numbers(tmp_path):
    world, names = Classes(), ["2", "0", "1"]
    frame = world.frame(names, np.array(names)[world.y])
    frame.to_csv(tmp_path / "log.csv", index=False)
    expected = (world.y == 0).mean()
    assert _class_rates(kc.monitor(frame, probability=names, verbose=0))[0][2] == expected
    right_or_refused(
        lambda: _class_rates(kc.monitor(str(tmp_path / "log.csv"), probability=names, verbose=0))[
            0
        ][2],
        expected,
    )


def test_class_labels_that_are_booleans():
    world, names = Classes(), ["cat", "dog", "bird"]
    log = world.frame(names, world.y > 0)
    with pytest.raises(ValueError, match=r"^(Labels|The label).*Received") as found:
        kc.monitor(log, probability=names, verbose=0)
    assert "Candidate functions" not in str(found.value)


# 10. A monitor with a state, asked about some of the days.


@pytest.mark.parametrize("end", ["since", "until"])
def test_monitor_with_a_state_and_an_end(end, tmp_path):
    rng = np.random.default_rng(0)
    time = pd.Timestamp("2026-03-01") + pd.to_timedelta(np.sort(rng.random(4000)) * 10, unit="D")
    chosen = time >= "2026-03-06" if end == "since" else time < "2026-03-06"
    labels = (rng.random(4000) < np.where(chosen, 0.3, 0.1)).astype(int)
    log = pd.DataFrame({"timestamp": time, "probability": 0.3, "label": labels})
    period, state = kc.logs.Periods("day", **{end: "2026-03-06"}), tmp_path / "state"
    assert kc.monitor(log, period=period, verbose=0).overall.num_rows == chosen.sum()
    log.to_parquet(tmp_path / "log.parquet")
    log = tmp_path / "log.parquet"
    kc.monitor(log, state=state, verbose=0)
    right_or_refused(
        lambda: kc.monitor(log, state=state, period=period, verbose=0).overall.num_rows,
        chosen.sum(),
    )


def test_monitor_with_a_state_in_a_folder_that_is_not_there(rows, tmp_path):
    log, state = rows.frame(timestamp="2026-03-01"), tmp_path / "not there" / "state"
    report, message = value_or_error(lambda: kc.monitor(log, state=state, verbose=0))
    assert state.exists() if report else "not there" in message


@pytest.mark.parametrize("page", ["not there/page.html", "."])
def test_command_with_a_page_that_cannot_be_written(page, rows, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows.frame(timestamp="2026-03-01").to_csv("log.csv", index=False)
    assert main(["monitor", "log.csv", "--html", page]) == 2
    message = capsys.readouterr().err
    assert ".tmp" not in message
    assert "PosixPath" not in message
    assert "--html" in message or page in message


# 11. Metrics in `compile`, with tf.data, weights and half precision.


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_compiled_metrics_with_weights(policy, rows):
    import tensorflow as tf

    inputs = {
        "l": keras.Input((1,), name="l"),
        "site": keras.Input((), dtype="int32", name="site"),
    }
    output = keras.layers.Activation("sigmoid", dtype=policy)(inputs["l"])
    model = kc.models.FieldMetricsModel(inputs, output)
    model.compile(
        loss="binary_crossentropy",
        metrics=[kc.metrics.LogLoss(name="unweighted")],
        weighted_metrics=[kc.metrics.CalibratedLogLoss(num_folds=1), kc.metrics.LogLoss()],
        field_metrics={"site": [kc.metrics.FieldECE(5)]},
    )
    x = {"l": rows.logits[:, None].astype("float32"), "site": rows.site.astype("int32")}
    p = model.predict(x, verbose=0)[:, 0].astype("float64")
    weights = rows.weights.astype("float32")
    batches = tf.data.Dataset.from_tensor_slices((x, rows.y, weights)).batch(37)
    found = model.evaluate(batches, verbose=0, return_dict=True)
    logits = np.log(p) - np.log1p(-p)
    corrected = sigmoid(logits + references.bias(logits, rows.y, weights))
    assert found["unweighted"] == pytest.approx(references.log_loss(rows.y, p), rel=1e-5)
    assert found["log_loss"] == pytest.approx(references.log_loss(rows.y, p, weights), rel=1e-5)
    assert found["calibrated_log_loss"] == pytest.approx(
        references.log_loss(rows.y, corrected, weights), rel=1e-5
    )
    assert found["site_field_ece"] == pytest.approx(
        references.field_ece(rows.y, p, rows.site, weights), rel=1e-4
    )


# 12. The worst segment, by hand.


def test_segments_by_hand(rows):
    names = np.array(["a", "ü", "c c", "", "e"])[rows.site]
    found = kc.scoring.multicalibration_error(
        rows.y, rows.p, {"site": pd.Categorical(names)}, rows.weights, max_depth=1
    )

    def by_hand(chosen):
        chosen = chosen[np.argsort(rows.p[chosen])]
        y, p, w = rows.y[chosen], rows.p[chosen], rows.weights[chosen]
        path = np.r_[0, np.cumsum(w * (y - p))] / w.sum()
        error = path.max() - path.min()
        return error, error / (np.sqrt(np.sum(w**2 * p * (1 - p))) / w.sum())

    for segment in found.segments:
        name = segment.name.removeprefix("site = ")
        chosen = np.flatnonzero(names == name) if name != "all rows" else np.arange(NUM_ROWS)
        assert (segment.error, segment.deviations) == pytest.approx(by_hand(chosen))
        assert segment.num_rows == np.sum(rows.weights[chosen] > 0)
    assert len(found.segments) == 6


# 13. A ledger in which a seed ran again and diverged.


def test_comparison_with_a_seed_that_diverged_later(tmp_path):
    from scipy import stats

    rng = np.random.default_rng(3)
    a = rng.normal(0.5, 0.01, 8)
    b = a - 0.004 + rng.normal(0, 0.002, 8)
    ledger = kc.seeds.Ledger(tmp_path / "läufe")
    for pipeline, values in {"a": a, "ß": b}.items():
        for seed, value in enumerate(values):
            metrics = {"val_loss": [float(value)]}
            run = {"pipeline": pipeline, "seed": seed, "status": "finished", "epochs": [0]}
            ledger.append({**run, "metrics": metrics})
    for keep in (slice(None), np.arange(8) != 3):
        comparison = kc.seeds.compare(tmp_path / "läufe", "a", "ß", metric="loss")
        interval = stats.ttest_rel(b[keep], a[keep]).confidence_interval()
        found = comparison.difference
        expected = (np.mean(b[keep] - a[keep]), interval.low, interval.high)
        assert (found.value, found.low, found.high) == pytest.approx(expected)
        diverged = {"status": "diverged", "metrics": {"val_loss": [float("nan")]}}
        ledger.append({"pipeline": "a", "seed": 3, "epochs": [0], **diverged})


# 14. A large id on JAX.


@pytest.mark.slow
def test_large_ids_on_jax():
    pytest.importorskip("jax")
    program = """
import warnings, numpy as np, keras_calibration as kc
warnings.simplefilter("ignore")
metric = kc.metrics.FieldECE(4)
try:
    metric.update_state([1, 0], [0.5, 0.5], field=np.array([2**32 + 1, 2]))
except ValueError:
    print("refused")
else:
    print(metric.per_field()["value"].tolist())
"""
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split("\n")[-2] in ("refused", "[2, -1]")
