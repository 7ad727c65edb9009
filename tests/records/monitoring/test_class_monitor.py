"""The monitor of K classes: each class against the others, with one risk of a false alert."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.special

from calibration_records.cli import main
from calibration_records.monitoring import ClassMonitorReport, Periods, monitor
from calibration_records.pages.monitor_page import page_html, write_page

CLASSES = ["cat", "dog", "<b>bird\x1b"]
DAYS = np.array(["2026-03-01", "2026-03-02", "2026-03-03"])


def make_rows(rows=4000, wrong_day=None, seed=0):
    """Probabilities, class numbers, days and sites; on a wrong day, half of the dogs are cats."""
    rng = np.random.default_rng(seed)
    p = scipy.special.softmax(rng.normal([0, 0, -1], 1, (rows, 3)), axis=1)
    day = np.arange(rows) % 3
    rates = p.copy()
    wrong = day == wrong_day
    rates[wrong] += p[wrong, 1:2] / 2 * [1, -1, 0]
    number = (rates.cumsum(axis=1) > rng.random((rows, 1))).argmax(axis=1)
    return p, number, DAYS[day], rng.choice(["news", "mail"], rows)


def frame_of_columns(p, labels, day, site):
    columns = dict(zip(CLASSES, p.T, strict=True))
    return pa.table({"timestamp": day, "label": labels, "site": site, **columns})


def frame_of_lists(p, labels, day, site, fixed=False):
    kind = pa.list_(pa.float64(), 3) if fixed else pa.list_(pa.float64())
    probability = pa.array(list(p), kind)
    return pa.table({"timestamp": day, "label": labels, "site": site, "probability": probability})


def write(table, path):
    pyarrow.parquet.write_table(table, path)
    return path


@pytest.fixture(scope="module")
def drifted(tmp_path_factory):
    table = frame_of_columns(*make_rows(wrong_day=1))
    return write(table, tmp_path_factory.mktemp("classes") / "log.parquet")


def test_each_class_has_the_report_of_its_binary_log(tmp_path):
    p, labels, day, site = make_rows(1500)
    log = write(frame_of_columns(p, labels, day, site), tmp_path / "log.parquet")
    report = monitor(log, probability=CLASSES, fields=["site"], false_alarms_per_year=0.3)
    assert isinstance(report, ClassMonitorReport)
    assert list(report.classes) == CLASSES
    assert (report.false_alarms_per_year, report.tolerance, report.period) == (0.3, 0.05, "day")
    for number, name in enumerate(CLASSES):
        columns = {"timestamp": day, "site": site, "probability": p[:, number]}
        binary = pa.table({**columns, "label": (labels == number).astype(int)})
        log = write(binary, tmp_path / "binary.parquet")
        received = report.classes[name]
        share = received.false_alarms_per_year
        assert share == pytest.approx(0.3 / 3)
        assert received == monitor(log, fields=["site"], false_alarms_per_year=share)


def test_right_probabilities_raise_no_alert(tmp_path):
    log = write(frame_of_columns(*make_rows()), tmp_path / "log.parquet")
    report = monitor(log, probability=CLASSES, fields=["site"])
    assert report.alerts == []
    assert not report.is_alert
    assert str(report).endswith("\nNo alert.")


@pytest.mark.slow
def test_columns_lists_and_names_are_the_same(tmp_path):
    p, labels, day, site = make_rows(600)
    names = np.array(CLASSES)[labels]
    expected = monitor(
        write(frame_of_columns(p, labels, day, site), tmp_path / "0.parquet"), probability=CLASSES
    )
    logs = [
        (frame_of_columns(p, names, day, site), {"probability": CLASSES}),
        (frame_of_lists(p, labels, day, site), {"classes": CLASSES}),
        (frame_of_lists(p, names, day, site, fixed=True), {"classes": CLASSES}),
    ]
    for number, (table, options) in enumerate(logs):
        log = write(table, tmp_path / f"{number + 1}.parquet")
        assert monitor(log, **options) == expected
    frame = frame_of_lists(p, labels, day, site).to_pandas()
    without_names = monitor(frame)
    assert list(without_names.classes) == ["0", "1", "2"]
    assert list(without_names.classes.values()) == list(expected.classes.values())
    some = monitor(frame, period=Periods("day", since="2026-03-02", until="2026-03-03"))
    assert [period.rates.name for period in some.classes["1"].periods] == ["2026-03-02"]


def test_the_class_and_the_day_that_are_off_are_named(drifted, tmp_path):
    report = monitor(drifted, probability=CLASSES, fields=["site"])
    off = {
        name: [period.rates.name for period in class_report.periods if period.rates.is_off]
        for name, class_report in report.classes.items()
    }
    assert off == {"cat": ["2026-03-02"], "dog": ["2026-03-02"], CLASSES[2]: []}
    assert any(alert.startswith("class dog, 2026-03-02: over-pred") for alert in report.alerts)
    assert any(alert.startswith("class cat, 2026-03-02: under-pre") for alert in report.alerts)
    text = str(report)
    assert "Class dog against the others:" in text
    assert "bird\\x1b against" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    page = page_html(report)
    assert page.count("<details open><summary>Class") == 2
    assert "&lt;b&gt;bird" in page
    assert "<b>bird" not in page
    write_page(report, tmp_path / "page.html")


def test_the_command_takes_classes(drifted, tmp_path, capsys):
    columns = [part for name in CLASSES for part in ("--probability", name)]
    names = [part for name in ("a", "b", "c") for part in ("--class", name)]
    page = tmp_path / "page.html"
    arguments = ["monitor", str(drifted), *columns, "--json", "--html", str(page)]
    assert main([*arguments, *names]) == 1
    values = json.loads(capsys.readouterr().out)
    assert list(values["classes"]) == ["a", "b", "c"]
    assert values["is_alert"] is True
    assert values["classes"]["c"]["is_alert"] is False
    assert page.is_file()
    assert main([*arguments, *names, "--class", "d"]) == 2
    assert "4 classes for 3 columns" in capsys.readouterr().err


@pytest.mark.slow
def test_false_alerts_are_as_rare_as_promised():
    alerts = 0
    for seed in range(100):
        p, labels, _, _ = make_rows(1000, seed=seed)
        rng = np.random.default_rng(seed)
        periods, sites = rng.integers(0, 3, 1000) * 86400, rng.integers(0, 10, 1000)
        log = frame_of_columns(p, labels, periods, sites)
        # A fifth in the three days.
        options = {"fields": ["site"], "false_alarms_per_year": 0.2 * 365.25 / 3}
        report = monitor(log, probability=CLASSES, tolerance=0.0, **options)
        alerts += report.is_alert
    # 20 at most in the mean; 32 is three standard deviations above.
    assert alerts <= 32


ROWS = {"timestamp": ["2026-03-01"] * 2, "label": [0, 2]}
A, B, C = [0.5, 0.2], [0.25, 0.2], [0.25, 0.6]


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"a": [0.6, 0.2]}, {}, "add up to 1.*1 invalid predictions in 2 rows.*of 0.6 in row 0"),
        ({"a": [-0.5, 0.2], "b": [1.25, 0.2]}, {}, "Probabilities must be in"),
        ({"a": [float("nan"), 0.2]}, {}, "Probabilities must be in"),
        (
            {"label": [0, 3]},
            {},
            r"class numbers or the names of the classes, .'a', 'b', 'c'..*label of 3",
        ),
        ({"label": [0, 1.5]}, {}, "class numbers or .*label of 1.5"),
        (
            {"label": ["a", "d"]},
            {},
            r"names of the classes, \['a', 'b', 'c'\]. Received: 1 .*label of d in row 1",
        ),
        ({"a": ["x", "y"]}, {}, "column 'a' must hold numbers"),
        ({}, {"probability": ["a", "b"]}, "at least 3 classes"),
        ({}, {"probability": ["a", "b", "b"]}, "Received twice: .'b'|different names"),
        ({}, {"probability": ["a", "b", "d"]}, r"no columns \['d'\]"),
        ({}, {"classes": ["a", "b", "a"]}, "different names"),
        ({}, {"classes": ["x", "y", "z", "u"]}, "4 classes for 3 columns"),
        ({}, {"classes": "abc"}, "must be a list of names"),
        ({}, {"probability": "a", "classes": ["x", "y", "z"]}, "must hold lists of numbers"),
        ({"p": [A, B]}, {"probability": "p"}, "at least 3 classes. Received: .'0', '1'"),
        ({"p": [[*A, 0.3], B]}, {"probability": "p"}, r"lengths \[2, 3\]"),
        ({"p": [[0.5, 0.5, None]] * 2}, {"probability": "p"}, "add up to 1.*2 invalid predictions"),
        (
            {"p": [[0.2] * 5] * 2},
            {"probability": "p", "classes": ["x", "y", "z"]},
            "one for each of the classes",
        ),
    ],
)
def test_bad_logs_of_classes_are_refused(columns, options, words, tmp_path):
    table = pa.table({**ROWS, "a": A, "b": B, "c": C, **columns})
    with pytest.raises(ValueError, match=words):
        monitor(
            write(table, tmp_path / "log.parquet"), **{"probability": ["a", "b", "c"], **options}
        )


def test_rounded_probabilities_are_accepted(tmp_path):
    columns = {"a": [0.333, 0.1], "b": [0.333, 0.1], "c": [0.333, 0.799]}
    log = write(pa.table({**ROWS, **columns}), tmp_path / "log.parquet")
    assert not monitor(log, probability=["a", "b", "c"]).is_alert
