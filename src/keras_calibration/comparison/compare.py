"""Compares two pipelines by the runs of a ledger."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from keras_calibration._typing import RunRecord
from keras_calibration.comparison.comparison import Comparison
from keras_calibration.comparison.metric_comparison import MetricComparison
from keras_calibration.comparison.notes import make_notes
from keras_calibration.comparison.pipeline_runs import PipelineRuns, gather_runs
from keras_calibration.comparison.plan import Plan, make_plan
from keras_calibration.comparison.question import (
    Question,
    check_question,
    deciding_direction,
    metric_directions,
    recorded_metrics,
    resolve_metric,
)
from keras_calibration.comparison.verdict import judge
from keras_calibration.ledger.ledger import Ledger
from keras_calibration.ledger.metric_names import BIAS_SUFFIX, loss_partners
from keras_calibration.statistics.accuracy import (
    accuracy_interval,
    independent_seed_accuracy,
    same_seed_accuracy,
)
from keras_calibration.statistics.bias import bias_share, seeds_ratio
from keras_calibration.statistics.difference import seeds_needed, standard_error
from keras_calibration.statistics.estimate import Estimate

# Power of the minimum detectable effect.
_POWER = 0.8
# With six runs of each pipeline, the interval of the ratio of seeds spans a factor of 10 to 140.
_MIN_RUNS_FOR_BIAS = 10


def compare(
    ledger: Ledger | str | os.PathLike[str],
    a: str,
    b: str,
    *,
    metric: str = "calibrated_log_loss",
    epoch: int | str = "kept",
    delta: float | None = None,
    confidence: float = 0.95,
    num_looks: int | None = 1,
    directions: Mapping[str, str] | None = None,
) -> Comparison:
    """Tells whether pipeline B is better than A, or whether the difference is seed noise.

    The mean difference B − A gets Student's paired interval if the pipelines share their seeds, and
    Welch's interval if not. With three runs or fewer of a pipeline the verdict is "cannot tell".
    Diverged, unfinished and repeated runs are excluded and counted.

    Args:
        ledger: A `Ledger`, or the path of its folder.
        a: Name of a pipeline.
        b: Name of another pipeline.
        metric: Name of the deciding metric. Its held-out values (`val_…`) are used if recorded.
        epoch: Epoch whose values are compared. `"kept"`: the epoch whose weights the run kept
            (restored by `EarlyStopping` or saved by `ModelCheckpoint` as the best; otherwise the
            last). `"last"`, or an int. `"best"`: the best epoch of each run by the deciding
            metric, which flatters every run.
        delta: Largest difference that does not matter, in the metric's unit. Without it, the
            verdict is never "no difference".
        confidence: Coverage of the intervals, in (0, 1).
        num_looks: Planned number of looks at the growing ledger, whose intervals hold together
            (Bonferroni); `None` for any number of looks, with intervals that hold at all times.
        directions: Metric name → `"min"` or `"max"`, for metrics whose direction is neither
            recorded nor known from the name. Other metrics of unknown direction are shown and not
            judged.

    Returns:
        A `Comparison`: print it, or read `verdict` and `difference`.

    Raises:
        ValueError: A pipeline or the metric is not in the ledger, the direction of the deciding
            metric is unknown, or an argument is out of its range.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> runs = Ledger(folder.name)
        >>> for seed in range(6):
        ...     for pipeline, loss in (("deepfm", 0.50), ("dcn", 0.40)):
        ...         _ = runs.append({"pipeline": pipeline, "seed": seed, "status": "finished",
        ...                          "epochs": [0], "metrics": {"val_loss": [loss + seed / 1e3]}})
        >>> comparison = compare(runs, "deepfm", "dcn", metric="loss")
        >>> print(comparison.verdict)
        B better
        >>> folder.cleanup()

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation*, arXiv 2401.16692, for the question;
        Bouthillier et al. (2021), *Accounting for variance in machine learning benchmarks*.
    """
    ledger = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    question = Question(a, b, metric, epoch, delta, confidence, num_looks, directions)
    return compare_runs(ledger.runs(), question)


def compare_runs(records: Sequence[RunRecord], question: Question) -> Comparison:
    """Compares like `compare`, on records already read from the ledger."""
    check_question(question)
    names = recorded_metrics(records, question)
    deciding = resolve_metric(question.metric, names)
    directions = metric_directions(records, question, names)
    maximize = deciding_direction(deciding, directions) == "max"
    held_out = deciding.startswith("val_")
    wanted = [deciding, *(n for n in names if n != deciding and n.startswith("val_") == held_out)]
    runs = (
        gather_runs(records, question.a, wanted, epoch=question.epoch, maximize=maximize),
        gather_runs(records, question.b, wanted, epoch=question.epoch, maximize=maximize),
    )
    plan = make_plan(runs, question)
    common = [name for name in wanted if all(pipeline.complete(name) for pipeline in runs)]
    # The deciding metric is shown even without runs; a fitted bias is not a loss and never shown.
    metrics = {
        name: _compare_metric(name, runs, plan, directions[name])
        for name in dict.fromkeys([deciding, *common])
        if name == deciding or not name.endswith(BIAS_SUFFIX)
    }
    plain, calibrated = loss_partners(deciding, common)
    gain = _gain_difference(plain, calibrated, runs, plan)
    power = _power(metrics[deciding], runs, plan, question.delta)
    verdict = judge(
        metrics[deciding],
        plain=metrics.get(plain or ""),
        calibrated=metrics.get(calibrated or ""),
        gain=gain,
        delta=question.delta,
        more_seeds=power.get("more_seeds", 1),
        obstacle=plan.obstacle(deciding, *runs),
    )
    comparison = Comparison(
        a=runs[0],
        b=runs[1],
        metric=deciding,
        metrics=metrics,
        verdict=verdict,
        method=plan.method,
        shared_seeds=plan.seeds,
        confidence=question.confidence,
        delta=question.delta,
        epoch=question.epoch,
        num_looks=question.num_looks,
        plain_metric=plain,
        calibrated_metric=calibrated,
        gain_difference=gain,
        **_bias(plain, calibrated, runs, plan),
        **power,
    )
    return dataclasses.replace(comparison, notes=make_notes(comparison))


def _compare_metric(
    metric: str, runs: tuple[PipelineRuns, PipelineRuns], plan: Plan, direction: str | None
) -> MetricComparison:
    a, b = (np.asarray(pipeline.metric_values(metric)) for pipeline in runs)
    paired_a, paired_b = plan.values(metric, *runs)
    sign = -1 if direction == "max" else 1
    beats = same = difference = None
    if direction is not None and plan.paired:
        sides = (sign * paired_b, sign * paired_a)
        beats = independent_seed_accuracy(*sides, confidence=plan.level)
        same = same_seed_accuracy(*sides, confidence=plan.level)
    elif direction is not None and min(a.size, b.size) > 0:
        beats = accuracy_interval(sign * b, sign * a, confidence=plan.level)
    if min(a.size, b.size) > 0:
        difference = plan.difference(paired_a, paired_b)
    return MetricComparison(
        metric=metric,
        maximize=None if direction is None else direction == "max",
        num_a=a.size,
        num_b=b.size,
        mean_a=float(a.mean()) if a.size else np.nan,
        mean_b=float(b.mean()) if b.size else np.nan,
        std_a=float(a.std(ddof=1)) if a.size > 1 else np.nan,
        std_b=float(b.std(ddof=1)) if b.size > 1 else np.nan,
        difference=difference,
        b_beats_a=beats,
        b_beats_a_same_seed=same,
    )


def _gain_difference(
    plain: str | None,
    calibrated: str | None,
    runs: tuple[PipelineRuns, PipelineRuns],
    plan: Plan,
) -> Estimate | None:
    """The calibration gain G = LL − CLL of B minus that of A; `None` without both losses."""
    if plain is None or calibrated is None:
        return None
    losses = zip(plan.values(plain, *runs), plan.values(calibrated, *runs), strict=True)
    return plan.difference(*(log_loss - calibrated_loss for log_loss, calibrated_loss in losses))


def _bias(
    plain: str | None,
    calibrated: str | None,
    runs: tuple[PipelineRuns, PipelineRuns],
    plan: Plan,
) -> dict[str, Any]:
    """The fields that tell what the correction of the bias does to the seed variance."""
    if plain is None or calibrated is None:
        return {}
    losses, corrected = plan.values(plain, *runs), plan.values(calibrated, *runs)
    if min(map(len, losses)) < _MIN_RUNS_FOR_BIAS:
        return {}
    options: dict[str, Any] = {"paired": plan.paired, "confidence": plan.level}
    return {
        "bias_share": bias_share(losses, corrected, **options),
        "seeds_ratio": seeds_ratio(losses, corrected, **options),
    }


def _power(
    deciding: MetricComparison,
    runs: tuple[PipelineRuns, PipelineRuns],
    plan: Plan,
    delta: float | None,
) -> dict[str, Any]:
    """The fields of a comparison that tell what its seeds can show; none with too few runs."""
    if deciding.difference is None:
        return {}
    a, b = plan.values(deciding.metric, *runs)
    error, degrees = standard_error(a, b, paired=plan.paired)
    variance = np.var(b - a, ddof=1) if plan.paired else a.var(ddof=1) + b.var(ddof=1)
    half = (deciding.difference.high - deciding.difference.low) / 2
    target = delta if delta is not None else abs(deciding.difference.value)
    needed = seeds_needed(target, float(variance), paired=plan.paired, confidence=plan.level)
    return {
        "standard_error": error,
        "degrees": degrees,
        "minimum_detectable_effect": half + float(special.stdtrit(degrees, _POWER)) * error,
        "more_seeds": max(1, needed - min(deciding.num_a, deciding.num_b)),
    }
