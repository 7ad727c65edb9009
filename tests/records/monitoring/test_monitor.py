"""A calibrated log raises no alert; one that drifted raises one that names the day and segment."""

import datetime
import html.parser
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
import pytest
from calibration_records.pages.monitor_page import page_html, write_page

from calibration_records.cli import main
from calibration_records.monitoring import Periods, monitor
from keras_calibration import scoring
from keras_calibration.logs import ScoredLog

EVIL = "<script>alert(1)</script>\x1b[31m"
START = np.datetime64("2026-03-01T00:00:00")


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
    return pa.table(
        {
            "timestamp": START + day * np.timedelta64(1, "D") + seconds,
            "site": site,
            "device": rng.integers(0, 3, n),
            "probability": p.astype(np.float32),
            "label": (rng.random(n) < rate).astype(int),
        }
    )


def write(table, path):
    pyarrow.parquet.write_table(table, path)
    return path


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    return write(make_log(), tmp_path_factory.mktemp("log") / "log.parquet")


def run(*arguments):
    """The subcommand, as the command line runs it."""
    return main(["monitor", *map(str, arguments)])


DAY = Periods("day")


def test_a_calibrated_log_raises_no_alert(calibrated):
    report = monitor(calibrated, fields=["site", "device"])
    assert report.alerts == []
    assert not report.is_alert
    assert [period.rates.name for period in report.periods] == [
        f"2026-03-0{day}" for day in range(1, 7)
    ]
    assert report.overall.num_rows == 9000
    assert str(report).endswith("\nNo alert.")


@pytest.mark.slow
def test_false_alerts_are_as_rare_as_promised():
    rng = np.random.default_rng(5)
    alerts = 0
    for _ in range(100):
        n = 1000
        p = 1 / (1 + np.exp(-rng.normal(-2, 1.5, n)))
        columns = {"label": rng.random(n) < p, "probability": p, "site": rng.integers(0, 20, n)}
        log = pa.table({**columns, "timestamp": rng.integers(0, 4, n) * 86400})
        # A fifth in the four days.
        budget = 0.2 * 365.25 / 4
        report = monitor(log, fields=["site"], tolerance=0.0, false_alarms_per_year=budget)
        alerts += report.is_alert
    # 20 at most in the mean; 32 is three standard deviations above.
    assert alerts <= 32


def test_a_drifted_day_is_named(tmp_path):
    path = write(make_log(day_factor=(3, 1.5)), tmp_path / "log.parquet")
    report = monitor(path, fields=["site"])
    off = [period.rates.name for period in report.periods if period.rates.is_off]
    assert off == ["2026-03-04"]
    (day,) = (alert for alert in report.alerts if alert.startswith("2026-03-04: under-predicts"))
    assert "under-predicts" in day


def test_a_drifted_segment_is_named(tmp_path):
    path = write(make_log(site_factor=("mail", 0.6)), tmp_path / "log.parquet")
    report = monitor(path, fields=["site", "device"])
    off = [rates.name for rates in report.fields["site"].values if rates.is_off]
    assert off == ["mail"]
    assert any(alert.startswith("site mail: over-predicts") for alert in report.alerts)
    assert report.fields["site"].error.is_off
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
    return monitor(log, fields=["site"], tolerance=0.01)


def test_a_small_shift_is_found_over_days():
    report = small_shift(lambda day, site: day >= 30, 1.08)
    assert not any(period.rates.is_off for period in report.periods)
    assert report.overall.is_off
    since = np.datetime64(report.overall.shift.since)
    assert abs(since - np.datetime64("2026-03-31")) < np.timedelta64(6, "D")
    assert report.overall.shift.change == pytest.approx(0.08, abs=0.03)
    assert f"all rows: under-predicts since {since}" in report.alerts[0]


def test_a_small_shift_of_a_value_is_found_over_weeks():
    report = small_shift(lambda day, site: (day >= 36) & (site == "mail"), 1.2)
    shifts = {rates.name: rates.shift for rates in report.fields["site"].values}
    assert [name for name, shift in shifts.items() if shift.is_off] == ["mail"]
    assert shifts["mail"].since in ("2026-03-30", "2026-04-06", "2026-04-13")
    assert shifts["mail"].change == pytest.approx(0.2, abs=0.05)
    assert shifts["new"].since >= "2026-04-06"


