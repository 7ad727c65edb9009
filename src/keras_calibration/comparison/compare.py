"""Compares two pipelines by the runs of a ledger."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_calibration.comparison.comparison import Comparison, Noise
from keras_calibration.comparison.metric_comparison import MetricComparison
from keras_calibration.comparison.notes import notes_of
from keras_calibration.comparison.pipeline_runs import PipelineRuns, gather_runs
from keras_calibration.comparison.question import (
    Question,
    check_question,
    deciding_direction,
    metric_directions,
    metric_names,
    resolve_metric,
)
from keras_calibration.comparison.verdict import judge
from keras_calibration.ledger.ledger import Ledger
from keras_calibration.ledger.metric_names import BIAS_SUFFIX, loss_partners
from keras_calibration.statistics.accuracy import (
    accuracy_interval,
    detection_gain,
    independent_seed_accuracy,
    same_seed_accuracy,
)
from keras_calibration.statistics.difference import mean_difference, seeds_needed, standard_error
from keras_calibration.statistics.estimate import (
    MAX_RUNS_WITHOUT_P_VALUE,
    Estimate,
    RunValues,
    t_quantile,
)
from keras_calibration.statistics.family_noise import (
    MIN_PIPELINES,
    FamilyNoise,
    moderated_difference,
    moderated_error,
)
from keras_calibration.statistics.hybrid import hybrid_loss
from keras_calibration.statistics.sequential import always_valid_difference, pocock_confidence
from keras_calibration.statistics.spread import std_ratio
from keras_calibration.statistics.variance_components import (
    VarianceComponents,
    difference_on_new_rows,
    variance_components,
)

# Runs are paired where at least this share of the smaller pipeline's seeds is shared.
_SHARED = 0.75


class _Plan(NamedTuple):
    """How the difference of a metric is judged, the same for all metrics."""

    seeds: tuple[int, ...]
    level: float
    always_valid: bool
    few: bool
    others: list[PipelineRuns]


def compare(
    ledger: Ledger | str | os.PathLike[str],
    a: str,
    b: str,
    metric: str = "calibrated_log_loss",
    epoch: int | str = "kept",
    delta: float | None = None,
    confidence: float = 0.95,
    num_looks: int | None = 1,
    directions: Mapping[str, str] | None = None,
) -> Comparison:
    """Says whether pipeline B is better than A, or whether what is seen is noise of the seeds.

    The difference of the means, B − A, has Welch's interval, or the paired one where the two share
    their seeds; with three runs or fewer, the moderated one, by the noise of the ledger's other
    pipelines. Runs that diverged, never ended or were repeated are counted, and are not used.

    Args:
        ledger: a `Ledger`, or the path of its folder.
        a: name of a pipeline.
        b: name of another.
        metric: name of the metric that decides. Its held-out values, `val_…`, are taken where they
            are recorded.
        epoch: whose values to take: `"kept"` for the epoch whose weights the run kept (restored by
            `EarlyStopping` or saved by `ModelCheckpoint` as the best; else the last), `"last"`, an
            int, or `"best"` for each run's best by the deciding metric, which makes every run look
            better than it is.
        delta: the largest difference that does not matter, in the unit of the metric. Without it
            no comparison ends in "no difference".
        confidence: of the intervals, in (0, 1).
        num_looks: looks at the growing ledger that the plan allows (Pocock's level for each);
            `None` for any number, by intervals that hold at all times.
        directions: metric name → `"min"` or `"max"`, which is better, where the runs do not say it
            and the name does not tell. Metrics of unknown direction are shown and not judged.

    Raises:
        ValueError: a pipeline or the metric is not in the ledger, it is not known whether the
            metric is to be minimised or maximised, or an argument is out of its range.

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
    question = Question(metric, epoch, delta, confidence, num_looks, directions)
    return compare_runs(ledger, ledger.runs(), a, b, question)


def compare_runs(
    ledger: Ledger,
    records: Sequence[Mapping[str, Any]],
    a: str,
    b: str,
    question: Question,
) -> Comparison:
    """As `compare`, of records that were read from the ledger."""
    check_question(a, b, question)
    names = metric_names(records, a, b)
    deciding = resolve_metric(question.metric, names)
    directions = metric_directions(records, a, b, names, question.directions)
    maximize = deciding_direction(deciding, directions) == "max"
    held_out = deciding.startswith("val_")
    wanted = [deciding, *(n for n in names if n != deciding and n.startswith("val_") == held_out)]
    runs_a, runs_b = (
        gather_runs(records, name, wanted, question.epoch, maximize) for name in (a, b)
    )
    plan = _make_plan(records, runs_a, runs_b, wanted, maximize, question)
    common = [name for name in wanted if runs_a.complete(name) and runs_b.complete(name)]
    # A pipeline without runs has no complete metric: the deciding one is shown all the same. A
    # fitted bias is no loss, and neither sign of it is the better.
    metrics = {
        name: _compare_metric(name, runs_a, runs_b, plan, directions[name])
        for name in dict.fromkeys([deciding, *common])
        if name == deciding or not name.endswith(BIAS_SUFFIX)
    }
    noise = _noise(deciding, runs_a, runs_b, plan) if deciding in common else None
    main = metrics[deciding]
    detectable, more_seeds = _power(main, noise, plan, question.delta)
    plain_name, calibrated_name = loss_partners(deciding, names)
    details: dict[str, Any] = {}
    if plain_name in common and calibrated_name in common:
        details = _calibration_details(plain_name, calibrated_name, runs_a, runs_b, plan, metrics)
    verdict = judge(
        main,
        plain=metrics.get(details.get("plain_metric", "")),
        calibrated=metrics.get(details.get("calibrated_metric", "")),
        gain=details.get("gain_difference"),
        delta=question.delta,
        more_seeds=more_seeds or 1,
        obstacle=_obstacle(runs_a, runs_b, plan, deciding),
    )
    comparison = Comparison(
        a=runs_a,
        b=runs_b,
        metric=deciding,
        metrics=metrics,
        verdict=verdict,
        method=_method(plan, question.num_looks, deciding),
        shared_seeds=plan.seeds,
        confidence=question.confidence,
        delta=question.delta,
        epoch=question.epoch,
        num_looks=question.num_looks,
        noise=noise,
        minimum_detectable_effect=detectable,
        more_seeds=more_seeds,
        **details,
        **_row_details(ledger, runs_a, runs_b, question.confidence),
    )
    return notes_of(comparison)


def _power(
    main: MetricComparison, noise: Noise | None, plan: _Plan, delta: float | None
) -> tuple[float | None, int | None]:
    """The minimum detectable effect, and the seeds that each pipeline still needs."""
    if noise is None or main.difference is None:
        return None, None
    half = (main.difference.high - main.difference.low) / 2
    detectable = half + t_quantile(0.8, noise.degrees) * noise.standard_error
    target = delta if delta is not None else abs(main.difference.value)
    needed = seeds_needed(target, noise.variance, bool(plan.seeds), plan.level)
    return detectable, max(1, needed - min(main.num_a, main.num_b))


def _make_plan(
    records: Sequence[Mapping[str, Any]],
    runs_a: PipelineRuns,
    runs_b: PipelineRuns,
    metrics: Sequence[str],
    maximize: bool,
    question: Question,
) -> _Plan:
    confidence, num_looks = question.confidence, question.num_looks
    shared = tuple(seed for seed in runs_a.seeds if seed in set(runs_b.seeds))
    smaller = min(len(runs_a), len(runs_b))
    few = smaller <= MAX_RUNS_WITHOUT_P_VALUE
    is_paired = len(shared) > MAX_RUNS_WITHOUT_P_VALUE and len(shared) >= _SHARED * smaller
    level = confidence if num_looks is None else pocock_confidence(num_looks, confidence)
    others: list[PipelineRuns] = []
    if few:
        families = {record.get("family") for run in (runs_a, runs_b) for record in run.records}
        alike = [
            record
            for record in records
            if record["pipeline"] not in (runs_a.pipeline, runs_b.pipeline)
            and (families <= {None} or record.get("family") in families)
        ]
        by_pipeline: dict[str, list[Mapping[str, Any]]] = {}
        for record in alike:
            by_pipeline.setdefault(record["pipeline"], []).append(record)
        gathered = (
            gather_runs(mine, name, metrics, question.epoch, maximize)
            for name, mine in by_pipeline.items()
        )
        others = [runs for runs in gathered if len(runs) > 1]
    seeds = shared if is_paired and not few else ()
    return _Plan(seeds, level, num_looks is None, few, others)


def _family(metric: str, plan: _Plan) -> FamilyNoise | None:
    usable = [runs.of_seeds(metric) for runs in plan.others if runs.complete(metric)]
    spreads = [(float(np.var(v, ddof=1)), len(v) - 1) for v in usable]
    spreads = [spread for spread in spreads if spread[0] > 0]
    if len(spreads) < MIN_PIPELINES:
        return None
    variances, degrees = zip(*spreads, strict=True)
    return FamilyNoise.fit(variances, degrees)


def _difference(values_a: RunValues, values_b: RunValues, plan: _Plan, metric: str) -> Any:
    """The interval of B − A, or None where there are too few runs for any."""
    family = _family(metric, plan) if plan.few else None
    if family is not None:
        return moderated_difference(values_a, values_b, family, plan.level)
    if min(len(values_a), len(values_b)) < 2:
        return None
    if plan.always_valid:
        # In the order of time, or of the shared seeds: one run of each makes a pair.
        num = min(len(values_a), len(values_b))
        return always_valid_difference(values_a[:num], values_b[:num], plan.level)
    return mean_difference(values_a, values_b, bool(plan.seeds), plan.level)


def _noise(metric: str, runs_a: PipelineRuns, runs_b: PipelineRuns, plan: _Plan) -> Noise | None:
    a, b = (np.asarray(runs.of_seeds(metric, plan.seeds)) for runs in (runs_a, runs_b))
    family = _family(metric, plan) if plan.few else None
    if family is not None:
        variance, error, degrees = moderated_error(a, b, family)
        return Noise(2 * variance, error, degrees)
    if min(a.size, b.size) < 2:
        return None
    error, degrees = standard_error(a, b, bool(plan.seeds))
    variance = np.var(b - a, ddof=1) if plan.seeds else a.var(ddof=1) + b.var(ddof=1)
    return Noise(float(variance), error, degrees)


def _compare_metric(
    metric: str, runs_a: PipelineRuns, runs_b: PipelineRuns, plan: _Plan, direction: str | None
) -> MetricComparison:
    a, b = (np.asarray(runs.of_seeds(metric)) for runs in (runs_a, runs_b))
    paired_a, paired_b = (
        np.asarray(runs.of_seeds(metric, plan.seeds)) for runs in (runs_a, runs_b)
    )
    sign = -1 if direction == "max" else 1
    beats: Estimate | None = None
    same: Estimate | None = None
    if direction is None:
        pass
    elif plan.seeds:
        beats = independent_seed_accuracy(sign * paired_b, sign * paired_a, plan.level)
        same = same_seed_accuracy(sign * paired_b, sign * paired_a, plan.level)
    elif min(a.size, b.size) > 0:
        beats = accuracy_interval(sign * b, sign * a, plan.level)
    mean_a, mean_b = (float(v.mean()) if v.size else np.nan for v in (a, b))
    std_a, std_b = (float(v.std(ddof=1)) if v.size > 1 else np.nan for v in (a, b))
    difference = None
    if min(a.size, b.size) > 0:
        difference = _difference(paired_a, paired_b, plan, metric)
    maximize = None if direction is None else direction == "max"
    return MetricComparison(
        metric, maximize, a.size, b.size, mean_a, mean_b, std_a, std_b, difference, beats, same
    )


def _calibration_details(
    plain: str,
    calibrated: str,
    runs_a: PipelineRuns,
    runs_b: PipelineRuns,
    plan: _Plan,
    metrics: Mapping[str, MetricComparison],
) -> dict[str, Any]:
    """What is to be had where a plain and a calibrated loss are recorded: LL = CLL + G."""
    losses = {
        (runs.pipeline, name): np.asarray(runs.of_seeds(name, plan.seeds))
        for runs in (runs_a, runs_b)
        for name in (plain, calibrated)
    }
    plain_a, plain_b = (losses[runs.pipeline, plain] for runs in (runs_a, runs_b))
    calibrated_a, calibrated_b = (losses[runs.pipeline, calibrated] for runs in (runs_a, runs_b))
    gain_a, gain_b = plain_a - calibrated_a, plain_b - calibrated_b
    details: dict[str, Any] = {"plain_metric": plain, "calibrated_metric": calibrated}
    if min(gain_a.size, gain_b.size) > 1 and not plan.always_valid:
        details["gain_difference"] = mean_difference(gain_a, gain_b, bool(plan.seeds), plan.level)
    elif min(gain_a.size, gain_b.size) > 1:
        details["gain_difference"] = _difference(gain_a, gain_b, plan, "")
    if plan.few:
        return details
    details["std_ratio_a"] = std_ratio(calibrated_a, plain_a, confidence=plan.level)
    details["std_ratio_b"] = std_ratio(calibrated_b, plain_b, confidence=plan.level)
    # Which pipeline is the better has to be beyond doubt, else there is nothing to detect.
    better = metrics[calibrated].better
    if better is not None:
        pairs = [(plain_a, calibrated_a), (plain_b, calibrated_b)]
        (low_plain, low_calibrated), (high_plain, high_calibrated) = (
            pairs if better == "A" else pairs[::-1]
        )
        details["detection_gain"] = detection_gain(
            low_plain, high_plain, low_calibrated, high_calibrated, plan.level
        )
    bias = f"{calibrated}{BIAS_SUFFIX}"
    if runs_a.complete(bias) and runs_b.complete(bias):
        bias_a, bias_b = (np.asarray(runs.of_seeds(bias, plan.seeds)) for runs in (runs_a, runs_b))
        squares = float(np.sum(bias_a**2) + np.sum(bias_b**2))
        # G ≈ H/2 c² of each run.
        curvature = max(0.0, 2 * float(gain_a.sum() + gain_b.sum()) / squares) if squares else 0.0
        details["hybrid_difference"] = hybrid_loss(calibrated_b, bias_b, curvature) - hybrid_loss(
            calibrated_a, bias_a, curvature
        )
    return details


def _row_details(
    ledger: Ledger, runs_a: PipelineRuns, runs_b: PipelineRuns, confidence: float
) -> dict[str, Any]:
    """Variance components, where all runs have the losses of the same rows."""
    references = [run["row_losses"] for runs in (runs_a, runs_b) for run in runs.records]
    few = min(len(runs_a), len(runs_b)) < 2
    if few or None in references or len({reference["rows_hash"] for reference in references}) != 1:
        return {}
    losses = [
        np.stack([ledger.read_row_losses(run) for run in runs.records]) for runs in (runs_a, runs_b)
    ]
    parts: list[VarianceComponents] = [variance_components(matrix) for matrix in losses]
    return {
        "components_a": parts[0],
        "components_b": parts[1],
        "difference_on_new_rows": difference_on_new_rows(losses[0], losses[1], confidence),
    }


def _obstacle(runs_a: PipelineRuns, runs_b: PipelineRuns, plan: _Plan, metric: str) -> str | None:
    for runs in (runs_a, runs_b):
        if len(runs) == 0:
            return f"no finished run of {runs.pipeline} with {metric}"
    if plan.few and _family(metric, plan) is None:
        return (
            f"{len(runs_a)} and {len(runs_b)} runs, and fewer than {MIN_PIPELINES} other pipelines "
            f"to learn the noise from; train at least {MAX_RUNS_WITHOUT_P_VALUE + 1} seeds each"
        )
    return None


def _method(plan: _Plan, num_looks: int | None, metric: str) -> str:
    if plan.few:
        if _family(metric, plan) is None:
            return "Welch's t"
        return f"moderated t, by the noise of {len(plan.others)} other pipelines"
    pairing = "paired by seed" if plan.seeds else "independent seeds"
    if num_looks is None:
        return f"always-valid t, {pairing}"
    test = "Student's t" if plan.seeds else "Welch's t"
    looks = "" if num_looks == 1 else f", Pocock's level for {num_looks} looks"
    return f"{test}, {pairing}{looks}"
