"""Every metric against its reference in NumPy: on many rows, in batches, and on any few rows.

A new metric is covered once `CASES` (`metric_cases.py`) has it, which the first test asks for.
"""

import functools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax

from backends import FLOATS, digits, examples, few_lengths
from metric_cases import CASES, public_metrics
from metric_references import Rows

# In one batch or in several, within the 512 rows to which batches are filled up for XLA.
NUM_ROWS = 501
RNG = np.random.default_rng(0)
WIDE = FLOATS[-1]


def test_every_metric_has_a_reference():
    assert public_metrics() == {name.split(" ")[0] for name in CASES}


def compare(case, columns, from_logits, tolerance, batch_size=None, weights=None):
    """The result of a metric, and that of its reference for the rows that have a weight."""
    labels, predictions, ids = columns
    metric = case.make() if case.takes == "real" else case.make(from_logits=from_logits)
    batch_size = batch_size or max(len(labels), 1)
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        more = {"field": ids[part]} if case.has_field else {}
        metric.update_state(
            labels[part], predictions[part], None if weights is None else weights[part], **more
        )
    full = np.ones(len(labels)) if weights is None else weights
    kept = full != 0
    exact = np.asarray(predictions, "float64").reshape(np.shape(labels))[kept]
    kept_rows = labels[kept], exact, full[kept]
    rows = Rows(*kept_rows, np.arange(kept.sum()), ids[kept], from_logits, str(predictions.dtype))
    with np.errstate(all="ignore"):
        reference = case.reference(rows) if are_valid(case, *kept_rows, from_logits) else np.nan
    expected, least = reference if isinstance(reference, tuple) else (reference, 0.0)
    tolerance = {"rel": digits(tolerance, 1e-4), "abs": max(least, digits(tolerance, 1e-4))}
    assert float(metric.result()) == pytest.approx(expected, **tolerance, nan_ok=True)


def are_valid(case, labels, predictions, weights, from_logits):
    numbers = [labels, predictions] if case.takes == "real" else [predictions]
    in_unit = [] if case.takes == "real" else [labels] if from_logits else [labels, predictions]
    return (
        all(np.isfinite(column).all() for column in numbers)
        and all(((column >= 0) & (column <= 1)).all() for column in in_unit)
        and bool((weights >= 0).all())
    )


def many_rows(takes):
    """Labels, logits and ids; predictions are off, so that there is something to correct."""
    ids = RNG.integers(-1, 3, NUM_ROWS)
    if takes == "classes":
        logits = RNG.normal(0, 1.5, (NUM_ROWS, 3))
        classes = np.argmax(logits + RNG.gumbel(size=logits.shape), axis=1)
        return np.eye(3)[classes], 1.7 * logits, ids
    if takes == "real":
        predictions = RNG.normal(7, 3, NUM_ROWS)
        return 2 + 0.8 * predictions + RNG.normal(size=NUM_ROWS), predictions, ids
    logits = RNG.normal(-1.5, 1.5, NUM_ROWS)
    labels = (RNG.random(NUM_ROWS) < expit(0.8 * logits - 0.4 + 0.3 * ids)).astype(float)
    return np.where(ids == 1, 0.0, labels), logits, ids


MANY = {takes: many_rows(takes) for takes in ("one", "classes", "real")}
WEIGHTS = RNG.exponential(size=NUM_ROWS) * (RNG.random(NUM_ROWS) < 0.9)


# Of the cross-fitted metrics, two ways to divide the rows.
QUICK = [case for name, case in CASES.items() if "num_folds" not in name]
MANY_CASES = [
    pytest.param(
        case, rows, marks=[] if case in QUICK and rows == "weighted" else pytest.mark.slow,
        id=f"{name}, {rows}",
    )
    for name, case in CASES.items()
    for rows in ("weighted", "plain", "soft labels")
]  # fmt: skip


@pytest.mark.parametrize(("case", "rows"), MANY_CASES)
def test_equals_the_reference_on_many_rows(case, rows):
    labels, logits, ids = MANY[case.takes]
    weights = None if rows == "plain" else WEIGHTS
    if rows == "soft labels":
        labels = 0.2 / 3 + 0.8 * labels  # those of three classes add up to 1
    compare(case, (labels, logits, ids), True, case.tolerance, 167, weights)
    if case.takes == "real":
        return
    probabilities = softmax(logits, axis=1) if case.takes == "classes" else expit(logits)
    columns = labels, probabilities.astype(WIDE), ids
    compare(case, columns, False, max(case.tolerance, 1e-9), None, weights)
    rounded = probabilities.astype("float32")
    rounded = rounded if case.takes == "classes" else rounded[:, None]
    compare(case, (labels, rounded, ids), False, max(case.tolerance, 1e-6), 167, weights)


few_rows = few_lengths(
    st.tuples(
        st.sampled_from([0.0, 1.0, 0.25, 0.0, 1.0] * 3 + [np.nan, -0.1, 1.1]),
        st.sampled_from([-30.0, -2.5, -2.0, 0.0, 0.3, 5.0, 14.75] * 3 + [np.nan]),
        st.sampled_from([-2.0, 0.0, 0.5, 40.0]),
        st.sampled_from([0.0, 1.0, 0.1, 2.5, 3.5] * 3 + [-1.0, np.nan]),
        st.sampled_from([-1, 0, 1, 2]),
    ),
    max_size=16,
)


@settings(max_examples=examples(200))
@given(few_rows, st.sampled_from(sorted(CASES)), st.booleans(), st.integers(1, 7))
@example([], "LogLoss", True, 1)
def test_equals_the_reference_on_any_few_rows(rows, name, from_logits, batch_size):
    case = CASES[name]
    labels, first, second, weights, ids = np.array(rows, np.float64).reshape(-1, 5).T
    predictions, to_probabilities = first, expit
    if case.takes == "classes":
        labels = np.stack([labels, 1 - labels, 0 * labels], axis=1)
        predictions = np.stack([first, second, np.zeros(len(first))], axis=1)
        to_probabilities = functools.partial(softmax, axis=1)
    if case.takes != "real" and not from_logits:
        predictions = to_probabilities(predictions)
    columns = labels, predictions.astype(WIDE), ids.astype("int32")
    compare(case, columns, from_logits, case.on_few, batch_size, weights)
