"""What changes no facts changes no answer: `score`, the functions, the plots and scored logs."""

import keras
import numpy as np
import pandas
import pytest

from backends import HAS_FLOAT64, digits
from keras_calibration import scoring
from keras_calibration.logs import ScoredLog
from keras_calibration.metrics import FieldECE, LogitAUC, LogLoss
from keras_calibration.plots import FieldDisplay, ReliabilityDisplay

NUM_ROWS = 300
GENERATOR = np.random.default_rng(0)
LOGITS = GENERATOR.normal(-0.5, 1.0, NUM_ROWS)
ROWS = {
    "labels": (GENERATOR.random(NUM_ROWS) < 1 / (1 + np.exp(-LOGITS - 0.3))).astype(float),
    "predictions": 1 / (1 + np.exp(-LOGITS)),
    "field": GENERATOR.integers(0, 3, NUM_ROWS).astype(float),
    "weights": GENERATOR.integers(1, 5, NUM_ROWS).astype(float),
}


def by_score(labels, predictions, field, weights):
    rows = labels, predictions, weights, {"site": field}
    results = scoring.score(rows, [LogLoss(), LogitAUC()], {"site": [FieldECE(3)]}, verbose=0)
    return list(results.values())


def by_segments(labels, predictions, field, weights):
    segments = {"site": field}
    result = scoring.multicalibration_error(
        labels, predictions, segments, weights, numeric=[], min_rows=20, min_positives=1
    )
    overall = result.overall
    numbers = [result.error, result.p_value, result.smallest_detectable, result.rate]
    return [*numbers, overall.mean_prediction, overall.deviations]


def of_rates(display):
    rates = next(iter(display.curves.values()))
    return np.concatenate([rates.predicted, rates.observed, rates.lower, rates.upper]).tolist()


def by_bins(labels, predictions, field, weights):
    return of_rates(
        ReliabilityDisplay.from_predictions(labels, predictions, sample_weight=weights, num_bins=4)
    )


def by_values(labels, predictions, field, weights):
    return of_rates(
        FieldDisplay.from_predictions(labels, predictions, field, sample_weight=weights)
    )


def by_log(labels, predictions, field, weights):
    pytest.importorskip("duckdb")
    columns = {"label": labels, "probability": predictions, "site": field, "w": weights}
    log = ScoredLog(
        pandas.DataFrame({name: np.asarray(values) for name, values in columns.items()}),
        sample_weight="w",
        fields=["site"],
    )
    return list(scoring.score(log, [LogLoss()], verbose=0).values())


DOORS = {
    "score": by_score,
    "calibrated_log_loss": lambda labels, predictions, field, weights: [
        scoring.calibrated_log_loss(labels, predictions, weights)
    ],
    "field_ece": lambda *columns: [scoring.field_ece(*columns)],
    "field_rce": lambda *columns: [scoring.field_rce(*columns)],
    "multicalibration_error": by_segments,
    "ReliabilityDisplay": by_bins,
    "FieldDisplay": by_values,
    "ScoredLog": by_log,
}
every_door = pytest.mark.parametrize("door", DOORS)
# What compares labels with predictions in pandas columns.
COMPARING = [name for name in DOORS if name != "ScoredLog"]


def through(door, rows=slice(None), **changes):
    columns = {name: values[rows] for name, values in (ROWS | changes).items()}
    return DOORS[door](*columns.values())


@every_door
def test_a_row_of_weight_0_is_no_row_whatever_it_holds(door):
    weightless = np.arange(NUM_ROWS) % 3 == 1
    hostile = {name: values.copy() for name, values in ROWS.items()}
    hostile["labels"][weightless] = np.resize([np.nan, -1.0, 7.0], weightless.sum())
    hostile["predictions"][weightless] = np.resize([np.nan, -3.0, 7.0], weightless.sum())
    hostile["field"][weightless] = np.resize([np.nan, 99.0, -7.0], weightless.sum())
    hostile["weights"][weightless] = 0
    expected = through(door, ~weightless)
    np.testing.assert_allclose(through(door, **hostile), expected, rtol=digits(1e-9))


@pytest.mark.parametrize("door", COMPARING)
def test_a_row_of_weight_0_may_hold_what_is_no_number(door):
    weightless = np.arange(NUM_ROWS) % 3 == 1
    rows = ROWS | {"weights": np.where(weightless, 0, ROWS["weights"])}
    hostile = {name: rows[name].astype(object) for name in ("labels", "predictions", "field")}
    for column in hostile.values():
        column[weightless] = np.resize(np.array([None, "n/a"], object), weightless.sum())
    expected = DOORS[door](*rows.values())
    received = DOORS[door](*(rows | hostile).values())
    np.testing.assert_allclose(received, expected, rtol=digits(1e-9))


@pytest.mark.parametrize("door", COMPARING)
@pytest.mark.parametrize("weight", [np.nan, -1.0, np.inf])
def test_weights_that_are_none_are_refused(door, weight):
    weights = np.where(np.arange(NUM_ROWS) == 7, weight, ROWS["weights"])
    with pytest.raises(ValueError, match=r"`sample_weight`.* in row 7"):
        through(door, weights=weights)


