"""FieldMetrics: metrics that read a field of each row, as one metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import keras

from keras_calibration._typing import Tensor
from keras_calibration.metrics.field_error import FieldError

# The metrics of each field; a key is a name, or a tuple of names for a cross. `Mapping` is
# invariant in its keys, so that a type for both would refuse a dictionary with names alone.
MetricsByField: TypeAlias = Mapping[Any, keras.metrics.Metric | Sequence[keras.metrics.Metric]]


class FieldMetrics(keras.metrics.Metric):
    """All field metrics of a model, as one metric with a dictionary of results."""

    def __init__(self, field_metrics: MetricsByField) -> None:
        super().__init__(name="field_metrics")
        self.by_field: dict[str | tuple[str, ...], list[keras.metrics.Metric]] = {}
        for field, metrics in field_metrics.items():
            self.by_field[field] = list(metrics) if isinstance(metrics, Sequence) else [metrics]
            _check(field, self.by_field[field])
        named = self.named_metrics()
        if not len(named) == len(dict(named)) == len({id(metric) for _, metric in named}):
            raise ValueError(
                "Each field must have its own metrics, with different names within the field. "
                f"Received: field_metrics={dict(field_metrics)!r}."
            )

    @property
    def fields(self) -> list[str]:
        """Names of all fields that a metric reads, including fields of crosses, without repeats."""
        return list(dict.fromkeys(name for field in self.by_field for name in names_in(field)))

    def ids_of(self, field: str | tuple[str, ...], field_ids: Mapping[str, Any]) -> Any:
        """The ids of a field, or the tuple of those of a cross."""
        return tuple(map(field_ids.get, field)) if isinstance(field, tuple) else field_ids[field]

    def check_ids(self, field_ids: Mapping[str, Any]) -> None:
        """Raises if arrays of ids are outside the values of a field error."""
        for field, metrics in self.by_field.items():
            for metric in metrics:
                if isinstance(metric, FieldError):
                    metric.check_ids(self.ids_of(field, field_ids))

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
        """Adds rows; `field_ids` maps each of `fields` to its ids (n,)."""
        for field, metrics in self.by_field.items():
            ids = self.ids_of(field, field_ids)
            for metric in metrics:
                metric.update_state(y_true, y_pred, sample_weight, field=ids)

    def result(self) -> dict[str, Tensor]:
        """Results by name: `{field}_{metric}`, or `{field}_x_{field}_{metric}` for a cross."""
        return {name: metric.result() for name, metric in self.named_metrics()}

    def reset_state(self) -> None:
        """Resets all metrics."""
        for _, metric in self.named_metrics():
            metric.reset_state()

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables of all metrics."""
        return [variable for _, metric in self.named_metrics() for variable in metric.variables]

    def named_metrics(self) -> list[tuple[str, keras.metrics.Metric]]:
        """The name of each metric in the logs, and the metric."""
        return [
            (f"{'_x_'.join(names_in(field))}_{metric.name}", metric)
            for field, metrics in self.by_field.items()
            for metric in metrics
        ]


def names_in(field: str | tuple[str, ...]) -> tuple[str, ...]:
    """The names of a key: one, or those of a cross."""
    return field if isinstance(field, tuple) else (field,)


def _check(field: Any, metrics: Sequence[keras.metrics.Metric]) -> None:
    """Raises for a wrong key, and for metrics that are none or have no number of its values."""
    names = names_in(field)
    are_different = len(set(names)) == len(names) > isinstance(field, tuple)
    if not are_different or not all(isinstance(name, str) for name in names):
        raise ValueError(
            "A key of `field_metrics` must be the name of a feature or, for a cross, a tuple of "
            f"two or more different names. Received: {field!r}."
        )
    for metric in metrics:
        if not isinstance(metric, keras.metrics.Metric):
            raise ValueError(
                "Argument `field_metrics` must map each field to Keras metrics, for example "
                f'{{"site_id": [FieldECE(5000)]}}. Received: {metric!r}.'
            )
        if isinstance(metric, FieldError) and len(metric.sizes) != len(names):
            raise ValueError(
                f"The metrics of {field!r} must have the number of values of each field, such as "
                f"5000, or (5000, 12) for a cross. Received: num_values={metric.num_values!r}."
            )
