"""A calibrated log raises no alert; one that drifted raises one that names the day and segment."""

import datetime
import json
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from calibration_records.cli import main
from calibration_records.monitoring import Periods, monitor, monitor_sums
from keras_calibration.logs import LogSums, ScoredLog, log_sums

EVIL = "<script>alert(1)</script>\x1b[31m"
START = np.datetime64("2026-03-01T00:00:00")


def log_of(source, *fields, **columns):
    return ScoredLog(source, fields=fields, **{"timestamp": "timestamp", **columns})


def make_log(
    num_days=6, rows=1500, day_factor=(None, 1.0), site_factor=(None, 1.0), shuffled_day=None
):
    """A table of a scored log; factors multiply the true rates of one day or one site."""
    rng = np.random.default_rng(0)
    n = num_days * rows
    day = np.repeat(np.arange(num_days), rows)
    site = rng.choice(["news", "mail", "shop", EVIL], n)
    p = 1 / (1 + np.exp(-rng.normal(-1.5, 1, n)))
    rate = np.where(day == day_factor[0], day_factor[1], 1) * p
    rate = np.where(site == site_factor[0], site_factor[1], 1) * rate
    rate = np.where(day == shuffled_day, rng.permutation(rate), rate)
    seconds = rng.integers(0, 86400, n).astype("timedelta64[s]")
    columns = {"timestamp": START + day * np.timedelta64(1, "D") + seconds, "site": site}
    columns |= {"device": rng.integers(0, 3, n), "probability": p.astype(np.float32)}
    return pa.table({**columns, "label": (rng.random(n) < rate).astype(int)})


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pyarrow.parquet.write_table(make_log(), path)
    return path


def test_a_calibrated_log_raises_no_alert(calibrated):
    report = monitor(log_of(calibrated, "site", "device"))
    assert report.alerts == []
    assert not report.is_alert
    assert [period.name for period in report.periods] == [f"2026-03-0{day}" for day in range(1, 7)]
    assert report.overall.num_rows == 9000
    assert str(report).startswith("No alert.\n")


@pytest.mark.slow
def test_false_alerts_are_as_rare_as_promised():
    rng = np.random.default_rng(5)
    alerts = 0
    for _ in range(100):
        n = 1000
        p = 1 / (1 + np.exp(-rng.normal(-2, 1.5, n)))
        columns = {"label": rng.random(n) < p, "probability": p, "site": rng.integers(0, 20, n)}
        times = START + rng.integers(0, 4, n) * np.timedelta64(1, "D")
        log = pa.table({**columns, "timestamp": times})
        # A fifth in the four days.
        budget = 0.2 * 365.25 / 4
        report = monitor(log_of(log, "site"), tolerance=0.0, false_alarms_per_year=budget)
        alerts += report.is_alert
    # 20 at most in the mean; 32 is three standard deviations above.
    assert alerts <= 32


def test_a_drifted_day_or_segment_is_named():
    report = monitor(log_of(make_log(day_factor=(3, 1.5)), "site"))
    assert [period.name for period in report.periods if period.is_off] == ["2026-03-04"]
    assert any(alert.startswith("2026-03-04: under-predicts") for alert in report.alerts)
    report = monitor(log_of(make_log(site_factor=("mail", 0.6)), "site", "device"))
    assert [rates.name for rates in report.fields["site"].values if rates.is_off] == ["mail"]
    assert any(alert.startswith("site mail: over-predicts") for alert in report.alerts)
    assert report.fields["site"].is_off
    assert not any(rates.is_off for rates in report.fields["device"].values)


def small_shift(is_shifted, factor):
    """The report on ten weeks of which some rows are shifted; a value appears in the sixth."""
    rng = np.random.default_rng(6)
    day = np.repeat(np.arange(70), 4000)
    site = rng.choice(["news", "mail", "new"], len(day), p=[0.5, 0.4, 0.1])
    site[(site == "new") & (day < 40)] = "news"
    p = 1 / (1 + np.exp(-rng.normal(-2, 1, len(day))))
    rate = np.where(is_shifted(day, site), factor * p, p)
    label = (rng.random(len(day)) < rate).astype(int)
    at = START + day * np.timedelta64(1, "D")
    log = pa.table({"timestamp": at, "site": site, "probability": p, "label": label})
    return monitor(log_of(log, "site"), tolerance=0.01)


