"""score: metrics of labels and predictions, without a model."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np

from keras_calibration.models.field_metrics_model import FieldMetrics
from keras_calibration.scoring.batch import Batch, chunks


def score(
    batches: Any,
    metrics: Any = (),
    field_metrics: Mapping[Any, Any] | None = None,
    total: int | None = None,
    chunk_rows: int = 2**17,
    progress: bool = True,
) -> dict[str, float]:
    """Metrics of labels and predictions that are at hand, in one pass over any number of rows.

    What `model.evaluate` gives, for people with arrays or files rather than a model. Arrays are
    read chunk by chunk (memory-mapped ones too), and an iterator of batches is consumed once, one
    batch at a time: memory holds one batch and the metrics' own state. How rows are cut makes no
    difference to the metrics of this package.

    The metrics start from nothing and keep their state afterwards: read `metric.bias`, or merge
    the shards of several machines with `merge_state`.

    Args:
        batches: One batch `(labels, predictions)`, `(labels, predictions, sample_weight)` or
            `(labels, predictions, sample_weight, {field: ids})`, which is a `Batch` too; or an
            iterable of such batches: a generator, a `tf.data.Dataset`, what `read_parquet`
            returns. Columns are arrays or tensors (n,) or (n, 1).
        metrics: Keras metrics, of this package or not: a list, one metric, or name → metric.
            Weights, where there are some, count in all of them.
        field_metrics: Field name → metrics with `update_state(..., field=ids)`, or a tuple of names
            for a cross, as in `compile` of a `FieldMetricsModel`; results are named
            `{field}_{metric}`, for a cross `{field}_x_{field}_{metric}`.
        total: Number of rows, for the progress bar, where `batches` does not tell it.
        chunk_rows: Rows that are computed at once; larger batches are cut.
        progress: Whether to print a progress bar, in rows.

    Returns:
        Name → result.

    Raises:
        ValueError: If there are no metrics or no rows, columns do not align, or batches differ in
            their columns; and what the metrics themselves raise.

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
        ...     progress=False,
        ... )
        >>> list(scores)
        ['calibrated_log_loss', 'auc', 'site_field_ece']
        >>> round(scores["calibrated_log_loss"], 1)
        0.5
    """
    named = _named(metrics)
    of_fields = FieldMetrics(field_metrics or {})
    if not named and not of_fields.by_field:
        raise ValueError("Expected metrics to compute. Received: metrics=() and field_metrics={}.")
    if chunk_rows < 1:
        raise ValueError(f"Argument `chunk_rows` must be at least 1. Received: {chunk_rows}.")
    for metric in (*named.values(), of_fields):
        metric.reset_state()

    def update(chunk: Batch) -> None:
        for metric in named.values():
            metric.update_state(chunk.labels, chunk.predictions, chunk.sample_weight)
        of_fields.update_state(*chunk)

    # Names alone: the results are NaN as yet, and would say so.
    if clash := named.keys() & {name for name, _ in of_fields._named()}:
        raise ValueError(f"Metrics need different names. Received twice: {sorted(clash)}.")
    bar = keras.utils.Progbar(_num_rows(batches, total), verbose=int(progress), unit_name="row")
    step: Callable[[Batch], None] = update
    rows = 0
    for chunk in chunks(batches, of_fields.fields, chunk_rows):
        step(chunk)
        rows += len(chunk.labels)
        bar.update(rows, finalize=False)
        # The first chunk is not compiled: where it is the only one compilation would cost more
        # than it saves, and what metrics refuse they then refuse in plain words.
        if step is update:
            step = _compiled(update)
    if not rows:
        raise ValueError(
            "Expected rows to score. Received: none. A generator that was consumed before gives "
            "nothing: make a new one."
        )
    bar.update(rows, finalize=True)
    results = {name: metric.result() for name, metric in named.items()} | of_fields.result()
    return {name: float(value) for name, value in results.items()}


def _named(metrics: Any) -> dict[str, Any]:
    if isinstance(metrics, Mapping):
        named = dict(metrics)
    else:
        listed = [metrics] if isinstance(metrics, keras.Metric) else list(metrics)
        named = {getattr(metric, "name", str(metric)): metric for metric in listed}
        if len(named) < len(listed):
            raise ValueError(
                "Metrics need different names: give them as name → metric, or set `name=`. "
                f"Received: {[getattr(metric, 'name', metric) for metric in listed]}."
            )
    for metric in named.values():
        if not isinstance(metric, keras.Metric):
            raise ValueError(
                "Argument `metrics` must hold Keras metrics, as in [CalibratedLogLoss()]. "
                f"Received: {metric!r}."
            )
    return named


def _compiled(update: Callable[[Batch], None]) -> Callable[[Batch], None]:
    """As a graph where the backend is TensorFlow, for chunks of any number of rows."""
    if keras.backend.backend() != "tensorflow":
        return update
    import tensorflow as tf

    return tf.function(update, reduce_retracing=True, autograph=False)


def _num_rows(batches: Iterable[Any], total: int | None) -> int | None:
    if total is None and isinstance(batches, tuple) and len(batches) > 1:
        return int(np.shape(batches[1])[0]) if np.ndim(batches[1]) else None
    return getattr(batches, "num_rows", None) if total is None else total
