"""The monitor of a log whose labels come late: valid at every look, and none of them lost."""

import dataclasses
import json
import os

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from calibration_records.cli import main
from calibration_records.logs.late_labels.delay_curves import DelayCurves
from calibration_records.logs.late_labels.late_sql import hazard_sums
from calibration_records.logs.rows import Selection
from calibration_records.monitoring import monitor
from calibration_records.monitoring.shifts import SHIFTS, log_ratios
from calibration_records.monitoring.sums import Sums
from keras_calibration.calibration import LabelDelay
from keras_calibration.logs import Periods, Query, ScoredLog, log_sums

LARGEST = 1 - 2.0**-53
START, WINDOW = pd.Timestamp("2026-03-01"), 6
DAYS = pd.Timedelta(days=1)


def rows_of(days, num_rows=400, factor=1.0, seed=0, unit="us", rate=0.2):
    """Rows of some days, with the labels of all time; factor is that of the true rates."""
    rng = np.random.default_rng([seed, *days])
    day = rng.choice(days, num_rows * len(days))
    site = rng.choice(["news", "mail"], len(day))
    p = rng.beta(2, 2 / rate - 2, len(day))
    delay = rng.uniform(0, WINDOW, len(day)) ** np.where(site == "mail", 0.5, 1.0)
    at = START + pd.to_timedelta(day + rng.random(len(day)), "D")
    at, bought_at = at.floor(unit), (at + pd.to_timedelta(delay, "D")).floor(unit)
    is_positive = rng.random(len(day)) < factor * p
    columns = {"timestamp": at, "bought_at": bought_at.where(is_positive), "site": site}
    return pd.DataFrame({**columns, "probability": p})


def so_far(rows, until):
    """The rows and labels that are there at a time."""
    rows = rows[rows["timestamp"] <= until]
    return rows.assign(bought_at=rows["bought_at"].where(rows["bought_at"] <= until))


def fitted(unit="us", field="site"):
    rows = rows_of(range(60), seed=9, unit=unit)
    until = START + 60 * DAYS
    now = so_far(rows, until)
    values = None if field is None else now[field]
    return LabelDelay(window=WINDOW).fit(now["timestamp"], now["bought_at"], until, values)


DELAY = fitted()


def log_of(source, until, delay=DELAY, **arguments):
    arguments = {"timestamp": "timestamp", "label_time": "bought_at", **arguments}
    log = ScoredLog(source, observed_until=until, **{"delay_field": "site", **arguments})
    return log.with_delay(delay)


def test_the_predictions_are_those_of_the_labels_so_far():
    until = START + 12 * DAYS
    rows = so_far(rows_of(range(12)), until)
    age = ((until - rows["timestamp"]) / DAYS).to_numpy()
    share = DELAY.observed_share(age, rows["site"])
    known = share >= DELAY.min_share
    assert 0 < known.sum() < len(rows)
    report = monitor(log_of(rows, until, fields=["site"]))
    for period in report.periods:
        part = known & (rows["timestamp"].dt.strftime("%Y-%m-%d") == period.rates.name).to_numpy()
        q = (rows["probability"] * share)[part]
        assert period.rates.num_rows == part.sum()
        np.testing.assert_allclose(period.rates.predicted, q.mean(), rtol=1e-9)
        observed = rows["bought_at"].notna()[part].mean()
        np.testing.assert_allclose(period.rates.observed, observed, rtol=1e-12)
    assert not report.is_alert
    assert "labels that have come until 2026-03-13" in str(report)


def hazard_reference(p, delay, age, share, before, rate, is_up):
    """The cumulated hazard of one row, from the shares at and before an age."""
    p = min(rate * p, LARGEST)
    if delay is None:
        return -np.log1p(-p * share(age))
    jump = p * (share(delay) - before(delay)) / (1 - p * before(delay))
    return -np.log1p(-p * before(delay)) + (-np.log1p(-jump) if is_up else jump) / 2