@every_door
def test_a_common_factor_of_the_weights_changes_nothing(door):
    expected = through(door)
    for factor in (1e-30, 1e-6, 1e6, 1e30) if HAS_FLOAT64 else (1e-6, 1e6):
        received = through(door, weights=factor * ROWS["weights"])
        np.testing.assert_allclose(received, expected, rtol=digits(1e-9), atol=1e-15)


@every_door
def test_the_order_of_the_rows_changes_nothing(door):
    order = np.random.default_rng(1).permutation(NUM_ROWS)
    # Rows go to folds by their number.
    rtol = 0.02 if door == "calibrated_log_loss" else digits(1e-9)
    np.testing.assert_allclose(through(door, order), through(door), rtol=rtol, atol=1e-15)


# Bits of the probabilities near 1, of which the mirror image is exact.
@pytest.mark.parametrize(("dtype", "bits"), [("float32", 24), ("float64", 50)])
@pytest.mark.parametrize(
    "door", [*(name for name in COMPARING if name != "field_rce"), "ScoredLog"]
)
def test_labels_and_probabilities_turned_round_mirror_the_result(door, dtype, bits):
    near = np.round(ROWS["predictions"] * 2.0**bits).astype(dtype) / np.array(2.0**bits, dtype)
    near[:4] = 2.0**-bits, 1 - 2.0**-bits, 2.0**-20, 1 - 2.0**-20
    near[4:8] = 0, 1, 0, 1
    labels = ROWS["labels"].copy()
    labels[:8] = 1, 0, 0, 1, 1, 0, 0, 1
    # So that no row is halved by an edge between bins of equal mass.
    rows = {"labels": labels, "predictions": near, "weights": 0.123 + ROWS["weights"]}
    received = through(door, **rows)
    turned = through(door, **rows | {"labels": 1 - labels, "predictions": 1 - near})
    if door == "multicalibration_error":
        received, turned = ([*numbers[:3], numbers[-1]] for numbers in (received, turned))
    elif door == "ScoredLog":
        received, turned = received[:2], turned[:2]  # the last is relative to the positives
    elif door.endswith("Display"):
        bins = len(received) // 4
        predicted, observed, lower, upper = np.reshape(received, (4, bins))
        reverse = slice(None, None, -1) if door == "ReliabilityDisplay" else slice(None)
        received = 1 - np.stack([predicted, observed, upper, lower])[:, reverse].ravel()
    np.testing.assert_allclose(turned, received, rtol=digits(1e-6, 1e-4), atol=1e-9)


@pytest.mark.parametrize("door", COMPARING)
def test_other_containers_hold_the_same_rows(door):
    expected = through(door)
    whole = ROWS | {"labels": ROWS["labels"].astype(bool), "field": ROWS["field"].astype("int8")}
    series = {name: pandas.Series(values) for name, values in ROWS.items()}
    columns = {name: values[:, None] for name, values in ROWS.items()}
    for rows in (whole, series, columns):
        np.testing.assert_allclose(DOORS[door](*rows.values()), expected, rtol=digits(1e-9))
    tensors = {name: keras.ops.convert_to_tensor(values) for name, values in ROWS.items()}
    np.testing.assert_allclose(
        DOORS[door](*tensors.values()), expected, rtol=digits(1e-9, 1e-3), atol=digits(0, 1e-4)
    )


@pytest.mark.parametrize("door", COMPARING)
def test_an_index_in_another_order_is_noticed(door):
    series = {name: pandas.Series(values) for name, values in ROWS.items()}
    other = series["labels"].sample(frac=1, random_state=0)
    with pytest.warns(UserWarning, match="and `labels`.*reindex"):
        DOORS[door](*(series | {"labels": other}).values())


@pytest.mark.parametrize("door", COMPARING)
def test_swapped_labels_and_predictions_are_noticed(door):
    swapped = ROWS | {"labels": ROWS["predictions"], "predictions": ROWS["labels"]}
    told = pytest.warns(UserWarning, match="swapped")
    if door.endswith("Display"):
        told = pytest.raises(ValueError, match=r"`labels`.*labels first")
    with told:
        DOORS[door](*swapped.values())


@pytest.mark.parametrize("door", COMPARING)
def test_texts_are_no_labels(door):
    texts = ROWS | {"labels": np.where(ROWS["labels"] > 0, "yes", "no")}
    with pytest.raises(ValueError, match=r"(labels|y_true).*strings"):
        DOORS[door](*texts.values())


def test_a_missing_label_is_never_advised_to_be_a_negative():
    labels = np.where(np.arange(NUM_ROWS) == 5, np.nan, ROWS["labels"])
    for door in ("multicalibration_error", "ReliabilityDisplay", "FieldDisplay"):
        with pytest.raises(ValueError, match=r"`labels`.*drop these rows"):
            through(door, labels=labels)
    with pytest.warns(UserWarning, match="a label is missing"):
        assert np.isnan(through("score", labels=labels)).all()
