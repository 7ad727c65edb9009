"""ProgressBar: how much is done, how long it took and what is left, on one line of stdout."""

from __future__ import annotations

import datetime
import sys
import time

# A terminal is not written to more often.
_SECONDS_BETWEEN = 0.1


class ProgressBar:
    """Progress over things that are counted: passes, seeds or fits.

    A terminal and a notebook show one line that changes; a file gets a line for each tenth. It is
    not Keras' bar, because logs are read where Keras is not installed.

    Args:
        total: Number of things; 0 if it is not known.
        unit: What they are, in the plural.
        verbose: 0 or False shows nothing.
        tells_time_left: Whether all of them take as long, so that the time left can be told.

    Example:
        >>> bar = ProgressBar(2, "seeds", tells_time_left=False)
        >>> bar.show(1, "mean loss 0.5")
        1/2 seeds, 0:00:00 - mean loss 0.5
        >>> bar.add()
        2/2 seeds, 0:00:00
    """

    def __init__(
        self,
        total: int,
        unit: str,
        verbose: int | str | bool = 1,
        *,
        tells_time_left: bool = True,
    ) -> None:
        self.is_shown, self.total, self._unit = bool(verbose), total, unit
        self._tells_time_left, self._start = tells_time_left, time.monotonic()
        self._done, self._next, self._length, self._is_ended = 0, 0.0, 0, False
        # As Keras' bar: a notebook's cell overwrites a line, though it is no terminal.
        self._is_live = "ipykernel" in sys.modules or sys.stdout.isatty()

    def show(self, done: int, figures: str = "", is_end: bool = False) -> None:
        """Shows that so many are done, and some figures.

        Args:
            done: Number of things that are done.
            figures: What else to show.
            is_end: Whether no more will be done; also without it, the last of all ends the line.
        """
        now, before, self._done = time.monotonic(), self._done, done
        is_end = is_end or done == self.total > 0
        tenths = [10 * number // max(self.total, 1) for number in (before, done)]
        is_due = now >= self._next if self._is_live else self.total > 0 and tenths[0] < tenths[1]
        if not self.is_shown or self._is_ended or not (is_end or is_due):
            return
        self._next, self._is_ended = now + _SECONDS_BETWEEN, is_end
        line = f"{done:,}/{self.total:,}" if self.total else f"{done:,}"
        line += f" {self._unit}, {_rounded(now - self._start)}"
        if self._tells_time_left and self.total and done and not is_end:
            line += f", {_rounded((now - self._start) * (self.total - done) / done)} left"
        line += f" - {figures}" if figures else ""
        if self._is_live:
            # Spaces cover the rest of a longer line.
            line, self._length = f"\r{line:{self._length}}", len(line)
        print(line, end="\n" if is_end or not self._is_live else "", flush=True)

    def add(self, number: int = 1) -> None:
        """Shows that some more are done."""
        self.show(self._done + number)

    def end(self) -> None:
        """Ends the line: no more will be done."""
        self.show(self._done, is_end=True)

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if self.is_shown:
            print(text)


def _rounded(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=round(seconds))
