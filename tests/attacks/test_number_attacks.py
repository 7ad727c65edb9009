"""Hostile rows for every metric: right to a few digits, or NaN with its warning.

Each form of a metric sees rows drawn from the tables of kinds below: at once, and in three shards
that are merged. The references (`metric_references.py`) get the same values in float64.
"""

import functools
import inspect
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
import pytest
from scipy import special

import metric_references as references
from keras_calibration import metrics
from metric_references import Rows

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow]

NUM_ROWS, NUM_ROUNDS = 60, 6
SHARDS = [slice(20 * k, 20 * (k + 1)) for k in range(3)]


def one_of(*values):
    return lambda rng, n: rng.choice(np.array(values), n)


LOGITS = {
    "usual": lambda rng, n: rng.normal(-1, 1.5, n),
    "rates of 1e-6": lambda rng, n: rng.normal(-13.8, 1, n),
    "far": one_of(-80.0, -17.0, 0.0, 17.0, 80.0),
    "beyond all bins": one_of(-1000.0, -100.0, 0.0, 100.0, 1000.0),
    "infinite": one_of(-np.inf, 0.0, np.inf),
    "ties": one_of(-2.0, -0.5, 0.0, 1.25),
    "constant": one_of(0.5),
}
REAL = {
    "usual": lambda rng, n: rng.normal(0, 1, n),
    "large offset": lambda rng, n: rng.normal(1e3, 1, n),
    "tiny": lambda rng, n: rng.normal(0, 1e-6, n),
    "huge": lambda rng, n: rng.normal(0, 1e6, n),
    "constant": one_of(0.5),
}
CLASS_LOGITS = {
    "usual": lambda rng, shape: rng.normal(0, 1.5, shape),
    "sure": lambda rng, shape: rng.normal(0, 8, shape),
    "far": lambda rng, shape: rng.choice([-80.0, 0.0, 30.0, 80.0], shape),
    "equal": lambda rng, shape: np.full(shape, 0.3),
}
LABELS = {
    "drawn": lambda rng, p: rng.random(len(p)) < special.expit(0.7 * special.logit(p) + 0.3),
    "soft": lambda rng, p: rng.random(len(p)),
    "all 0": lambda rng, p: np.zeros(len(p)),
    "one positive": lambda rng, p: np.arange(len(p)) == len(p) // 2,
    "separable": lambda rng, p: p > np.median(p),
}
CLASS_LABELS = {
    "drawn": lambda rng, p: np.argmax(np.log(p + 1e-9) + rng.gumbel(size=p.shape), 1),
    "one class": lambda rng, p: np.zeros(len(p), int),
    "largest": lambda rng, p: np.argmax(p, 1),
}
WEIGHTS = {
    "none": lambda rng, n: np.ones(n),
    "exponential": lambda rng, n: rng.exponential(size=n),
    "zeros": lambda rng, n: rng.integers(0, 2, n),
    "all 0": lambda rng, n: np.zeros(n),
    "1e-30": lambda rng, n: np.full(n, 1e-30),
    "1e30": lambda rng, n: np.full(n, 1e30),
    "mixed": one_of(1e-30, 1.0, 1e30),
}
# What makes one row invalid, and with it the result NaN.
SPOILT = [None, ("weights", -1.0), ("weights", np.nan), ("labels", np.nan), ("predictions", np.nan)]


@dataclass(frozen=True)
class Form:
    """A metric, its reference, and the rows that it takes."""

    make: Callable
    reference: Callable  # from `Rows` to the result, or to the result and its tolerance
    takes: str = "probabilities"  # or "logits", "real", "classes"
    scale: Callable = lambda rows: 0.0  # what errors are relative to, beside the result
    digits: float = 1e-9
    may_be_nan: Callable = lambda rows: False  # as the documentation allows for a known result


def mean_of_sums(rows):
    """What residuals are differences of."""
    total = rows.weights.sum()
    return (rows.weights * (rows.labels + rows.probabilities)).sum() / total if total else 0.0


def area(rows):
    expected, in_one_bin = references.auc(rows)
    if rows.from_logits and references.share_of_pairs_beyond(rows) > 1e-3:
        expected = np.nan
    # A float32 probability, of which the logit is taken in float32, may be in the next bin.
    return expected, in_one_bin + (1e-9 if rows.from_logits else 1e-3)


def width_error(rows):
    dtype = "float64" if rows.from_logits else rows.dtype
    edges = (np.arange(16) / 15).astype(np.dtype(dtype)).astype(float)
    return references.equal_width_error(rows, 15, edges)


def is_far(rows):
    """The documentation promises no result beyond ±88, nor where all predictions are 0 or 1."""
    return bool((np.abs(rows.logits) >= 80).any())


CALIBRATED = {"digits": 3e-6, "may_be_nan": is_far}
FIELD = functools.partial(references.field_error, num_values=3)
NAMED = {
    "LogLoss": (metrics.LogLoss, references.log_loss, {}),
    "NormalizedEntropy": (metrics.NormalizedEntropy, references.normalized_entropy, {}),
    "CalibrationRatio": (metrics.CalibrationRatio, references.calibration_ratio, {}),
    "LogitAUC": (metrics.LogitAUC, area, {}),
    "ExpectedCalibrationError": (
        *(metrics.ExpectedCalibrationError, width_error),
        {"scale": mean_of_sums},
    ),
}
for settings in ({}, {"num_folds": 1}, {"num_folds": 5}, {"bias_fraction": 0.3}):
    NAMED[f"CalibratedLogLoss {settings}"] = (
        functools.partial(metrics.CalibratedLogLoss, **settings),
        functools.partial(references.calibrated_log_loss, **settings),
        CALIBRATED,
    )
