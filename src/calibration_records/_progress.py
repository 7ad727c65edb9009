"""ProgressBar: how much is done, how long it took and what is left, on one line of stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

_WIDTH = 20
# A terminal is not written to more often.
_SECONDS_BETWEEN = 0.1


class ProgressBar:
    """A progress bar over things that are counted: rows, seeds or fits.

    A terminal and a notebook show one line that changes; a file gets a line for each tenth. It is
    not Keras' bar, because logs are read where Keras is not installed.

    Args:
        total: Number of things; 0 if it is not known.
        unit: What they are, in the plural.
        verbose: 0 or False shows nothing.
        tells_time_left: Whether all of them take as long, so that the time left can be told.
        clock: Returns the time in seconds.

    Example:
        >>> bar = ProgressBar(2, "seeds", tells_time_left=False, clock=lambda: 0.0)
        >>> bar.show(1, "mean loss 0.5")
        1/2 seeds [==========----------] 0:00 - mean loss 0.5
        >>> bar.show(2)
        2/2 seeds [====================] 0:00
    """

    def __init__(
        self,
        total: int,
        unit: str,
        verbose: int | str | bool = 1,
        *,
        tells_time_left: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.is_shown, self._unit = total, bool(verbose), unit
        self._tells_time_left, self._clock = tells_time_left, clock
        self._start, self._next = clock(), 0.0
        self._done, self._length, self._is_ended = 0, 0, False
        # As Keras' bar: a notebook's cell overwrites a line, though it is no terminal.
        self._is_live = "ipykernel" in sys.modules or bool(getattr(sys.stdout, "isatty", bool)())

    def show(self, done: int, figures: str = "", is_end: bool = False) -> None:
        """Shows that so many are done, and some figures.

        Args:
            done: Number of things that are done.
            figures: What else to show.
            is_end: Whether no more will be done; also without it, the last of all ends the line.
        """
        before, self._done = self._done, done
        is_end = is_end or done == self.total > 0
        if not self.is_shown or self._is_ended or not (is_end or self._is_due(before)):
            return
        self._is_ended = is_end
        line = self._line(figures, is_end)
        if self._is_live:
            # Spaces cover the rest of a longer line.
            print(f"\r{line:{self._length}}", end="\n" if is_end else "", flush=True)
            self._length = len(line)
        else:
            print(line, flush=True)

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

    def _is_due(self, before: int) -> bool:
        if not self._is_live:
            return bool(self.total) and 10 * before // self.total < 10 * self._done // self.total
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + _SECONDS_BETWEEN
        return True

    def _line(self, figures: str, is_end: bool) -> str:
        seconds = self._clock() - self._start
        if not self.total:
            line = f"{self._done:,} {self._unit} {_minutes(seconds)}"
        else:
            full = _WIDTH * self._done // self.total
            bar = "=" * full + "-" * (_WIDTH - full)
            line = f"{self._done:,}/{self.total:,} {self._unit} [{bar}] {_minutes(seconds)}"
            if self._tells_time_left and self._done and not is_end:
                left = seconds * (self.total - self._done) / self._done
                line = f"{line}, {_minutes(left)} left"
        return f"{line} - {figures}" if figures else line


def _minutes(seconds: float) -> str:
    """A time as minutes and seconds, or hours.

    Example:
        >>> _minutes(75.4), _minutes(3675)
        ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