@pytest.mark.parametrize("tolerance", [0.0, 0.05])
@pytest.mark.parametrize("has_all_delays", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hazards_are_those_of_numpy(dtype, has_all_delays, tolerance):
    grid, shares = np.array([0.5, 1.0, 2.0, 4.0]), np.array([0.2, 0.5, 0.9, 1.0])
    curves = DelayCurves(grid, shares[None], np.zeros(0, str), 4.0, has_all_delays, 0.01)
    rng = np.random.default_rng(0)
    ages = rng.choice([0.75, 1.0, 1.5, 3.0, 9.0], 300)
    delays = np.where(rng.random(300) < 0.5, rng.choice([0.5, 1.0, 1.25, 2.0, 4.0], 300), np.nan)
    delays = np.where(delays <= ages, delays, np.nan)
    p = rng.choice([0.0, 0.001, 0.3, 0.97, 1.0], 300).astype(dtype)
    until = pd.Timestamp("2026-05-01")
    at = until - pd.to_timedelta(ages, "D")
    columns = {"timestamp": at, "bought_at": at + pd.to_timedelta(delays, "D"), "probability": p}
    log = ScoredLog(
        pd.DataFrame(columns),
        timestamp="timestamp",
        label_time="bought_at",
        observed_until=until,
        label_delay=curves,
    )
    selection = Selection(purpose="observed")
    sums = log_sums(log, {"all": Query({}, hazard_sums(tolerance))}, selection, 0)

    def share(age):
        if has_all_delays:
            return shares[grid <= age].max(initial=0.0)
        return np.interp(age, grid, shares, left=0.0)

    def before(age):
        return share(np.nextafter(age, 0))

    table = sums.table("all")
    p = np.minimum(p.astype("float64"), LARGEST)
    for name, rate in (("hazard_up", 1 + tolerance), ("hazard_down", 1 / (1 + tolerance))):
        expected = sum(
            hazard_reference(
                *(each, None if np.isnan(delay) else delay, age),
                *(share, before, rate, name == "hazard_up"),
            )
            for each, delay, age in zip(p, delays, ages, strict=True)
        )
        np.testing.assert_allclose(table[name], expected, rtol=1e-9)


@given(st.floats(1e-9, 1 - 1e-9), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.3))
def test_the_mean_ratio_of_a_row_is_at_most_1(p, first, second, tolerance):
    # A label comes at one of two ages, or never: the hazards jump as far as they can.
    first, second = sorted((first, second))
    for shift, ratio in (("hazard_up", SHIFTS > 0), ("hazard_down", SHIFTS < 0)):
        rate = 1 + tolerance if shift == "hazard_up" else 1 / (1 + tolerance)
        true = min(rate * p, LARGEST)  # as far off as the tolerance allows
        mean = np.zeros(len(SHIFTS))
        outcomes = [(true * first, 1, first, 0.0), (true * (second - first), 1, second, first)]
        for chance, y, share, before in [*outcomes, (1 - true * second, 0, second, second)]:
            delay = None if y == 0 else 1.0
            hazard = hazard_reference(
                *(p, delay, 1.0, lambda _, at=share: at, lambda _, at=before: at),
                *(rate, shift == "hazard_up"),
            )
            hazard = np.array([hazard])
            sums = Sums(positives=np.array([float(y)]), hazard_up=hazard, hazard_down=hazard)
            mean += chance * np.exp(log_ratios(sums, tolerance)[0])
        assert (mean[ratio] <= 1 + 1e-9).all()


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "steps"), [(0.1, 1), (0.3, 2), (0.3, 20)])
def test_right_predictions_show_at_most_a_year_of_evidence_in_a_year(rate, steps):
    """Each day is looked at, and the labels of the days before are still coming."""
    rng = np.random.default_rng(0)
    num_logs, num_days, num_rows, years = 400, 120, 200, 1 / 365.25
    grid = np.arange(1, steps + 1) / steps  # the share at each age, in days
    p = rng.beta(2, 2 / rate - 2, num_rows)
    # Of each day's rows, the evidence at each age.
    size = (num_logs, num_days, num_rows)
    when = np.where(rng.random(size) < p, rng.integers(0, steps, size), steps).astype(np.int8)
    ratios = np.zeros((num_logs, num_days, steps, len(SHIFTS)))
    for age in range(steps):
        sums = Sums(positives=(when <= age).sum(axis=-1).ravel())
        for name, is_up in (("hazard_up", True), ("hazard_down", False)):
            jumps = np.diff(grid, prepend=0) * p[:, None] / (1 - p[:, None] * (grid - 1 / steps))
            jumps = -np.log1p(-jumps) / 2 if is_up else jumps / 2
            labelled = -np.log1p(-p[:, None] * (grid - 1 / steps)) + jumps
            without = -np.log1p(-p * grid[age])
            own = np.take_along_axis(
                labelled[None, None], np.minimum(when, steps - 1)[..., None], 3
            )
            sums[name] = np.where(when <= age, own[..., 0], without).sum(axis=-1).ravel()
        ratios[:, :, age] = log_ratios(sums, 0.0).reshape(num_logs, num_days, -1)
    largest = np.full(num_logs, -np.inf)
    for today in range(num_days):
        age = np.minimum(today - np.arange(today + 1), steps - 1)
        since = np.cumsum(ratios[:, np.arange(today + 1), age][:, ::-1], axis=1)
        evidence = logsumexp(since, axis=(1, 2)) + np.log(years / len(SHIFTS))
        largest = np.maximum(largest, evidence)
    # Once in 5 years: of 400 logs of a third of a year, at most a share of .066 in the mean.
    assert np.mean(largest >= np.log(5)) <= num_days * years / 5 + 3 * np.sqrt(0.066 / num_logs)


