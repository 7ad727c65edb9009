"""`fit_calibrator`: the fits of `layer.fit` to all rows, from sums of a log."""

from inspect import unwrap

import keras
import numpy as np
import pandas as pd
import pytest

from calibration_records.logs.query import logit_bins
from every_head import STREAMING
from keras_calibration import layers
from keras_calibration._solvers.logit_histogram import bin_edges
from keras_calibration.calibration import fit_calibrator, update_calibrator
from keras_calibration.calibration.log_fits import calibrator_queries
from keras_calibration.logs import LogSums, ScoredLog, log_sums

RNG = np.random.default_rng(0)
N = 20_000
Z = RNG.normal(-1.5, 2, N)
SITE, DEVICE = RNG.integers(0, 40, N), RNG.integers(0, 4, N)
OFFSETS = RNG.normal(0, 0.7, 40)
Y = (RNG.random(N) < 1 / (1 + np.exp(-(0.8 * Z + 0.4 + OFFSETS[SITE] + 0.2 * DEVICE)))) * 1.0
W = RNG.choice([0.5, 1.0, 3.0], N)
NAMES = np.array([f"site {number}" for number in range(40)])
GRID = np.linspace(-12, 8, 41)


def frame(rows=slice(None)):
    columns = {"label": Y, "z": Z, "w": W, "site": SITE, "device": DEVICE, "name": NAMES[SITE]}
    return pd.DataFrame(columns).iloc[rows]


def log(rows=slice(None)):
    return ScoredLog(frame(rows), logit="z", sample_weight="w", num_threads=2)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("make", STREAMING)
def test_calibrators_of_logits_are_fitted_and_updated_as_to_all_rows(make):
    # Knots lie on bins: those of a log are of logits, those of rows of the rows' own spread.
    accuracy = 1e-2 if make is layers.ILPS else 2e-6
    expected, from_log, expected_update, updated = (make() for _ in range(4))
    row_fit = expected.fit(Z, Y, sample_weight=W)
    log_fit = fit_calibrator(from_log, log(), verbose=0)
    assert log_fit.num_rows == N
    assert log_fit.log_loss_in_sample == pytest.approx(
        row_fit.log_loss_in_sample, abs=1e-3 * accuracy
    )
    first, second = slice(0, 7000), slice(7000, None)
    fit_calibrator(updated, log(first), verbose=0)
    update_fit = update_calibrator(updated, log(second), forget=0.9, verbose=0)
    expected_update.fit(Z[first], Y[first], sample_weight=W[first])
    row_fit = expected_update.update(Z[second], Y[second], sample_weight=W[second], forget=0.9)
    assert update_fit.num_rows == row_fit.num_rows
    for layer, rows in ((from_log, expected), (updated, expected_update)):
        curves = (keras.ops.convert_to_numpy(calibrator(GRID)) for calibrator in (layer, rows))
        np.testing.assert_allclose(*curves, rtol=accuracy, atol=accuracy)


def test_updates_that_are_refused():
    layer = layers.PlattScaling()
    fit_calibrator(layer, log(), verbose=0)
    with pytest.raises(ValueError, match="`forget`"):
        update_calibrator(layer, log(), forget=2, verbose=0)
    with pytest.raises(ValueError, match="`layer`"):
        update_calibrator(layers.FieldILPS({"site": 3}, layers.ILPS()), log(), verbose=0)
    with pytest.raises(ValueError, match="logits of VectorScaling"):
        fit_calibrator(layers.VectorScaling(3), log(), verbose=0)


def heads():
    lookup = keras.layers.StringLookup(vocabulary=NAMES[:30].tolist(), num_oov_indices=1)
    return {
        "ids": lambda: layers.FieldBias({"site": 40}),
        "two fields": lambda: layers.FieldBias({"site": 30, "device": 4}),
        "strings": lambda: layers.FieldBias({"name": lookup}),
        "curve": lambda: layers.FieldBias({"site": 40}, calibrator=layers.ILPS()),
        "curves": lambda: layers.FieldILPS({"site": 40}),
        "isotonic": layers.IsotonicRegression,
    }


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", list(heads()))
def test_heads_are_nearly_those_of_all_rows(kind):
    make = heads()[kind]
    expected, from_log = make(), make()
    features = {name: frame()[name].to_numpy() for name in ("site", "device", "name")}
    if kind == "isotonic":
        row_fit = expected.fit(Z, Y, sample_weight=W)
    else:
        used = {name: features[name] for name in expected.feature_names}
        row_fit = expected.fit(Z, Y, used, W)
    summary = fit_calibrator(from_log, log(), verbose=0)
    assert summary.num_rows == N
    # Steps at single logits are finer than the groups.
    bound = 1e-3 if kind == "isotonic" else 2e-6
    assert summary.log_loss_in_sample == pytest.approx(row_fit.log_loss_in_sample, abs=bound)
    if kind == "isotonic":
        return
    rows = np.flatnonzero(np.abs(Z) < 3)  # beyond, a curve is extrapolated
    used = {name: values[rows] for name, values in used.items()}
    q = [keras.ops.convert_to_numpy(head(Z[rows], used)) for head in (from_log, expected)]
    np.testing.assert_allclose(*q, atol=2e-3)
    if kind == "ids":
        both = (head.logit_standard_deviation(Z[rows], used) for head in (from_log, expected))
        np.testing.assert_allclose(*map(keras.ops.convert_to_numpy, both), atol=2e-3)
        for head in (from_log, expected):  # their weights are not counts
            with pytest.raises(ValueError, match=r"`interval`.*unequal"):
                head.interval(Z[rows], used)


