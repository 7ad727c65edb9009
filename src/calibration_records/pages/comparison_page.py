"""Comparisons of pipelines as one self-contained HTML page."""

import json
import math
import os
from collections.abc import Sequence
from typing import Any

from calibration_records.comparison.compare import compare_runs
from calibration_records.comparison.comparison import Comparison
from calibration_records.comparison.comparison_text import figures, interval, metric_rows
from calibration_records.comparison.pipeline_runs import PipelineRuns
from calibration_records.comparison.question import Question
from calibration_records.pages.page import (
    Axis,
    Bar,
    Section,
    Table,
    check_page,
    page,
    range_of,
    write,
)
from calibration_records.runs.ledger import Ledger

_HEADING = "Is the gain real, or is it seed noise?"
_METHOD = (
    "The unit of replication is the run: one value of each metric for each seed, on one held-out "
    "set. Differences are B − A; their intervals are for new seeds on the same rows. “B beats A” "
    "is the probability that a run of B has a better value than a run of A (Mann–Whitney, "
    "Newcombe’s score interval; under the same seed, a binomial mid-p interval). The calibrated "
    "loss is the log loss after the best constant shift of the logits, and plain = calibrated + "
    "calibration gain. What survives calibration is the difference in the calibrated loss, divided "
    "by that in the plain loss (Fieller’s interval). The share of bias in the seed variance is "
    "Cov(plain, gain) / Var(plain) within the pipelines. The variance over seeds does not include "
    "the variance from other data or other hyperparameters."
)


def write_report(
    ledger: Ledger | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    pipelines: Sequence[str] | None = None,
    **options: Any,
) -> list[Comparison]:
    """Compares pipelines and writes the results to one self-contained HTML page.

    Args:
        ledger: A `seeds.Ledger`, or the path of its folder.
        path: HTML file to write, in UTF-8.
        pipelines: The first is compared with each of the others; `None` for all pipelines of the
            ledger, the oldest first.
        **options: Options of `seeds.compare`: `metric`, `epoch`, `delta`, `confidence`,
            `num_looks`, `directions`, `recalibrated`, `days`.

    Returns:
        The comparisons, in the order of the page.

    Raises:
        ValueError: There are fewer than two pipelines, or as in `seeds.compare`.
        ImportError: Jinja2 is not installed.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as name:
        ...     runs = Ledger(Path(name, "runs"))
        ...     for seed in range(6):
        ...         for pipeline in ("deepfm", "dcn"):
        ...             _ = runs.append({"pipeline": pipeline, "seed": seed, "epochs": [0],
        ...                 "status": "finished", "metrics": {"val_loss": [0.5 + seed / 100]}})
        ...     page = Path(name, "report.html")
        ...     comparisons = write_report(runs, page, metric="loss")
        ...     "no difference larger than 0" in page.read_text(encoding="utf-8")
        True
    """
    check_page(path)
    ledger = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    # Read once, for all comparisons.
    records = ledger.runs()
    if pipelines is None:
        pipelines = list(dict.fromkeys(run["pipeline"] for run in records))
    if len(pipelines) < 2:
        raise ValueError(
            "Argument `pipelines` must name at least two pipelines. Received: "
            f"pipelines={list(pipelines)}."
        )
    comparisons = [
        compare_runs(records, Question(pipelines[0], other, **options)) for other in pipelines[1:]
    ]
    write(report_html(comparisons), path)
    return comparisons


def report_html(comparisons: Sequence[Comparison]) -> str:
    """The page for these comparisons; names and configurations are escaped.

    Example:
        >>> page = report_html([])
        >>> page.startswith("<!doctype html>"), "<script" in page
        (True, False)
    """
    sections = [*map(_section, comparisons), Section("Method", caption=_METHOD)]
    return page("Is the gain real?", _HEADING, sections)


