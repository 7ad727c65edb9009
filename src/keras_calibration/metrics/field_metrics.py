"""FieldMetrics: metrics that read a field of each row, as one metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import keras

from keras_calibration._typing import Tensor
from keras_calibration.metrics.field_error import FieldError

# The metrics of each field, by its name.
MetricsByField: TypeAlias = Mapping[str, keras.metrics.Metric | Sequence[keras.metrics.Metric]]


class FieldMetrics(keras.metrics.Metric):
    """All field metrics of a model, as one metric with a dictionary of results."""

    def __init__(self, field_metrics: MetricsByField) -> None:
        super().__init__(name="field_metrics")
        self.by_field = {
            field: list(metrics) if isinstance(metrics, Sequence) else [metrics]
            for field, metrics in field_metrics.items()
        }
        for field, metrics in self.by_field.items():
            _check(field, metrics)
        named = self.named_metrics()
        # No name twice, and no metric object twice: it would add up the rows of two fields.
        if not len(named) == len(dict(named)) == len({id(metric) for _, metric in named}):
            raise ValueError(
                "Each field must have its own metrics, with different names within the field. "
                f"Received: field_metrics={dict(field_metrics)!r}."
            )

    def check_ids(self, field_ids: Mapping[str, Any]) -> None:
        """Raises if arrays of ids are outside the values of a field error."""
        for field, metrics in self.by_field.items():
            for metric in metrics:
                if isinstance(metric, FieldError):
                    metric.check_ids(field_ids[field])

    def check_sums(self) -> None:
        """Raises unless every metric is a field error, whose sums a scored log has."""
        for name, metric in self.named_metrics():
            if not isinstance(metric, FieldError):
                raise ValueError(
                    "Argument `field_metrics` must hold FieldECE, FieldRCE or another FieldError "
                    f"to score a log. Received: {name!r}, {type(metric).__name__}."
                )

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None, field_ids: Any = None
    ) -> None:
        """Adds rows; `field_ids` maps each field to its ids (n,)."""
        for field, metrics in self.by_field.items():
            for metric in metrics:
                metric.update_state(y_true, y_pred, sample_weight, field=field_ids[field])

    def result(self) -> dict[str, Tensor]:
        """Results by name, `{field}_{metric}`."""
        return {name: metric.result() for name, metric in self.named_metrics()}

    def reset_state(self) -> None:
        """Resets all metrics."""
        for _, metric in self.named_metrics():
            metric.reset_state()

    def named_metrics(self) -> list[tuple[str, keras.metrics.Metric]]:
        """The name of each metric in the logs, and the metric."""
        return [
            (f"{field}_{metric.name}", metric)
            for field, metrics in self.by_field.items()
            for metric in metrics
        ]


def _check(field: Any, metrics: Sequence[keras.metrics.Metric]) -> None:
    """Raises for a key that is not a name, and for values that are not metrics."""
    if not isinstance(field, str):
        raise ValueError(
            f"A key of `field_metrics` must be the name of a feature. Received: {field!r}. For a "
            "cross of fields, make a feature of its ids, for example site * 12 + device."
        )
    for metric in metrics:
        if not isinstance(metric, keras.metrics.Metric):
            raise ValueError(
                "Argument `field_metrics` must map each field to Keras metrics, for example "
                f'{{"site_id": [FieldECE(5000)]}}. Received: {metric!r}.'
            )
