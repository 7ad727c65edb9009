"""Ids of every kind of column, at every door for scored rows: right, or refused."""

import keras
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from backends import digits
from keras_calibration import layers, plots, scoring
from keras_calibration.logs import ScoredLog
from keras_calibration.metrics import FieldECE

N = 600
RNG = np.random.default_rng(0)
NUMBER = RNG.integers(0, 3, N)
LABELS = (RNG.random(N) < np.array([0.6, 0.05, 0.3])[NUMBER]).astype(int)
P = np.full(N, 0.3)
COLUMNS = {
    "NumPy int": lambda ids: np.array(ids),
    "NumPy float": lambda ids: np.array(ids, float),
    "NumPy object": lambda ids: np.array(ids, object),
    "NumPy str": lambda ids: np.array(["" if v is None else str(v) for v in ids]),
    "list": list,
    "tuple": tuple,
    "list with NaN": lambda ids: [np.nan if v is None else v for v in ids],
    "list of strings": lambda ids: [None if v is None else str(v) for v in ids],
    "pandas int64": lambda ids: pd.Series(ids),
    "pandas Int64": lambda ids: pd.Series(ids, dtype="Int64"),
    "pandas Int64, a column": lambda ids: pd.DataFrame({"s": pd.array(ids, "Int64")}),
    "pandas int64[pyarrow]": lambda ids: pd.Series(ids, dtype="int64[pyarrow]"),
    "pandas category": lambda ids: pd.Series(pd.array(ids, "Int64")).astype("category"),
    "pandas object": lambda ids: pd.Series(ids, dtype=object),
    "pandas string": lambda ids: pd.Series(ids, dtype="Int64").astype("string"),
    "Arrow int64": pa.array,
    "Arrow chunked": lambda ids: pa.chunked_array([ids[:9], ids[9:]]),
    "Arrow dictionary": lambda ids: pa.array(ids).dictionary_encode(),
    "Arrow float": lambda ids: pa.array(ids).cast("float64", safe=False),
    "Polars Int64": lambda ids: pl.Series(ids, dtype=pl.Int64),
    "Polars Float64": lambda ids: pl.Series(ids, dtype=pl.Int64).cast(pl.Float64),
    "Polars String": lambda ids: pl.Series(ids, dtype=pl.Int64).cast(pl.String),
    "Polars Categorical": lambda ids: (
        pl.Series(ids, dtype=pl.Int64).cast(pl.String).cast(pl.Categorical)
    ),
}


def of_frame(column):
    """The column in a table that a scored log reads."""
    if isinstance(column, pl.Series):
        return pl.DataFrame({"label": LABELS, "probability": P, "s": column})
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return pa.table({"label": LABELS, "probability": P, "s": column})
    if isinstance(column, list | tuple):
        column = np.array(column, object)
    return pd.DataFrame({"label": LABELS, "probability": P, "s": series(column)})


def series(column):
    return column["s"] if isinstance(column, pd.DataFrame) else column


def is_text(kind):
    return any(word in kind for word in ("str", "String", "Categorical"))


def of_score(column):
    rows = (LABELS, P, None, {"s": series(column)})
    return scoring.score(rows, field_metrics={"s": FieldECE(3)}, verbose=0)["s_field_ece"]


def of_segments(column):
    every = {"numeric": (), "min_rows": 1, "min_positives": 0}
    found = scoring.multicalibration_error(LABELS, P, {"s": series(column)}, **every)
    parts = [part for part in found.segments if part.name != "all rows"]
    return sum(
        part.num_rows * abs(part.observed_rate - part.mean_prediction) for part in parts
    ) / sum(part.num_rows for part in parts)


def of_display(column):
    rates = plots.FieldDisplay.from_predictions(LABELS, P, column).curves["predicted"]
    return rates.num_rows @ abs(rates.observed - rates.predicted) / N


DOORS = {
    "field_ece": lambda column: scoring.field_ece(LABELS, P, column),
    "multicalibration_error": of_segments,
    "FieldDisplay": of_display,
    "ScoredLog": lambda column: scoring.score(ScoredLog(of_frame(column), fields=["s"]), verbose=0)[
        "s_field_ece"
    ],
}


