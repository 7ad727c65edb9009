"""`multicalibration_error` against a reference that goes segment by segment and row by row."""

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from backends import examples
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.cumulative_error import brownian_range_tail
from keras_calibration.scoring import multicalibration_error
from keras_calibration.scoring.multicalibration_error import error_in_folds
from row_references import segment_figures


def reference(labels, predictions, features, weights, max_depth, min_rows, min_positives):
    """Name of each segment → number of rows, ECCE, ECCE / σ; for columns of few values."""
    rows = [i for i in range(len(labels)) if weights[i] > 0]
    conditions = [
        [(name, value) for value in sorted({values[i] for i in rows})]
        for name, values in features.items()
    ]
    figures = {}
    for depth in range(max_depth + 1):
        for chosen in itertools.combinations(conditions, depth):
            for segment in itertools.product(*chosen):
                inside = [i for i in rows if all(features[c][i] == v for c, v in segment)]
                positives = math.fsum(predictions[i] for i in inside)
                negatives = math.fsum(1 - predictions[i] for i in inside)
                rarer = min(positives, negatives) * (1 + 1e-9)
                is_large = len(inside) >= min_rows and rarer >= min_positives
                if inside and (is_large or not depth):
                    name = ", ".join(f"{c} = {v}" for c, v in segment) or "all rows"
                    figures[name] = len(inside), *ecce(inside, labels, predictions, weights)
    return figures


def ecce(inside, labels, predictions, weights):
    total = math.fsum(weights[i] for i in inside)
    sums = [0.0]
    for p in sorted({predictions[i] for i in inside}):
        below = [i for i in inside if predictions[i] <= p]
        sums.append(math.fsum(weights[i] * (labels[i] - predictions[i]) for i in below) / total)
    error = max(sums) - min(sums)
    error = 0.0 if error < 1e-12 else error
    variance = math.fsum(
        weights[i] ** 2 * predictions[i] * (1 - predictions[i]) / total**2 for i in inside
    )
    if variance > 0:
        return error, error / math.sqrt(variance)
    return error, math.inf if error else 0.0


def click_rows(num_rows, seed=0):
    rng = np.random.default_rng(seed)
    features = {
        "site": rng.integers(0, 6, num_rows),
        "device": np.array(["phone", "tablet", "web"])[rng.integers(0, 3, num_rows)],
        "age": rng.gamma(4.0, 10.0, num_rows),
    }
    logits = rng.normal(-1.5, 1.0, num_rows)
    true = logits + 0.5 * (features["site"] == 2) - 0.4 * (features["age"] > 50)
    labels = (rng.random(num_rows) < 1 / (1 + np.exp(-true))).astype(float)
    weights = rng.exponential(size=num_rows)
    return labels, 1 / (1 + np.exp(-logits)), features, weights


@pytest.mark.parametrize("weighted", [False, True])
def test_equals_the_package_of_the_authors(monkeypatch, weighted):
    # mcgrad 0.1.5 on the same rows: MulticalibrationError(…, max_depth=2,
    # max_values_per_segment_feature=6, min_samples_per_segment=20, max_n_segments=None,
    # precision_dtype="float64"), with the properties mce, mce_sigma, mde, mce_relative, mce_pvalue
    # and the sum of segments_ecce_sigma.
    if weighted:
        mce, sigmas, mde = 0.05233461974837726, 4.151110967283062, 0.06303688357267732
        relative, p_value, total = 24.47276816978986, 0.00013234611542278785, 156.91543729458104
    else:
        mce, sigmas, mde = 0.04807557037354897, 5.560523308929239, 0.04322935783431382
        relative, p_value, total = 21.802979761246696, 1.0758677004840678e-07, 166.62477036581885
    monkeypatch.setattr("keras_calibration._solvers.segments._NUM_RANGES", 6)
    labels, predictions, features, weights = click_rows(2000)
    result = multicalibration_error(
        labels, predictions, features, weights if weighted else None, min_rows=20, min_positives=0
    )
    deviations = [segment.deviations for segment in result.segments]
    assert len(deviations) == 88
    assert sum(deviations) == pytest.approx(total, rel=1e-12)
    assert deviations[0] == pytest.approx(sigmas, rel=1e-12)
    assert result.error == pytest.approx(mce, rel=1e-12)
    assert result.smallest_detectable == pytest.approx(mde, rel=1e-12)
    assert 100 * result.relative_error == pytest.approx(relative, rel=1e-12)
    # The package takes the smallest p-value as it is, and makes no correction for few positives.
    assert brownian_range_tail(deviations).min() == pytest.approx(p_value, rel=1e-8)
    assert result.p_value > 88 * p_value


