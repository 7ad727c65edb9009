import html.parser
import os
import re
import sys

import numpy as np
import pytest

from calibration_records.pages.comparison_page import report_html, write_report
from keras_calibration.seeds import Ledger, compare

EVIL = "<script>alert(1)</script>\"'&"
VOID = {"meta"}


class Page(html.parser.HTMLParser):
    """Checks that every tag is closed, and gathers what the tests look for."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.verdicts = [], [], [], []
        self.in_verdict = False
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        self.in_verdict = ("class", "verdict") in attrs

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.in_verdict:
            self.verdicts.append(data)
            self.in_verdict = False


def fill(ledger, pipeline, num_runs, shift=0.0, metrics=("val_loss", "val_calibrated_log_loss")):
    rng = np.random.default_rng(len(pipeline))
    for seed in range(num_runs):
        loss = 0.37 + shift + 1e-3 * rng.normal()
        values = {name: [loss + 1e-3 * rng.random()] for name in metrics}
        ledger.append(
            {
                "pipeline": pipeline,
                "seed": seed,
                "status": "finished",
                "epochs": [0],
                "metrics": values,
                "configuration": {"name": EVIL},
            }
        )


@pytest.fixture
def ledger(tmp_path):
    found = Ledger(tmp_path / "runs")
    fill(found, "deepfm", 8)
    fill(found, EVIL, 8, shift=-0.01)
    return found


def test_the_verdict_comes_first_and_everything_is_there(ledger, tmp_path):
    (comparison,) = write_report(ledger, tmp_path / "report.html", delta=1e-4)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.verdicts == [str(comparison.verdict)] == ["B better"]
    assert text.index('class="verdict"') < text.index("<table")
    # The runs by both losses and the difference, all metrics, all runs.
    assert page.tags.count("table") == 4
    # The runs of B, and both losses and the calibration gain.
    assert page.attributes.count(("class", "disc")) == 2 * 8 + 3
    for words in ("minimum detectable", "unit of replication", "All 16 runs"):
        assert words in text
    assert all(repr(value) in text for value in comparison.a.values["val_loss"])


def test_names_do_no_harm(ledger):
    text = report_html([compare(ledger, "deepfm", EVIL)])
    page = Page(text)
    assert "script" not in page.tags
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert "<script" not in text


def test_nothing_is_fetched(ledger):
    text = report_html([compare(ledger, "deepfm", EVIL)])
    page = Page(text)
    assert {"href", "src"}.isdisjoint(name for name, _ in page.attributes)
    assert {"link", "img", "iframe", "script"}.isdisjoint(page.tags)
    assert not re.search(r"url\(|@import|https?://", text)
    assert "default-src 'none'" in text


def test_dark_and_print(ledger):
    text = report_html([compare(ledger, "deepfm", EVIL)])
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_marks_lie_within_the_picture(ledger):
    text = report_html([compare(ledger, "deepfm", EVIL)])
    places = [float(place) for place in re.findall(r"(?:left|right|--\w+):(-?[\d.]+)%", text)]
    assert len(places) > 4 * 8
    assert all(0 <= place <= 100 for place in places)


@pytest.mark.parametrize("num_runs", [0, 1, 2])
def test_few_runs(ledger, num_runs):
    fill(ledger, "few", num_runs)
    ledger.append({"pipeline": "few", "seed": 99, "status": "started"})
    page = Page(report_html([compare(ledger, "deepfm", "few")]))
    # From the noise of deepfm's runs, a single run says something.
    assert page.verdicts[0].startswith("undecided: about" if num_runs else "cannot tell")


def test_equal_runs_and_a_metric_alone(ledger):
    for pipeline in ("one", "two"):
        for seed in range(6):
            record = {"pipeline": pipeline, "seed": seed, "status": "finished", "epochs": [0]}
            ledger.append({**record, "metrics": {"val_auc": [0.75]}})
    page = Page(report_html([compare(ledger, "one", "two", metric="auc")]))
    assert page.verdicts == ["no difference larger than 0"]


def test_reads_the_ledger_once(ledger, tmp_path, monkeypatch):
    fill(ledger, "third", 8)
    num_reads = []
    runs = Ledger.runs
    monkeypatch.setattr(Ledger, "runs", lambda *args: num_reads.append(1) or runs(*args))
    comparisons = write_report(ledger, tmp_path / "page.html")
    assert (len(comparisons), len(num_reads)) == (2, 1)


def test_a_full_disk_leaves_the_page_of_before(ledger, tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text("before")

    def refuse(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            write_report(ledger, page)
    assert page.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "runs"]


def test_a_name_that_utf_8_cannot_hold_is_written_escaped(ledger, tmp_path):
    fill(ledger, "half \ud800", 8)
    write_report(ledger, tmp_path / "page.html", pipelines=["deepfm", "half \ud800"])
    assert "half \\ud800" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_needs_two_pipelines(ledger, tmp_path):
    with pytest.raises(ValueError, match="at least two pipelines"):
        write_report(ledger, tmp_path / "page.html", pipelines=["deepfm"])


def test_without_jinja2(ledger, tmp_path, monkeypatch):
    """The message names the extra, and comes before any work."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setattr(Ledger, "runs", lambda self: pytest.fail("read the ledger"))
    with pytest.raises(ImportError, match=r'pip install "keras-calibration\[html\]"'):
        write_report(ledger, tmp_path / "page.html")
