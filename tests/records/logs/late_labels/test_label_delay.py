"""LabelDelay: weights and expected positives beside complete labels, and what it refuses."""

import datetime
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_calibration as kc

UNTIL = 60.0


def world(seed, num_rows=60_000, rate=0.1, num_fields=4, days=60.0):
    """Times, label times (complete), probabilities and fields; delays of 2 to 8 days by field."""
    generator = np.random.default_rng(seed)
    time = generator.uniform(0, days, num_rows)
    field = generator.integers(0, num_fields, num_rows)
    logit = np.log(rate / (1 - rate)) + generator.normal(0, 0.7, num_rows)
    probability = 1 / (1 + np.exp(-logit))
    mean = np.geomspace(2, 8, num_fields)[field]
    within = -np.expm1(-30 / mean)
    delay = -mean * np.log1p(-generator.random(num_rows) * within)
    positive = generator.random(num_rows) < probability
    return time, np.where(positive, time + delay, np.nan), probability, field


@pytest.fixture(scope="module")
def rows():
    return world(0)


@pytest.fixture(scope="module")
def fitted(rows):
    time, label_time, _, field = rows
    return kc.LabelDelay(window=30).fit(time, label_time, UNTIL, field)


def test_shares_are_those_of_each_field(fitted):
    for value, mean in enumerate(np.geomspace(2, 8, 4)):
        true = np.expm1(-np.array([1.0, 5.0, 29.0]) / mean) / np.expm1(-30 / mean)
        np.testing.assert_allclose(
            fitted.observed_share([1.0, 5.0, 29.0], [value] * 3), true, atol=0.03
        )
    assert fitted.observed_share(30.0) == 1.0
    assert fitted.observed_share(0.0) == 0.0


def test_shares_of_a_slow_value_have_no_steps_between_quantiles():
    """Quantiles of all delays are far apart where only the rare, slow value has some."""
    generator = np.random.default_rng(5)
    slow = generator.random(100_000) < 0.05
    delays = generator.exponential(np.where(slow, 10.0, 1.0))
    delay = kc.LabelDelay(30).fit(np.zeros(100_000), delays, 100, slow.astype(int))
    ages = np.linspace(1, 29, 200)
    true = np.expm1(-ages / 10) / np.expm1(-3)
    found = delay.observed_share(ages, np.ones(200, int))
    assert np.mean(found - true) == pytest.approx(0.0, abs=0.008)
    assert np.diff(found).min() > 0


def test_whole_days_are_steps():
    days = np.arange(100) % 3 + 1.0
    delay = kc.LabelDelay().fit(np.zeros(100), days, 9)
    np.testing.assert_allclose(
        delay.observed_share([0.9, 1.0, 1.9, 2.5, 3.0]), [0, *[0.34] * 2, 0.67, 1]
    )


def test_unknown_values_and_rare_ones_have_the_curve_of_the_whole(rows):
    time, label_time, _, field = rows
    field = field.astype(str)
    field[np.flatnonzero(~np.isnan(label_time))[:9]] = "rare"
    delay = kc.LabelDelay(30).fit(time, label_time, UNTIL, field)
    whole = delay.observed_share([5.0, 9.0])
    for value in ("rare", "new"):
        np.testing.assert_array_equal(delay.observed_share([5.0, 9.0], [value] * 2), whole)
    assert (delay.observed_share([5.0, 9.0], ["0"] * 2) != whole).all()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("purpose", ["fit", "score"])
@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_weighted_rates_are_those_of_complete_labels(purpose, rate):
    """Within 1 point of the true probabilities, over 12 logs; 20 % and more are missing."""
    errors, observed = [], []
    for seed in range(12):
        time, label_time, p, field = world(200 + seed, 200_000, rate)
        delay = kc.LabelDelay(30).fit(time, label_time, UNTIL, field)
        young = time > UNTIL - 14
        labels, weights = delay.weigh(
            time[young],
            label_time[young],
            UNTIL,
            field[young],
            probability=p[young],
            purpose=purpose,
        )
        assert set(labels) == {0.0, 1.0}
        assert (weights >= 0).all()
        errors.append(np.average(p[young], weights=weights) / np.average(labels, weights=weights))
        observed.append(labels.mean() / p[young].mean())
    assert np.mean(errors) == pytest.approx(1.0, abs=0.01 + np.std(errors) / np.sqrt(12))
    assert np.mean(observed) < 0.8


