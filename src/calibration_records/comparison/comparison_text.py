"""A comparison as plain text of at most 100 columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibration_records._figures import decimals_of, significant, with_error
from calibration_records._text import MAX_WIDTH, counted, grid, shorten, terminal_safe, wrap
from calibration_records.comparison.metric_comparison import MetricComparison
from calibration_records.comparison.verdict import MAX_MORE_SEEDS, Outcome
from calibration_records.statistics.estimate import Estimate

if TYPE_CHECKING:
    # A comparison prints itself with this module.
    from calibration_records.comparison.comparison import Comparison

_HEADER = ("metric", "A mean±std", "B mean±std", "B − A [interval]", "B wins, %", "p")


def comparison_text(comparison: Comparison) -> str:
    """The comparison for a terminal: verdict and reason, table, figures, notes; 100 columns."""
    first = [
        f"Verdict: {comparison.verdict}",
        *_explain_decision(comparison),
        _format_heading(comparison),
    ]
    last = [*_format_figures(comparison), *(f"! {note}" for note in comparison.notes)]
    above, below = ([part for line in lines for part in wrap(line)] for lines in (first, last))
    return "\n".join(
        [*above, "", *_narrow_grid(_format_metric_rows(comparison)), "", *below]
    ).rstrip()


def _explain_decision(comparison: Comparison) -> list[str]:
    """The figures that decide, and the rule by which they do; empty without a difference."""
    # A verdict of calibration rests on both losses, any other on one.
    names = (
        {comparison.plain_metric, comparison.calibrated_metric}
        if comparison.verdict.outcome is Outcome.CALIBRATION_ONLY
        else {comparison.metric}
    )
    figures = [
        f"{name}: B − A = {interval(found)}"
        + ("" if found.p_value is None else f", p = {found.p_value:#.3g}")
        for name, metric in comparison.metrics.items()
        if name in names and (found := metric.difference) is not None
    ]
    return [*figures, _explain_rule(comparison)] if figures or comparison.seed_noise else []


def _explain_rule(comparison: Comparison) -> str:
    """Why the figures decide, or why they do not."""
    question, verdict = comparison.question, comparison.verdict
    judged = comparison.deciding.judged or comparison.difference
    if comparison.seed_noise is not None or judged is None:
        return "Undecided, since the seed noise is that of other runs, which may be less noisy."
    # The level that decides may be stricter than the shown one: several looks share the risk.
    looks = question.planned_looks
    shared = f" ({100 * (1 - question.confidence):.3g} % shared by {looks} looks)"
    origins: dict[int | None, str] = {None: " (at any number of looks)", 1: ""}
    level = f"{1 - judged.confidence:.3g}{origins.get(looks, shared)}"
    # The ends alone: the figure stands in the line above, with its own power of ten.
    ends = interval(judged).partition(" ")[2]
    part = f"the {100 * judged.confidence:.5g} % interval {ends}"
    margin = f"within ±{question.delta or 0:g}"
    also = "" if question.delta is None else f", and {part} is not {margin}"
    rules = {
        Outcome.CANNOT_TELL: "So few runs have no p-value.",
        Outcome.NO_DIFFERENCE: f"Decided, since {part} is {margin}.",
        Outcome.CALIBRATION_ONLY: f"Decided, since p < {level} for {comparison.plain_metric} "
        "alone, and calibration makes up at least half of its difference.",
        Outcome.UNDECIDED: f"Undecided, since p is not below {level}{also}.",
    }
    # Without any spread, there is no test: the verdict rests on the difference itself.
    clear = f"p < {level}" if judged.p_value is not None else "all seeds show the same difference"
    return rules.get(verdict.outcome, f"Decided, since {clear}.")


def _format_heading(comparison: Comparison) -> str:
    """The pipelines, their numbers of runs, the pairing, and the intervals of the table."""
    number = len(set(comparison.a.seeds) & set(comparison.b.seeds))
    # Say why shared seeds are not used, as a reader would expect pairs.
    few = "" if comparison.shared_seeds else ", too few to pair the runs"
    pairing = f"{counted(number, 'shared seed')}{few}" if number else "no shared seeds"
    a, b = (
        f"{shorten(runs.pipeline, 26)} ({counted(len(runs), 'run')})"
        for runs in (comparison.a, comparison.b)
    )
    heading = f"A = {a}, B = {b}; {pairing}"
    if comparison.difference is None:
        return heading
    confidence = comparison.difference.confidence
    return f"{heading}; {100 * confidence:.5g} % intervals by {comparison.method}"


def _format_figures(comparison: Comparison) -> list[str]:
    """The lines below the table, one for each figure that the comparison has."""
    lines = [] if comparison.standard_error is None else [_describe_probability(comparison)]
    # Seeds without noise tell nothing of the noise of further seeds.
    if effect := comparison.smallest_detectable_effect:
        lines.append(f"smallest detectable effect: {significant(effect, 2)} with 80 % power")
    bias, share = comparison.bias_share, comparison.surviving_share
    plain, calibrated = comparison.plain_metric, comparison.calibrated_metric
    if comparison.gain_difference is not None:
        lines.append(
            f"calibration gain ({plain} − {calibrated}), B − A: "
            f"{interval(comparison.gain_difference)}"
        )
    # Without bounds, the difference of the plain loss may be chance, and a share of chance says
    # nothing.
    if share is not None and math.isfinite(share.low):
        lines.append(
            f"surviving share: calibrating both would leave {_format_percent(share)} of the "
            f"difference in {plain}"
        )
    if bias is not None and math.isfinite(bias.low):
        lines.append(
            f"bias share: calibration removes {_format_percent(bias)} of the seed variance of "
            f"{plain}"
        )
    if share is not None and math.isfinite(share.value):
        lines.append(f"planning: {_describe_seeds_needed(comparison)}")
    return lines


def _describe_probability(comparison: Comparison) -> str:
    """The probability that B is better, and the noise by which it is judged."""
    # Never "100 %": a probability is not a certainty.
    probability = 100 * comparison.probability_b_better()
    bound = "over 99.9" if probability > 99.9 else "under 0.1" if probability < 0.1 else ""
    shown = bound or f"{probability:.{0 if 1 <= probability <= 99 else 1}f}"
    prior = "a flat prior"
    if (noise := comparison.seed_noise) is not None:
        prior = (
            f"a flat prior and a seed standard deviation of {significant(noise.std, 2)}, from "
            f"{noise.num_runs} runs of the ledger (pipelines: {noise.num_pipelines})"
        )
    return f"P(B is better): {shown} % for this look alone, with {prior}; it does not decide"


def _describe_seeds_needed(comparison: Comparison) -> str:
    """How many seeds each loss needs to detect the difference of the two pipelines."""
    parts: list[str] = []
    for name, number in (comparison.seeds_needed or {}).items():
        size = f"about {number:,}" if number <= MAX_MORE_SEEDS else f"over {MAX_MORE_SEEDS:,}"
        parts.append(f"{size}{'' if parts else ' seeds each'} by {name}")
    return f"to find a difference of this size with 80 % power takes {', '.join(parts)}"


def interval(estimate: Estimate) -> str:
    """A figure with its interval, to two digits of the half-width.

    Example:
        >>> interval(Estimate(-0.00073, -0.00101, -0.00045))
        '-0.73 [-1.01, -0.45] e-3'
        >>> interval(Estimate(484.0, 470.0, 498.0))
        '484 [470, 498]'
    """
    ends = estimate[:3]
    half = (estimate.high - estimate.low) / 2
    largest = max(map(abs, ends))
    if not (math.isfinite(half) and half > 0):
        value, low, high = (significant(end, 3) for end in ends)
        return f"{value} [{low}, {high}]"
    # One power of ten for the figure and both ends, so that they can be compared at a glance.
    power, suffix = _find_power_of_ten(largest)
    # Digits beyond the second of the half-width are noise. Beyond the ninth, all are rounding.
    places = min(decimals_of(half / power), 9)
    value, low, high = (f"{end / power:z,.{places}f}" for end in ends)
    return f"{value} [{low}, {high}]{suffix}"


def _find_power_of_ten(size: float) -> tuple[float, str]:
    """The power by which to divide a size and its error, and how it is printed after them."""
    exponent = math.floor(math.log10(size)) if size > 0 else 0
    return (1.0, "") if -2 <= exponent <= 5 else (10.0**exponent, f" e{exponent}")


def _format_percent(share: Estimate, form: str = "{} % [{} %, {} %]") -> str:
    """A share and its interval in percent, to a digit of the half-width.

    Example:
        >>> _format_percent(Estimate(0.614, 0.41, 2.18))
        '61 % [41 %, 218 %]'
        >>> _format_percent(Estimate(0.9958, 0.9934, 0.9981), "{} [{}–{}]")
        '99.6 [99.3–99.8]'
    """
    places = decimals_of(100 * (share.high - share.low) / 2, 1)
    return form.format(*(f"{100 * end:z.{min(places, 9)}f}" for end in share[:3]))


def _narrow_grid(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligns the rows and shortens the names until the table fits 100 columns."""
    # Only names can be cut: figures have to stay whole.
    excess = max(0, max(map(len, grid(rows))) - MAX_WIDTH)
    longest = max(len(row[0]) for row in rows)
    return grid([[shorten(row[0], max(8, longest - excess)), *row[1:]] for row in rows])