@pytest.mark.parametrize("unit", ["us", "D"])
def test_a_shift_is_found_in_labels_that_are_still_coming(unit):
    until = START + 14 * DAYS
    rows = pd.concat([rows_of(range(10), unit=unit), rows_of(range(10, 14), factor=1.6, unit=unit)])
    report = monitor(log_of(so_far(rows, until), until, fitted(unit)))
    shift = report.overall.shift
    assert shift.is_off
    assert "2026-03-10" <= shift.since <= "2026-03-12"
    assert 0.3 < shift.change < 0.9


class Job:
    """A folder of a file a day, written anew as labels come, and a monitor of every day."""

    def __init__(self, folder):
        self.log, self.state = folder / "log", folder / "state"
        self.log.mkdir()
        self.rows = rows_of(range(20), num_rows=100)

    def write(self, day, until):
        """The file of a day, with its labels until then."""
        ends = self.rows["timestamp"].between(START + day * DAYS, START + (day + 1) * DAYS)
        path = self.log / f"{day:02d}.parquet"
        so_far(self.rows[ends], until).to_parquet(path)
        return path

    def report(self, until, **options):
        log = log_of(str(self.log), until, fields=["site"])
        return monitor(log, state=self.state, **options)

    def from_the_start(self, until):
        return monitor(log_of(so_far(self.rows, until), until, fields=["site"]))


def assert_same(report, expected):
    found, expected = (json.dumps(each.to_dict()) for each in (report, expected))
    numbers = [
        np.array([float(part) for part in pd.Series(text).str.findall(r"-?\d+\.\d+(?:e-?\d+)?")[0]])
        for text in (found, expected)
    ]
    np.testing.assert_allclose(numbers[0], numbers[1], rtol=1e-6, atol=1e-9)
    assert report.alerts == expected_alerts(expected)


def expected_alerts(text):
    return json.loads(text)["alerts"]


@pytest.mark.slow
def test_each_days_report_is_that_of_a_run_from_the_start(tmp_path):
    job = Job(tmp_path)
    last = 0
    for today in (1, 2, 8, 9, 12, 14):
        until = START + today * DAYS
        counted = max(0, last - WINDOW - 1)
        for day in range(counted):
            (job.log / f"{day:02d}.parquet").unlink(missing_ok=True)  # no longer needed
        for day in range(counted, today):
            job.write(day, until)  # the labels of the last week are still coming
        assert_same(job.report(until), job.from_the_start(until))
        last = today
    assert counted > 3


@pytest.mark.slow
def test_an_old_file_must_not_change(tmp_path):
    job = Job(tmp_path)
    until = START + 10 * DAYS
    for day in range(10):
        job.write(day, until)
    job.report(until)
    before = job.state.read_bytes()
    job.write(1, START + 2 * DAYS)
    with pytest.raises(ValueError, match="has changed since"):
        job.report(until + DAYS)
    assert job.state.read_bytes() == before


