"""How the differences of a comparison are judged: pairing, level, and whether runs suffice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration_records._text import counted
from calibration_records.comparison.pipeline_runs import PipelineRuns
from calibration_records.comparison.question import ADVISED, Question
from calibration_records.statistics.difference import always_valid_difference, mean_difference
from calibration_records.statistics.estimate import MIN_RUNS, Estimate, RunValues, fewest_runs

# The plan pairs runs if the pipelines share at least this part of the seeds of the smaller one.
_MIN_SHARED_PART = 0.75


class Plan(NamedTuple):
    """How differences are judged, the same for all metrics.

    Args:
        seeds: Shared seeds by which the runs are paired; empty for independent runs.
        level: Confidence of the intervals that decide on a verdict.
        shown: Confidence of the intervals in the table: for this look alone if the user planned no
            number of looks.
        num_looks: Planned looks at the ledger, as in `compare`.
        num_runs: Number of pairs, or of runs of the pipeline with fewer.
        fewest: Fewest pairs or runs that allow a verdict.
    """

    seeds: tuple[int, ...]
    level: float
    shown: float
    num_looks: int | str | None
    num_runs: int
    fewest: int

    @property
    def paired(self) -> bool:
        """Whether the runs are paired by seed."""
        return bool(self.seeds)

    def values(self, metric: str, *pipelines: PipelineRuns) -> list[np.ndarray]:
        """The values of a metric in the compared runs, one array for each pipeline."""
        values = [np.asarray(runs.metric_values(metric, self.seeds)) for runs in pipelines]
        # An always-valid test needs pairs: of equal seeds, or in the order in which the runs began.
        # A single pair has no interval, so that all runs count.
        fewest = min(map(len, values))
        num_used = fewest if self.num_looks is None and fewest > 1 else None
        return [side[:num_used] for side in values]

    def differences(self, a: RunValues, b: RunValues) -> tuple[Estimate | None, Estimate | None]:
        """The mean of B − A with the interval shown, and with the one that decides.

        The second is `None` if it equals the first; both are `None` with too few runs.
        """
        return (
            self._estimate_difference(a, b, self.shown),
            None if self.shown == self.level else self._estimate_difference(a, b, self.level),
        )

    def _estimate_difference(
        self, a: RunValues, b: RunValues, confidence: float
    ) -> Estimate | None:
        """The mean of B − A with its interval; `None` with too few runs."""
        if min(len(a), len(b)) < 2:
            return None
        if self.num_looks is None:
            return always_valid_difference(a, b, confidence=confidence)
        return mean_difference(a, b, paired=self.paired, confidence=confidence)

    @property
    def method(self) -> str:
        """The method of the intervals in words."""
        if self.num_looks is None:
            return f"an always-valid {'paired ' * self.paired}t"
        return "Student's paired t" if self.paired else "Welch's t"

    def obstacle(self, metric: str, *pipelines: PipelineRuns) -> str | None:
        """Why no verdict is possible; `None` if one is."""
        if empty := [runs.pipeline for runs in pipelines if len(runs) == 0]:
            return f"no finished run of {empty[0]} with {metric}"
        if self.num_runs >= self.fewest:
            return None
        # A message that says what to train, not only what is missing.
        missing = counted(self.fewest - self.num_runs, "more seed")
        if self.fewest == MIN_RUNS:
            parts = [f"{counted(len(runs), 'run')} of {runs.pipeline}" for runs in pipelines]
            return (
                f"{' and '.join(parts)}, and a test needs {MIN_RUNS} of each. Train {missing} each"
            )
        return (
            f"{counted(self.num_runs, 'shared seed')}, and a paired test needs {self.fewest}. "
            f"Train {missing} with both pipelines"
        )


def make_plan(runs: Sequence[PipelineRuns], question: Question) -> Plan:
    """Decides on pairing and level."""
    a, b = runs
    shared = tuple(sorted({*a.seeds} & {*b.seeds}))
    smaller = min(len(a), len(b))
    # Pairing throws away runs of other seeds, which pays only if most seeds are shared.
    share_seeds = len(shared) >= max(1, _MIN_SHARED_PART * smaller)
    # Bonferroni: several looks share the risk equally. Always-valid intervals need no division.
    level = 1 - (1 - question.confidence) / (question.planned_looks or 1)
    return Plan(
        # With fewer shared seeds, no pairing: all runs count, with the seed noise of the ledger.
        seeds=shared if share_seeds and len(shared) >= MIN_RUNS else (),
        level=level,
        shown=question.confidence if question.num_looks == ADVISED else level,
        num_looks=question.num_looks,
        num_runs=len(shared) if share_seeds else smaller,
        fewest=fewest_runs(paired=share_seeds),
    )