@pytest.mark.parametrize("weights", [None, np.arange(1.0, 1001) ** 0.3])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_a_rate_of_one_class_is_exact_and_has_no_rarer_class(label, weights):
    site, predictions = np.arange(1000) % 3, np.linspace(0.05, 0.95, 1000)
    result = multicalibration_error(np.full(1000, label), predictions, {"site": site}, weights)
    assert {result.rate, *(segment.observed_rate for segment in result.segments)} == {label}
    assert np.isnan(result.relative_error)
    assert "rarer" not in str(result)
    assert "nan" not in str(result)


HOSTILE = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 1.0, 0.5]),
        st.sampled_from([0.0, 1e-30, 1e-3, 0.3, 0.3, 0.5, 1 - 1e-7, 1.0]),
        st.sampled_from([0.0, 1e-6, 1.0, 1e6]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(100))
@given(HOSTILE, st.sampled_from([0.0, 0.5]), st.integers(1, 2))
def test_equals_the_reference_on_any_rows(rows, min_positives, max_depth):
    labels, predictions, weights, first, second = (
        list(column) for column in zip(*rows, strict=True)
    )
    features = {"first": first, "second": second}
    arguments = {"max_depth": max_depth, "min_rows": 1, "min_positives": min_positives}
    if not any(weights):
        with pytest.raises(ValueError, match="sample_weight"):
            multicalibration_error(labels, predictions, features, weights, **arguments)
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Labels and predictions look swapped")
        result = multicalibration_error(labels, predictions, features, weights, **arguments)
    features = {name: [str(value) for value in values] for name, values in features.items()}
    expected = reference(labels, predictions, features, weights, max_depth, 1, min_positives)
    received = {
        segment.name: (segment.num_rows, segment.error, segment.deviations)
        for segment in result.segments
    }
    assert received.keys() == expected.keys()
    for name, figures in expected.items():
        assert received[name][:2] == pytest.approx(figures[:2], rel=1e-6, abs=1e-9), name
        # Errors below 1e-12 count as 0, and those up to 1e-9 have lost digits to rounding.
        if not 1e-13 < max(received[name][1], figures[1]) < 1e-9:
            assert received[name][2] == pytest.approx(figures[2], rel=1e-6, abs=1e-9), name
    assert all(0 <= segment.p_value <= 1 for segment in result.segments)
    assert not math.isnan(result.error)
    assert 0 <= result.p_value <= 1


def test_correct_predictions_are_seldom_refuted():
    rng = np.random.default_rng(0)
    logits = rng.normal(-4.5, 1.0, 5000)  # 2 % positives
    predictions = 1 / (1 + np.exp(-logits))
    features = {"site": rng.zipf(1.5, 5000) % 50, "age": rng.normal(size=5000)}
    p_values = [
        multicalibration_error(rng.random(5000) < predictions, predictions, features).p_value
        for _ in range(100)
    ]
    assert np.mean(np.array(p_values) <= 0.05) <= 0.05
    assert min(p_values) > 1e-4


def test_chance_does_not_choose_the_segments():
    # Each value expects 3.6 positives. Some observe 10 or more by chance: they may not enter alone.
    rng = np.random.default_rng(0)
    site, predictions = np.repeat(np.arange(200), 300), np.full(60_000, 0.012)
    labels = rng.random(60_000) < predictions
    most = np.bincount(site, labels).argmax()
    labels[np.flatnonzero(site == most)[:12]] = True
    result = multicalibration_error(labels, predictions, {"site": site})
    assert [segment.name for segment in result.segments] == ["all rows"]
    # The same for values that expect just less, and just as many, as needed.
    for rate, num_segments in ((0.0333, 1), (0.0334, 201)):
        predictions = np.full(60_000, rate)
        of_rate = multicalibration_error(labels, predictions, {"site": site})
        assert len(of_rate.segments) == num_segments
    flipped = multicalibration_error(~labels, 1 - np.full(60_000, 0.012), {"site": site})
    assert len(flipped.segments) == 1