def test_weights_are_those_of_the_table(rows, fitted):
    time, label_time, p, field = (each[:500] for each in rows)
    shares = fitted.observed_share(UNTIL - time, field)
    known = shares >= 0.05
    labels, weights = fitted.weigh(time, label_time, UNTIL, field, probability=p, purpose="score")
    assert (weights[~known] == 0).all()
    seen = (label_time <= UNTIL) & known
    np.testing.assert_array_equal(labels, label_time <= UNTIL)
    np.testing.assert_allclose(weights[seen], 1 / shares[seen])
    rest = known & ~seen
    np.testing.assert_allclose(weights[rest], ((1 - p) / (1 - p * shares))[rest])
    _, of_fit = fitted.weigh(time, label_time, UNTIL, field, probability=p)
    np.testing.assert_allclose(of_fit, weights * shares)
    # Mature rows: the labels are final.
    assert (weights[UNTIL - time >= 30] == 1).all()


def test_the_gradient_is_that_of_the_likelihood_of_labels_so_far(rows, fitted):
    """In float64, by finite differences: the reason for the weights of a fit."""
    time, label_time, p, field = (each[:2000] for each in rows)
    shares = fitted.observed_share(UNTIL - time, field)
    known = shares >= 0.05
    labels, weights = fitted.weigh(time, label_time, UNTIL, field, probability=p)
    logit = np.log(p / (1 - p))

    def likelihood(shift):
        q = shares / (1 + np.exp(-logit - shift))
        return np.sum(np.where(labels, np.log(np.where(known, q, 1)), np.log1p(-q))[known])

    numeric = (likelihood(1e-5) - likelihood(-1e-5)) / 2e-5
    assert np.sum(weights * (labels - p)) == pytest.approx(numeric, abs=1e-3)


def test_without_probabilities_the_rate_of_positives_is_used(rows, fitted):
    time, label_time, p, field = rows
    _, weights = fitted.weigh(time, label_time, UNTIL, field, purpose="score")
    shares = fitted.observed_share(UNTIL - time, field)
    known = shares >= 0.05
    rate = np.mean((label_time <= UNTIL)[known] / shares[known])
    assert rate == pytest.approx(p.mean(), rel=0.05)
    rest = known & ~(label_time <= UNTIL)
    np.testing.assert_allclose(weights[rest], ((1 - rate) / (1 - rate * shares))[rest])


WHOLE = st.integers(0, 8)
ROW = st.tuples(
    WHOLE,
    st.one_of(st.none(), WHOLE),
    st.sampled_from("abc"),
    st.sampled_from([0.0, 1e-9, 0.3, 0.999999, 1.0]),
)


