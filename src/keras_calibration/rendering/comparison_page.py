"""Comparisons of pipelines as one self-contained HTML page."""

import csv
import html
import io
import json
import math
import os
import unicodedata
import urllib.parse
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_calibration.comparison.compare import compare_runs
from keras_calibration.comparison.comparison import Comparison
from keras_calibration.comparison.pipeline_runs import PipelineRuns
from keras_calibration.comparison.question import Question
from keras_calibration.ledger.ledger import Ledger
from keras_calibration.rendering import html_page, svg
from keras_calibration.rendering.comparison_text import figures, interval
from keras_calibration.statistics.estimate import t_estimate

_HEADING = "Is the gain real, or is it seed noise?"
_METHOD = (
    "The unit of replication is the run: one value of each metric for each seed, on one held-out "
    "set. Differences are B − A; their intervals are for new seeds on the same rows. “B beats A” "
    "is the probability that a run of B has a better value than a run of A (Mann–Whitney, "
    "Newcombe’s score interval; under the same seed, a binomial mid-p interval). The calibrated "
    "loss is the log loss after the best constant shift of the logits, and plain = calibrated + "
    "calibration gain. The variance over seeds does not include the variance from other data or "
    "other hyperparameters."
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
            `num_looks`, `directions`.

    Returns:
        The comparisons, in the order of the page.

    Raises:
        ValueError: There are fewer than two pipelines, or as in `seeds.compare`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as name:
        ...     runs = Ledger(Path(name, "runs"))
        ...     for seed in range(4):
        ...         for pipeline in ("deepfm", "dcn"):
        ...             _ = runs.append({"pipeline": pipeline, "seed": seed, "epochs": [0],
        ...                 "status": "finished", "metrics": {"val_loss": [0.5 + seed / 100]}})
        ...     page = Path(name, "report.html")
        ...     comparisons = write_report(runs, page, metric="loss")
        ...     "no difference larger than 0" in page.read_text(encoding="utf-8")
        True
    """
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
    html_page.write(report_html(comparisons), path)
    return comparisons


def report_html(comparisons: Sequence[Comparison]) -> str:
    """The page for these comparisons; names and configurations are escaped.

    Example:
        >>> page = report_html([])
        >>> page.startswith("<!doctype html>"), "<script" in page
        (True, False)
    """
    sections = "\n".join(_section(comparison) for comparison in comparisons)
    method = f"<section><h2>Method</h2><p>{html.escape(_METHOD)}</p></section>"
    return html_page.page("Is the gain real?", _HEADING, f"{sections}\n{method}")


def _section(comparison: Comparison) -> str:
    a, b = (html.escape(runs.pipeline) for runs in (comparison.a, comparison.b))
    noted = "".join(f"<li>{html.escape(note)}</li>" for note in comparison.notes)
    facts = "".join(f"<li>{html.escape(figure)}</li>" for figure in figures(comparison))
    parts = [
        f"<h2>A: {a} and B: {b}</h2>",
        f'<p class="verdict">{html.escape(str(comparison.verdict))}</p>',
        f'<p class="faint">{len(comparison.a)} and {len(comparison.b)} runs, compared by '
        f"{html.escape(comparison.metric)}; {html.escape(comparison.method)}.</p>",
        f"<ul>{noted}</ul>" if noted else "",
        "<h3>The runs</h3>",
        _strip_plot(comparison),
        "<h3>The difference, B − A</h3>",
        _difference_plot(comparison),
        f"<ul>{facts}</ul>",
        _metric_table(comparison),
        _raw_table(comparison),
    ]
    return f"<section>{''.join(parts)}</section>"


def _drawn_metrics(comparison: Comparison) -> list[str]:
    """The plain and the calibrated loss, or the deciding metric if it is neither."""
    pair = [name for name in (comparison.plain_metric, comparison.calibrated_metric) if name]
    return pair if comparison.metric in pair and len(pair) == 2 else [comparison.metric]


def _strips(comparison: Comparison) -> list[tuple[str, str, list[float]]]:
    """The strips to draw: label, side, values; plain above calibrated, on one axis."""
    return [
        (f"{side.upper()}, {metric.removeprefix('val_')}", side, list(runs.metric_values(metric)))
        for metric in _drawn_metrics(comparison)
        for side, runs in (("a", comparison.a), ("b", comparison.b))
    ]


def _strip_plot(comparison: Comparison) -> str:
    strips = [strip for strip in _strips(comparison) if strip[2]]
    if not strips:
        return '<p class="faint">No finished runs.</p>'
    scale = svg.Scale([value for _, _, values in strips for value in values])
    height = 44 * len(strips) + 30
    marks = [scale.axis(height)]
    for index, (label, side, values) in enumerate(strips):
        y = 26 + 44 * index
        marks.append(svg.label(label, y))
        for number, value in enumerate(values):
            # A fixed jitter keeps runs with close values apart.
            at = y + 12 * ((number * 0.618) % 1 - 0.5)
            marks.append(svg.mark(side, scale(value), at))
        mean = float(np.mean(values))
        marks.append(svg.line(scale(mean), y - 15, scale(mean), y + 15, "ink"))
        if len(values) > 1:
            error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
            ends = t_estimate(mean, error, len(values) - 1, comparison.confidence, len(values))
            low, high = (scale.clip(end) for end in (ends.low, ends.high))
            marks.append(svg.line(low, y + 15, high, y + 15, "ink"))
    title = "One mark for each run. Vertical line: mean. Line below it: confidence interval."
    return svg.picture(height, marks, title)


def _difference_plot(comparison: Comparison) -> str:
    names = _drawn_metrics(comparison)
    found = [(name.removeprefix("val_"), comparison.metrics[name].difference) for name in names]
    if len(names) == 2:
        found.append(("calibration gain", comparison.gain_difference))
    rows = [(label, difference) for label, difference in found if difference is not None]
    rows = [row for row in rows if all(map(math.isfinite, row[1][:3]))]
    if not rows:
        return '<p class="faint">Too few runs for an interval.</p>'
    delta = comparison.delta
    detectable = comparison.minimum_detectable_effect
    margins = [m for m in (delta, detectable) if m is not None and math.isfinite(m)]
    ends = [0.0, *(end for _, estimate in rows for end in estimate[:3])]
    scale = svg.Scale([*ends, *margins, *(-margin for margin in margins)])
    height = 40 * len(rows) + 62
    bottom = height - 32
    marks = [scale.axis(height)]
    if delta is not None:
        marks.append(svg.band(scale(-delta), scale(delta), height))
    marks.append(svg.line(scale(0.0), 8, scale(0.0), bottom, "zero"))
    for index, (label, estimate) in enumerate(rows):
        y = 28 + 40 * index
        marks.append(svg.label(label, y))
        marks.append(svg.line(scale(estimate.low), y, scale(estimate.high), y, "ink"))
        marks.append(svg.mark("b", scale(estimate.value), y))
        text = html.escape(interval(estimate))
        marks.append(f'<text class="faint" x="4" y="{y + 20}">{text}</text>')
    if detectable is not None and math.isfinite(detectable):
        for end in (-detectable, detectable):
            marks.append(svg.line(scale(end), bottom - 12, scale(end), bottom, "ink"))
        text = f"minimum detectable effect: ticks at ±{detectable:.2g}"
        marks.append(f'<text class="faint" x="4" y="{bottom - 2}">{text}</text>')
    better = "right" if comparison.deciding.maximize else "left"
    caption = f"B is better to the {better} of 0."
    if delta is not None:
        caption += " Grey band: too small to matter."
    return svg.picture(height, marks, caption)


def _metric_table(comparison: Comparison) -> str:
    head = ("metric", "A mean", "A std", "B mean", "B std", "B − A", "B beats A", "same seed", "p")
    rows = []
    for metric in comparison.metrics.values():
        difference = metric.difference
        p_value = None if difference is None else difference.p_value
        shares = (metric.b_beats_a, metric.b_beats_a_same_seed)
        rows.append(
            [
                metric.metric,
                f"{metric.mean_a:.6g}",
                f"{metric.std_a:.2g}",
                f"{metric.mean_b:.6g}",
                f"{metric.std_b:.2g}",
                "" if difference is None else _in_two_lines(interval(difference)),
                *("" if s is None else _in_two_lines(interval(s, ".2f")) for s in shares),
                "" if p_value is None else f"{p_value:.2g}",
            ]
        )
    return f"<h3>All metrics</h3>{html_page.table(head, rows)}"


def _in_two_lines(shown: str) -> str:
    """A figure with its interval on a second line."""
    return shown.replace(" [", "\n[")


def _raw_table(comparison: Comparison) -> str:
    head = ["pipeline", "seed", "epoch", *comparison.metrics, "run"]
    rows = [row for runs in (comparison.a, comparison.b) for row in _raw_rows(runs, comparison)]
    text = io.StringIO()
    csv.writer(text).writerows([map(_no_formula, row) for row in (head, *rows)])
    link = urllib.parse.quote(text.getvalue(), errors="backslashreplace")
    configurations = [
        f"<p>{side}: <code>{html.escape(json.dumps(runs.records[0]['configuration']))}</code></p>"
        for side, runs in (("A", comparison.a), ("B", comparison.b))
        if runs.records and runs.records[0]["configuration"] is not None
    ]
    return (
        f"<h3>Every run</h3><p class='download'><a download='runs.csv' "
        f"href='data:text/csv;charset=utf-8,{link}'>Download the table (CSV)</a></p>"
        f"{''.join(configurations)}<details><summary>{len(rows)} runs</summary>"
        f"{html_page.table(head, rows)}</details>"
    )


def _no_formula(cell: str) -> str:
    """The cell, with an apostrophe in front if a spreadsheet would take it for a formula."""
    try:
        float(cell)
    except ValueError:
        # Spreadsheets skip leading white space and invisible characters, and some accept full-width
        # signs.
        text = unicodedata.normalize("NFKC", cell)
        first = next((c for c in text if unicodedata.category(c)[0] not in "ZC"), None)
        is_formula = first in ("=", "+", "-", "@") or cell.startswith(("\t", "\r", "\n"))
        return f"'{cell}" if is_formula else cell
    return cell


def _raw_rows(runs: PipelineRuns, comparison: Comparison) -> list[list[str]]:
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