def test_a_small_shift_is_found_over_days():
    report = small_shift(lambda day, site: day >= 30, 1.08)
    assert not any(period.is_off for period in report.periods)
    assert report.overall.is_off
    shift = report.overall.since
    assert abs(np.datetime64(shift.name) - np.datetime64("2026-03-31")) < np.timedelta64(6, "D")
    assert shift.observed / shift.predicted == pytest.approx(1.08, abs=0.03)
    assert f"all: under-predicts since {shift.name}" in report.alerts[0]


def test_a_small_shift_of_a_value_is_found_over_weeks():
    report = small_shift(lambda day, site: (day >= 36) & (site == "mail"), 1.2)
    values = {rates.name: rates for rates in report.fields["site"].values}
    assert [name for name, rates in values.items() if rates.is_off] == ["mail"]
    shift = values["mail"].since
    assert shift.name in ("2026-03-30", "2026-04-06", "2026-04-13")
    assert shift.observed / shift.predicted == pytest.approx(1.2, abs=0.05)
    assert values["new"].since.name >= "2026-04-06"


def test_a_shift_within_the_tolerance_does_not_matter():
    rng = np.random.default_rng(7)
    p = np.full(400_000, 0.3)
    label = (rng.random(len(p)) < 1.04 * p).astype(int)
    day = START + np.arange(len(p)) // 20_000 * np.timedelta64(1, "D")
    sums = monitor_sums(log_of(pa.table({"timestamp": day, "probability": p, "label": label})))
    assert monitor(sums, tolerance=0.01).overall.is_off
    assert not monitor(sums, tolerance=0.05).is_alert


def test_a_day_whose_predictions_tell_nothing_is_named():
    report = monitor(log_of(make_log(shuffled_day=2)))
    assert [period.name for period in report.periods if period.is_loss_off] == ["2026-03-03"]
    assert not any(period.is_off for period in report.periods)
    assert report.alerts[0].startswith("2026-03-03: Calibrated Log Loss")


def test_the_bounds_of_a_period_do_not_depend_on_the_others(calibrated):
    report = monitor(log_of(calibrated, "site"))
    part = monitor(log_of(calibrated, "site"), Periods("day", until="2026-03-03"))
    assert part.periods == report.periods[:2]


def assert_same(report, expected):
    """Up to the order in which numbers are added."""
    for ours, theirs in zip(leaves(report.to_dict()), leaves(expected.to_dict()), strict=True):
        is_number = isinstance(theirs, float)
        assert ours == (pytest.approx(theirs, rel=1e-5) if is_number else theirs)


def leaves(value):
    """The names and values of JSON, one after the other."""
    if isinstance(value, dict):
        value = [part for pair in value.items() for part in pair]
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, list) else [value]


def test_the_sums_of_days_add_up_and_are_saved(calibrated, tmp_path):
    table = pyarrow.parquet.read_table(calibrated)
    log = log_of(None, "site", ("site", "device"))
    for number, (first, size) in enumerate([(0, 2000), (2000, 0), (2000, 6000), (8000, 1000)]):
        monitor_sums(log.of(table.slice(first, size))).save(tmp_path / f"{number}.sums")
    sums = sum(map(LogSums.load, sorted(tmp_path.iterdir())), LogSums())
    assert_same(monitor(sums), monitor(log.of(table)))
    for wrong, period in ((sums, "week"), (log_sums(log.of(table), {}), "day"), (table, "day")):
        with pytest.raises(ValueError, match="`log`"):
            monitor(wrong, period)


def test_missing_values_are_a_value():
    site = [None, None, "a", "a"] * 200
    nan = [float("nan"), 1.0, None, 1.0] * 200
    columns = {"timestamp": [10**9] * 800, "probability": [0.5] * 800, "label": [0, 1] * 400}
    report = monitor(log_of(pa.table({**columns, "site": site, "x": nan}), "site", "x"))
    assert {rates.name for rates in report.fields["site"].values} == {"(missing)", "a"}
    # NaN is a missing value, as pandas and CSV files have it, which makes whole numbers floats.
    assert {r.name: r.num_rows for r in report.fields["x"].values} == {"(missing)": 400, "1": 400}


