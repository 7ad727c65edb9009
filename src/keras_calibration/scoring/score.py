"""score: metrics of labels and predictions, without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import keras
import numpy as np

from keras_calibration.logs import LogSums, ScoredLog
from keras_calibration.metrics.additive_metric import one_warning_of_nan
from keras_calibration.models.field_metrics_model import FieldMetrics, MetricsByField
from keras_calibration.scoring.batch import Batch, Batches, chunks
from keras_calibration.scoring.score_log import score_log
from keras_calibration.solvers.data_checks import warn_if_swapped

Metrics: TypeAlias = (
    keras.metrics.Metric | Iterable[keras.metrics.Metric] | Mapping[str, keras.metrics.Metric]
)


def score(
    batches: Batches | ScoredLog | LogSums,
    metrics: Metrics = (),
    field_metrics: MetricsByField | None = None,
    total: int | None = None,
    chunk_rows: int = 2**17,
    verbose: int = 1,
) -> dict[str, float]:
    """Computes metrics of labels and predictions, of any number of rows.

    It gives what `model.evaluate` gives, from arrays or files instead of a model. Arrays, including
    memory-mapped ones, are read chunk by chunk, and an iterator of batches is consumed once, one
    batch at a time: memory holds one batch and the state of the metrics. For the metrics of this
    package, the size of the chunks does not change the result.

    A `logs.ScoredLog` is not read in batches: DuckDB, or a cluster of Ray, computes the sums where
    the rows are. The results also hold `{field}_field_ece` and `{field}_field_rce` of each field of
    the log, whose values may be strings, and any number of them. Metrics without such sums (of
    Keras, for example) get batches as described above, if DuckDB reads the log.

    The metrics are reset first and keep their state afterwards: read `metric.bias`, for example, or
    combine the shards of several machines with `merge_state`.

    Args:
        batches: One batch, or an iterable of batches: a generator, a
            `tf.data.Dataset`. A batch is a `Batch` or a tuple `(labels, predictions)`,
            `(labels, predictions, sample_weight)` or
            `(labels, predictions, sample_weight, {field: ids})`, of arrays or tensors of shape
            `(n,)` or `(n, 1)`. Or a `logs.ScoredLog`, or the `logs.LogSums` of one.
        metrics: Keras metrics, of this package or others: a list, one metric, or name → metric.
            Weights, if there are any, apply to all of them.
        field_metrics: Field name → metrics with `update_state(..., field=ids)`, or a tuple of names
            for a cross, as in `compile` of a `FieldMetricsModel`. Results are named
            `{field}_{metric}`, and `{field}_x_{field}_{metric}` for a cross.
        total: Number of rows, for the progress bar, if `batches` does not provide it.
        chunk_rows: Largest number of rows to compute at once. Larger batches are cut.
        verbose: 1 shows a progress bar, 0 does not.

    Returns:
        Name → result.

    Raises:
        ValueError: If there are no metrics or no rows, columns differ in length, or batches differ
            in their columns; also everything that the metrics themselves raise.

    Example:
        >>> from keras_calibration.metrics import CalibratedLogLoss, FieldECE
        >>> rng = np.random.default_rng(0)
        >>> def daily():  # or a tuple of arrays
        ...     for day in range(3):
        ...         p = rng.random(1000)
        ...         yield rng.random(1000) < p, p, None, {"site": rng.integers(0, 5, 1000)}
        >>> scores = score(
        ...     daily(),
        ...     [CalibratedLogLoss(), keras.metrics.AUC(name="auc")],
        ...     field_metrics={"site": [FieldECE(5)]},
        ...     verbose=0,
        ... )
        >>> list(scores)
        ['calibrated_log_loss', 'auc', 'site_field_ece']
        >>> round(scores["calibrated_log_loss"], 1)
        0.5
    """
    named = _named(metrics)
    of_fields = FieldMetrics(field_metrics or {})
    fields = getattr(batches, "fields", ()) or isinstance(batches, LogSums)
    if not named and not of_fields.by_field and not fields:
        raise ValueError(
            "Arguments `metrics` and `field_metrics` must hold metrics to compute. "
            "Received: metrics=() and field_metrics={}."
        )
    if chunk_rows < 1:
        raise ValueError(
            f"Argument `chunk_rows` must be at least 1. Received: chunk_rows={chunk_rows}."
        )
    for metric in (*named.values(), of_fields):
        metric.reset_state()
    # Compares names, not results: these are still NaN and would warn.
    if clash := named.keys() & {name for name, _ in of_fields._named()}:
        raise ValueError(f"Metrics must have different names. Received twice: {sorted(clash)}.")
    if isinstance(batches, ScoredLog | LogSums):
        return score_log(
            batches,
            named,
            of_fields,
            lambda rows, others, total: score(rows, others, total=total, verbose=verbose),
            verbose,
        )

    def update(chunk: Batch) -> None:
        for metric in named.values():
            metric.update_state(chunk.labels, chunk.predictions, chunk.sample_weight)
        of_fields.update_state(*chunk)

    bar = keras.utils.Progbar(_num_rows(batches, total), verbose=verbose, unit_name="row")
    step: Callable[[Batch], None] = update
    rows = 0
    for chunk in chunks(batches, of_fields.fields, chunk_rows):
        of_fields.check_ids(chunk.fields)
        if not rows and chunk.predictions.shape[1:] == (1,):
            warn_if_swapped(chunk.labels, chunk.predictions)
        step(chunk)
        rows += len(chunk.labels)
        bar.update(rows, finalize=False)
        # The first chunk runs without compilation, which would not pay if it is the only one. The
        # errors of the metrics are also clearer this way.
        if step is update:
            step = _compiled(update)
    if not rows:
        raise ValueError(
            "Argument `batches` must hold rows to score. Received: none. A generator can be "
            "consumed only once: make a new one."
        )
    bar.update(rows, finalize=True)
    with one_warning_of_nan():
        results = {name: metric.result() for name, metric in named.items()} | of_fields.result()
    return {name: float(value) for name, value in results.items()}


def _named(metrics: Metrics) -> dict[str, keras.metrics.Metric]:
    if isinstance(metrics, Mapping):
        named = dict(metrics)
    else:
        listed = [metrics] if isinstance(metrics, keras.Metric) else list(metrics)
        named = {getattr(metric, "name", str(metric)): metric for metric in listed}
        if len(named) < len(listed):
            raise ValueError(
                "Metrics must have different names. "
                f"Received: {[getattr(metric, 'name', metric) for metric in listed]}. Set `name=`, "
                "or pass name → metric."
            )
    for metric in named.values():
        if not isinstance(metric, keras.Metric):
            raise ValueError(
                "Argument `metrics` must hold Keras metrics, for example [CalibratedLogLoss()]. "
                f"Received: {metric!r}."
            )
    return named


def _compiled(update: Callable[[Batch], None]) -> Callable[[Batch], None]:
    """The update as a graph on TensorFlow, for chunks of any number of rows."""
    if keras.backend.backend() != "tensorflow":
        return update
    import tensorflow as tf

    return tf.function(update, reduce_retracing=True, autograph=False)


def _num_rows(batches: Batches, total: int | None) -> int | None:
    if total is None and isinstance(batches, tuple) and len(batches) > 1:
        return int(np.shape(batches[1])[0]) if np.ndim(batches[1]) else None
    return getattr(batches, "num_rows", None) if total is None else total