@pytest.mark.parametrize(
    ("base", "num_missing"), [(0, 5), (2**60, 0), pytest.param(2**60, 5, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", COLUMNS)
def test_ids_are_right_or_refused(kind, base, num_missing):
    ids = [None if i < num_missing else base + int(k) for i, k in enumerate(NUMBER)]
    groups = np.where(np.arange(N) < num_missing, -1, NUMBER)
    expected = sum(abs((LABELS - P)[groups == value].sum()) for value in range(-1, 3)) / N
    merged = "float" in kind.lower() or (kind == "pandas int64" and num_missing)
    column = COLUMNS[kind](ids)
    # A metric of a field takes numbers below the number of its values.
    numbered = {} if base or is_text(kind) else {"score": of_score}
    for name, door in (DOORS | numbered).items():
        if base and merged and name != "ScoredLog":
            with pytest.raises(ValueError, match=r"rounded.*Read"):
                door(column)
        elif base and merged:
            with pytest.warns(UserWarning, match=r"of 600 rows.*as floats.*strings"):
                door(column)
        else:
            assert door(column) == pytest.approx(expected, abs=digits(1e-9)), name


@pytest.mark.parametrize("base", [0, 2**60])
@pytest.mark.parametrize("kind", COLUMNS)
def test_periods_are_right_or_refused(kind, base):
    column = series(COLUMNS[kind]([base + int(k) for k in NUMBER]))
    residual = LABELS - P
    bias = [residual[NUMBER == k].mean() for k in range(2)]
    expected = [np.mean((residual[NUMBER == k + 1] - bias[k]) ** 2) for k in range(2)]
    if base and "float" in kind.lower():
        with pytest.raises(ValueError, match=r"'period'.*rounded"):
            scoring.rolling_quadratic_loss(LABELS, P, column)
        return
    first, *others = scoring.rolling_quadratic_loss(LABELS, P, column).values()
    assert np.isnan(first)
    assert others == pytest.approx(expected, rel=1e-12)


WEIGHTS = (np.arange(N) % 3 > 0).astype(float)
OF_ROWS = {
    "field_ece": lambda *rows: scoring.field_ece(*rows),
    "field_rce": lambda *rows: scoring.field_rce(*rows),
    "multicalibration_error": lambda y, p, ids, w=None: (
        scoring.multicalibration_error(y, p, {"s": ids}, w, numeric=()).error
    ),
    "rolling_quadratic_loss": lambda y, p, ids, w=None: list(
        scoring.rolling_quadratic_loss(y, p, ids, w).values()
    )[1:],
    "FieldDisplay": lambda y, p, ids, w=None: (
        plots.FieldDisplay.from_predictions(y, p, ids, sample_weight=w)
        .curves["predicted"]
        .observed.tolist()
    ),
}


@pytest.mark.parametrize("door", OF_ROWS)
def test_a_row_of_weight_0_may_hold_an_id_that_is_not_exact(door):
    ids = np.where(WEIGHTS == 0, 2.0**60, NUMBER)
    counts = WEIGHTS > 0
    expected = OF_ROWS[door](LABELS[counts], P[counts], ids[counts])
    assert OF_ROWS[door](LABELS, P, ids, WEIGHTS) == pytest.approx(expected, abs=digits(1e-9))
    with pytest.raises(ValueError, match="rounded"):
        OF_ROWS[door](LABELS, P, ids)


@pytest.mark.tensorflow  # lookups of strings
@pytest.mark.parametrize("base", [0, 2**60])
@pytest.mark.parametrize("kind", COLUMNS)
def test_a_fit_reads_ids_as_exactly_or_refuses_them(kind, base):
    """The log loss of offsets depends on the groups alone, whatever names them."""
    ids = [base + int(k) for k in NUMBER]
    column = COLUMNS[kind](ids)
    column = column if isinstance(column, pd.DataFrame) else {"s": column}
    values = [base + k for k in range(3)]
    lookup = (
        keras.layers.StringLookup(vocabulary=list(map(str, values)))
        if is_text(kind)
        else keras.layers.IntegerLookup(vocabulary=values)
    )
    head, logits = layers.FieldBias({"s": lookup}), np.full(N, -0.85)
    if base and "float" in kind.lower():
        with pytest.raises(ValueError, match="'s'"):
            head.fit(logits, LABELS, column)
        return
    received = head.fit(logits, LABELS, column).log_loss_in_sample
    counted = layers.FieldBias({"s": 3}).fit(logits, LABELS, {"s": NUMBER})
    assert received == pytest.approx(counted.log_loss_in_sample, abs=1e-6)
    assert received < counted.log_loss_before - 0.1
