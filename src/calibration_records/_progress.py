"""ProgressBar: how much is done and how long it took, on one line of stdout."""

from __future__ import annotations

import datetime
import sys
import time


class ProgressBar:
    """Progress over things that are counted: passes, seeds or fits.

    A terminal and a notebook show one line that changes; a file gets a line for each tenth. It is
    not Keras' bar, because logs are read where Keras is not installed.

    Args:
        total: Number of things.
        unit: What they are, in the plural.
        verbose: 0 or False shows nothing.

    Example:
        >>> bar = ProgressBar(2, "seeds")
        >>> bar.show(1, "mean loss 0.5")
        1/2 seeds, 0:00:00 - mean loss 0.5
        >>> bar.add()
        2/2 seeds, 0:00:00
    """

    def __init__(self, total: int, unit: str, verbose: int | str | bool = 1) -> None:
        self.is_shown, self.total, self._unit = bool(verbose), total, unit
        self._start = time.monotonic()
        self._done = self._length = 0
        # As Keras' bar: a notebook's cell overwrites a line, though it is no terminal.
        self._is_live = "ipykernel" in sys.modules or sys.stdout.isatty()

    def show(self, done: int, figures: str = "") -> None:
        """Shows that so many are done, and some figures."""
        tenths = [10 * number // max(self.total, 1) for number in (self._done, done)]
        self._done = done
        if not self.is_shown or not (self._is_live or tenths[0] < tenths[1]):
            return
        passed = datetime.timedelta(seconds=round(time.monotonic() - self._start))
        line = f"{done:,}/{self.total:,} {self._unit}, {passed}"
        line += f" - {figures}" if figures else ""
        if self._is_live:
            # Spaces cover the rest of a longer line.
            line, self._length = f"\r{line:{self._length}}", len(line)
        print(line, end="" if self._is_live and done < self.total else "\n", flush=True)

    def add(self) -> None:
        """Shows that one more is done."""
        self.show(self._done + 1)

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if self.is_shown:
            print(text)
