"""Progress: the passes of an engine over a log, for the progress bar."""

from __future__ import annotations

from calibration_records._progress import ProgressBar


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
        self._bar = ProgressBar(num_rows, "rows", verbose)
        self._num_rows = num_rows
        self._num_passes = num_passes
        self._done = 0

    def tell(self, share: float) -> None:
        """Shows that a share in [0, 1] of the pass is done."""
        share = min(share, 0.999)  # the bar ends with `next` only
        self._bar.show(int(self._num_rows * (self._done + share) / self._num_passes))

    def next(self) -> None:
        """Ends a pass."""
        self._done += 1
        rows = self._num_rows * self._done // self._num_passes
        self._bar.show(rows, is_end=self._done == self._num_passes)

    def count(self, num_rows: int, is_end: bool = False) -> None:
        """Shows a number of rows, where the number of all is not known before."""
        self._bar.show(num_rows, is_end=is_end)
