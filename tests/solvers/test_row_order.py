"""The order of the rows is that of what they hold, in whatever order and type it is given."""

import numpy as np
import pytest

from keras_calibration.solvers.data_checks import Rows
from keras_calibration.solvers.row_order import canonical_order

RNG = np.random.default_rng(0)
SITES = ["a", "ä", "b", "", "中", "😀"]
NUMBER = RNG.integers(0, len(SITES), 60)
LABELS = RNG.integers(0, 2, 60)
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
    rows = Rows(np.zeros(60), LABELS, None)
    expected = sorted(range(60), key=lambda row: (LABELS[row], TEXTS[row]))
    found = canonical_order(rows, [FORMS[form]])
    assert [(LABELS[row], TEXTS[row]) for row in found] == [
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
    texts = [each.decode("latin-1") if isinstance(each, bytes) else each for each in values]
    return ["missing" if value is None or value != value else repr(value) for value in texts]


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_given_does_not_matter(kind):
    column, order = KINDS[kind], RNG.permutation(60)
    first = canonical_order(Rows(np.zeros(60), LABELS, None), [column])
    again = order[canonical_order(Rows(np.zeros(60), LABELS[order], None), [column[order]])]
    assert (LABELS[first] == LABELS[again]).all()
    assert told(column[first]) == told(column[again])
