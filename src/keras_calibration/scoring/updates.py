"""update_metrics: updates metrics with chunks of rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import keras

from calibration_records._progress import ProgressBar
from keras_calibration._rows.checks import warn_if_swapped
from keras_calibration.metrics.field_metrics import FieldMetrics
from keras_calibration.scoring.rows_to_score import RowsToScore, chunks

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
    for chunk in (chunk for part in parts for chunk in chunks(part, CHUNK_SIZE)):
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