def test_the_planted_segment_is_found():
    labels, predictions, features, _ = click_rows(20_000)
    result = multicalibration_error(labels, predictions, features)
    assert result.segments[0].name == "site = 2"
    assert result.p_value < 1e-9
    assert result.error > result.smallest_detectable
    assert result.overall.name == "all rows"
    assert result.overall in result.segments
    lines = str(result).splitlines()
    assert (lines[3][:9], lines[-1][:9]) == ("site = 2 ", "all rows ")
    swapped = {"age": features["age"], "site": features["site"], "device": features["device"]}
    assert multicalibration_error(labels, predictions, swapped).error == result.error


def test_kinds_of_columns(monkeypatch):
    monkeypatch.setattr("keras_calibration._solvers.segments._NUM_RANGES", 2)
    num_rows = 1200
    rng = np.random.default_rng(0)
    third = np.arange(num_rows) % 3
    amount = np.where(third == 0, 0.0, rng.uniform(1, 9, num_rows))
    amount[:30] = np.nan
    features = {
        "bytes": np.array([b"a", b"b", b"c"], object)[third],
        "objects": np.array(["x", None, 3], object)[third],
        "texts": np.array(["x", "", "y"])[third],
        "flag": third == 0,
        "amount": amount,
        "few": third.astype("float32"),
        "count": rng.permutation(num_rows)[:, None],
        "infinite": np.where(third == 0, np.inf, -np.inf),
        "constant": np.ones(num_rows),
    }
    labels, predictions = rng.random(num_rows) < 0.5, np.full(num_rows, 0.5)
    options = {"numeric": ["amount", "few", "count", "infinite", "constant"], "max_depth": 1}
    options |= {"min_rows": 1, "min_positives": 0}
    result = multicalibration_error(labels, predictions, features, **options)
    names = {segment.name: segment.num_rows for segment in result.segments}
    median = np.nanmedian(amount)
    assert names == {
        "all rows": 1200,
        **{f"bytes = {value}": 400 for value in "abc"},
        **{f"objects = {value}": 400 for value in ("x", "missing", "3")},
        **{f"texts = {value}": 400 for value in ("x", "''", "y")},
        **{"flag = True": 400, "flag = False": 800},
        **{f"amount ≤ {median:g}": 585, f"amount > {median:g}": 585, "amount missing": 30},
        **{"few ≤ 1": 800, "few > 1": 400},
        **{"count ≤ 599.5": 600, "count > 599.5": 600},
        **{"infinite = -inf": 800, "infinite = inf": 400},
        "constant = 1": 1200,
    }


def test_bad_rows_are_refused():
    rows = {"labels": [0, 1, 1], "predictions": [0.1, 0.2, 0.3], "features": {"site": [1, 2, 3]}}
    bad = [
        ({"labels": [0, 1]}, "labels"),
        ({"labels": [0, 1, 2]}, "labels"),
        ({"predictions": [math.nan, 0.2, 0.3]}, "(?i)predictions.*NaN"),
        ({"predictions": [], "labels": []}, "Received: none"),
        ({"features": {"site": [1, 2]}}, "'site': 2"),
        ({"features": [1, 2, 3]}, "column names"),
        ({"numeric": ["age"]}, "numeric"),
        ({"features": {"site": ["a", "b", "c"]}, "numeric": ["site"]}, "numbers"),
        ({"sample_weight": [1, 1, -1]}, "sample_weight"),
        ({"sample_weight": [1, 1, 1.5], "weights_are": "counts"}, "weights_are"),
        *(({name: -1}, name) for name in ("max_depth", "min_rows", "min_positives")),
    ]
    for changes, message in bad:
        with pytest.raises(ValueError, match=message):
            multicalibration_error(**{**rows, **changes})


def grouped(seed, copies=4):
    """Right predictions of 300 customers, with equal labels for the rows of each."""
    generator = np.random.default_rng(seed)
    p = np.repeat(generator.uniform(0.1, 0.6, 300), copies)
    labels = np.repeat(generator.random(300), copies) < p
    sites = np.repeat(generator.integers(0, 4, 300), copies)
    return labels.astype(float), p, {"site": sites}, np.repeat(np.arange(300), copies)


def test_p_values_hold_for_groups():
    """Of 100 data sets; without `groups`, most reject predictions that are right."""
    told = [multicalibration_error(*grouped(s)[:3]).p_value < 0.05 for s in range(100)]
    assert np.mean(told) > 0.5
    told = []
    for seed in range(100):
        *rows, group = grouped(seed)
        told.append(multicalibration_error(*rows, groups=group).p_value < 0.05)
    assert np.mean(told) <= 0.09