def test_a_shift_within_the_tolerance_does_not_matter():
    rng = np.random.default_rng(7)
    p = np.full(400_000, 0.3)
    label = (rng.random(len(p)) < 1.04 * p).astype(int)
    day = START + np.arange(len(p)) // 20_000 * np.timedelta64(1, "D")
    log = pa.table({"timestamp": day, "probability": p, "label": label})
    assert monitor(log, tolerance=0.01).overall.is_off
    assert not monitor(log, tolerance=0.05).is_alert


def test_the_bounds_of_a_period_do_not_depend_on_the_others(calibrated):
    whole = monitor(calibrated, fields=["site"])
    part = monitor(calibrated, fields=["site"], period=Periods("day", until="2026-03-03"))
    assert part.periods == whole.periods[:2]


def test_a_day_whose_predictions_tell_nothing_is_named(tmp_path):
    path = write(make_log(shuffled_day=2), tmp_path / "log.parquet")
    report = monitor(path)
    assert [period.rates.name for period in report.periods if period.loss.is_off] == ["2026-03-03"]
    assert not any(period.rates.is_off for period in report.periods)
    assert report.alerts[0].startswith("2026-03-03: Calibrated Log Loss")


def test_an_error_within_the_tolerance_does_not_matter(tmp_path):
    path = write(make_log(rows=20_000, num_days=2, day_factor=(1, 1.15)), tmp_path / "log.parquet")
    assert monitor(path, tolerance=0.0).is_alert
    assert not monitor(path, tolerance=0.2).is_alert


def test_the_figures_are_those_of_the_metrics(calibrated):
    table = pyarrow.parquet.read_table(calibrated)
    p, y, site = (table[name].to_numpy() for name in ("probability", "label", "site"))
    day = table["timestamp"].to_numpy().astype("datetime64[D]")
    report = monitor(calibrated, fields=["site"])
    error = report.fields["site"].error
    assert error.field_rce == pytest.approx(scoring.field_rce(y, p, site), rel=1e-6)
    for period in report.periods:
        rows = day == np.datetime64(period.rates.name)
        assert period.rates.num_rows == rows.sum()
        assert period.rates.predicted == pytest.approx(p[rows].astype(float).mean(), rel=1e-9)
        assert period.rates.observed == pytest.approx(y[rows].mean(), rel=1e-12)
        loss = scoring.calibrated_log_loss(y[rows], p[rows], num_folds=1)
        assert period.loss.value == pytest.approx(loss, abs=1e-6)


def test_files_and_batches_make_no_difference(calibrated, tmp_path):
    table = pyarrow.parquet.read_table(calibrated)
    whole = monitor(calibrated, fields=["site", "device"]).to_dict()
    pyarrow.csv.write_csv(table, tmp_path / "log.csv")
    shuffled = table.take(np.random.default_rng(0).permutation(len(table)))
    folder = tmp_path / "parts"
    folder.mkdir()
    pyarrow.parquet.write_table(shuffled.slice(0, 5000), folder / "a.parquet", row_group_size=300)
    pyarrow.parquet.write_table(shuffled.slice(5000), folder / "b.parquet")
    for log in (tmp_path / "log.csv", folder, [folder / "a.parquet", folder / "b.parquet"]):
        other = monitor(log, fields=["site", "device"]).to_dict()
        assert other["alerts"] == whole["alerts"]
        for one, two in zip(whole["periods"], other["periods"], strict=True):
            assert two["rates"].pop("name") == one["rates"]["name"]
            rates = {name: one["rates"][name] for name in two["rates"]}
            assert two["rates"].pop("shift") is rates.pop("shift") is None
            assert two["rates"] == pytest.approx(rates, rel=1e-6)
            assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
        values = {v["name"]: v["predicted"] for v in whole["fields"]["site"]["values"]}
        again = {v["name"]: v["predicted"] for v in other["fields"]["site"]["values"]}
        assert again == pytest.approx(values, rel=1e-6)


