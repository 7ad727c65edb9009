"""Progress: a bar for the passes of an engine over a log."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tqdm


class Progress:
    """A progress bar over the rows of a log, which is read in several passes.

    Args:
        num_rows: Number of rows of the log; 0 if it is not known.
        num_passes: Number of passes over it.
        verbose: 1 shows the bar, 0 does not.

    Example:
        >>> progress = Progress(1000, 2, verbose=0)
        >>> progress.tell(0.5)
        >>> progress.next()
    """

    def __init__(self, num_rows: int, num_passes: int, verbose: int = 1) -> None:
        self._bar = _bar(num_rows) if verbose else None
        self._num_rows = num_rows
        self._num_passes = num_passes
        self._done = 0

    def tell(self, share: float) -> None:
        """Shows that a share in [0, 1] of the pass is done."""
        share = min(share, 0.999)  # the bar ends with `next` only
        self._show(int(self._num_rows * (self._done + share) / self._num_passes), False)

    def next(self) -> None:
        """Ends a pass."""
        self._done += 1
        rows = self._num_rows * self._done // self._num_passes
        self._show(rows, self._done == self._num_passes)

    def count(self, num_rows: int, is_end: bool = False) -> None:
        """Shows a number of rows, where the number of all is not known before."""
        self._show(num_rows, is_end)

    def _show(self, num_rows: int, is_end: bool) -> None:
        if self._bar is None:
            return
        self._bar.update(num_rows - self._bar.n)
        if is_end:
            self._bar.close()


def _bar(num_rows: int) -> tqdm.tqdm:
    """A bar on stdout, as Keras' own."""
    import tqdm

    return tqdm.tqdm(total=num_rows or None, unit=" rows", file=sys.stdout)
