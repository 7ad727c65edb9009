"""A comparison as text of at most 100 columns, Markdown, LaTeX and JSON values."""

import dataclasses
import math
import textwrap
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from keras_calibration.seeds.comparison import Comparison
from keras_calibration.seeds.estimate import Estimate
from keras_calibration.seeds.metric_comparison import MetricComparison
from keras_calibration.seeds.pipeline_runs import PipelineRuns

MAX_WIDTH = 100
_HEADER = ("metric", "A mean±std", "B mean±std", "B − A [interval]", "B beats A", "p")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "<": r"$<$",
    ">": r"$>$",
    **{character: f"\\{character}" for character in "&%$#_"},
}


def to_text(comparison: Comparison) -> str:
    """The comparison for a terminal: verdict, table, figures, notes; at most 100 columns.

    Args:
        comparison: to be shown.

    Example:
        >>> wrap("a long line of words", 10)
        ['a long', '  line of', '  words']
    """
    lines = [heading(comparison), "", *_grid(_rows(comparison)), ""]
    lines += [line for figure in figures(comparison) for line in wrap(figure)]
    lines += [line for note in comparison.notes for line in wrap(f"! {note}")]
    return "\n".join([*lines, "", *wrap(f"Verdict: {comparison.verdict}")])


def to_markdown(comparison: Comparison) -> str:
    """The comparison as a Markdown table, with the verdict above and the notes below it."""
    header, *rows = [[_escape_markdown(cell) for cell in row] for row in _rows(comparison)]
    rule = ["---", *["---:"] * (len(header) - 1)]
    table = ["| " + " | ".join(row) + " |" for row in (header, rule, *rows)]
    points = [f"- {_escape_markdown(text)}" for text in (*figures(comparison), *comparison.notes)]
    title = _escape_markdown(heading(comparison))
    verdict = _escape_markdown(str(comparison.verdict))
    return "\n".join([f"**{verdict}** ({title})", "", *table, "", *points])


def to_latex(comparison: Comparison) -> str:
    r"""The comparison as a LaTeX `tabular`, with `\hline` for rules; no package is needed."""
    header, *rows = [[_escape_latex(cell) for cell in row] for row in _rows(comparison)]
    # Where a row begins with [ or *, LaTeX takes it for an argument of the line end before.
    lines = [("{}" if row[0][:1] in ("[", "*") else "") + " & ".join(row) + r" \\" for row in rows]
    comment = f"% {_escape_latex(terminal_safe(f'{heading(comparison)}: {comparison.verdict}'))}"
    return "\n".join(
        [
            comment,
            rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            r"\hline",
            " & ".join(header) + r" \\",
            r"\hline",
            *lines,
            r"\hline",
            r"\end{tabular}",
        ]
    )


