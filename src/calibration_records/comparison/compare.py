"""Compares two pipelines by the runs of a ledger."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from calibration_records.comparison.comparison import Comparison
from calibration_records.comparison.metric_comparison import MetricComparison
from calibration_records.comparison.notes import make_notes
from calibration_records.comparison.pipeline_runs import PipelineRuns, gather_runs
from calibration_records.comparison.plan import Plan, make_plan
from calibration_records.comparison.question import (
    ADVISED,
    Question,
    check_question,
    metric_directions,
    recorded_metrics,
    resolve_metric,
)
from calibration_records.comparison.seed_noise import SeedNoise, seed_noise
from calibration_records.comparison.verdict import Outcome, judge
from calibration_records.runs.ledger import Ledger
from calibration_records.runs.metric_names import BIAS_SUFFIX, loss_partners
from calibration_records.runs.run_record import RunRecord
from calibration_records.statistics.accuracy import (
    accuracy_interval,
    independent_seed_accuracy,
    same_seed_accuracy,
)
from calibration_records.statistics.bias import bias_share, surviving_share
from calibration_records.statistics.difference import seeds_needed, standard_error
from calibration_records.statistics.estimate import MIN_RUNS
from calibration_records.statistics.summary import mean_and_std

# Power of the smallest detectable effect.
_POWER = 0.8
# With fewer runs, the interval of the bias share is too wide to be useful.
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
    num_looks: int | str | None = ADVISED,
    directions: Mapping[str, str] | None = None,
) -> Comparison:
    """Compares two pipelines over their seeds, and tells a real difference from seed noise.

    The mean difference B − A gets Student's paired interval if the pipelines share their seeds, and
    Welch's interval if not. A verdict needs six pairs, or four runs of each pipeline with other
    seeds. With fewer than four, `compare` computes the probability that B is better from the seed
    noise of the ledger's other runs. Diverged, unfinished and repeated runs are excluded and
    counted.

    Args:
        ledger: A `Ledger`, or the path of its folder.
        a: Name of a pipeline.
        b: Name of another pipeline.
        metric: Name of the deciding metric. The comparison uses its held-out values (`val_…`) if
            the runs recorded them. If the model is calibrated again before it is served, this is
            the calibrated loss, and a gain that is "calibration only" makes neither pipeline
            better. If it is served as it was trained, this is the plain loss, `"log_loss"`, and the
            verdict is never "calibration only".
        epoch: Epoch whose values are compared. `"kept"`: the epoch whose weights the run kept
            (restored by `EarlyStopping` or saved by `ModelCheckpoint` as the best), or the last
            epoch if that is unknown. `"last"`, or an int. `"best"`: the best epoch of each run by
            the deciding metric, which flatters every run.
        delta: Largest difference that does not matter, in the metric's unit. Without it, the
            verdict is never "no difference".
        confidence: Coverage of the intervals, in (0, 1).
        num_looks: Planned number of looks at the growing ledger; their intervals hold jointly
            (Bonferroni). `"advised"`: the intervals are for this look alone, but a verdict needs a
            third of the risk. You may then train "about k more seeds each" and look again. 1 for a
            single look; `None` for any number of looks, with always-valid intervals. These take
            pairs: if the seeds are not shared, in the order of the ledger, which leaves out the
            last runs of the pipeline with more.
        directions: Metric name → `"min"` or `"max"`, for metrics whose direction is neither
            recorded nor known from the name. Other metrics of unknown direction are shown but not
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
    question = check_question(question)
    names = recorded_metrics(records, question)
    deciding = resolve_metric(question.metric, names)
    # "best" needs a direction to choose an epoch, and so does a verdict.
    directions = metric_directions(records, question, names, deciding)
    maximize = directions[deciding] == "max"
    held_out = deciding.startswith("val_")
    # Compare held-out values with held-out values, and training values with training values.
    ordered = [deciding, *(n for n in names if n != deciding and n.startswith("val_") == held_out)]
    runs = [
        gather_runs(records, pipeline, ordered, epoch=question.epoch, maximize=maximize)
        for pipeline in (question.a, question.b)
    ]
    plan = make_plan(runs, question)
    # With one to three runs, borrow the noise of other runs, as so few hardly estimate their own.
    noise = (
        seed_noise(records, runs, deciding, question, maximize=maximize)
        if 0 < plan.num_runs < MIN_RUNS
        else None
    )
    common = [name for name in ordered if all(pipeline.complete(name) for pipeline in runs)]
    # The table shows the deciding metric even without runs, and never a fitted bias: it is no loss.
    metrics = {
        name: _compare_metric(name, runs, plan, directions[name])
        for name in dict.fromkeys([deciding, *common])
        if name == deciding or not name.endswith(BIAS_SUFFIX)
    }
    # Two losses of the same runs tell ranking from calibration.
    plain, calibrated = loss_partners(deciding, common)
    calibration = _measure_calibration(plain, calibrated, runs, plan)
    power = _estimate_power(metrics[deciding], runs, plan, question.delta, noise)
    # If another loss decides, the model is served as it was trained: gains by calibration count.
    verdict = judge(
        metrics[deciding],
        plain=metrics.get(plain or ""),
        calibrated=metrics.get(calibrated or ""),
        gain=calibration.get("gain_difference") if maximize or deciding == calibrated else None,
        delta=question.delta,
        more_seeds=power.get("more_seeds", 1),
        obstacle=plan.obstacle(deciding, *runs),
        is_borrowed=noise is not None,
    )
    if deciding == calibrated and verdict.outcome is Outcome.CALIBRATION_ONLY:
        # Who decides by the calibrated loss calibrates before serving, which removes this gain.
        verdict = verdict._replace(better=None)
    comparison = Comparison(
        a=runs[0],
        b=runs[1],
        metric=deciding,
        metrics=metrics,
        verdict=verdict,
        method=plan.method,
        question=question,
        shared_seeds=plan.seeds,
        seed_noise=noise,
        plain_metric=plain,
        calibrated_metric=calibrated,
        **calibration,
        **power,
    )
    return dataclasses.replace(comparison, notes=make_notes(comparison))


