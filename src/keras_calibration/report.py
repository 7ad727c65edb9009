"""Comparisons of pipelines as one HTML page that needs no network, no script and no style sheet."""

import csv
import html
import io
import json
import math
import os
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_calibration.seeds.compare import compare
from keras_calibration.seeds.comparison import Comparison
from keras_calibration.seeds.estimate import t_estimate
from keras_calibration.seeds.ledger import Ledger
from keras_calibration.seeds.pipeline_runs import PipelineRuns
from keras_calibration.seeds.tables import figures, interval
from keras_calibration.seeds.variance_components import VarianceComponents

_WIDTH, _LEFT, _RIGHT = 720, 190, 20
_STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --faint: #5c6670; --paper: #fff; --line: #c9d0d6;
  --a: #b35c00; --b: #2b69ad; --panel: #f3f5f7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --faint: #a8b0b8; --paper: #16191d;
  --line: #444c55; --a: #f0a552; --b: #7fb4ee; --panel: #22272d; } }
@media print { :root { color-scheme: light; --ink: #000; --faint: #444; --paper: #fff; --line: #999;
  --a: #b35c00; --b: #2b69ad; --panel: #fff; } section { break-inside: avoid-page; }
  .download { display: none; } details > * { display: block; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; } h2, td, th, p, li { overflow-wrap: anywhere; }
.verdict { font-size: 1.4rem; font-weight: 600; background: var(--panel); padding: .75rem 1rem;
  border-left: 6px solid var(--b); margin: .5rem 0; } .faint { color: var(--faint); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; width: 100%; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; } th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 13px; }
svg .faint { fill: var(--faint); font-size: 12px; } a { color: var(--b); }
.a { fill: var(--a); stroke: var(--a); } .b { fill: var(--b); stroke: var(--b); }
.hollow { fill: none; stroke-width: 1.5; } .axis { stroke: var(--line); }
.ink { stroke: var(--ink); stroke-width: 2; }
.zero { stroke: var(--faint); stroke-dasharray: 4 3; } .band { fill: var(--line); opacity: .5; }
.part0 { fill: var(--b); } .part1 { fill: var(--a); } .part2 { fill: var(--line); }
"""
_METHOD = (
    "The unit of replication is the run: one value of each metric for each seed, on one held-out "
    "set. Differences are B − A; their intervals speak of new seeds on the same rows. “B beats A” "
    "is how often one run of B has the better value than one run of A (Mann–Whitney; Newcombe’s "
    "score interval, Wilson’s under the same seed). The calibrated loss is the plain log loss "
    "after the best constant shift of the logits, and plain = calibrated + calibration gain. "
    "Spreads over seeds leave out what other data or other hyperparameters would change."
)


def write_report(
    ledger: Ledger | str | os.PathLike[str],
    path: str | os.PathLike[str],
    pipelines: Sequence[str] | None = None,
    **plan: Any,
) -> list[Comparison]:
    """Compares pipelines and writes what is found to one self-contained page.

    Args:
        ledger: a `seeds.Ledger`, or the path of its folder.
        path: HTML file to write, in UTF-8.
        pipelines: the first is A to each of the others; `None` for all of the ledger, by age.
        **plan: what `seeds.compare` takes: `metric`, `epoch`, `delta`, `confidence`, `num_looks`.

    Returns:
        The comparisons, in the order of the page.

    Raises:
        ValueError: there are fewer than two pipelines, or as `seeds.compare`.

    Example:
        >>> import tempfile
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
    if pipelines is None:
        pipelines = list(dict.fromkeys(run["pipeline"] for run in ledger.runs()))
    if len(pipelines) < 2:
        raise ValueError(
            f"Received the pipelines {list(pipelines)}; expected at least two to compare; train "
            "the variant under a name of its own."
        )
    comparisons = [compare(ledger, pipelines[0], other, **plan) for other in pipelines[1:]]
    Path(path).write_text(report_html(comparisons), encoding="utf-8")
    return comparisons


def report_html(comparisons: Sequence[Comparison]) -> str:
    """The page for these comparisons; names and configurations are escaped.

    Args:
        comparisons: of `seeds.compare`.

    Example:
        >>> page = report_html([])
        >>> page.startswith("<!doctype html>"), "<script" in page
        (True, False)
    """
    sections = "\n".join(_section(comparison) for comparison in comparisons)
    # The policy holds even if an escape were forgotten: nothing is fetched and nothing runs.
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Is the gain real?</title><style>{_STYLE}</style></head><body>
<h1>Is the gain real, or is it seed noise?</h1>
{sections}
<section><h2>Method</h2><p>{html.escape(_METHOD)}</p></section>
</body></html>
"""


def _section(comparison: Comparison) -> str:
    a, b = (html.escape(runs.pipeline) for runs in (comparison.a, comparison.b))
    noted = "".join(f"<li>{html.escape(note)}</li>" for note in comparison.notes)
    facts = "".join(f"<li>{html.escape(figure)}</li>" for figure in figures(comparison))
    parts = [
        f"<h2>A: {a} and B: {b}</h2>",
        f'<p class="verdict">{html.escape(str(comparison.verdict))}</p>',
        f'<p class="faint">{len(comparison.a)} and {len(comparison.b)} runs, by '
        f"{html.escape(comparison.metric)}; {html.escape(comparison.method)}.</p>",
        f"<ul>{noted}</ul>" if noted else "",
        "<h3>The runs</h3>",
        _strip_plot(comparison),
        "<h3>The difference, B − A</h3>",
        _difference_plot(comparison),
        f"<ul>{facts}</ul>",
        _components(comparison),
        _metric_table(comparison),
        _raw_table(comparison),
    ]
    return f"<section>{''.join(parts)}</section>"


def _drawn_metrics(comparison: Comparison) -> list[str]:
    """The plain and the calibrated loss, or what decides where it is neither of them."""
    pair = [name for name in (comparison.plain_metric, comparison.calibrated_metric) if name]
    return pair if comparison.metric in pair and len(pair) == 2 else [comparison.metric]


def _strips(comparison: Comparison) -> list[tuple[str, str, list[float]]]:
    """The strips to draw: label, side, values. Plain above calibrated, on one axis."""
    return [
        (f"{side.upper()}, {metric.removeprefix('val_')}", side, list(runs.of_seeds(metric)))
        for metric in _drawn_metrics(comparison)
        for side, runs in (("a", comparison.a), ("b", comparison.b))
    ]


def _strip_plot(comparison: Comparison) -> str:
    strips = [strip for strip in _strips(comparison) if strip[2]]
    if not strips:
        return '<p class="faint">No finished runs.</p>'
    scale = _Scale([value for _, _, values in strips for value in values])
    height = 44 * len(strips) + 30
    marks = [scale.axis(height)]
    for index, (label, side, values) in enumerate(strips):
        y = 26 + 44 * index
        marks.append(_label(label, y))
        for number, value in enumerate(values):
            # A jitter that is the same on every page: runs with close values stay apart.
            at = y + 12 * ((number * 0.618) % 1 - 0.5)
            marks.append(_mark(side, scale(value), at))
        mean = float(np.mean(values))
        marks.append(_line(scale(mean), y - 15, scale(mean), y + 15, "ink"))
        if len(values) > 1:
            error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
            ends = t_estimate(mean, error, len(values) - 1, comparison.confidence, len(values))
            low, high = (scale.clip(end) for end in (ends.low, ends.high))
            marks.append(_line(low, y + 15, high, y + 15, "ink"))
    title = "One mark for each run; upright line: mean; line below it: its interval."
    return _svg(height, marks, title)


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
    scale = _Scale([*ends, *margins, *(-margin for margin in margins)])
    height = 40 * len(rows) + 62
    bottom = height - 32
    marks = [scale.axis(height)]
    if delta is not None:
        left, right = scale(-delta), scale(delta)
        marks.append(
            f'<rect class="band" x="{left:.1f}" y="8" width="{right - left:.1f}" '
            f'height="{bottom - 8}"/>'
        )
    marks.append(_line(scale(0.0), 8, scale(0.0), bottom, "zero"))
    for index, (label, estimate) in enumerate(rows):
        y = 28 + 40 * index
        marks.append(_label(label, y))
        marks.append(_line(scale(estimate.low), y, scale(estimate.high), y, "ink"))
        marks.append(_mark("b", scale(estimate.value), y))
        text = html.escape(interval(estimate))
        marks.append(f'<text class="faint" x="4" y="{y + 20}">{text}</text>')
    if detectable is not None and math.isfinite(detectable):
        for end in (-detectable, detectable):
            marks.append(_line(scale(end), bottom - 12, scale(end), bottom, "ink"))
        text = f"detectable: ticks at ±{detectable:.2g}"
        marks.append(f'<text class="faint" x="4" y="{bottom - 2}">{text}</text>')
    better = "right" if comparison.deciding.maximize else "left"
    return _svg(height, marks, f"B is better to the {better} of 0. Grey band: does not matter.")


def _components(comparison: Comparison) -> str:
    bars = [
        (side, parts)
        for side, parts in (("A", comparison.components_a), ("B", comparison.components_b))
        if parts is not None
    ]
    if not bars:
        return ""
    largest = max(sum(_run_variances(parts)) for _, parts in bars) or 1.0
    marks = []
    for index, (side, parts) in enumerate(bars):
        x, y = float(_LEFT), 10 + 34 * index
        marks.append(_label(f"{side}’s loss", y + 14))
        for number, variance in enumerate(_run_variances(parts)):
            width = (_WIDTH - _LEFT - _RIGHT) * variance / largest
            marks.append(
                f'<rect class="part{number}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="22"/>'
            )
            x += width
    caption = "Variance over seeds, from the seeds (first) and from seeds × rows (second)."
    return f"<h3>Where the noise comes from</h3>{_svg(34 * len(bars) + 12, marks, caption)}"


def _run_variances(parts: VarianceComponents) -> tuple[float, float]:
    return parts.seeds, parts.interaction / parts.num_rows


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
                *(f"{v:.6g}" for v in (metric.mean_a, metric.std_a, metric.mean_b, metric.std_b)),
                "" if difference is None else interval(difference),
                *("" if share is None else interval(share, ".2f") for share in shares),
                "" if p_value is None else f"{p_value:.2g}",
            ]
        )
    return f"<h3>All metrics</h3>{_table(head, rows)}"


def _raw_table(comparison: Comparison) -> str:
    head = ["pipeline", "seed", "epoch", *comparison.metrics, "run"]
    rows = [row for runs in (comparison.a, comparison.b) for row in _raw_rows(runs, comparison)]
    text = io.StringIO()
    csv.writer(text).writerows([head, *rows])
    link = urllib.parse.quote(text.getvalue())
    configurations = [
        f"<p>{side}: <code>{html.escape(json.dumps(runs.records[0]['configuration']))}</code></p>"
        for side, runs in (("A", comparison.a), ("B", comparison.b))
        if runs.records and runs.records[0]["configuration"] is not None
    ]
    return (
        f"<h3>Every run</h3><p class='download'><a download='runs.csv' "
        f"href='data:text/csv;charset=utf-8,{link}'>Download the table (CSV)</a></p>"
        f"{''.join(configurations)}<details><summary>{len(rows)} runs</summary>"
        f"{_table(head, rows)}</details>"
    )


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


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    header = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{header}</tr></thead>{body}</table></div>'


class _Scale:
    """Values to pixels, with round ticks."""

    def __init__(self, values: Sequence[float]) -> None:
        low, high = min(values), max(values)
        # Equal values get an axis all the same.
        margin = 0.08 * (high - low) or abs(high) * 1e-3 or 1e-3
        self.low, self.high = low - margin, high + margin

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * share

    def clip(self, value: float) -> float:
        return self(min(max(value, self.low), self.high))

    def axis(self, height: int) -> str:
        # Round steps of 1, 2 or 5 times a power of ten, about five on the axis.
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        factor = next(factor for factor in (1, 2, 5, 10) if factor * power >= rough)
        step = factor * power
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        digits = 1 + math.floor(math.log10(factor * max(abs(first), abs(last), 1)))
        marks = [_line(_LEFT, height - 24, _WIDTH - _RIGHT, height - 24, "axis")]
        for tick in (number * step for number in range(first, last + 1)):
            x = self(tick)
            marks.append(_line(x, height - 24, x, height - 19, "axis"))
            text = f"{tick:.{digits}g}"
            place = f'text-anchor="middle" x="{x:.1f}" y="{height - 5}"'
            marks.append(f'<text class="faint" {place}>{text}</text>')
        return "".join(marks)


def _svg(height: int, marks: Sequence[str], caption: str) -> str:
    drawing = (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{html.escape(caption)}">'
    )
    return f'{drawing}{"".join(marks)}</svg><p class="faint">{html.escape(caption)}</p>'


def _label(text: str, y: float) -> str:
    return f'<text x="4" y="{y + 4:.1f}">{html.escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _mark(side: str, x: float, y: float) -> str:
    """A hollow square for A and a disc for B, told apart without colour."""
    if side == "a":
        corner = f'x="{x - 3.5:.1f}" y="{y - 3.5:.1f}"'
        return f'<rect class="a hollow" {corner} width="7" height="7"/>'
    return f'<circle class="b" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