def _format_metric_rows(comparison: Comparison) -> list[list[str]]:
    """The header and a row of texts for each metric."""
    held_out = comparison.metric.startswith("val_")
    header = [f"{_HEADER[0]} (held out)" if held_out else _HEADER[0], *_HEADER[1:]]
    return [header, *(_format_row(metric, held_out) for metric in comparison.metrics.values())]


def _format_row(metric: MetricComparison, held_out: bool) -> list[str]:
    difference = metric.difference
    # Paired runs are compared under one seed, independent ones across seeds.
    beats = metric.b_beats_a_same_seed or metric.b_beats_a
    p_value = None if difference is None else difference.p_value
    return [
        terminal_safe(metric.metric).removeprefix("val_" if held_out else ""),
        _format_mean_and_std(metric.mean_a, metric.std_a),
        _format_mean_and_std(metric.mean_b, metric.std_b),
        "no interval" if difference is None else interval(difference),
        "" if beats is None else _format_percent(beats, "{} [{}–{}]"),
        "" if p_value is None else f"{p_value:#.2g}" if p_value >= 1e-4 else "<1e-4",
    ]


def _format_mean_and_std(mean: float, std: float) -> str:
    if not math.isfinite(mean):
        return "none"
    if not math.isfinite(std):
        return significant(mean, 5)
    power, suffix = _find_power_of_ten(max(abs(mean), std))
    return with_error(mean / power, std / power).replace(" ", "") + suffix