@given(
    rows=st.lists(ROW, min_size=1, max_size=30),
    base=st.lists(st.tuples(WHOLE, st.integers(0, 3)), max_size=30),
    window=st.sampled_from([None, 1, 3.5]),
    half_life=st.sampled_from([None, 1e-3, 5.0, 1e9]),
)
@settings(max_examples=60, deadline=None)
def test_weights_are_valid_for_any_rows(rows, base, window, half_life):
    """Ties, delays of 0, rows of age 0, fields without labels, certain probabilities."""
    base_ages, base_delays = np.array(base + [(3, 1)] * 50, float).T
    delay = kc.LabelDelay(window, half_life=half_life)
    time = -base_ages - 8.0
    delay.fit(time, time + base_delays, 0.0, np.where(base_ages > 4, "a", "b"))
    ages, late, field, p = zip(*rows, strict=True)
    time = np.append(-np.array(ages, float), -100.0)  # the last row is old enough for any curve
    label_time = np.append(time[:-1] + np.array([np.nan if d is None else d for d in late]), np.nan)
    field, p = [*field, "a"], [*p, 0.5]
    with np.errstate(all="raise", under="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        labels, fit = delay.weigh(time, label_time, 0.0, field, probability=p)
        _, score = delay.weigh(time, label_time, 0.0, field, probability=p, purpose="score")
    assert np.isin(labels, (0.0, 1.0)).all()
    assert np.isfinite(score).all()
    assert ((fit >= 0) & (fit <= 1)).all()
    assert (fit <= score + 1e-12).all()
    assert (score[(labels == 1) & (score > 0)] >= 1).all()
    found = delay.expected_positives(time, label_time, 0.0, field)
    assert (found["expected"] >= found["observed"] - 1e-9).all()
    assert np.isfinite(found["standard_error"]).all()
    curve = delay.observed_share(np.linspace(0, 20, 50), ["c"] * 50)
    assert (np.diff(curve) >= -1e-12).all()
    assert curve[-1] == 1.0


def test_certain_probabilities_give_finite_weights(fitted):
    labels, weights = fitted.weigh(
        [50.0, 50.0, 10.0, 50.0], [np.nan] * 4, UNTIL, probability=[0.0, 1.0, 1.0, 1e-300]
    )
    assert labels.tolist() == [0.0] * 4
    assert np.isfinite(weights).all()
    assert weights[1] == 0.0
    assert weights[2] == 1.0


@pytest.mark.parametrize(("num_fields", "lowest"), [(1, 0.91), (4, 0.88)])
def test_intervals_of_expected_positives_cover_the_final_number(num_fields, lowest):
    """In fewer cases for values with few labels, whose curves are drawn to that of the whole."""
    covered, ratios = [], []
    for seed in range(100):
        time, label_time, _, field = world(100 + seed, 6_000, num_fields=num_fields)
        delay = kc.LabelDelay(30).fit(time, label_time, UNTIL, field)
        young = time > UNTIL - 14
        old_enough = young & (delay.observed_share(UNTIL - time, field) >= delay.min_share)
        found = delay.expected_positives(time[young], label_time[young], UNTIL, field[young])
        final = np.bincount(field[old_enough], ~np.isnan(label_time[old_enough]))
        covered.extend(np.abs(found["expected"] - final) < 1.96 * found["standard_error"])
        ratios.append(found["expected"].sum() / final.sum())
        assert (found["excluded"] + found["rows"]).sum() == young.sum()
    assert lowest < np.mean(covered) < 0.99
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.03)


