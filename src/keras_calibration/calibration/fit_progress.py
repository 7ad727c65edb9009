"""FitProgress: the progress bar of `calibrate`, in percent of the expected time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import keras

_SECONDS_AS_EXPECTED = 5.0


class FitProgress:
    """A progress bar over pieces of work of several kinds.

    How long the pieces that are left will take is expected from their costs and from how long
    earlier pieces of the same kind have taken; the bar shows the share of the expected time that
    has passed, so that Keras' own estimate of the remaining time is right.

    Args:
        pieces: Kind and cost of each piece, in seconds on some machine.
        verbose: 0 shows nothing.
        clock: Returns the time in seconds.

    Example:
        >>> progress = FitProgress([("platt", 0.1), ("report", 0.2)], verbose=0)
        >>> progress.end_piece("platt")
        >>> progress.end()
    """

    def __init__(
        self,
        pieces: Iterable[tuple[str, float]],
        verbose: int | str | bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._left = list(pieces)
        self._clock = clock
        self._start = self._last = clock()
        # By kind: seconds taken and costs of the pieces that are done.
        self._done: dict[str, tuple[float, float]] = {}
        self._percent = 0
        self._bar = keras.utils.Progbar(
            100, verbose=0 if verbose in (0, False) else 1, unit_name="percent"
        )

    def end_piece(self, kind: str) -> None:
        """Tells that the next piece of a kind is done; nothing if there is none."""
        place = next((i for i, (name, _) in enumerate(self._left) if name == kind), None)
        if place is None:
            return
        _, cost = self._left.pop(place)
        now = self._clock()
        seconds, costs = self._done.get(kind, (0.0, 0.0))
        self._done[kind] = seconds + now - self._last, costs + cost
        self._last = now
        elapsed = now - self._start
        total = max(elapsed + self._remaining(), 1e-9)
        # A bar that goes back tells less than one that waits.
        self._percent = max(self._percent, min(int(100 * elapsed / total), 99))
        if self._percent:  # Keras would say that no time is left
            self._bar.update(self._percent)

    def skip(self, kind: str) -> None:
        """Tells that no more pieces of a kind will be done."""
        self._left = [(name, cost) for name, cost in self._left if name != kind]

    def end(self) -> None:
        """Tells that everything is done."""
        self._bar.update(100)

    def _remaining(self) -> float:
        """Expected seconds of the pieces that are left."""
        taken, costs = (sum(column) for column in zip(*self._done.values(), strict=True))
        # As if some seconds had gone as expected: the first fits are short, and load modules.
        pace = (taken + _SECONDS_AS_EXPECTED) / (costs + _SECONDS_AS_EXPECTED)
        paces = {kind: seconds / cost for kind, (seconds, cost) in self._done.items()}
        return sum(cost * paces.get(kind, pace) for kind, cost in self._left)