def test_since_and_until(calibrated):
    report = monitor(
        calibrated, period=Periods("day", since="2026-03-03T12:00", until="2026-03-05")
    )
    assert [period.rates.name for period in report.periods] == ["2026-03-03", "2026-03-04"]
    with pytest.raises(ValueError, match="no rows with since='2027-01-01' and until=None"):
        monitor(calibrated, period=Periods("day", since="2027-01-01"))


def test_times_of_every_kind():
    at = datetime.datetime(2026, 3, 8, 23, 30)
    east = datetime.timezone(datetime.timedelta(hours=-2))
    for time, expected in (
        (at, "2026-03-08"),
        (at.replace(tzinfo=east), "2026-03-09"),
        ("2026-03-08T23:30:00Z", "2026-03-08"),
        ("2026-03-08T23:30:00-02:00", "2026-03-09"),
        ("2026-03-08", "2026-03-08"),
        (datetime.date(2026, 3, 8), "2026-03-08"),
        ("1969-12-31T23:59:59", "1969-12-31"),
    ):
        assert DAY.name(DAY.start(time)) == expected
    names = [p.name(p.start(at)) for p in map(Periods, ("hour", "week", "month", "year"))]
    assert names == ["2026-03-08T23:00", "2026-03-02", "2026-03", "2026"]
    for bad in ("soon", 1.7e9, True):
        with pytest.raises(ValueError, match="Times must be dates"):
            Periods("day", since=bad)


def test_every_value_is_kept_and_the_largest_are_listed():
    rng = np.random.default_rng(2)
    n, num_values = 40_000, 12_000
    user = rng.integers(0, num_values, n)
    p = np.full(n, 0.3)
    table = pa.table(
        {
            "timestamp": rng.integers(0, 30, n) * 3600,
            "probability": p,
            # One user beyond the listed ones, who has the fewest rows, is off by far.
            "label": ((rng.random(n) < p) | (user >= num_values - 2)).astype(int),
            "user": np.where(user >= num_values - 2, num_values, user),
        }
    )
    extra = pa.table({name: table[name].take([0] * 3) for name in table.column_names})
    report = monitor(pa.concat_tables([table, extra]), fields=["user"], period="hour")
    users = report.fields["user"]
    assert users.num_values == len(np.unique(table["user"]))
    assert len(users.values) == 10_000
    assert f"and {users.num_values - 10:,} more values" in str(report)
    assert "10,000 values of" in page_html(report)


def test_missing_values_are_a_value():
    site = [None, None, "a", "a"] * 200
    nan = [float("nan"), 1.0, None, 1.0] * 200
    columns = {"timestamp": [0] * 800, "probability": [0.5] * 800, "label": [0, 1] * 400}
    report = monitor(pa.table({**columns, "site": site, "x": nan}), fields=["site", "x"])
    assert {rates.name for rates in report.fields["site"].values} == {"(missing)", "a"}
    # NaN is a missing value, as pandas and CSV files have it.
    assert {r.name: r.num_rows for r in report.fields["x"].values} == {"(missing)": 400, "1.0": 400}


def test_a_data_frame_is_a_log(calibrated):
    frame = pyarrow.parquet.read_table(calibrated).to_pandas()
    given, expected = (monitor(log, fields=["site"]) for log in (frame, calibrated))
    assert given == expected
    with pytest.raises(ValueError, match="label"):
        monitor(frame.drop(columns="label"))


