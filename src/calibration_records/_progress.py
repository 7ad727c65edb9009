"""ProgressBar: how much is done and how long it took, on one line of stdout."""

from __future__ import annotations

import datetime
import sys
import time

from calibration_records._check import one_of

VERBOSE = ("auto", 0, 1, 2)  # as in Keras
_SECONDS_IN_FILE = 60.0


def is_live() -> bool:
    """Whether stdout shows a line that changes: a terminal, or a cell of a notebook."""
    return "ipykernel" in sys.modules or sys.stdout.isatty()


class ProgressBar:
    """Progress over passes, seeds or fits.

    A terminal and a notebook show one line that changes. A file gets a line a minute, and one at
    the end. It is not Keras' bar, because logs are read where Keras is not installed.

    Args:
        total: Number of passes, seeds or fits.
        unit: Their name in the plural.
        verbose: One of `VERBOSE`; 0 or False shows nothing.

    Example:
        >>> bar = ProgressBar(2, "seeds")
        >>> bar.add()  # a minute has not passed
        >>> bar.show(2, "mean loss 0.5")
        2/2 seeds, 0:00:00 - mean loss 0.5
    """

    def __init__(self, total: int, unit: str, verbose: int | str | bool = 1) -> None:
        one_of("verbose", verbose, VERBOSE)
        self.is_shown, self.total, self._unit = bool(verbose), total, unit
        self._start = self._last = time.monotonic()
        self._done = self._length = 0
        self._is_live = is_live()

    def show(self, done: int, figures: str = "") -> None:
        """Shows how many are done, and some figures."""
        self._done, now = done, time.monotonic()
        is_due = self._is_live or done >= self.total or now - self._last >= _SECONDS_IN_FILE
        if not self.is_shown or not is_due:
            return
        self._last, passed = now, datetime.timedelta(seconds=round(now - self._start))
        line = f"{done:,}/{self.total:,} {self._unit}, {passed}{' - ' * bool(figures)}{figures}"
        if self._is_live:
            # Spaces cover the rest of a longer line.
            line, self._length = f"\r{line:{self._length}}", len(line)
        print(line, end="" if self._is_live and done < self.total else "\n", flush=True)

    def add(self, figures: str = "") -> None:
        """Shows that one more is done, and some figures."""
        self.show(self._done + 1, figures)

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if self.is_shown:
            print(text)