def test_many_values_take_wider_bins(monkeypatch):
    expected, from_log = layers.FieldILPS({"site": 40}), layers.FieldILPS({"site": 40})
    expected.fit(Z, Y, {"site": SITE}, W)
    monkeypatch.setitem(unwrap(fit_calibrator).__globals__, "_MOST_CELLS", 600)
    asked = []

    def told(log, queries, *arguments, **named):
        asked.append([*queries])
        return log_sums(log, queries, *arguments, **named)

    monkeypatch.setitem(unwrap(fit_calibrator).__globals__, "log_sums", told)
    fit_calibrator(from_log, log(), verbose=0)
    assert asked[-1][0] in ("cells/4", "cells/1")
    errors = from_log.get_offsets("site") - expected.get_offsets("site")
    rows = np.bincount(SITE)
    assert np.abs(errors).max() < 0.1 / np.sqrt(0.2 * rows.min())


def test_importances_of_days_are_those_of_all_rows():
    whole, by_days, by_sums = (layers.PlattScaling() for _ in range(3))
    weights = np.where(np.arange(N) < 9000, 0.5, 2.5)  # equal within each day
    whole.fit(Z, Y, sample_weight=weights)
    queries = calibrator_queries(by_sums)
    description = ScoredLog(logit="z", sample_weight="w")
    days = [frame(part).assign(w=weights[part]) for part in (slice(0, 9000), slice(9000, None))]
    for day in days:
        update_calibrator(by_days, description.of(day), verbose=0)
    sums = sum((log_sums(description.of(day), queries) for day in days), LogSums())
    fit_calibrator(by_sums, sums, verbose=0)
    expected = keras.ops.convert_to_numpy(whole(GRID))
    for layer in (by_days, by_sums):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(GRID)), expected, atol=2e-6)
        assert layer.histogram.unit == pytest.approx(whole.histogram.unit)
        with pytest.raises(ValueError, match=r"`interval`.*unequal"):
            layer.interval([0.0])


@pytest.mark.parametrize("bins_per_unit", [64, 16, 4, 1])
def test_bins_in_sql_are_those_of_the_histogram(bins_per_unit):
    z = np.r_[np.random.default_rng(3).normal(0, 30, 500), -16.0, -1e-9, 0.0, 16.0, 16000.0]
    rows = ScoredLog(pd.DataFrame({"label": np.ones(len(z)), "z": z}), logit="z")
    table = log_sums(rows, {"bins": logit_bins(bins_per_unit)}).table("bins")
    edges = bin_edges(bins_per_unit)
    number = np.searchsorted(edges, z, side="right") - 1
    sums = np.zeros((len(edges) - 1, 3))
    for power in range(3):
        offsets = z - 0.5 * (edges[number] + edges[number + 1])
        np.add.at(sums[:, power], number, offsets**power)
    received = np.stack([table[f"positives_{power}"] for power in range(3)], axis=1)
    places = table["key_bin"] + len(edges) // 2
    np.testing.assert_allclose(received, sums[places], rtol=1e-9, atol=1e-9)
    assert received[:, 0].sum() == len(z)


@pytest.mark.parametrize("far", [-2e4, 16300.0, 1e30])
@pytest.mark.parametrize("layer", [layers.ILPS(), layers.FieldBias({"site": 3})])
def test_logits_beyond_all_bins_are_refused(layer, far):
    rows = pd.DataFrame({"label": [0, 1, 1.0], "z": [0.0, far, 1.0], "site": [0, 1, 2]})
    with pytest.raises(ValueError, match="within ±16,295"):
        fit_calibrator(layer, ScoredLog(rows, logit="z"), verbose=0)


@pytest.mark.parametrize(
    ("layer", "arguments", "message"),
    [
        (layers.FieldBias({"absent": 3}), {}, "ScoredLog.*'absent'"),
        (layers.ILPS(), {"where": "label = 1"}, "`labels`.*both classes"),
        (layers.FieldNetwork({"site": 3}), {}, "direct fit"),
    ],
)
def test_refusals(layer, arguments, message):
    with pytest.raises(ValueError, match=message):
        fit_calibrator(layer, ScoredLog(frame(), logit="z", **arguments), verbose=0)