def test_predictions_of_0_and_1_and_periods_of_one_class():
    columns = {"probability": [0.0, 1.0, 0.5, 0.5] + [0.0] * 4, "label": [0, 1, 1, 0] + [0] * 4}
    columns["timestamp"] = ["2026-03-01"] * 4 + ["2026-03-02"] * 4
    report = monitor(log_of(pa.table(columns), "label"))
    assert not report.is_alert
    assert report.periods[1].high == float("inf")
    values = report.to_dict()
    assert values["periods"][1]["loss"] is None
    json.dumps(values, allow_nan=False)
    assert str(report)


def test_values_that_are_off_are_listed_before_larger_ones(monkeypatch):
    monkeypatch.setattr("calibration_records.monitoring.checks._MOST_LISTED", 2)
    site = np.repeat(["a", "b", "c", "d"], [900, 800, 600, 700])
    p, label = np.where(site == "c", 0.01, 0.5), np.arange(3000) % 2
    columns = {"timestamp": np.full(3000, 10**9), "probability": p, "label": label, "site": site}
    values = monitor(log_of(pa.table(columns), "site")).fields["site"].values
    listed = [(value.name, value.is_off) for value in values]
    assert listed == [("a", False), ("b", False), ("c", True)]


def test_times_of_every_kind():
    at, day = datetime.datetime(2026, 3, 8, 23, 30), Periods("day")
    for time, expected in (
        (at, "2026-03-08"),
        (at.date(), "2026-03-08"),
        ("2026-03-08T23:30:00-02:00", "2026-03-09"),
        ("1969-12-31T23:59:59", "1969-12-31"),
    ):
        assert day.name(day.start(time)) == expected
    names = [p.name(p.start(at)) for p in map(Periods, ("hour", "week", "month", "year"))]
    assert names == ["2026-03-08T23:00", "2026-03-02", "2026-03", "2026"]


@pytest.mark.parametrize("time", [pd.NaT, "yesterday", "12.03.2026", "", 20260312])
def test_what_is_no_time_is_no_end_of_a_log(time):
    for name in ("since", "until"):
        with pytest.raises(ValueError, match=f"`{name}` must .* Received: {name}={time!r}"):
            Periods(**{name: time})
    with pytest.raises(ValueError, match="`time`"):
        Periods().start(time)


DAYS = np.datetime64("2026-03-01", "s") + np.arange(30) * np.timedelta64(1, "D")
SECONDS = DAYS.astype("int64")
PAST, FAR = np.datetime64("1900-01-01", "s"), np.datetime64("2099-12-31", "s")
DIGITS = np.array([int(str(day)[:10].replace("-", "")) for day in DAYS])


