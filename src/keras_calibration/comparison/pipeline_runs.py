"""The runs of one pipeline that a comparison may use, and the count of those it may not."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_calibration.statistics.estimate import RunValues


@dataclass(frozen=True)
class PipelineRuns:
    """One value of each metric for each seed of a pipeline, and what was left out.

    Args:
        pipeline: its name.
        seeds: of the runs used, ascending.
        epochs: at which the values of each were taken, in the order of `seeds`.
        values: metric → its value in each run, in the order of `seeds`; `None`: not measured.
        records: the ledger's records of the runs used.
        num_diverged: runs left out for values that are not finite.
        num_unfinished: runs that began and never came to an end.
        num_repeated: earlier runs with a seed that was run again; the latest counts.
        num_without_metric: runs without the metric (at the epoch asked for).

    Example:
        >>> runs = gather_runs([], "dcn", ["val_loss"])
        >>> len(runs), runs.num_diverged
        (0, 0)
    """

    pipeline: str
    seeds: tuple[int, ...]
    epochs: tuple[int, ...]
    values: Mapping[str, tuple[float | None, ...]]
    records: Sequence[Mapping[str, Any]] = field(repr=False)
    num_diverged: int = 0
    num_unfinished: int = 0
    num_repeated: int = 0
    num_without_metric: int = 0

    def __len__(self) -> int:
        return len(self.seeds)

    def complete(self, metric: str) -> bool:
        """Whether every run used has a finite value of `metric`."""
        values = self.values.get(metric, ())
        return bool(values) and all(value is not None and math.isfinite(value) for value in values)

    def of_seeds(self, metric: str, seeds: Sequence[int] | None = None) -> RunValues:
        """The values of `metric`: of all runs, or of these seeds in their order."""
        values = dict(zip(self.seeds, self.values[metric], strict=True))
        return [value for seed in seeds or self.seeds if (value := values[seed]) is not None]


def gather_runs(
    runs: Sequence[Mapping[str, Any]],
    pipeline: str,
    metrics: Sequence[str],
    *,
    epoch: int | str = "kept",
    maximize: bool = False,
) -> PipelineRuns:
    """Takes one value a seed from the records of a pipeline.

    Args:
        runs: records of a ledger, in the order of time.
        pipeline: whose runs to take.
        metrics: the metric that decides, then others to take at the same epochs.
        epoch: which epoch's values: `"kept"` for the epoch whose weights the run kept, an int,
            `"last"` for the last with the first metric, or `"best"` for the best by it.
        maximize: whether the best value of that metric is the largest.

    Example:
        >>> run = {"pipeline": "dcn", "seed": 1, "status": "finished", "epochs": [0, 1],
        ...        "metrics": {"val_loss": [0.5, 0.6]}}
        >>> gather_runs([run], "dcn", ["val_loss"], epoch="best").values
        {'val_loss': (0.5,)}
    """
    mine = [run for run in runs if run["pipeline"] == pipeline]
    ended = [run for run in mine if run["status"] != "started"]
    latest = {run["seed"]: run for run in ended}
    used: dict[int, tuple[int, Mapping[str, Any]]] = {}
    num_diverged = num_without_metric = 0
    for seed, run in sorted(latest.items()):
        series = run["metrics"].get(metrics[0], [])
        index = _choose(run, series, epoch, maximize)
        if run["status"] == "diverged" or (index is not None and not math.isfinite(series[index])):
            num_diverged += 1
        elif index is None:
            num_without_metric += 1
        else:
            used[seed] = (index, run)
    values = {
        metric: tuple(
            run["metrics"][metric][index] if metric in run["metrics"] else None
            for index, run in used.values()
        )
        for metric in metrics
    }
    return PipelineRuns(
        pipeline,
        seeds=tuple(used),
        epochs=tuple(run["epochs"][index] for index, run in used.values()),
        values=values,
        records=[run for _, run in used.values()],
        num_diverged=num_diverged,
        num_unfinished=len(mine) - len(ended),
        num_repeated=len(ended) - len(latest),
        num_without_metric=num_without_metric,
    )


def _choose(
    run: Mapping[str, Any], series: Sequence[float | None], epoch: int | str, maximize: bool
) -> int | None:
    """The index of the epoch to take, None where the metric was not measured there."""
    measured = [index for index, value in enumerate(series) if value is not None]
    number = run.get("kept_epoch") if epoch == "kept" else epoch
    if isinstance(number, int):
        measured = [index for index in measured if run["epochs"][index] == number]
    if not measured:
        return None
    if epoch == "best":
        finite = [index for index in measured if math.isfinite(series[index] or 0.0)]
        sign = -1 if maximize else 1
        return min(finite or measured, key=lambda index: sign * (series[index] or 0.0))
    return measured[-1]