def test_rows_that_stand_for_a_group_are_no_copies():
    rows = frame().assign(site=SITE % 5)
    head = layers.BoostedTrees({"site": 5}, num_rounds=3)
    fit_calibrator(head, ScoredLog(rows, logit="z"), verbose=0)  # a warning would be an error


def test_fractions_are_no_ids():
    rows = frame().assign(site=SITE + 0.5)
    with pytest.raises(ValueError, match=r"'site'.*\.5"):
        fit_calibrator(layers.FieldBias({"site": 50}), ScoredLog(rows, logit="z"), verbose=0)


def test_what_weights_are_is_checked_although_the_log_has_none():
    rows = ScoredLog(frame(), logit="z")
    with pytest.raises(ValueError, match="`weights_are`"):
        fit_calibrator(layers.ILPS(), rows, weights_are="rows", verbose=0)
    with pytest.warns(UserWarning, match="weights_are="):
        fit_calibrator(layers.ILPS(), rows, weights_are="counts", verbose=0)


@pytest.mark.parametrize("layer", [layers.PlattScaling(), layers.FieldBias({"site": 40})])
@pytest.mark.parametrize("weight", [0.5, [0.5, 1.5]])
def test_counts_are_whole_as_in_a_fit_to_rows(layer, weight):
    """Also where two fractions in one group sum to a whole number, their squares do not."""
    rows = pd.DataFrame({"label": [0, 1] * 3, "z": 0.5, "w": np.resize(weight, 6), "site": 1})
    features, log = rows[["site"]], ScoredLog(rows, logit="z", sample_weight="w")
    message = r'weights_are="counts".*\.5'
    with pytest.raises(ValueError, match=message):
        layer.fit(rows["z"], rows["label"], features, rows["w"], weights_are="counts")
    with pytest.raises(ValueError, match=message):
        fit_calibrator(layer, log, 0, weights_are="counts")


def test_rows_whose_labels_are_shares_have_the_intervals_of_a_fit_to_rows():
    """A group of rows is as many rows as it has, with their mean label."""
    chance = 1 / (1 + np.exp(-(0.8 * Z + 0.4 + OFFSETS[SITE])))
    shares = np.round(RNG.beta(8 * chance, 8 * (1 - chance)), 2)
    heads = [layers.FieldBias({"site": 40}) for _ in range(2)]
    heads[0].fit(Z, shares, {"site": SITE})
    rows = frame().assign(label=shares)
    fit_calibrator(heads[1], ScoredLog(rows, logit="z", num_threads=2), verbose=0)
    at = GRID, {"site": np.arange(41) % 40}
    expected, received = (np.stack(head.interval(*at)) for head in heads)
    np.testing.assert_allclose(received, expected, atol=2e-3)


def test_numeric_columns_and_their_gaps():
    missing = (DEVICE == 3) & (np.arange(N) % 2 == 0)
    whole = pd.array(DEVICE * 3, dtype="Int64")
    whole[missing] = pd.NA
    rows = frame().assign(size=whole)
    heads = [layers.FieldBias({"site": 40}, numeric=["size"]) for _ in range(2)]
    heads[0].fit(Z, Y, rows, sample_weight=W)
    log = ScoredLog(rows, logit="z", sample_weight="w", num_threads=2)
    fit_calibrator(heads[1], log, verbose=0)
    expected, received = (head.get_curve("size") for head in heads)
    np.testing.assert_array_equal(received[0], [0, 3, 6, 9])
    np.testing.assert_allclose(received[1], expected[1], atol=1e-3)
    assert received[2] == pytest.approx(expected[2], abs=1e-3)
    assert abs(received[2]) > 1e-3


def test_a_head_that_follows_time_reads_the_days_of_the_log():
    generator = np.random.default_rng(0)
    day = np.sort(generator.integers(0, 30, 6000))
    seconds = generator.integers(0, 86_400, 6000)
    logits = generator.normal(-1, 1, 6000)
    site = generator.integers(0, 3, 6000)
    labels = generator.random(6000) < 1 / (1 + np.exp(-logits - 0.3 * site - day / 30))
    times = np.datetime64("2026-03-01", "s") + day * 86_400 + seconds
    rows = pd.DataFrame({"label": labels, "logit": logits, "site": site, "at": times})
    head = layers.FieldBias({"site": 3}, follows_time=True)
    fit_calibrator(head, ScoredLog(rows, logit="logit", timestamp="at"), verbose=0)
    expected = layers.FieldBias({"site": 3}, follows_time=True)
    expected.fit(logits, labels, {"site": site}, time=day)
    assert head.level().last == pytest.approx(expected.level().last, abs=1e-3)
    new = np.linspace(-3, 3, 30), {"site": np.arange(30) % 3}
    np.testing.assert_allclose(np.asarray(head(*new)), np.asarray(expected(*new)), atol=1e-3)
    with pytest.raises(ValueError, match=r"`log`.*timestamp="):
        fit_calibrator(head, ScoredLog(rows, logit="logit"), verbose=0)