def comparison_to_dict(comparison: Comparison) -> dict[str, Any]:
    """The comparison in plain JSON values, the runs without their records."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(comparison):
        values[field.name] = _plain(getattr(comparison, field.name))
    values["verdict"] = {
        "outcome": comparison.verdict.outcome.value,
        "words": comparison.verdict.words,
        "better": comparison.verdict.better,
        "decided": comparison.verdict.decided,
    }
    values["calibration_share"] = _plain(comparison.calibration_share)
    values["posterior"] = None
    if comparison.noise is not None and comparison.difference is not None:
        margin = comparison.delta or 0.0
        values["posterior"] = {
            "margin": margin,
            "a_better": _plain(comparison.probability_a_better(margin)),
            "b_better": _plain(comparison.probability_b_better(margin)),
        }
    return values


def heading(comparison: Comparison) -> str:
    """One line that says which runs are compared."""
    pairing = (
        f"{len(comparison.shared_seeds)} shared seeds"
        if comparison.shared_seeds
        else "independent seeds"
    )
    sides = [
        f"{side} = {shorten(runs.pipeline, 26)} (m = {len(runs)})"
        for side, runs in (("A", comparison.a), ("B", comparison.b))
    ]
    return ", ".join([*sides, pairing])


def figures(comparison: Comparison) -> list[str]:
    """What stands below the table, one line of words for each figure that is there."""
    lines = []
    if comparison.minimum_detectable_effect is not None:
        lines.append(
            f"minimum detectable effect {comparison.minimum_detectable_effect:.2g} (4 times in 5); "
            f"{comparison.method}"
        )
    if comparison.noise is not None and comparison.difference is not None:
        lines.append(_posterior(comparison))
    ratios = [("A", comparison.std_ratio_a), ("B", comparison.std_ratio_b)]
    shown = [f"{name} {interval(ratio, '.2f')}" for name, ratio in ratios if ratio is not None]
    if shown:
        lines.append(f"std over seeds, calibrated / plain: {', '.join(shown)}")
    if comparison.gain_difference is not None:
        share = comparison.calibration_share
        part = "" if share is None else f", {share:.0%} of the plain difference"
        lines.append(f"calibration gain, B − A: {interval(comparison.gain_difference)}{part}")
    if comparison.detection_gain is not None:
        lines.append(
            "one run each finds the better oftener by the calibrated loss by "
            f"{interval(comparison.detection_gain, '+.2f')} (paired DeLong)"
        )
    if comparison.hybrid_difference is not None:
        lines.append(f"hybrid loss, B − A: {comparison.hybrid_difference:.2g}")
    for name, parts in (("A", comparison.components_a), ("B", comparison.components_b)):
        if parts is not None:
            deviations = (
                math.sqrt(parts.seeds),
                math.sqrt(parts.interaction / parts.num_rows),
                math.sqrt(parts.rows / parts.num_rows),
            )
            sources = " / ".join(f"{deviation:.2g}" for deviation in deviations)
            lines.append(f"std of {name}'s loss from seeds / seeds × rows / rows: {sources}")
    if comparison.difference_on_new_rows is not None:
        lines.append(f"B − A on new rows too: {interval(comparison.difference_on_new_rows)}")
    return lines


def _posterior(comparison: Comparison) -> str:
    """How probable it is that the one ahead is better, and by what matters."""
    chances = {"A": comparison.probability_a_better, "B": comparison.probability_b_better}
    ahead = max(chances, key=lambda side: chances[side]())
    text = f"posterior, flat prior: {ahead} better with probability {_chance(chances[ahead]())}"
    if comparison.delta:
        text += (
            f", by at least {comparison.delta:g} with {_chance(chances[ahead](comparison.delta))}"
        )
    return text


def _chance(probability: float) -> str:
    """No posterior is certain: what rounds to 0 or 1 is said to be below or above."""
    if probability < 0.001:
        return "< 0.001"
    return "> 0.999" if probability > 0.999 else f"{probability:.3f}"


def interval(estimate: Estimate, form: str | None = None) -> str:
    """A figure with its interval, to two digits of the interval; small ones with one exponent.

    Args:
        estimate: to be shown.
        form: of each number, as in a format string; `None` for the digits that matter.

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
    # Two digits of the half-width, but no more than four behind the point.
    digits = 1 - math.floor(math.log10(half)) + scale if half > 0 else 2
    text = interval(
        Estimate(*(part / 10.0**scale for part in estimate[:3])), f".{min(max(digits, 0), 4)}f"
    )
    return text if scale == 0 else f"{text} e{scale}"


def wrap(line: str, width: int = MAX_WIDTH) -> list[str]:
    """A line as several of at most `width` columns, the later ones indented."""
    return textwrap.wrap(terminal_safe(line), width, subsequent_indent="  ") or [""]


def terminal_safe(text: str) -> str:
    r"""Names as they may be printed: control characters shown, not sent to the terminal.

    Example:
        >>> terminal_safe("a\x1b[31m\nb")
        'a\\x1b[31m\\nb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def grid(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines: the first column flush left, the others flush right.

    Args:
        rows: of as many cells each.

    Example:
        >>> grid([["metric", "mean"], ["loss", "0.5"]])
        ['metric  mean', 'loss     0.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]).rstrip()
        for first, *rest in rows
    ]


def _grid(rows: Sequence[Sequence[str]]) -> list[str]:
    """As `grid`, the names shortened as far as 100 columns ask for."""
    lines = grid(rows)
    excess = max(map(len, lines)) - MAX_WIDTH
    if excess > 0:
        longest = max(len(row[0]) for row in rows)
        lines = grid([[shorten(row[0], max(8, longest - excess)), *row[1:]] for row in rows])
    return lines


def _rows(comparison: Comparison) -> list[list[str]]:
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
        "" if beats is None else interval(beats, ".2f").replace("0.", "."),
        "" if p_value is None else f"{p_value:.2g}" if p_value >= 1e-4 else "<1e-4",
    ]


def _mean_and_std(mean: float, std: float) -> str:
    if not math.isfinite(mean):
        return "none"
    return f"{mean:.5g}±{std:.2g}" if math.isfinite(std) else f"{mean:.5g}"


def shorten(name: str, width: int) -> str:
    """A name as it may be printed, of at most `width` columns.

    Example:
        >>> shorten("calibrated_log_loss", 8)
        'calibra…'
    """
    name = terminal_safe(name)
    return name if len(name) <= width else name[: width - 1] + "…"


def _escape_markdown(text: str) -> str:
    text = terminal_safe(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in "\\|*_`[]!#" else c for c in text)


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _plain(value: Any) -> Any:
    if isinstance(value, PipelineRuns):
        return {
            field.name: _plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.name != "records"
        }
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name)) for field in fields}
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "text": to_text,
    "markdown": to_markdown,
    "latex": to_latex,
}
