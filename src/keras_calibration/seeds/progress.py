"""The figures of a progress bar over seeds."""

from __future__ import annotations

import math

from calibration_records._figures import significant, with_error
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
    if not summary["count"]:
        return ""
    if summary["count"] == 1:
        return f"{shown} {significant(summary['mean'], 5)}"
    figures = with_error(summary["mean"], summary["std"] / math.sqrt(summary["count"]))
    return f"mean {shown} {figures} (standard error)"
