"""The progress bar, in a file and in a terminal."""

import io
import sys

import pytest

from calibration_records import _progress
from calibration_records._progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that only goes on when it is told: its time is the entry of a list."""
    now = [0.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    return now


def as_terminal(monkeypatch):
    """A terminal in the place of stdout, in a test: pytest sets its own after each fixture."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    return shown


def test_a_file_gets_a_line_a_minute_and_one_at_the_end(capsys, clock):
    bar = ProgressBar(64, "seeds")
    for done in range(1, 65):
        clock[0] += 7
        bar.show(done, f"mean loss {done}")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("/")[0] for line in lines] == ["9", "18", "27", "36", "45", "54", "63", "64"]
    assert lines[0] == "9/64 seeds, 0:01:03 - mean loss 9"


def test_a_terminal_has_one_line(monkeypatch, clock):
    terminal = as_terminal(monkeypatch)
    bar = ProgressBar(4, "fits")
    for number, figures in enumerate(("long figures", "x", "", "")):
        clock[0] += 30
        bar.show(number + 1, figures)
    *lines, end = terminal.getvalue().split("\r")[1:]
    assert terminal.getvalue().count("\n") == 1
    assert end.endswith("\n")
    assert lines[0] == "1/4 fits, 0:00:30 - long figures"
    # What is left of a longer line is covered.
    assert lines[1] == "2/4 fits, 0:01:00 - x".ljust(len(lines[0]))


@pytest.mark.parametrize("verbose", [0, False])
def test_nothing_is_shown(capsys, verbose):
    bar = ProgressBar(2, "seeds", verbose)
    bar.show(2, "figures")
    bar.say("line")
    assert capsys.readouterr().out == ""
