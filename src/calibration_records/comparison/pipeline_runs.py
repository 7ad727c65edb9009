"""The runs of a pipeline that a comparison uses, and the numbers of excluded runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from calibration_records.runs.run_record import RunRecord
from calibration_records.statistics.estimate import RunValues


@dataclass(frozen=True)
class PipelineRuns:
    """One value of each metric for each seed of a pipeline.

    Args:
        pipeline: Name of the pipeline.
        seeds: Seeds of the runs, in the order in which these began.
        epochs: Epoch of each run's values, in the order of `seeds`.
        values: Metric name → value in each run, in the order of `seeds`; `None` if missing.
        records: Records of the runs.
        num_diverged: Number of runs excluded for values that are not finite.
        num_unfinished: Number of runs excluded because they never ended.
        num_repeated: Number of runs excluded because their seed was run again later.
        num_without_metric: Number of runs excluded because they lack the metric at the epoch.

    Example:
        >>> runs = gather_runs([], "dcn", ["val_loss"])
        >>> len(runs), runs.num_diverged
        (0, 0)
    """

    pipeline: str
    seeds: tuple[int, ...]
    epochs: tuple[int, ...]
    values: Mapping[str, tuple[float | None, ...]]
    records: Sequence[RunRecord] = field(repr=False)
    num_diverged: int = 0
    num_unfinished: int = 0
    num_repeated: int = 0
    num_without_metric: int = 0

    def __len__(self) -> int:
        return len(self.seeds)

    def complete(self, metric: str) -> bool:
        """Whether every run has a finite value of `metric`."""
        values = self.values.get(metric, ())
        return bool(values) and all(value is not None and math.isfinite(value) for value in values)

    def metric_values(self, metric: str, seeds: Sequence[int] | None = None) -> RunValues:
        """The values of `metric` in all runs, or in the runs with the given seeds."""
        values = dict(zip(self.seeds, self.values[metric], strict=True))
        return [value for seed in seeds or self.seeds if (value := values[seed]) is not None]


def gather_runs(
    runs: Sequence[RunRecord],
    pipeline: str,
    metrics: Sequence[str],
    *,
    epoch: int | str = "kept",
    maximize: bool = False,
) -> PipelineRuns:
    """Gathers one value a seed from the records of a pipeline, which are in the order of time.

    The first metric decides on the epoch: `"kept"` (whose weights the run kept), an int, `"last"`
    or `"best"`. The values of the other metrics are from the same epoch.

    Example:
        >>> run = {"pipeline": "dcn", "seed": 1, "status": "finished", "epochs": [0, 1],
        ...        "metrics": {"val_loss": [0.5, 0.6]}}
        >>> gather_runs([run], "dcn", ["val_loss"], epoch="best").values
        {'val_loss': (0.5,)}
    """
    mine = [run for run in runs if run["pipeline"] == pipeline]
    # A run that only started may still be training, or was killed.
    ended = [run for run in mine if run["status"] != "started"]
    # Later records of a seed replace earlier ones, in the place of the first: so pairs of the runs
    # that always-valid intervals have looked at stay pairs at the next look.
    latest = {run["seed"]: run for run in ended}
    used: dict[int, tuple[int, RunRecord]] = {}
    num_diverged = num_without_metric = 0
    for seed, run in latest.items():
        series = run["metrics"].get(metrics[0], [])
        index = _choose(run, series, epoch, maximize)
        if run["status"] == "diverged" or (index is not None and not math.isfinite(series[index])):
            num_diverged += 1
        elif index is None:
            num_without_metric += 1
        else:
            used[seed] = (index, run)
    return PipelineRuns(
        pipeline,
        seeds=tuple(used),
        epochs=tuple(run["epochs"][index] for index, run in used.values()),
        values={
            metric: tuple(
                run["metrics"][metric][index] if metric in run["metrics"] else None
                for index, run in used.values()
            )
            for metric in metrics
        },
        records=[run for _, run in used.values()],
        num_diverged=num_diverged,
        num_unfinished=len(mine) - len(ended),
        num_repeated=len(ended) - len(latest),
        num_without_metric=num_without_metric,
    )


def _choose(
    run: RunRecord, series: Sequence[float | None], epoch: int | str, maximize: bool
) -> int | None:
    """The index of the epoch whose values count; `None` if the metric has no value there."""
    # A run may record a metric in some epochs only.
    measured = [index for index, value in enumerate(series) if value is not None]
    # An unknown kept epoch is None, which leaves all epochs: the last one then counts.
    number = run.get("kept_epoch") if epoch == "kept" else epoch
    if isinstance(number, int):
        measured = [index for index in measured if run["epochs"][index] == number]
    if not measured:
        return None
    # A run all of whose values are infinite still has an epoch, and then counts as diverged.
    if epoch == "best":
        finite = [index for index in measured if math.isfinite(series[index] or 0.0)]
        sign = -1 if maximize else 1
        return min(finite or measured, key=lambda index: sign * (series[index] or 0.0))
    return measured[-1]