def test_predictions_of_0_and_1_and_periods_of_one_class(tmp_path):
    table = pa.table(
        {
            "timestamp": ["2026-03-01"] * 4 + ["2026-03-02"] * 4,
            "probability": [0.0, 1.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0],
            "label": [0, 1, 1, 0, 0, 0, 0, 0],
        }
    )
    report = monitor(write(table, tmp_path / "log.parquet"))
    assert not report.is_alert
    assert report.periods[1].rates.ratio == float("inf")
    values = report.to_dict()
    assert values["periods"][1]["loss"]["value"] is None
    json.dumps(values, allow_nan=False)
    write_page(report, tmp_path / "page.html")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"probability": [1.5, 0.2]}, "Probabilities must be in"),
        ({"probability": [float("nan"), 0.2]}, "Probabilities must be in"),
        ({"label": [2, 0]}, "Labels must be .*label of 2 in row 0"),
        ({"label": [0.5, 0]}, "Labels must be 0 or 1. Received: 1 others in 2 rows"),
        ({"label": ["yes", "no"]}, "column 'label' must hold numbers"),
        (
            {"timestamp": ["soon", "late"]},
            "ISO 8601.*2 invalid times in 2 rows.*time of soon in row 0",
        ),
        ({"timestamp": [None, "2026-03-01"]}, "1 invalid times"),
        ({"score": [0.1, 0.2], "probability": None}, r"no columns \['probability'\]"),
    ],
)
def test_bad_logs_are_refused(change, words, tmp_path):
    columns = {
        "timestamp": ["2026-03-01"] * 2,
        "probability": [0.1, 0.2],
        "label": [0, 1],
        **change,
    }
    table = pa.table({name: values for name, values in columns.items() if values is not None})
    with pytest.raises(ValueError, match=words):
        monitor(write(table, tmp_path / "log.parquet"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"period": "quarter"}, "Argument `period` must be one of"),
        ({"tolerance": -0.1}, "Argument `tolerance` must be"),
        ({"false_alarms_per_year": 0.0}, "Argument `false_alarms_per_year` must be"),
        ({"false_alarms_per_year": 12, "period": "month"}, "periods in a year, 12. Received"),
        ({"false_alarms_per_year": float("nan")}, "Argument `false_alarms_per_year` must be"),
        ({"fields": "site"}, "Argument `fields` must be a list"),
        ({"fields": ["site", "site"]}, "Received twice: .'site'"),
        ({"fields": ["user"]}, r"no columns \['user'\]"),
        ({"log": "nowhere.csv"}, "existing Parquet or CSV files"),
    ],
)
def test_bad_arguments_are_refused(calibrated, arguments, words):
    with pytest.raises(ValueError, match=words):
        monitor(**{"log": calibrated, **arguments})


@pytest.mark.parametrize(
    "columns",
    [
        {"fields": ["device"]},
        {"fields": []},
        {"label": "label"},
        {"probability": "probability"},
        {"timestamp": "timestamp"},
    ],
)
def test_columns_beside_a_log_that_names_them_are_refused(calibrated, columns):
    log = ScoredLog(calibrated, timestamp="timestamp", fields=["site"])
    assert [*monitor(log).fields] == ["site"]
    (name,) = columns
    with pytest.raises(ValueError, match=f"Arguments .'{name}'. must be left out if `log` is a"):
        monitor(log, **columns)


def test_the_command_answers_by_its_exit_code(calibrated, tmp_path, capsys):
    assert run(calibrated, "--field", "site") == 0
    text = capsys.readouterr().out
    assert text.endswith("No alert.\n")
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    drifted = tmp_path / "log.csv"
    pyarrow.csv.write_csv(make_log(day_factor=(3, 1.5)), drifted)
    page = tmp_path / "page.html"
    assert run(drifted, "--field", "site", "--html", page, "--json") == 1
    values = json.loads(capsys.readouterr().out)
    assert values["is_alert"] is True
    assert any("2026-03-04" in alert for alert in values["alerts"])
    assert run(drifted, "--field", "user") == 2
    assert "no columns" in capsys.readouterr().err
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "Alert: " in text


def test_the_page_is_whole(calibrated, tmp_path):
    class Page(html.parser.HTMLParser):
        tags, attributes, left = [], [], []

        def handle_starttag(self, tag, attrs):
            self.tags.append(tag)
            self.attributes += attrs
            if tag != "meta":
                self.left.append(tag)

        def handle_endtag(self, tag):
            assert self.left.pop() == tag

    report = monitor(calibrated, fields=["site"])
    write_page(report, tmp_path / "page.html")
    page = Page()
    page.feed((tmp_path / "page.html").read_text(encoding="utf-8"))
    page.close()
    assert page.left == []
    assert page.tags.count("table") == 3
    # A mark for each period in two tables, and for each value in one.
    assert page.attributes.count(("class", "disc")) == 2 * 6 + 4
    assert {"script", "link", "img"}.isdisjoint(page.tags)