@pytest.mark.slow
def test_labels_of_a_file_over_many_days_are_read_until_all_have_come(tmp_path):
    job = Job(tmp_path)
    for today in (5, 12, 16):
        until = START + today * DAYS
        so_far(job.rows[job.rows["timestamp"] < START + 8 * DAYS], until).to_parquet(
            job.log / "first.parquet"
        )
        expected = monitor(
            log_of(
                so_far(job.rows[job.rows["timestamp"] < START + 8 * DAYS], until),
                until,
                fields=["site"],
            )
        )
        assert_same(job.report(until), expected)


@pytest.mark.slow
def test_the_time_of_the_labels_must_not_move_back(tmp_path):
    job = Job(tmp_path)
    for day in range(10):
        job.write(day, START + 10 * DAYS)
    job.report(START + 10 * DAYS)
    with pytest.raises(ValueError, match="`observed_until` must not be earlier"):
        job.report(START + 8 * DAYS)
    with pytest.raises(ValueError, match="of the same `tolerance`"):
        job.report(START + 10 * DAYS, tolerance=0.1)


@pytest.mark.slow
def test_until_leaves_days_out(tmp_path):
    job = Job(tmp_path)
    for day in range(12):
        job.write(day, START + 12 * DAYS)
    until = START + 12 * DAYS
    for end in ("2026-03-04", "2026-03-12"):
        period = Periods("day", until=end)
        log = log_of(so_far(job.rows, until), until, fields=["site"])
        assert_same(job.report(until, period=period), monitor(log, period=period))


def test_the_bounds_of_a_period_are_for_all_its_looks():
    until = START + 12 * DAYS
    late = monitor(log_of(so_far(rows_of(range(12)), until), until))
    # A period is looked at when it ends, and on each of the six days after.
    share = DELAY.observed_share(((until - rows_of(range(12))["timestamp"]) / DAYS), None)
    assert share.min() < 1
    rows = so_far(rows_of([0], num_rows=4800), until)
    complete = rows.assign(label=rows["bought_at"].notna().astype(int))
    one = monitor(complete[["timestamp", "probability", "label"]], false_alarms_per_year=0.01 / 7)
    seven = monitor(log_of(rows, until))
    assert late.periods
    np.testing.assert_allclose(
        (seven.periods[0].rates.low, seven.periods[0].rates.high),
        (one.periods[0].rates.low, one.periods[0].rates.high),
        rtol=1e-9,
    )


def test_logits_are_read_too():
    until = START + 12 * DAYS
    rows = so_far(rows_of(range(12)), until)
    logits = rows.assign(logit=np.log(rows["probability"] / (1 - rows["probability"])))
    expected = monitor(log_of(rows, until, fields=["site"]))
    assert_same(monitor(log_of(logits, until, fields=["site"], logit="logit")), expected)


def test_what_cannot_be_monitored_is_refused():
    until = START + 12 * DAYS
    rows = so_far(rows_of(range(3)), until)
    log = log_of(rows, until)
    with pytest.raises(ValueError, match="nothing that says how late"):
        monitor(dataclasses.replace(log, label_delay=None))
    classes = rows.assign(a=0.2, b=0.3, c=0.5)
    with pytest.raises(ValueError, match="is for labels 0 and 1"):
        monitor(log_of(classes, until, probability=["a", "b", "c"]))
    with pytest.raises(ValueError, match="must have no weights"):
        monitor(log_of(rows.assign(weight=1.0), until, sample_weight="weight"))
    wrong = rows.assign(bought_at=rows["timestamp"] - DAYS)
    with pytest.raises(ValueError, match="1,200 invalid label times"):
        monitor(log_of(wrong, until))


def test_the_command_line(tmp_path, capsys):
    until = START + 12 * DAYS
    path = tmp_path / "log.parquet"
    so_far(rows_of(range(12)), until).to_parquet(path)
    delay = os.fspath(tmp_path / "delay.json")
    DELAY.save(delay)
    arguments = ["monitor", os.fspath(path), "--label-time", "bought_at", "--field", "site"]
    arguments += ["--observed-until", "2026-03-13", "--delay-field", "site", "--json"]
    assert main([*arguments, "--label-delay", delay]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["observed_until"] == "2026-03-13"
    assert len(found["periods"]) == 12
    assert main(arguments) == 2
    assert "--label-delay" in capsys.readouterr().err