def _section(comparison: Comparison) -> Section:
    a, b = comparison.a, comparison.b
    header, *rows = metric_rows(comparison)
    return Section(
        f"A: {a.pipeline} and B: {b.pipeline}",
        verdict=str(comparison.verdict),
        caption=f"{len(a)} and {len(b)} runs, compared by {comparison.metric}; "
        f"{comparison.method}.",
        points=comparison.notes,
        parts=[
            _runs(comparison),
            _difference(comparison),
            Section("All metrics", table=Table(header, rows)),
            _every_run(comparison),
        ],
    )


def _drawn_metrics(comparison: Comparison) -> list[str]:
    """The plain and the calibrated loss, or the deciding metric if it is neither."""
    pair = [name for name in (comparison.plain_metric, comparison.calibrated_metric) if name]
    return pair if comparison.metric in pair and len(pair) == 2 else [comparison.metric]


def _runs(comparison: Comparison) -> Section:
    """The values of all runs: plain above calibrated, on one axis."""
    rows, bars = [], []
    for name in _drawn_metrics(comparison):
        metric = comparison.metrics[name]
        for side, runs, mean, std in (
            ("A", comparison.a, metric.mean_a, metric.std_a),
            ("B", comparison.b, metric.mean_b, metric.std_b),
        ):
            if values := list(runs.metric_values(name)):
                rows.append((f"{side}, {name.removeprefix('val_')}", f"{mean:.5g}±{std:.2g}"))
                bars.append(Bar(values, mean - std, mean + std, is_square=side == "A"))
    if not rows:
        return Section("The runs", caption="No finished runs.")
    caption = "One mark for each run. Line: mean ± standard deviation."
    table = Table(("metric", "mean±std"), rows, bars, _axis(bars))
    return Section("The runs", table=table, caption=caption)


def _difference(comparison: Comparison) -> Section:
    names = _drawn_metrics(comparison)
    found = [(name.removeprefix("val_"), comparison.metrics[name].difference) for name in names]
    if len(names) == 2:
        found.append(("calibration gain", comparison.gain_difference))
    estimates = [
        (label, estimate)
        for label, estimate in found
        if estimate is not None and all(map(math.isfinite, estimate[:3]))
    ]
    title, points = "The difference, B − A", figures(comparison)
    if not estimates:
        return Section(title, caption="Too few runs for an interval.", points=points)
    bars = [Bar([estimate.value], estimate.low, estimate.high) for _, estimate in estimates]
    axis = _axis(bars, target=0.0, margin=comparison.delta or 0.0)
    rows = [(label, interval(estimate)) for label, estimate in estimates]
    better = "right" if comparison.deciding.maximize else "left"
    caption = f"B is better to the {better} of 0."
    if comparison.delta is not None:
        caption += " Grey band: too small to matter."
    table = Table(("metric", "B − A [interval]"), rows, bars, axis)
    return Section(title, table=table, caption=caption, points=points)


def _axis(bars: Sequence[Bar], target: float = math.nan, margin: float = 0.0) -> Axis:
    ends = [end for bar in bars for end in (bar.low, bar.high, *bar.marks)]
    low, high = range_of([*ends, target - margin, target + margin])
    return Axis(low, high, (f"{low:.3g}", f"{high:.3g}"), target, margin)


def _every_run(comparison: Comparison) -> Section:
    sides = (comparison.a, comparison.b)
    rows = [row for runs in sides for row in _run_rows(runs, comparison)]
    configurations = [
        f"{side}: {json.dumps(runs.records[0]['configuration'])}"
        for side, runs in zip("AB", sides, strict=True)
        if runs.records and runs.records[0]["configuration"] is not None
    ]
    table = Table(("pipeline", "seed", "epoch", *comparison.metrics, "run"), rows)
    return Section(f"All {len(rows)} runs", table=table, points=configurations, is_open=False)


def _run_rows(runs: PipelineRuns, comparison: Comparison) -> list[list[str]]:
    return [
        [
            runs.pipeline,
            str(seed),
            str(epoch),
            *(
                "" if (v := runs.values[name][index]) is None else repr(v)
                for name in comparison.metrics
            ),
            str(record["run_id"]),
        ]
        for index, (seed, epoch, record) in enumerate(
            zip(runs.seeds, runs.epochs, runs.records, strict=True)
        )
    ]
