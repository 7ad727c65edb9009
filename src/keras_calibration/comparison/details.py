"""Figures of a comparison beyond its metrics: the calibration gain, and losses of single rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_calibration.comparison.metric_comparison import MetricComparison
from keras_calibration.comparison.pipeline_runs import PipelineRuns
from keras_calibration.comparison.plan import Plan
from keras_calibration.ledger.ledger import Ledger
from keras_calibration.ledger.metric_names import BIAS_SUFFIX
from keras_calibration.statistics.accuracy import detection_gain
from keras_calibration.statistics.hybrid import hybrid_loss
from keras_calibration.statistics.spread import std_ratio
from keras_calibration.statistics.variance_components import (
    difference_on_new_rows,
    variance_components,
)


def calibration_details(
    plain: str,
    calibrated: str,
    runs: tuple[PipelineRuns, PipelineRuns],
    plan: Plan,
    metrics: Mapping[str, MetricComparison],
) -> dict[str, Any]:
    """The figures that need a plain and a calibrated loss: LL = CLL + G."""
    plain_a, plain_b = plan.values(plain, *runs)
    calibrated_a, calibrated_b = plan.values(calibrated, *runs)
    gain_a, gain_b = plain_a - calibrated_a, plain_b - calibrated_b
    details: dict[str, Any] = {"plain_metric": plain, "calibrated_metric": calibrated}
    if min(gain_a.size, gain_b.size) > 1:
        details["gain_difference"] = plan.difference(gain_a, gain_b)
    if plan.few:
        return details
    details["std_ratio_a"] = std_ratio(calibrated_a, plain_a, confidence=plan.level)
    details["std_ratio_b"] = std_ratio(calibrated_b, plain_b, confidence=plan.level)
    # A detection rate needs a known answer: which pipeline is better.
    better = metrics[calibrated].better
    if better == "A":
        details["detection_gain"] = detection_gain(
            plain_a, plain_b, calibrated_a, calibrated_b, confidence=plan.level
        )
    elif better == "B":
        details["detection_gain"] = detection_gain(
            plain_b, plain_a, calibrated_b, calibrated_a, confidence=plan.level
        )
    bias = f"{calibrated}{BIAS_SUFFIX}"
    if all(pipeline.complete(bias) for pipeline in runs):
        bias_a, bias_b = plan.values(bias, *runs)
        squares = float(np.sum(bias_a**2) + np.sum(bias_b**2))
        # G ≈ H/2 c² in each run.
        curvature = max(0.0, 2 * float(gain_a.sum() + gain_b.sum()) / squares) if squares else 0.0
        details["hybrid_difference"] = hybrid_loss(calibrated_b, bias_b, curvature) - hybrid_loss(
            calibrated_a, bias_a, curvature
        )
    return details


def row_details(
    ledger: Ledger, runs: tuple[PipelineRuns, PipelineRuns], confidence: float
) -> dict[str, Any]:
    """Variance components, if all runs have the losses of the same rows."""
    references = [run["row_losses"] for pipeline in runs for run in pipeline.records]
    few = min(map(len, runs)) < 2
    if few or None in references or len({reference["rows_hash"] for reference in references}) != 1:
        return {}
    losses_a, losses_b = (
        np.stack([ledger.read_row_losses(run) for run in pipeline.records]) for pipeline in runs
    )
    return {
        "components_a": variance_components(losses_a),
        "components_b": variance_components(losses_b),
        "difference_on_new_rows": difference_on_new_rows(losses_a, losses_b, confidence=confidence),
    }