def test_labels_after_the_snapshot_are_not_seen(rows, fitted):
    """A log that is complete by now can be replayed."""
    time, label_time, _, field = rows
    cut = np.where(label_time <= UNTIL, label_time, np.nan)
    again = kc.LabelDelay(30).fit(time, cut, UNTIL, field)
    ages = np.linspace(0, 40, 50)
    np.testing.assert_array_equal(again.observed_share(ages), fitted.observed_share(ages))
    for one, other in zip(
        fitted.weigh(time, label_time, UNTIL), fitted.weigh(time, cut, UNTIL), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_labels_after_the_window_are_negative(fitted):
    labels, weights = fitted.weigh([1.0, 1.0], [32.0, 30.0], UNTIL, purpose="score")
    assert labels.tolist() == [0.0, 1.0]
    assert weights.tolist() == [1.0, 1.0]


def test_half_life_follows_drifting_delays():
    generator = np.random.default_rng(3)
    time = generator.uniform(0, 120, 200_000)
    delay_time = generator.exponential(2 * np.exp(0.01 * time))
    label_time = np.where(generator.random(200_000) < 0.1, time + delay_time, np.nan)
    errors = []
    with pytest.warns(UserWarning, match="longer than those of old ones"):
        plain = kc.LabelDelay(20).fit(time, label_time, 120.0)
    for delay in (plain, kc.LabelDelay(20, half_life=7).fit(time, label_time, 120.0)):
        mean = 2 * np.exp(1.2)
        errors.append(abs(delay.observed_share(5.0) - np.expm1(-5 / mean) / np.expm1(-20 / mean)))
    assert errors[1] < 0.5 * errors[0]


def test_dates_of_any_kind_give_the_same(rows):
    time, label_time, _, _ = (each[:4000] for each in rows)
    start = np.datetime64("2026-01-01T00:00", "us")
    micro = np.timedelta64(86_400_000_000, "us")
    dates = [
        np.where(np.isnan(each), np.datetime64("NaT", "us"), start + np.nan_to_num(each) * micro)
        for each in (time, label_time)
    ]
    zone = [pd.Series(each).dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo") for each in dates]
    objects = [[None if pd.isna(v) else v.to_pydatetime() for v in each] for each in zone]
    until = datetime.datetime(2026, 3, 2)
    expected = kc.LabelDelay(30).fit(time, label_time, UNTIL)
    for columns, end in (
        (dates, until),
        (list(map(pd.Series, dates)), pd.Timestamp(until)),
        (zone, "2026-03-02T09:00+09:00"),
        (objects, np.datetime64("2026-03-02")),
    ):
        found = kc.LabelDelay(30).fit(*columns, end)
        np.testing.assert_allclose(
            found.observed_share([1.0, 4.0]), expected.observed_share([1.0, 4.0]), atol=1e-6
        )
        assert "30 days" in str(found)
        found.weigh(columns[0][:20], [None] * 20, end)


def test_a_saved_delay_is_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "delay.json")
    loaded = kc.LabelDelay.load(tmp_path / "delay.json")
    assert loaded.get_config() == fitted.get_config()
    assert str(loaded) == str(fitted)
    ages, values = np.linspace(0, 40, 50), np.arange(50) % 5
    np.testing.assert_array_equal(
        loaded.observed_share(ages, values), fitted.observed_share(ages, values)
    )
    found = (d.expected_positives(ages, [np.nan] * 50, 41, values) for d in (loaded, fitted))
    for one, other in zip(*(each.values() for each in found), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("content", ["", "{}", '{"format": "other"}', "[1]"])
def test_other_files_are_refused(content, tmp_path):
    (tmp_path / "file").write_text(content)
    with pytest.raises(ValueError, match=r"file that `LabelDelay\.save` wrote"):
        kc.LabelDelay.load(tmp_path / "file")


def test_fitted_without_fields_says_so(rows):
    time, label_time, _, field = rows
    delay = kc.LabelDelay().fit(time, label_time, UNTIL)
    assert "curve of their own" not in str(delay)
    assert "not fitted" in str(kc.LabelDelay())
    with pytest.raises(ValueError, match="called without a field"):
        delay.weigh(time, label_time, UNTIL, field)


ROWS = ([0.0] * 60, [1.0] * 60)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kc.LabelDelay(0), "`window` must be a positive number"),
        (lambda: kc.LabelDelay(window="3 days"), "`window` must be a positive number"),
        (lambda: kc.LabelDelay(half_life=-1), "`half_life` must be a positive"),
        (lambda: kc.LabelDelay(min_share=0), "`min_share` must be in"),
        (lambda: kc.LabelDelay().observed_share(1.0), "not fitted"),
        (lambda: kc.LabelDelay().weigh(*ROWS, 9), "not fitted"),
        (lambda: kc.LabelDelay().fit([1.0], [2.0], 9), "hold 50 rows with a label"),
        (lambda: kc.LabelDelay(20).fit(*ROWS, 9), "window of at most 9"),
        (lambda: kc.LabelDelay().fit([], [], 9), "must hold rows"),
        (lambda: kc.LabelDelay().fit([1.0, 2.0], [2.0], 9), "same number of rows"),
        (lambda: kc.LabelDelay().fit([1.0, 10.0], [2.0, 11.0], 9), "not be after"),
        (lambda: kc.LabelDelay().fit([1.0, np.nan], [2.0, 3.0], 9), "must be known"),
        (lambda: kc.LabelDelay().fit([1.0, 5.0], [2.0, 3.0], 9), "before the prediction"),
        (lambda: kc.LabelDelay().fit([1.0], [2.0], np.nan), "must be a time"),
        (lambda: kc.LabelDelay().fit([1.0], [2.0], None), "must be a time"),
        (lambda: kc.LabelDelay().fit([1.0], [2.0], "yesterday"), "ISO 8601"),
        (lambda: kc.LabelDelay().fit(["2026-01-01"], [None], "2026-02-01"), "pandas.to_datetime"),
        (lambda: kc.LabelDelay().fit([1.0], [2.0], "2026-02-01"), "all be numbers or all"),
        (lambda: kc.LabelDelay().fit(*ROWS, 9).weigh(*ROWS, 9, purpose="all"), '"fit" or "score"'),
        (
            lambda: kc.LabelDelay().fit(*ROWS, 9).weigh([8.5], [np.nan], 9),
            "an age of at least 1",
        ),
        (
            lambda: kc.LabelDelay().fit(*ROWS, 9).weigh([1.0], [2.0], 9, probability=[2.0]),
            r"probabilities in \[0, 1\]",
        ),
        (
            lambda: kc.LabelDelay().fit(*ROWS, 9).weigh([1.0], [2.0], 9, probability=[0.2, 0.2]),
            "same number of rows",
        ),
        (
            lambda: (
                kc.LabelDelay()
                .fit(*ROWS, 9)
                .weigh(np.array(["2026-01-01"], "M8[D]"), [None], "2026-01-09")
            ),
            "must hold numbers, as in",
        ),
        (lambda: kc.LabelDelay().fit(*ROWS, 9, ["a"] * 9), "same number of rows"),
        (
            lambda: kc.LabelDelay().fit(*ROWS, 9, ["a"] * 60).observed_share([1.0], [3]),
            "same type as in `fit`",
        ),
        (lambda: kc.LabelDelay().fit(*ROWS, 9).observed_share([-1.0]), "not be NaN or negative"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_many_young_rows_give_a_warning(fitted):
    with pytest.warns(UserWarning, match="2 of 3 rows are so young"):
        _, weights = fitted.weigh([59.99, 59.99, 30.0], [np.nan] * 3, UNTIL)
    assert weights.tolist() == [0.0, 0.0, 1.0]


def test_calibrate_scores_takes_the_labels_and_weights():
    time, label_time, p, field = world(9, 40_000)
    young = time > UNTIL - 14
    delay = kc.LabelDelay(30).fit(time, label_time, UNTIL, field)
    scores = p[young] * 0.6
    labels, weights = delay.weigh(
        time[young], label_time[young], UNTIL, field[young], probability=scores
    )
    model = kc.calibrate_scores(scores, labels, None, weights, methods="quick", verbose=0)
    predicted = model.predict({"score": scores}, verbose=0).mean()
    assert predicted == pytest.approx(p[young].mean(), rel=0.06)
    assert labels.mean() < 0.8 * p[young].mean()


# A triangle of claims that is often used (Taylor and Ashe, 1983), in units of 2,000: by year of
# the accident and of the delay; and what is then paid, by chainladder 0.10.1, `1 / cdf_` of its
# `Development(average="volume")`.
CLAIMS = [
    [179, 383, 305, 241, 264, 287, 73, 70, 114, 34],
    [176, 442, 467, 592, 223, 160, 264, 133, 213],
    [145, 501, 463, 508, 375, 73, 248, 140],
    [155, 554, 388, 781, 136, 176, 103],
    [222, 347, 496, 385, 252, 235],
    [198, 469, 424, 403, 353],
    [220, 424, 566, 532],
    [180, 531, 722],
    [188, 493],
    [172],
]
PAID = [
    *(0.0691892862, 0.2416008329, 0.4221651697, 0.6152928297, 0.7222219718, 0.797098214),
    *(0.8658721758, 0.9125033826, 0.9825641026, 1.0),
]


def test_shares_are_those_of_the_chain_ladder():
    cells = [(year, delay, n) for year, row in enumerate(CLAIMS) for delay, n in enumerate(row)]
    years, delays, counts = map(np.array, zip(*cells, strict=True))
    years, delays = np.repeat(years, counts).astype(float), np.repeat(delays, counts)
    delay = kc.LabelDelay(window=9).fit(years, years + delays, 9.0)
    np.testing.assert_allclose(delay.observed_share(np.arange(10.0)), PAID, rtol=1e-9)
