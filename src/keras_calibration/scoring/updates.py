"""Metrics by their names, and their updates with chunks of rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

import keras

from calibration_records._check import refused
from calibration_records._progress import ProgressBar
from keras_calibration._rows.checks import warn_if_swapped
from keras_calibration._rows.columns import take
from keras_calibration.metrics.field_metrics import FieldMetrics
from keras_calibration.scoring.rows_to_score import RowsToScore

Metrics: TypeAlias = (
    keras.metrics.Metric | Iterable[keras.metrics.Metric] | Mapping[str, keras.metrics.Metric]
)
# The largest number of rows that are computed at once.
CHUNK_SIZE = 1 << 17


def update_metrics(
    metrics: Collection[keras.metrics.Metric],
    field_metrics: FieldMetrics,
    parts: Iterable[RowsToScore],
    num_rows: int,
    verbose: int,
) -> None:
    """Updates metrics and field metrics with parts of `num_rows` rows in all, chunk by chunk."""

    def update(chunk: RowsToScore) -> None:
        for metric in metrics:
            metric.update_state(chunk.labels, chunk.predictions, chunk.sample_weight)
        field_metrics.update_state(*chunk)

    bar = ProgressBar(num_rows, "rows", verbose)
    step: Callable[[RowsToScore], None] = update
    num_done = 0
    # Pieces of the parts, as views.
    chunks = (
        take(part, slice(start, start + CHUNK_SIZE))
        for part in parts
        for start in range(0, len(part.labels), CHUNK_SIZE)
    )
    for chunk in chunks:
        field_metrics.check_ids(chunk.fields)
        if not num_done and chunk.predictions.shape[1:] == (1,):
            warn_if_swapped(chunk.labels, chunk.predictions)
        step(chunk)
        num_done += len(chunk.labels)
        bar.show(num_done)
        # The first chunk runs without compilation, which would not pay for a single chunk. The
        # metrics' errors are also clearer this way.
        if step is update and keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            step = tf.function(update, reduce_retracing=True, autograph=False)


def named_metrics(metrics: Metrics, taken: Iterable[str]) -> dict[str, keras.metrics.Metric]:
    """Name → metric; raises for equal or taken names, and for values that are not metrics."""
    if isinstance(metrics, Mapping):
        named = [*metrics.items()]
    else:
        listed = [metrics] if isinstance(metrics, keras.Metric) else metrics
        named = [(getattr(metric, "name", str(metric)), metric) for metric in listed]
    if bad := [metric for _, metric in named if not isinstance(metric, keras.Metric)]:
        raise refused("metrics", "Keras metrics, for example [CalibratedLogLoss()]", bad[0])
    if len(dict(named)) < len(named):
        raise refused(
            "metrics", "of different names", [name for name, _ in named], "Or pass name → metric."
        )
    if clash := dict(named).keys() & set(taken):
        raise ValueError(f"Metrics must have different names. Received twice: {sorted(clash)}.")
    return dict(named)
