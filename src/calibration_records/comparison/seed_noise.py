"""The seed noise of a ledger, for pipelines with too few runs to estimate theirs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration_records.comparison.pipeline_runs import PipelineRuns, gather_runs
from calibration_records.comparison.question import Question
from calibration_records.runs.run_record import RunRecord
from calibration_records.statistics.estimate import RunValues
from calibration_records.statistics.summary import mean_and_std

# Fewest degrees of freedom, of the runs of the two pipelines or of the whole ledger.
_MIN_DEGREES = 5


class SeedNoise(NamedTuple):
    """The standard deviation of a metric over the seeds of a pipeline, pooled over pipelines.

    Args:
        std: The standard deviation of a run.
        degrees: Degrees of freedom: number of runs minus number of pipelines.
        num_runs: Number of runs.
        num_pipelines: Number of pipelines.

    Example:
        >>> noise = pooled_noise([[1.0, 3.0], [5.0, 5.0], [0.0, 2.0]])
        >>> round(noise.std, 4), noise.degrees, noise.num_runs, noise.num_pipelines
        (1.4142, 2, 4, 2)
    """

    std: float
    degrees: int
    num_runs: int
    num_pipelines: int


def seed_noise(
    records: Sequence[RunRecord],
    pipelines: Sequence[PipelineRuns],
    metric: str,
    question: Question,
    *,
    maximize: bool,
) -> SeedNoise | None:
    """The seed noise of these pipelines if they have enough runs, or of the whole ledger.

    Leaves out pipelines evaluated on another number of rows, whose noise differs. `None` if the
    ledger has too few runs that differ in their seed alone.
    """
    # Their own noise is the best guess, if they have enough degrees of freedom together.
    noise = pooled_noise([runs.metric_values(metric) for runs in pipelines])
    if noise is not None and noise.degrees >= _MIN_DEGREES:
        return noise
    # Seed noise depends on the number of evaluation rows, so only equal numbers are alike.
    num_rows = {record["num_rows"] for runs in pipelines for record in runs.records}
    alike = [record for record in records if record["num_rows"] in num_rows]
    gathered = (
        gather_runs(alike, name, [metric], epoch=question.epoch, maximize=maximize)
        for name in dict.fromkeys(record["pipeline"] for record in alike)
    )
    noise = pooled_noise([runs.metric_values(metric) for runs in gathered])
    return noise if noise is not None and noise.degrees >= _MIN_DEGREES else None


def pooled_noise(groups: Sequence[RunValues]) -> SeedNoise | None:
    """The noise within the groups; groups whose runs are all equal do not count."""
    # Runs that are all equal most likely ignore their seed.
    arrays = [np.asarray(values) for values in groups if len(values) and np.ptp(values) > 0]
    if not arrays:
        return None
    degrees = sum(values.size - 1 for values in arrays)
    # The pooled deviation, `√(Σ (m - 1) s² / Σ (m - 1))`, as a norm of deviations: the squares of
    # small ones would be 0.
    parts = [mean_and_std(values)[1] * np.sqrt((values.size - 1) / degrees) for values in arrays]
    return SeedNoise(
        math.hypot(*parts),
        degrees,
        num_runs=degrees + len(arrays),
        num_pipelines=len(arrays),
    )
