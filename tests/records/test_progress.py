"""The progress bar, in a file and in a terminal."""

import io
import subprocess
import sys

import pytest
from calibration_records.logs.progress import Progress

from calibration_records._progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """A clock that only goes on when it is told."""

    now = 0.0

    def __call__(self):
        return self.now


def as_terminal(monkeypatch):
    """A terminal in the place of stdout, in a test: pytest sets its own after each fixture."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    return shown


def test_a_file_gets_a_line_for_each_tenth(capsys):
    bar = ProgressBar(64, "seeds", clock=lambda: 0.0)
    for done in range(1, 65):
        bar.show(done, f"mean loss {done}")
    lines = capsys.readouterr().out.splitlines()
    # The first number of seeds that reaches each tenth.
    assert [line.split("/")[0] for line in lines] == [
        str(-(-64 * tenth // 10)) for tenth in range(1, 11)
    ]
    assert lines[0].endswith(" - mean loss 7")


def test_a_terminal_has_one_line(monkeypatch):
    terminal, clock = as_terminal(monkeypatch), Clock()
    bar = ProgressBar(4, "fits", tells_time_left=False, clock=clock)
    for figures in ("long figures", "x", "", ""):
        clock.now += 30
        bar.show(bar._done + 1, figures)
    *lines, end = terminal.getvalue().split("\r")[1:]
    assert terminal.getvalue().count("\n") == 1
    assert end.endswith("\n")
    assert lines[0] == "1/4 fits [=====---------------] 0:30 - long figures"
    # What is left of a longer line is covered.
    assert lines[1] == "2/4 fits [==========----------] 1:00 - x".ljust(len(lines[0]))


def test_a_terminal_is_not_flooded(monkeypatch):
    terminal, clock = as_terminal(monkeypatch), Clock()
    bar = ProgressBar(10**6, "rows", clock=clock)
    for done in range(1, 1001):
        bar.show(done)
    assert terminal.getvalue().count("\r") == 1
    clock.now += 1
    bar.show(1001)
    assert terminal.getvalue().count("\r") == 2


def test_the_time_left_is_of_things_that_take_as_long(monkeypatch):
    terminal, clock = as_terminal(monkeypatch), Clock()
    bar = ProgressBar(100, "seeds", clock=clock)
    clock.now = 90.0
    bar.show(2)
    assert terminal.getvalue().endswith(" 1:30, 1:13:30 left")


def test_the_last_line_comes_once(capsys):
    bar = ProgressBar(8, "seeds", clock=lambda: 0.0)
    bar.show(3, is_end=True)
    bar.show(8)
    bar.add()
    assert capsys.readouterr().out == "3/8 seeds [=======-------------] 0:00\n"


def test_a_number_of_all_that_is_not_known(capsys):
    progress = Progress(0, 1)
    progress.count(500)
    progress.count(12_345, is_end=True)
    assert capsys.readouterr().out == "12,345 rows 0:00\n"


def test_passes_over_a_log(capsys):
    progress = Progress(1000, 2)
    progress.tell(0.5)
    progress.next()
    progress.tell(1.0)
    progress.next()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "250/1,000",
        "500/1,000",
        "999/1,000",
        "1,000/1,000",
    ]


@pytest.mark.parametrize("verbose", [0, False])
def test_nothing_is_shown(capsys, verbose):
    bar = ProgressBar(2, "seeds", verbose)
    bar.show(2, "figures")
    bar.say("line")
    assert capsys.readouterr().out == ""


def test_it_loads_nothing():
    program = "import sys; import calibration_records._progress; print('keras' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
