"""Fits to rows in files: those of `layer.fit` to the same rows in memory, block by block."""

import errno
import os

import keras
import numpy as np
import pandas as pd
import pytest

from keras_calibration import layers
from keras_calibration._rows import stored_rows
from keras_calibration._rows.array_store import FolderStore
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.stored_rows import StoredRows
from keras_calibration._solvers import row_blocks
from keras_calibration._solvers.field_offsets import OffsetRows, fit_field_offsets
from keras_calibration._solvers.field_posterior import CURVE_RANK
from keras_calibration._solvers.field_spreads import half_cauchy
from keras_calibration.calibration import fit_calibrator
from keras_calibration.logs import ScoredLog

N = 9_000


def table(seed=0, num_rows=N):
    generator = np.random.default_rng(seed)
    site, user = generator.integers(0, 30, num_rows), generator.integers(0, 2_500, num_rows)
    age = generator.normal(40, 12, num_rows).round(1)
    age[generator.random(num_rows) < 0.1] = np.nan
    logits = generator.normal(-1, 1.2, num_rows)
    true = 0.8 * logits + 0.2 + generator.normal(0, 0.5, 30)[site]
    true += generator.normal(0, 0.7, 2_500)[user] + 0.3 * np.sin(np.nan_to_num(age) / 8)
    return pd.DataFrame(
        {
            "label": (generator.random(num_rows) < 1 / (1 + np.exp(-true))).astype(int),
            "logit": logits,
            "site": np.array([f"site {number}" for number in range(30)])[site],
            "user": user,
            "age": age,
            "w": generator.integers(0, 4, num_rows),
            "at": np.datetime64("2026-03-01", "s")
            + np.sort(generator.integers(0, 30 * 86_400, num_rows)),
        }
    )


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 2,048 rows in files, and parts of 1,024 in a fit; every log has many groups."""
    monkeypatch.setattr(stored_rows, "ROWS_OF_BLOCK", 2_048)
    monkeypatch.setattr(row_blocks, "_ROWS_IN_CACHE", 1_024)
    monkeypatch.setattr(row_blocks, "_MOST_ROWS", 1_024)
    monkeypatch.setitem(fit_calibrator.__globals__, "_MOST_CELLS", 0)


def make_head(**options):
    sites = keras.layers.StringLookup(vocabulary=[f"site {n}" for n in range(25)])
    arguments = {"calibrator": layers.ILPS(), "numeric": ["age"], **options}
    return layers.FieldBias({"site": sites, "user": 2_500}, **arguments)


def squares(table):
    """The covariances that a weight of the posterior tells: of a factor, no sign matters."""
    if table.shape == (2, 2):
        return table @ table.T
    if table.ndim < 1 or table.shape[-1] <= CURVE_RANK:
        return table
    factor = table[..., 3:].reshape(-1, table.shape[-1] - 3)
    return np.hstack([table[..., :3].reshape(len(factor), 3), factor @ factor.T])


@pytest.mark.parametrize(
    "options",
    [{}, {"calibrator": None}, {"numeric": ()}, {"follows_time": True}],
    ids=["all", "without a curve", "without numbers", "in time"],
)
@pytest.mark.parametrize("weights_are", [None, "importance", "counts"])
def test_they_are_those_of_rows_in_memory(small_blocks, options, weights_are):
    rows = table()
    if weights_are == "importance":
        rows["w"] = rows["w"] / 2
    found, expected = make_head(**options), make_head(**options)
    weight = None if weights_are is None else "w"
    log = ScoredLog(rows, logit="logit", sample_weight=weight, timestamp="at")
    named = {"weights_are": weights_are or "importance"}
    summary = fit_calibrator(found, log, verbose=0, **named)
    days = rows["at"].to_numpy().astype("datetime64[D]").astype(float)
    weights = None if weight is None else rows["w"]
    time = {"time": days} if options.get("follows_time") else {}
    expected.fit(rows["logit"], rows["label"], rows, weights, **named, **time)
    assert summary.num_rows == (N if weight is None else np.count_nonzero(rows["w"]))
    assert summary.converged
    for received, other in zip(found.weights, expected.weights, strict=True):
        is_posterior = received.name.startswith("posterior_")
        if not is_posterior:
            np.testing.assert_allclose(received, other, rtol=5e-5, atol=5e-5)
        elif received.name != "posterior_of":  # a mark of the other weights' last digits
            both = (squares(np.asarray(each)) for each in (received, other))
            np.testing.assert_allclose(*both, rtol=2e-4, atol=2e-4)
    if found.calibrator is not None:
        histograms = (head.calibrator.histogram for head in (found, expected))
        units, sums = zip(*((each.unit, each.positives) for each in histograms), strict=True)
        assert units[0] == pytest.approx(units[1])
        assert sums[0] == pytest.approx(sums[1])
    before = np.average(
        np.logaddexp(0, rows["logit"]) - rows["label"] * rows["logit"], weights=weights
    )
    assert summary.log_loss_before == pytest.approx(before, rel=1e-6)
    if weights_are != "importance":
        new = table(1, 50)
        bounds = [each.interval(new["logit"], new) for each in (found, expected)]
        np.testing.assert_allclose(*bounds, atol=1e-4)


@pytest.mark.parametrize("score", ["float32", "whole numbers", "one of few"])
def test_scores_of_any_type_are_computed_with_as_in_memory(small_blocks, score):
    rows = table()
    values = {
        "float32": rows["logit"].astype("float32"),
        "whole numbers": (40 + 15 * rows["logit"]).clip(0, 100).round(),
        "one of few": (rows["logit"] > 1).astype(float),
    }[score]
    rows = rows.assign(logit=values)
    found, expected = (make_head(calibrator=None) for _ in range(2))
    fit_calibrator(found, ScoredLog(rows, logit="logit"), verbose=0)
    expected.fit(values.astype(float), rows["label"], rows)
    for received, other in zip(found.get_weights()[:5], expected.get_weights()[:5], strict=True):
        np.testing.assert_allclose(received, other, rtol=1e-6, atol=1e-7)


def test_parquet_in_parts_and_missing_ids(small_blocks, tmp_path):
    rows = table().drop(columns=["at"])
    users = rows["user"].astype("Int64").mask(np.arange(N) % 50 == 0)
    rows = rows.assign(user=users)
    for number, part in enumerate(np.array_split(np.arange(N), 4)):
        rows.iloc[part].to_parquet(tmp_path / f"{number}.parquet")
    found, expected = make_head(), make_head()
    fit_calibrator(found, ScoredLog(tmp_path, logit="logit"), verbose=0)
    features = {**rows[["site", "age"]], "user": users.fillna(-1).to_numpy(int)}
    expected.fit(rows["logit"], rows["label"], features)
    for field in ("site", "user"):
        offsets = (head.get_offsets(field) for head in (found, expected))
        np.testing.assert_allclose(*offsets, atol=5e-5)


def test_floats_with_gaps_are_ids(small_blocks, monkeypatch):
    """As pandas reads them."""
    rows = table()
    gaps = np.arange(N) % 50 == 0
    found, grouped, expected = make_head(), make_head(), make_head()
    log = ScoredLog(rows.assign(user=rows["user"].where(~gaps)), logit="logit")
    fit_calibrator(found, log, verbose=0)
    monkeypatch.setitem(fit_calibrator.__globals__, "_MOST_CELLS", 1_000_000)
    fit_calibrator(grouped, log, verbose=0)
    features = {**rows[["site", "age"]], "user": rows["user"].mask(gaps, -1).to_numpy()}
    expected.fit(rows["logit"], rows["label"], features)
    for head, bound in ((found, 5e-5), (grouped, 5e-3)):
        np.testing.assert_allclose(
            head.get_offsets("user"), expected.get_offsets("user"), atol=bound
        )


def test_nothing_is_left_and_nothing_is_changed_where_rows_are_refused(
    small_blocks, tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    head = make_head()
    fit_calibrator(head, ScoredLog(table(), logit="logit"), verbose=0)
    before = head.get_weights()
    for rows, message in (
        (table().assign(label=1), "one class only"),
        (table().assign(logit=np.inf), "invalid predictions"),
        (table().assign(user=0.5), "must hold ids"),
        (table().assign(age="old"), "numeric column 'age' must hold numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            fit_calibrator(head, ScoredLog(rows, logit="logit"), verbose=0)
    for received, expected in zip(head.get_weights(), before, strict=True):
        np.testing.assert_array_equal(received, expected)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_error_that_says_what_to_do(small_blocks, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match="No space left") as raised:
        fit_calibrator(make_head(), ScoredLog(table(), logit="logit"), verbose=0)
    assert "Set TMPDIR" in "".join(raised.value.__notes__)
    assert not list(tmp_path.iterdir())


def test_steps_are_shown(small_blocks, capsys):
    fit_calibrator(make_head(), ScoredLog(table(), logit="logit"))
    assert "9,000/9,000 rows" in (shown := capsys.readouterr().out)
    assert " steps " in shown


def test_the_parts_of_a_fit_do_not_matter(monkeypatch):
    generator = np.random.default_rng(0)
    ids = [generator.integers(0, size + 1, 5_000) for size in (4, 300)]
    logits = generator.normal(size=5_000)
    labels = (generator.random(5_000) < 1 / (1 + np.exp(-logits))).astype(float)
    whole = OffsetRows(logits, labels, None, ids)
    fits = [fit_field_offsets([whole], [4, 300], half_cauchy(1.0))]
    parts = [whole.part(slice(700)), whole.part(slice(700, None))]
    fits.append(fit_field_offsets(parts, [4, 300], half_cauchy(1.0)))
    for a, b in zip(fits[0].offsets, fits[1].offsets, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert fits[0].log_loss == pytest.approx(fits[1].log_loss, abs=1e-10)


def test_stored_rows_are_the_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(stored_rows, "ROWS_OF_BLOCK", 100)
    generator = np.random.default_rng(0)
    numbers = generator.normal(size=250)
    numbers[3] = np.nan
    given = Rows(
        generator.normal(size=250),
        (np.arange(250) % 3 == 0).astype(float),
        generator.integers(0, 3, 250) / 3,
        {"site": np.arange(250) * 300, "x": numbers, "y": numbers.astype("float32").astype(float)},
        times=np.arange(250) / 7,
    )
    batches = (given.take(np.arange(start, min(start + 70, 250))) for start in range(0, 250, 70))
    stored = StoredRows.of(batches, FolderStore(tmp_path))
    assert [len(block) for block in stored.blocks] == [100, 100, 50]
    assert len(stored) == 250
    read = stored.sample
    for name in ("logits", "labels", "weights", "times"):
        np.testing.assert_array_equal(getattr(read, name), getattr(given, name))
    for name, column in given.features.items():
        np.testing.assert_array_equal(read.features[name], column)
    assert read.labels.dtype == "uint8"
    assert read.features["y"].dtype == "float32"
    monkeypatch.setattr(stored_rows, "LARGEST_SAMPLE", 100)
    assert len(stored.sample) == 34 + 34 + 17
