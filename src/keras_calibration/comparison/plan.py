"""How the differences of a comparison are judged: pairing and level."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from keras_calibration.comparison.pipeline_runs import PipelineRuns
from keras_calibration.comparison.question import Question
from keras_calibration.statistics.difference import always_valid_difference, mean_difference
from keras_calibration.statistics.estimate import MAX_RUNS_WITHOUT_P_VALUE, Estimate, RunValues

# Runs are paired if the pipelines share at least this part of the smaller one's seeds.
_MIN_SHARED_PART = 0.75


class Plan(NamedTuple):
    """How differences are judged, the same for all metrics.

    Args:
        seeds: shared seeds by which the runs are paired; empty for independent runs.
        level: confidence of each interval.
        num_looks: planned looks at the ledger; `None` for intervals that hold at every look.
        few: whether a pipeline has too few runs for a verdict.
    """

    seeds: tuple[int, ...]
    level: float
    num_looks: int | None
    few: bool

    @property
    def paired(self) -> bool:
        """Whether the runs are paired by seed."""
        return bool(self.seeds)

    def values(self, metric: str, *pipelines: PipelineRuns) -> list[np.ndarray]:
        """The values of a metric in the runs that are compared, an array a pipeline."""
        return [np.asarray(runs.metric_values(metric, self.seeds)) for runs in pipelines]

    def difference(self, a: RunValues, b: RunValues) -> Estimate | None:
        """The mean of B − A with its interval; `None` with too few runs."""
        num_pairs = min(len(a), len(b))
        if num_pairs < 2:
            return None
        if self.num_looks is None:
            # Pairs in the order of time, or of the shared seeds.
            return always_valid_difference(a[:num_pairs], b[:num_pairs], confidence=self.level)
        return mean_difference(a, b, paired=self.paired, confidence=self.level)

    @property
    def method(self) -> str:
        """The method of the intervals in words."""
        pairing = "paired by seed" if self.paired else "independent seeds"
        if self.num_looks is None:
            return f"always-valid t, {pairing}"
        test = "Student's t" if self.paired else "Welch's t"
        looks = "" if self.num_looks == 1 else f", Bonferroni's level for {self.num_looks} looks"
        return f"{test}, {pairing}{looks}"

    def obstacle(self, metric: str, *pipelines: PipelineRuns) -> str | None:
        """Why no verdict is possible; `None` if one is."""
        for runs in pipelines:
            if len(runs) == 0:
                return f"no finished run of {runs.pipeline} with {metric}"
        if self.few:
            return (
                f"{' and '.join(str(len(runs)) for runs in pipelines)} runs; train at least "
                f"{MAX_RUNS_WITHOUT_P_VALUE + 1} seeds each"
            )
        return None


def make_plan(runs: tuple[PipelineRuns, PipelineRuns], question: Question) -> Plan:
    """Decides on pairing and level."""
    a, b = runs
    shared = tuple(seed for seed in a.seeds if seed in set(b.seeds))
    smaller = min(len(a), len(b))
    few = smaller <= MAX_RUNS_WITHOUT_P_VALUE
    is_paired = not few and len(shared) >= max(
        MAX_RUNS_WITHOUT_P_VALUE + 1, _MIN_SHARED_PART * smaller
    )
    # Each of several looks errs with its share of the risk; the always-valid interval needs none.
    level = 1 - (1 - question.confidence) / (question.num_looks or 1)
    return Plan(shared if is_paired else (), level, question.num_looks, few)