def test_the_text_of_a_small_log(tmp_path):
    good, bad = [1, 1, 0, 0, 0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    table = pa.table(
        {
            "timestamp": ["2026-03-01"] * 400 + ["2026-03-02"] * 400,
            "probability": [0.2, 0.4] * 400,
            "label": good * 40 + bad * 40,
            "site": ["a", "b"] * 400,
        }
    )
    report = monitor(write(table, tmp_path / "log.parquet"), fields=["site"])
    assert str(report) == GOLDEN


GOLDEN = """\
day         rows  predicted  observed  ratio     interval     rolling  cal. loss         bounds
2026-03-01   400        0.3       0.3  1.000  0.737–1.467                 0.5867  0.4963–0.6771
2026-03-02   400        0.3       0.1  3.000  1.644–6.654  !   0.4075     0.2866  0.2573–0.3730
all          800        0.3       0.2  1.500  1.117–2.123  !
Shift of all since 2026-03-02: 66.7% fewer than predicted, by chance less than once in a million
  years !

site  rows  predicted  observed  ratio     interval
a      400        0.2       0.1  2.000  1.090–4.450  !
b      400        0.4       0.3  1.333  0.973–1.971  !
Field-RCE 0.6158; noise floor 0.06255 ± 0.036, bound 0.4104 !
Shift of a since 2026-03-02: 100.0% fewer than predicted, by chance less than once in a million
  years !

Bounds: relative errors up to 0.05 do not matter. If all probabilities are correct, reports after
  each period raise an alert in a year with a probability of at most 0.01. Times are in UTC.
ALERT, 5 out of bounds:
! all rows: over-predicts since 2026-03-02: 0.3 predicted, 0.1 observed (66.7% fewer than
  predicted), 400 rows; by chance less than once in a million years
! 2026-03-02: over-predicts: 0.3 predicted, 0.1 observed (ratio 3, at least 1.64), 400 rows
! site: Field-RCE 0.6158 is above its bound 0.4104
! site a: over-predicts since 2026-03-02: 0.2 predicted, 0 observed (100.0% fewer than predicted),
  200 rows; by chance less than once in a million years
! site b: over-predicts since 2026-03-02: 0.4 predicted, 0.2 observed (50.0% fewer than predicted),
  200 rows; by chance less than once in 200 years
To mend a shift, find its cause, or refresh the calibration on the rows since its start. Then begin
  a new state."""


def test_a_drift_from_year_to_year():
    rng = np.random.default_rng(0)
    year, site = rng.integers(2020, 2026, 60_000), rng.integers(0, 4, 60_000)
    p = rng.uniform(0.1, 0.5, 60_000)
    factor = np.where((year >= 2023) & (site == 2), 1.2, 1.0)
    columns = {"label": (rng.random(60_000) < factor * p).astype(int), "site": site}
    times = [f"{one}-07-01" for one in year]
    log = pd.DataFrame({**columns, "timestamp": times, "probability": p})
    report = monitor(log, fields=["site"], period="year", tolerance=0.02)
    assert [period.rates.name for period in report.periods] == [str(n) for n in range(2020, 2026)]
    (off,) = [rates for rates in report.fields["site"].values if rates.is_off]
    assert (off.name, off.shift.since) == ("2", "2023")


def test_the_bias_of_a_period_is_known_until_another_determines_one():
    """A day of one class has none: the day after it is scored with that of the day before."""
    table = make_log(num_days=3).to_pandas()
    is_second = table["timestamp"].dt.day == 2
    table.loc[is_second, "label"] = 0
    report = monitor(table, fields=[])
    before = table[table["timestamp"].dt.day == 1]
    after = table[table["timestamp"].dt.day == 3]
    logits = [np.log(day["probability"] / (1 - day["probability"])) for day in (before, after)]
    low, high = -5.0, 5.0
    for _ in range(60):
        bias = (low + high) / 2
        is_high = (1 / (1 + np.exp(-logits[0] - bias))).sum() > before["label"].sum()
        low, high = (low, bias) if is_high else (bias, high)
    losses = np.logaddexp(0, logits[1] + bias) - after["label"] * (logits[1] + bias)
    assert [period.rolling_loss is None for period in report.periods] == [True, False, False]
    assert report.periods[2].rolling_loss == pytest.approx(losses.mean(), rel=1e-5)