def _compare_metric(
    metric: str, runs: Sequence[PipelineRuns], plan: Plan, direction: str | None
) -> MetricComparison:
    a, b = (np.asarray(pipeline.metric_values(metric)) for pipeline in runs)
    paired_a, paired_b = plan.values(metric, *runs)
    sign = -1 if direction == "max" else 1
    # `accuracy` counts lower losses, so turn the sign of metrics to maximize.
    beats = same = None
    if direction is not None and plan.paired:
        sides = (sign * paired_b, sign * paired_a)
        beats = independent_seed_accuracy(*sides, confidence=plan.shown)
        same = same_seed_accuracy(*sides, confidence=plan.shown)
    elif direction is not None and min(a.size, b.size) > 0:
        beats = accuracy_interval(sign * b, sign * a, confidence=plan.shown)
    difference, judged = plan.differences(paired_a, paired_b)
    return MetricComparison(
        metric=metric,
        maximize=None if direction is None else direction == "max",
        num_a=a.size,
        num_b=b.size,
        mean_a=float(a.mean()) if a.size else np.nan,
        mean_b=float(b.mean()) if b.size else np.nan,
        std_a=mean_and_std(a)[1] if a.size else np.nan,
        std_b=mean_and_std(b)[1] if b.size else np.nan,
        difference=difference,
        b_beats_a=beats,
        b_beats_a_same_seed=same,
        judged=judged,
    )


def _measure_calibration(
    plain: str | None, calibrated: str | None, runs: Sequence[PipelineRuns], plan: Plan
) -> dict[str, Any]:
    """How calibration affects the difference and its noise, as fields of `Comparison`."""
    if plain is None or calibrated is None:
        return {}
    losses = plan.values(plain, *runs)
    corrected = plan.values(calibrated, *runs)
    # The difference of the calibration gains G = LL − CLL, B minus A.
    gains = [log_loss - loss for log_loss, loss in zip(losses, corrected, strict=True)]
    fields: dict[str, Any] = {"gain_difference": plan.differences(*gains)[0]}
    # Shares of a difference need more runs than its interval.
    if plan.num_runs < plan.fewest:
        return fields
    how: dict[str, Any] = {"paired": plan.paired, "confidence": plan.shown}
    fields["surviving_share"] = surviving_share(losses, corrected, **how)
    fields["seeds_needed"] = {
        name: _count_seeds_needed(float(b.mean() - a.mean()), _estimate_std(a, b, plan), plan)
        for name, (a, b) in ((plain, losses), (calibrated, corrected))
    }
    if min(map(len, losses)) >= _MIN_RUNS_FOR_BIAS:
        fields["bias_share"] = bias_share(losses, corrected, **how)
    return fields


def _estimate_std(a: np.ndarray, b: np.ndarray, plan: Plan) -> float:
    """The standard deviation of the difference between single runs."""
    samples = (b - a,) if plan.paired else (a, b)
    return math.hypot(*(mean_and_std(values)[1] for values in samples))


def _count_seeds_needed(effect: float, std: float, plan: Plan) -> int:
    """Seeds of each pipeline that detect a difference of this size."""
    # In units of the noise, as the variance of small values would be 0. Values so large that they
    # overflow have no known effect.
    size = float(np.nan_to_num(effect / (std or 1.0)))
    # A power calculation may say 2, but no exact test decides with fewer than `fewest` runs.
    return max(
        plan.fewest,
        seeds_needed(size, float(std != 0), paired=plan.paired, confidence=plan.level),
    )


def _estimate_power(
    deciding: MetricComparison,
    runs: Sequence[PipelineRuns],
    plan: Plan,
    delta: float | None,
    noise: SeedNoise | None,
) -> dict[str, Any]:
    """What the seeds can detect, as fields of `Comparison`; empty if the seed noise is unknown."""
    difference = deciding.judged or deciding.difference
    a, b = plan.values(deciding.metric, *runs)
    if noise is not None:
        error = noise.std * math.sqrt(1 / a.size + 1 / b.size)
        degrees = float(noise.degrees)
        std = math.sqrt(2) * noise.std
        # Bloom's formula: (t_confidence + t_power) SE. The half-width of the deciding interval is
        # the first part, also of an always-valid one.
        half = float(special.stdtrit(degrees, (1 + plan.level) / 2)) * error
    elif difference is not None:
        error, degrees = standard_error(a, b, paired=plan.paired)
        std = _estimate_std(a, b, plan)
        half = (difference.high - difference.low) / 2
    else:
        return {}
    # Plan for the difference that matters, or else for the one observed.
    effect = delta if delta is not None else float(b.mean() - a.mean())
    return {
        "standard_error": error,
        "degrees": degrees,
        "smallest_detectable_effect": half + float(special.stdtrit(degrees, _POWER)) * error,
        "more_seeds": max(1, _count_seeds_needed(effect, std, plan) - plan.num_runs),
    }
