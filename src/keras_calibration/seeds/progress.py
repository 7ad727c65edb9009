"""The figures of a progress bar over seeds."""

from __future__ import annotations

import math

from calibration_records.comparison.pipeline_runs import gather_runs
from calibration_records.runs.ledger import Ledger
from calibration_records.runs.metric_names import main_metric
from calibration_records.statistics.summary import summarize


def seed_figures(ledger: Ledger, pipeline: str) -> str:
    """The mean of a pipeline's main metric over its seeds so far, and its standard error."""
    runs = ledger.runs(pipeline, skip_damaged=True)
    shown = main_metric({name for run in runs for name in run["metrics"]})
    if shown is None:
        return ""
    values = gather_runs(runs, pipeline, [shown]).values[shown]
    summary = summarize([value for value in values if value is not None])
    figures = f"mean {shown} {summary['mean']:.5g}" if summary["count"] else ""
    if summary["count"] > 1:
        figures += f", standard error {summary['std'] / math.sqrt(summary['count']):.2g}"
    return figures
