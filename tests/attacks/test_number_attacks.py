"""Hostile rows for every metric: right to a few digits, or NaN with its warning.

Each metric sees rows drawn from the tables of kinds below: at once, and in three shards that are
merged. The references (`metric_cases.py`) get the same values in float64.
"""

import functools
import warnings
import zlib

import numpy as np
import pytest
from scipy import special

from metric_cases import CASES
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


# Metric, and whether its predictions are logits.
FORMS = [
    (name, from_logits)
    for name, case in CASES.items()
    for from_logits in ([False, True] if case.takes == "one" else [False])
]


def draw(case, from_logits, start, number):
    """The kinds drawn, and the columns of `update_state`."""
    rng = np.random.default_rng([start, number])
    has_classes, is_real = case.takes == "classes", case.takes == "real"
    tables = {"real": (REAL, LABELS), "classes": (CLASS_LOGITS, CLASS_LABELS)}
    drawn, labelled = tables.get(case.takes, (LOGITS, LABELS))
    # Each kind in turn, so that a few rounds of all metrics see every one.
    kinds = [list(table)[(start + number) % len(table)] for table in (drawn, labelled, WEIGHTS)]
    logits = drawn[kinds[0]](rng, (NUM_ROWS, 3) if has_classes else NUM_ROWS)
    softmax = functools.partial(special.softmax, axis=1)
    to_probabilities = softmax if has_classes else special.expit
    predictions = logits if from_logits or is_real else to_probabilities(logits)
    labels = labelled[kinds[1]](rng, to_probabilities(logits))
    if is_real:
        labels = 0.5 * logits + rng.normal(3, 1, NUM_ROWS)
    columns = {
        "labels": np.asarray(labels, "int32" if has_classes else "float32"),
        "predictions": predictions.astype(("float32", "float64")[number % 2]),
        "weights": WEIGHTS[kinds[2]](rng, NUM_ROWS).astype("float32"),
    }
    spoilt = SPOILT[rng.integers(len(SPOILT))] if rng.random() < 0.3 else None
    if spoilt is not None and not (has_classes and spoilt[0] == "labels"):
        row = rng.integers(NUM_ROWS)
        columns["weights"][row] = 1
        columns[spoilt[0]][row] = spoilt[1]
        kinds.append(spoilt)
    if case.has_field:
        columns["field"] = rng.integers(-1, 3, NUM_ROWS).astype("int32")
    return kinds, columns


def exact_rows(case, from_logits, columns, shards):
    """The same rows in float64, numbered in each shard; a row of weight 0 is no row."""
    exact = columns["labels"].astype(float)
    if case.takes == "classes":
        exact = np.eye(3)[columns["labels"]]
    is_row = columns["weights"] != 0
    return Rows(
        *(exact, columns["predictions"].astype(float), columns["weights"].astype(float)),
        np.concatenate([np.cumsum(is_row[shard]) - 1 for shard in shards]),
        columns.get("field", np.zeros(NUM_ROWS)),
        from_logits,
        str(columns["predictions"].dtype),
    )[is_row]


def updated(metric, columns, rows=slice(None)):
    part = {name: column[rows] for name, column in columns.items()}
    field = {"field": part["field"]} if "field" in part else {}
    metric.update_state(part["labels"], part["predictions"], part["weights"], **field)
    return metric


def check(case, metric, rows, kinds, least=0.0):
    """The result is that of the reference, and NaN, and nothing else, is told."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = float(metric.result())
    assert all("is NaN" in str(warning.message) for warning in caught)
    assert bool(caught) == np.isnan(value), (kinds, value)
    if len(kinds) == 4:  # a row is spoilt
        assert np.isnan(value), kinds
        return
    with np.errstate(all="ignore"):
        reference = case.reference(rows)
    expected, tolerance = reference if isinstance(reference, tuple) else (reference, None)
    if expected is None or (np.isnan(value) and case.may_be_nan(rows)):
        return
    if tolerance is None:
        tolerance = case.on_hostile * (abs(expected) + case.scale(rows)) + 1e-12
    assert value == pytest.approx(expected, rel=0, abs=tolerance + least, nan_ok=True), kinds


@pytest.mark.parametrize(("name", "from_logits"), FORMS)
def test_right_or_nan(name, from_logits):
    case, start = CASES[name], zlib.crc32(f"{name}{from_logits}".encode())
    # A float32 probability, of which the logit is taken in float32, may be in the next bin.
    least = 1e-3 if name == "LogitAUC" and not from_logits else 0.0

    def new():
        return case.make(from_logits=from_logits) if case.takes == "one" else case.make()

    for number in range(NUM_ROUNDS):
        kinds, columns = draw(case, from_logits, start, number)
        whole = exact_rows(case, from_logits, columns, [slice(None)])
        check(case, updated(new(), columns), whole, kinds, least)
        merged = new()
        merged.merge_state([updated(new(), columns, shard) for shard in SHARDS])
        check(case, merged, exact_rows(case, from_logits, columns, SHARDS), kinds, least)