FORMS = {
    f"{name}, {takes}": Form(
        functools.partial(make, from_logits=takes == "logits"), reference, takes, **settings
    )
    for name, (make, reference, settings) in NAMED.items()
    for takes in ("probabilities", "logits")
}
for correction in ("bias", "linear"):
    FORMS[f"CalibratedQuadraticLoss, {correction}"] = Form(
        functools.partial(metrics.CalibratedQuadraticLoss, correction=correction),
        functools.partial(references.calibrated_quadratic_loss, correction=correction),
        "real",
        scale=lambda rows: np.square([rows.labels, rows.predictions]).max(initial=0),
    )
FORMS["CalibratedCategoricalLogLoss"] = Form(
    metrics.CalibratedCategoricalLogLoss,
    references.calibrated_class_loss,
    "classes",
    digits=1e-6,
    scale=lambda rows: 0.02,
)
FORMS["FieldECE"] = Form(lambda: metrics.FieldECE(3), FIELD, scale=mean_of_sums)
FORMS["FieldRCE"] = Form(
    lambda: metrics.FieldRCE(3),
    functools.partial(FIELD, epsilon=0.01),
    scale=lambda rows: 100 * mean_of_sums(rows),
)


def test_no_metric_is_forgotten():
    public = {
        name
        for name, member in inspect.getmembers(metrics, inspect.isclass)
        if issubclass(member, keras.metrics.Metric)
    }
    assert public == {name.split(",")[0].split(" ")[0] for name in FORMS}


def draw(form, start, number):
    """The kinds drawn, and the columns of `update_state`."""
    rng = np.random.default_rng([start, number])
    tables = {"real": (REAL, LABELS), "classes": (CLASS_LOGITS, CLASS_LABELS)}
    drawn, labelled = tables.get(form.takes, (LOGITS, LABELS))
    # Each kind in turn, so that a few rounds of all forms see every one.
    kinds = [list(each)[(start + number) % len(each)] for each in (drawn, labelled, WEIGHTS)]
    shape = (NUM_ROWS, 3) if form.takes == "classes" else NUM_ROWS
    logits = drawn[kinds[0]](rng, shape)
    if form.takes == "classes":
        given = special.softmax(logits, axis=1)
    else:
        given = special.expit(logits) if form.takes == "probabilities" else logits
    labels = labelled[kinds[1]](rng, given if form.takes == "classes" else special.expit(logits))
    if form.takes == "real":
        labels = 0.5 * logits + rng.normal(3, 1, NUM_ROWS)
    dtype = ("float32", "float64")[number % 2]
    columns = {
        "labels": np.asarray(labels, "int32" if form.takes == "classes" else "float32"),
        "predictions": given.astype(dtype),
        "weights": WEIGHTS[kinds[2]](rng, NUM_ROWS).astype("float32"),
    }
    spoilt = SPOILT[rng.integers(len(SPOILT))] if rng.random() < 0.3 else None
    if spoilt is not None and not (form.takes == "classes" and spoilt[0] == "labels"):
        row = rng.integers(NUM_ROWS)
        columns["weights"][row] = 1
        columns[spoilt[0]][row] = spoilt[1]
        kinds.append(spoilt)
    if "Field" in type(form.make()).__name__:
        columns["field"] = rng.integers(-1, 3, NUM_ROWS).astype("int32")
    return kinds, columns


def exact_rows(form, columns, shards):
    """The same rows in float64, numbered in each shard; a row of weight 0 is no row."""
    exact = columns["labels"].astype(float)
    if form.takes == "classes":
        exact = np.eye(3)[columns["labels"]]
    is_row = columns["weights"] != 0
    return Rows(
        *(exact, columns["predictions"].astype(float), columns["weights"].astype(float)),
        np.concatenate([np.cumsum(is_row[own]) - 1 for own in shards]),
        columns.get("field", np.zeros(NUM_ROWS)),
        form.takes == "logits",
        str(columns["predictions"].dtype),
    )[is_row]


def updated(form, columns, rows=slice(None)):
    metric = form.make()
    part = {name: column[rows] for name, column in columns.items()}
    field = {"field": part["field"]} if "field" in part else {}
    metric.update_state(part["labels"], part["predictions"], part["weights"], **field)
    return metric


def check(form, metric, rows, kinds):
    """The result is that of the reference, and NaN, and nothing else, is told."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = float(metric.result())
    assert all("is NaN" in str(each.message) for each in caught)
    assert bool(caught) == np.isnan(value), (kinds, value)
    if len(kinds) == 4:  # a row is spoilt
        assert np.isnan(value), kinds
        return
    with np.errstate(all="ignore"):
        found = form.reference(rows)
    expected, tolerance = found if isinstance(found, tuple) else (found, None)
    if expected is None or (np.isnan(value) and form.may_be_nan(rows)):
        return
    if tolerance is None:
        tolerance = form.digits * (abs(expected) + form.scale(rows)) + 1e-12
    assert value == pytest.approx(expected, rel=0, abs=tolerance, nan_ok=True), kinds


@pytest.mark.parametrize("name", FORMS)
def test_right_or_nan(name):
    form, start = FORMS[name], zlib.crc32(name.encode())
    for number in range(NUM_ROUNDS):
        kinds, columns = draw(form, start, number)
        whole = exact_rows(form, columns, [slice(None)])
        check(form, updated(form, columns), whole, kinds)
        merged = form.make()
        merged.merge_state([updated(form, columns, own) for own in SHARDS])
        check(form, merged, exact_rows(form, columns, SHARDS), kinds)
