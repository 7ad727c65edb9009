"""A comparison as plain text of at most 100 columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibration_records._text import MAX_WIDTH, grid, shorten, terminal_safe, wrap
from calibration_records.comparison.metric_comparison import MetricComparison
from calibration_records.comparison.verdict import MAX_MORE_SEEDS
from calibration_records.statistics.estimate import Estimate

if TYPE_CHECKING:
    # A comparison prints itself with this module.
    from calibration_records.comparison.comparison import Comparison

_HEADER = ("metric", "A mean±std", "B mean±std", "B − A [interval]", "B wins, %", "p")


def comparison_text(comparison: Comparison) -> str:
    """The comparison for a terminal: table, figures, notes and verdict, at most 100 columns."""
    lines = [_heading(comparison), "", *_narrow_grid(_metric_rows(comparison)), ""]
    lines += [line for figure in _figures(comparison) for line in wrap(figure)]
    lines += [line for note in comparison.notes for line in wrap(f"! {note}")]
    return "\n".join([*lines, "", *wrap(f"Verdict: {comparison.verdict}")])


def _heading(comparison: Comparison) -> str:
    """One line that names the pipelines, their numbers of runs and the pairing."""
    number = len(set(comparison.a.seeds) & set(comparison.b.seeds))
    pairing = f"{number} shared seed{'s' * (number > 1)}" if number else "independent seeds"
    if number and not comparison.shared_seeds:
        pairing += ", compared as if independent"
    a, b = (
        f"{shorten(runs.pipeline, 26)} (m = {len(runs)})" for runs in (comparison.a, comparison.b)
    )
    return f"A = {a}, B = {b}, {pairing}"


def _figures(comparison: Comparison) -> list[str]:
    """The lines below the table, one for each figure that the comparison has."""
    lines = [_probability_line(comparison)] if comparison.standard_error else []
    if (effect := comparison.minimum_detectable_effect) is not None:
        lines.append(f"minimum detectable effect {effect:.2g} (power 80 %); {comparison.method}")
    if comparison.gain_difference is not None:
        lines.append(f"calibration gain, B − A: {interval(comparison.gain_difference)}")
    share = comparison.surviving_share
    bias, loss = comparison.bias_share, comparison.plain_metric
    if share is not None and math.isfinite(share.value):
        part = (
            interval(share, ".0%")
            if math.isfinite(share.low)
            else f"{share.value:.0%} (no bounds: seed noise)"
        )
        lines.append(
            f"calibration: {part} of the difference in {loss} survives it; to show this "
            f"difference, {_seeds_text(comparison)}"
        )
    if bias is not None and math.isfinite(bias.low):
        lines.append(f"bias: {interval(bias, '.0%')} of the seed variance of {loss}")
    return lines


def _probability_line(comparison: Comparison) -> str:
    """The probability that B is better, and the noise by which it is judged."""
    probability = comparison.probability_b_better()
    shown = f"{probability:.0%}" if 0.01 <= probability <= 0.99 else f"{probability:.1%}"
    shown = "over 99.9%" if probability > 0.999 else "under 0.1%" if probability < 0.001 else shown
    text = f"P(B is better) {shown}, by {comparison.metric}"
    if (noise := comparison.seed_noise) is None:
        return f"{text} and a flat prior"
    return (
        f"{text}, a flat prior and a seed standard deviation of {noise.std:.2g}, from "
        f"{noise.num_runs} runs of the ledger (pipelines: {noise.num_pipelines})"
    )


def _seeds_text(comparison: Comparison) -> str:
    """How many seeds each loss needs to detect the difference of the two pipelines."""
    parts: list[str] = []
    for name, number in (comparison.seeds_needed or {}).items():
        size = f"about {number:,}" if number <= MAX_MORE_SEEDS else f"over {MAX_MORE_SEEDS:,}"
        parts.append(f"{name} needs {size} {'' if parts else 'seeds each'}".rstrip())
    return ", ".join(parts)


def interval(estimate: Estimate, form: str | None = None) -> str:
    """A figure with its interval, in the format `form` or to two digits of the half-width.

    Example:
        >>> interval(Estimate(-0.00073, -0.00101, -0.00045))
        '-0.73 [-1.01, -0.45] e-3'
        >>> interval(Estimate(0.5, 0.41, 0.6), ".1f")
        '0.5 [0.4, 0.6]'
    """
    if form is not None:
        return f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"
    half = (estimate.high - estimate.low) / 2
    largest = max(map(abs, estimate[:3]))
    if not (math.isfinite(half) and largest > 0):
        return interval(estimate, ".2g")
    exponent = math.floor(math.log10(largest))
    scale = 0 if -2 <= exponent <= 3 else exponent
    # Two digits of the half-width, but at most four decimals.
    digits = 1 - math.floor(math.log10(half)) + scale if half > 0 else 2
    scaled = Estimate(*(part / 10.0**scale for part in estimate[:3]))
    text = interval(scaled, f".{min(max(digits, 0), 4)}f")
    return text if scale == 0 else f"{text} e{scale}"


def _narrow_grid(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligns the rows and shortens the names until the table fits 100 columns."""
    lines = grid(rows)
    excess = max(map(len, lines)) - MAX_WIDTH
    if excess > 0:
        longest = max(len(row[0]) for row in rows)
        lines = grid([[shorten(row[0], max(8, longest - excess)), *row[1:]] for row in rows])
    return lines


def _metric_rows(comparison: Comparison) -> list[list[str]]:
    """The header and a row of texts for each metric."""
    held_out = comparison.metric.startswith("val_")
    header = [f"{_HEADER[0]} (held out)" if held_out else _HEADER[0], *_HEADER[1:]]
    return [header, *(_row(metric, held_out) for metric in comparison.metrics.values())]


def _row(metric: MetricComparison, held_out: bool) -> list[str]:
    difference = metric.difference
    beats = metric.b_beats_a_same_seed or metric.b_beats_a
    p_value = None if difference is None else difference.p_value
    return [
        terminal_safe(metric.metric).removeprefix("val_" if held_out else ""),
        _mean_and_std(metric.mean_a, metric.std_a),
        _mean_and_std(metric.mean_b, metric.std_b),
        "no interval" if difference is None else interval(difference),
        "" if beats is None else interval(beats, ".0%").replace("%", "").replace(", ", "–"),
        "" if p_value is None else f"{p_value:.2g}" if p_value >= 1e-4 else "<1e-4",
    ]


def _mean_and_std(mean: float, std: float) -> str:
    if not math.isfinite(mean):
        return "none"
    return f"{mean:.5g}±{std:.2g}" if math.isfinite(std) else f"{mean:.5g}"
