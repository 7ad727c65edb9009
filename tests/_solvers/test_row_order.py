"""The order of the rows is that of what they hold, in whatever order and type it is given."""

from dataclasses import replace

import numpy as np
import pytest

from keras_calibration._rows.rows import Rows
from keras_calibration._solvers import row_order
from keras_calibration._solvers.row_folds import fold_of_rows
from keras_calibration._solvers.row_order import are_turned_round, canonical_order, rows_apart

RNG = np.random.default_rng(0)
SITES = ["a", "ä", "b", "", "中", "😀"]
NUMBER = RNG.integers(0, len(SITES), 60)
LABELS = (RNG.random(60) < 0.4).astype(int)
TEXTS = np.array(SITES)[NUMBER]
BYTES = np.char.encode(TEXTS, "utf-8")
FORMS = {
    "texts": TEXTS,
    "objects": TEXTS.astype(object),
    "bytes": BYTES,
    "bytes objects": BYTES.astype(object),
    "both": np.where(np.arange(60) % 2, TEXTS.astype(object), BYTES.astype(object)),
}


@pytest.mark.parametrize("form", FORMS)
def test_texts_are_ordered_alike_in_every_type(form):
    rows = Rows(np.zeros(60), LABELS, None, {"site": FORMS[form]})
    assert not are_turned_round(rows)
    expected = sorted(range(60), key=lambda row: (LABELS[row], TEXTS[row]))
    received = canonical_order(rows)
    assert [(LABELS[row], TEXTS[row]) for row in received] == [
        (LABELS[row], TEXTS[row]) for row in expected
    ]


KINDS = {
    "missing": np.array(["a", None, "b", np.nan, b"a", 3, True], object)[RNG.integers(0, 7, 60)],
    "bytes that are no text": np.array([b"\xff", b"\xfe", b"\xc3\xb6"])[NUMBER % 3],
    "dates": np.datetime64("2026-01-01") + NUMBER,
    "vectors": np.stack([TEXTS, TEXTS[::-1]], axis=1).astype(object),
}


def told(values):
    """What the order may tell apart: not the kinds of missing values, nor a text and its bytes."""
    values = np.ravel(values).tolist()
    texts = [text.decode("latin-1") if isinstance(text, bytes) else text for text in values]
    return ["missing" if value is None or value != value else repr(value) for value in texts]


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_given_does_not_matter(kind):
    column, order = KINDS[kind], RNG.permutation(60)
    rows = Rows(np.zeros(60), LABELS, None, {"site": column})
    first, again = canonical_order(rows), order[canonical_order(rows.take(order))]
    assert (LABELS[first] == LABELS[again]).all()
    assert told(column[first]) == told(column[again])


@pytest.mark.filterwarnings("ignore:The .* rows of the development set are")  # counted ones
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("weighted", [False, True])
def test_labels_and_logits_turned_round_are_ordered_and_divided_alike(rate, weighted):
    logits = np.round(RNG.normal(1.0, 1.0, 60), 1)  # with ties
    labels = RNG.permutation(np.arange(60) < 60 * rate).astype(float)
    weights = RNG.integers(1, 4, 60).astype(float) if weighted else None
    features = {"number": np.arange(60)}
    original, turned = (
        Rows(*columns, weights, features) for columns in ((logits, labels), (-logits, 1 - labels))
    )
    assert are_turned_round(original) != are_turned_round(turned)
    order = canonical_order(original)
    np.testing.assert_array_equal(canonical_order(turned), order)
    folds = [fold_of_rows(3, rows.take(order), 0) for rows in (original, turned)]
    np.testing.assert_array_equal(*folds)
    in_fold = [labels[order][folds[0] == fold].sum() for fold in range(3)]
    assert weighted or np.ptp(in_fold) <= 1


def test_repeated_rows_take_the_place_of_counted_ones():
    counts = RNG.integers(1, 4, 60)
    logits, column = RNG.integers(0, 3, 60) * 1.0, RNG.integers(0, 9, 60)
    rows = Rows(logits, LABELS, counts * 1.0, {"site": column})
    single, numbers, _ = rows_apart(rows)
    assert single.weights is None
    again = np.repeat(np.arange(60), counts)
    repeated = Rows(logits[again], LABELS[again], None, {"site": column[again]})
    order = again[canonical_order(repeated)]
    for values in (logits, LABELS, column):
        np.testing.assert_array_equal(values[numbers], values[order])


def test_equal_rows_of_two_groups_stay_apart(monkeypatch):
    monkeypatch.setattr(row_order, "_MAX_ROWS", 20)
    groups = RNG.integers(0, 7, 60)
    labels = RNG.integers(0, 2, 60)
    rows = Rows(np.zeros(60), labels, np.full(60, 5.0), groups=groups)
    apart, numbers, source = rows_apart(rows)
    assert len(numbers) < 60
    np.testing.assert_array_equal(groups[source], groups)
    np.testing.assert_array_equal(labels[source], labels)
    np.testing.assert_array_equal(apart.groups, groups[numbers])
    for group in range(7):
        received = np.bincount(apart.labels, apart.row_weights * (apart.groups == group))
        expected = np.bincount(labels, 5.0 * (groups == group))
        np.testing.assert_array_equal(received, expected)


@pytest.mark.filterwarnings("ignore:The .* rows of the development set are")  # counted ones
@pytest.mark.parametrize("most", [1, 90, 5000])
def test_many_rows_are_fewer_rows_of_larger_counts(most, monkeypatch):
    monkeypatch.setattr(row_order, "_MAX_ROWS", most)
    counts = np.concatenate([[3, 10**15, 40], RNG.integers(1, 30, 57)]).astype(float)
    rows = Rows(np.arange(60.0), LABELS, counts, {"site": NUMBER})
    apart, numbers, source = rows_apart(rows)
    weights = apart.row_weights
    assert len(numbers) <= max(most, 60)
    np.testing.assert_array_equal(np.bincount(numbers, weights), counts)
    np.testing.assert_array_equal(source, np.arange(60))
    assert (weights == np.rint(weights)).all()
    assert weights.min() >= 1
    # Counts that are divided among several lines are the same rows.
    half = np.floor(counts / 2)
    lines = np.append(np.arange(60), np.flatnonzero(half))
    divided = replace(rows.take(lines), weights=np.append(counts - half, half[half > 0]))
    again, places, source = rows_apart(divided)
    np.testing.assert_array_equal(lines[places], numbers)
    np.testing.assert_array_equal(again.row_weights, weights)
    np.testing.assert_array_equal(lines[source], lines)
    assert np.isin(source, places).all() or most == 5000
    for number in range(60):  # as equal as can be
        assert np.ptp(weights[numbers == number]) <= 1
    copies = np.bincount(numbers)
    assert copies[1] == copies.max()
    if most == 5000:
        np.testing.assert_array_equal(np.delete(copies, 1), np.delete(counts, 1))