@pytest.mark.parametrize(
    "dtype",
    [
        "int64",
        pytest.param("float64", marks=pytest.mark.slow),
        pytest.param("object", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("times", "message"),
    {
        "seconds": (SECONDS, None),
        "digits": (DIGITS, "30 of 30 .*20260301.* as 1970-08-23"),
        "digits and hours": (DIGITS * 100, "2026030100.* as 2034"),
        "months": (DIGITS // 100, "in 1970"),
        "days": (np.arange(30), "in 1970.*days . 86400"),
        "days since 1970": (SECONDS // 86400, "in 1970"),
        "Excel": (SECONDS // 86400 + 25569, "in 1970"),
        "hours": (SECONDS // 3600, "in 1970"),
        "nanoseconds read as seconds": (SECONDS.astype("datetime64[ns]"), "in 1970"),
        "old placeholders": (np.where(np.arange(30) > 9, DAYS, PAST), "10 of 30 .* 1900-01-01"),
        "placeholders": (np.where(np.arange(30) > 1, DAYS, FAR), "2 of 30 rows .* 2099-12-31"),
        "before all years": (np.where(np.arange(30) > 1, SECONDS, -(10**11)), "as -1199-02-15"),
    }.values(),
)
def test_numbers_that_are_no_seconds_are_warned_about(times, message, dtype):
    times = times if times.dtype.kind == "M" else pd.Series(times).astype(dtype)
    frame = pd.DataFrame({"timestamp": times, "probability": 0.5, "label": np.arange(30) % 2})
    with warnings.catch_warnings() if message is None else pytest.warns(UserWarning, match=message):
        report = monitor(log_of(frame))
    assert (len(report.periods) == 30) == (message is None)


@pytest.mark.parametrize("unit", [10**3, 10**6, 10**9])
def test_smaller_units_than_seconds_are_refused_with_what_to_do(unit):
    frame = pd.DataFrame({"timestamp": SECONDS * unit, "probability": 0.5, "label": 0})
    with pytest.raises(ValueError, match=r"Convert.*milliseconds / 1000"):
        monitor(log_of(frame))


@pytest.mark.parametrize(
    ("ids", "warned"),
    [
        (np.float32([2**24 - 1, 7]), False),
        (np.float32([2**24, 7]), True),
        (np.float64([2**53 - 1, np.inf]), False),
        (np.float64([-(2.0**53), np.nan]), True),
        (np.int64([2**60, 7]), False),
    ],
)
def test_ids_that_floats_merge_are_warned_about(ids, warned):
    frame = pd.DataFrame({"label": [0, 1], "probability": 0.5, "id": ids})
    for named in ({"fields": ["id"]}, {"fields": [("id", "label")]}, {"row_key": "id"}):
        with (
            pytest.warns(UserWarning, match="as integers") if warned else warnings.catch_warnings()
        ):
            log_sums(ScoredLog(frame, **named), {})


ONE_ROW = {"timestamp": ["2026-03-01"], "probability": [0.1], "label": [0]}
WRONG = {
    "Labels": {"log": log_of(pa.table({**ONE_ROW, "label": [2]}))},
    "ISO 8601": {"log": log_of(pa.table({**ONE_ROW, "timestamp": ["soon"]}))},
    "`period`": {"period": "quarter"},
    "`tolerance`": {"tolerance": -0.1},
    "`false_alarms_per_year`": {"false_alarms_per_year": float("nan")},
    "`false_alarms_per_year`.*None": {"false_alarms_per_year": None},
    "`false_alarms_per_year`.*'a'": {"false_alarms_per_year": "a"},
    "`false_alarms_per_year`.*12": {"false_alarms_per_year": 12, "period": "month"},
    "`sample_weight`": {"log": log_of("x.csv", sample_weight="weight")},
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_arguments_and_rows_are_refused(calibrated, words):
    with pytest.raises(ValueError, match=words):
        monitor(**{"log": log_of(calibrated), **WRONG[words]})


def test_numbers_of_every_kind_give_the_report_of_pythons(calibrated):
    sums = monitor_sums(log_of(calibrated, "site"))
    expected = monitor(sums, tolerance=0.25, false_alarms_per_year=0.5)
    for kind in (np.float64, np.float32, np.float16, np.array, Decimal):
        report = monitor(sums, tolerance=kind(0.25), false_alarms_per_year=kind(0.5))
        assert str(report) == str(expected)
        assert json.dumps(report.to_dict()) == json.dumps(expected.to_dict())


def test_the_command_answers_by_its_exit_code(calibrated, tmp_path, capsys):
    def run(*arguments):
        return main(["monitor", *map(str, arguments)])

    assert run(calibrated, "--field", "site") == 0
    text = capsys.readouterr().out
    assert text.startswith("No alert.\n")
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    drifted = tmp_path / "log.csv"
    pyarrow.csv.write_csv(make_log(day_factor=(3, 1.5)), drifted)
    assert run(drifted, "--field", "site", "--json", "--since", "2026-03-02") == 1
    values = json.loads(capsys.readouterr().out)
    assert values["is_alert"] is True
    assert len(values["periods"]) == 5
    assert any("2026-03-04" in alert for alert in values["alerts"])


def test_probabilities_that_are_all_0_have_a_ratio_of_few_digits():
    rows = pd.DataFrame({"timestamp": START, "probability": 0.0, "label": np.arange(200) % 2})
    text = str(monitor(ScoredLog(rows, timestamp="timestamp")))
    assert "under-predicts" in text
    assert "0" * 20 not in text
