"""score: metrics of labels and predictions, without a model."""

from __future__ import annotations

import numpy as np

from calibration_records.logs import LogSums, ScoredLog
from keras_calibration.metrics.field_metrics import FieldMetrics, MetricsByField
from keras_calibration.scoring.log_metrics import error_names
from keras_calibration.scoring.rows_to_score import checked_rows
from keras_calibration.scoring.score_log import update_from_log
from keras_calibration.scoring.updates import Metrics, named_metrics, update_metrics


@np.errstate(under="ignore")
def score(
    rows: tuple | ScoredLog | LogSums,
    metrics: Metrics = (),
    field_metrics: MetricsByField | None = None,
    verbose: int = 1,
) -> dict[str, float]:
    """Computes metrics of labels and predictions, of any number of rows.

    It computes the results of `model.evaluate` from arrays or files, without a model. Arrays,
    including memory-mapped ones, are read chunk by chunk. For batches, such as those of a
    `tf.data.Dataset`, call `metric.update_state(labels, predictions)` with each, then
    `metric.result()`.

    For a `logs.ScoredLog`, DuckDB or a Ray cluster computes the sums that the metrics need where
    the rows are. The results also hold `{field}_field_ece` and `{field}_field_rce` of each field of
    the log. Field values may be strings, any number of them. Metrics without such sums (for
    example, of Keras) read the rows chunk by chunk, if DuckDB reads the log.

    The results have no errors, so groups of rows, such as those of a customer, have no effect here;
    `multicalibration_error` takes them.

    The metrics are reset first and keep their state afterwards: read `metric.bias`, for example, or
    combine the shards of several machines with `merge_state`.

    Args:
        rows: A tuple `(labels, predictions)`, `(labels, predictions, sample_weight)` or
            `(labels, predictions, sample_weight, {field: ids})` of arrays or tensors of shape
            `(n,)` or `(n, 1)`; predictions of K classes have the shape `(n, K)`. The last may be a
            data frame, and the others names of its columns: `("clicked", "p", None, frame)`. Or a
            `logs.ScoredLog`, or the `logs.LogSums` of one.
        metrics: Keras metrics, of this package or others: a list, one metric, or name → metric.
            Weights apply to all of them.
        field_metrics: Field name → metrics with `update_state(..., field=ids)`, as in `compile` of
            a `FieldMetricsModel`. Results are named `{field}_{metric}`.
        verbose: 1 shows a progress bar, 0 does not.

    Returns:
        Name → result.

    Raises:
        ValueError: If there are no metrics or no rows, or columns differ in length; also as the
            metrics raise.

    Example:
        >>> import keras
        >>> from keras_calibration.metrics import CalibratedLogLoss, FieldECE
        >>> rng = np.random.default_rng(0)
        >>> p, site = rng.random(3000), rng.integers(0, 5, 3000)
        >>> labels = rng.random(3000) < p
        >>> scores = score(
        ...     (labels, p, None, {"site": site}),
        ...     [CalibratedLogLoss(), keras.metrics.AUC(name="auc")],
        ...     field_metrics={"site": [FieldECE(5)]},
        ...     verbose=0,
        ... )
        >>> list(scores)
        ['calibrated_log_loss', 'auc', 'site_field_ece']
        >>> round(scores["calibrated_log_loss"], 1)
        0.5
    """
    by_field = FieldMetrics(field_metrics or {})
    # By names, before any row is read. Results do not exist yet: asking for them would warn of NaN.
    named = named_metrics(metrics, [*dict(by_field.named_metrics()), *error_names(rows)])
    has_fields = isinstance(rows, LogSums) or (isinstance(rows, ScoredLog) and rows.fields)
    if not named and not by_field.by_field and not has_fields:
        raise ValueError(
            "Arguments `metrics` and `field_metrics` must hold metrics. Received: none."
        )
    for metric in (*named.values(), by_field):
        metric.reset_state()
    if isinstance(rows, ScoredLog | LogSums):
        errors = update_from_log(rows, named, by_field, verbose)
    else:
        errors, checked = {}, checked_rows(rows, by_field.by_field)
        update_metrics(named.values(), by_field, [checked], len(checked.labels), verbose)
    results = {name: metric.result() for name, metric in named.items()} | errors
    return {name: float(value) for name, value in (results | by_field.result()).items()}
