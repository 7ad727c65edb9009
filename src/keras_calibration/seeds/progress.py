"""A progress bar over seeds, with the mean of a metric and its standard error so far."""

from __future__ import annotations

import math
from collections.abc import Callable

from calibration_records.comparison.comparison import Comparison
from calibration_records.comparison.pipeline_runs import gather_runs
from calibration_records.runs.ledger import Ledger
from calibration_records.runs.metric_names import main_metric
from calibration_records.statistics.summary import summarize


class SeedProgress:
    """Shows how many seeds have ended, and tells whether a comparison is decided.

    Args:
        ledger: The ledger.
        pipeline: Name of the pipeline.
        num_seeds: Number of seeds to train.
        until: Compares the pipeline with another by the ledger, or `None`.
        verbose: 1 shows a progress bar, 0 shows nothing.
    """

    def __init__(
        self,
        ledger: Ledger,
        pipeline: str,
        num_seeds: int,
        until: Callable[[Ledger], Comparison] | None,
        verbose: int,
    ) -> None:
        import keras

        self._ledger, self._pipeline, self._until = ledger, pipeline, until
        self._bar = keras.utils.Progbar(num_seeds, unit_name="seed") if verbose else None
        self._num_ended = 0

    def say(self, text: str) -> None:
        """Prints a line."""
        if self._bar is not None:
            print(text)

    def is_decided(self) -> bool:
        """Whether the comparison is decided by what the ledger has."""
        return self._until is not None and self._until(self._ledger).verdict.decided

    def on_end(self, seed: int) -> bool:
        """Shows that a seed has ended; returns whether the comparison is decided."""
        self._num_ended += 1
        comparison = None if self._until is None else self._until(self._ledger)
        decided = comparison is not None and comparison.verdict.decided
        if self._bar is not None:
            figures = self._figures(comparison)
            # The bar would show their means over the seeds so far.
            self._bar.stateful_metrics = {name for name, _ in figures}
            last = decided or self._num_ended == self._bar.target
            self._bar.update(self._num_ended, figures, finalize=last)
        return decided

    def _figures(self, comparison: Comparison | None) -> list[tuple[str, float]]:
        runs = self._ledger.runs(self._pipeline, skip_damaged=True)
        recorded = {name for run in runs for name in run["metrics"]}
        shown = comparison.metric if comparison else main_metric(recorded)
        figures = []
        if shown is not None:
            values = gather_runs(runs, self._pipeline, [shown]).values[shown]
            summary = summarize([value for value in values if value is not None])
            if summary["count"] > 0:
                figures.append((f"mean {shown}", summary["mean"]))
            if summary["count"] > 1:
                figures.append(("standard error", summary["std"] / math.sqrt(summary["count"])))
        if comparison is not None and comparison.more_seeds is not None:
            figures.append(("seeds needed", comparison.more_seeds))
        return figures
