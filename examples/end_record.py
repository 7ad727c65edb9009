"""The record of a run of which only the end is kept, for a ledger."""

from collections.abc import Mapping
from typing import Any


def end_record(
    pipeline: str, seed: int, metrics: Mapping[str, float], num_rows: int, **more: Any
) -> dict[str, Any]:
    """A finished run with one value for each metric.

    Args:
        pipeline: Name of the pipeline.
        seed: Seed of the run.
        metrics: Its metrics.
        num_rows: Number of the rows that are scored.
        **more: Further fields of the record, such as `configuration`.
    """
    return {
        "pipeline": pipeline,
        "seed": seed,
        "status": "finished",
        "epochs": [0],
        "metrics": {name: [float(value)] for name, value in metrics.items()},
        "num_rows": num_rows,
        **more,
    }
