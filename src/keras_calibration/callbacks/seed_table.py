"""The table of `SeedVariance`: a pipeline's metrics over its seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from calibration_records._figures import to_error
from calibration_records._text import counted, grid, wrap
from calibration_records.runs.metric_names import BIAS_SUFFIX

_BIAS_NOTE = (
    f"{BIAS_SUFFIX}, in logits: what must be added so that the mean prediction equals the observed "
    "rate. Below 0, the predictions are too high; above 0, too low."
)


def is_diverged(values: Mapping[str, float]) -> bool:
    """Whether a run has a value that is not finite.

    Example:
        >>> is_diverged({"loss": 0.5}), is_diverged({"loss": 0.5, "val_loss": math.nan})
        (False, True)
    """
    return not all(map(math.isfinite, values.values()))


def seed_table(
    pipeline: str,
    runs: Sequence[Mapping[str, float]],
    num_unfinished: int,
    statistics: Mapping[str, Mapping[str, float]],
) -> str:
    """How many seeds count, the statistics of each metric over them, and what a bias means.

    Args:
        pipeline: Name of the pipeline.
        runs: The values of each seed, by name of the metric.
        num_unfinished: Number of runs that never ended.
        statistics: Name of a metric → its statistics over the runs that have not diverged.

    Example:
        >>> found = {"count": 2.0, "mean": 0.43, "std": 0.012, "min": 0.42, "max": 0.44}
        >>> print(seed_table("dcn", [{"loss": 0.42}, {"loss": 0.44}], 1, {"loss": found}))
        Pipeline 'dcn': 2 seeds; values at the epoch that each run kept, or else at its last. Left
          out: 1 unfinished run.
        metric  seeds    mean     std     min     max
        loss        2  0.4300  0.0120  0.4200  0.4400
    """
    num_diverged = sum(map(is_diverged, runs))
    numbers = {"diverged seed": num_diverged, "unfinished run": num_unfinished}
    left_out = ", ".join(counted(number, what) for what, number in numbers.items() if number)
    title = (
        f"Pipeline {pipeline!r}: {counted(len(runs) - num_diverged, 'seed')}; values at the epoch "
        f"that each run kept, or else at its last.{f' Left out: {left_out}.' if left_out else ''}"
    )
    shown = {name: found for name, found in statistics.items() if found["count"]}
    # One seed has values, and no statistics.
    is_single = all(found["count"] == 1 for found in shown.values())
    rows = [["metric", "value"] if is_single else ["metric", "seeds", "mean", "std", "min", "max"]]
    for name, found in shown.items():
        # One digit more than the spread leaves: least and largest are values of a run.
        digits = found["std"] / 10
        mean, std, low, high = (
            "" if math.isnan(found[name]) else to_error(found[name], digits)
            for name in ("mean", "std", "min", "max")
        )
        cells = [mean] if is_single else [f"{found['count']:.0f}", mean, std, low, high]
        rows.append([name, *cells])
    note = wrap(_BIAS_NOTE) if any(f"{name}{BIAS_SUFFIX}" in shown for name in shown) else []
    return "\n".join([*wrap(title), *(grid(rows) if shown else []), *note])
