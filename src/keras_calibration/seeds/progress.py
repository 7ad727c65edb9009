"""The figures of a progress bar over seeds: the mean of a metric and its standard error so far."""

from __future__ import annotations

import math
from collections.abc import Callable

from calibration_records._progress import ProgressBar
from calibration_records.comparison.comparison import Comparison
from calibration_records.comparison.pipeline_runs import gather_runs
from calibration_records.runs.ledger import Ledger
from calibration_records.runs.metric_names import main_metric
from calibration_records.statistics.summary import summarize


class SeedCount:
    """Counts the seeds that have ended, shows them, and tells whether a comparison is decided.

    Args:
        ledger: The ledger.
        pipeline: Name of the pipeline.
        until: Compares the pipeline with another by the ledger, or `None`.
        bar: The progress bar, over the seeds to train.
    """

    def __init__(
        self,
        ledger: Ledger,
        pipeline: str,
        until: Callable[[Ledger], Comparison] | None,
        bar: ProgressBar,
    ) -> None:
        self._ledger, self._pipeline, self._until, self._bar = ledger, pipeline, until, bar
        self._num_ended = 0

    def is_decided(self) -> bool:
        """Whether the comparison is decided by what the ledger has."""
        return self._until is not None and self._until(self._ledger).verdict.decided

    def on_end(self, seed: int) -> bool:
        """Shows that a seed has ended; returns whether the comparison is decided."""
        self._num_ended += 1
        comparison = None if self._until is None else self._until(self._ledger)
        decided = comparison is not None and comparison.verdict.decided
        if self._bar.is_shown:
            self._bar.show(self._num_ended, self._figures(comparison), is_end=decided)
        return decided

    def _figures(self, comparison: Comparison | None) -> str:
        runs = self._ledger.runs(self._pipeline, skip_damaged=True)
        recorded = {name for run in runs for name in run["metrics"]}
        shown = comparison.metric if comparison else main_metric(recorded)
        figures = []
        if shown is not None:
            values = gather_runs(runs, self._pipeline, [shown]).values[shown]
            summary = summarize([value for value in values if value is not None])
            if summary["count"] > 0:
                figures.append(f"mean {shown} {summary['mean']:.5g}")
            if summary["count"] > 1:
                error = summary["std"] / math.sqrt(summary["count"])
                figures.append(f"standard error {error:.2g}")
        if comparison is not None and comparison.more_seeds is not None:
            figures.append(f"{comparison.more_seeds} more seeds needed")
        return ", ".join(figures)