def test_counted_rows_of_a_group_are_its_rows():
    labels, p, features, group = grouped(0)
    counts = np.random.default_rng(0).integers(1, 4, len(p))
    again = np.repeat(np.arange(len(p)), counts)
    counted = multicalibration_error(
        labels, p, features, counts, groups=group, weights_are="counts"
    )
    features = {"site": features["site"][again], "customer": group[again]}
    single = multicalibration_error(labels[again], p[again], features, groups="customer")
    for one, other in zip(counted.segments, single.segments, strict=True):
        assert one.name == other.name
        assert one.p_value == pytest.approx(other.p_value, rel=1e-9)
    assert counted.smallest_detectable == pytest.approx(single.smallest_detectable, rel=1e-9)


def test_folds_are_combined_by_fishers_method():
    rng = np.random.default_rng(0)
    site, fold = rng.integers(0, 3, 6000), rng.integers(0, 4, 6000)
    predictions = rng.uniform(0.3, 0.7, 6000)
    labels = (rng.random(6000) < predictions + 0.05 * (site == 1)).astype(float)
    result = error_in_folds(Rows(predictions, labels, None, {"site": site}, fold=fold), [], 1)
    assert len(result.segments) == 4
    for segment in result.segments:
        in_segment = np.ones(6000, bool)
        if segment.name != "all rows":
            in_segment = site == int(segment.name.removeprefix("site = "))
        parts = [in_segment & (fold == number) for number in range(4)]
        ones = np.ones(6000)
        figures = [
            segment_figures(*(column[rows] for column in (predictions, labels, ones, ones)))[0]
            for rows in parts
        ]
        sizes, _, _, errors, _, p_values = np.transpose(figures)
        assert segment.error == pytest.approx(np.average(errors, weights=sizes))
        expected = stats.combine_pvalues(p_values, "fisher").pvalue
        assert segment.p_value == pytest.approx(expected, rel=1e-3)
        assert segment.observed_rate == pytest.approx(labels[in_segment].mean())
    assert result.segments[0].name == "site = 1"
    assert result.segments[0].p_value < 0.01 < min(s.p_value for s in result.segments[2:])


def test_deviations_in_folds_are_finite_where_the_p_value_is_0():
    rng = np.random.default_rng(0)
    fold, predictions = np.arange(18_000) % 3, rng.uniform(0.3, 0.4, 18_000)
    labels = (rng.random(18_000) < predictions + 0.17).astype(float)
    site, ones = rng.integers(0, 2, 18_000), np.ones(18_000)
    result = error_in_folds(Rows(predictions, labels, None, {"site": site}, fold=fold), [], 1)
    whole, *sites = result.segments
    assert (whole.name, whole.p_value) == ("all rows", 0.0)
    p_values = [
        segment_figures(*(column[fold == number] for column in (predictions, labels, ones, ones)))
        for number in range(3)
    ]
    half = -np.sum(np.log([figures[0][5] for figures in p_values]))
    tail = -half + np.log(1 + half + half**2 / 2)
    expected = optimize.brentq(lambda x: stats.norm.logsf(x) + np.log(8) - tail, 1, 99)
    assert whole.deviations == pytest.approx(expected, rel=1e-3)
    assert whole.deviations > 37 > max(site.deviations for site in sites) > 20


def test_errors_of_folds_do_not_cancel():
    # Too high in one fold, too low in the other: nothing is left in their sum.
    labels = np.tile([0.0, 1.0], 2000)
    fold = np.arange(4000) // 2000
    predictions = np.where(fold == 0, 0.4, 0.6)
    columns = {"site": np.zeros(4000, int)}
    assert multicalibration_error(labels, np.full(4000, 0.5), columns).p_value > 0.5
    result = error_in_folds(Rows(predictions, labels, None, columns, fold=fold), [], 1)
    assert result.error == pytest.approx(0.1, rel=0.1)
    assert result.p_value < 1e-9


def test_the_level_in_folds_is_that_of_right_predictions():
    hits = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        predictions = rng.uniform(0.2, 0.6, 1500)
        labels = (rng.random(1500) < predictions).astype(float)
        columns = {"site": rng.integers(0, 8, 1500)}
        fold = rng.integers(0, 3, 1500)
        result = error_in_folds(Rows(predictions, labels, None, columns, fold=fold), [], 1)
        hits += result.p_value < 0.05
    assert 0 < hits <= 16
