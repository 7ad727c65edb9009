"""What an export asks of a head, in one place."""

from collections.abc import Mapping
from typing import Any

from keras_calibration.layers.field_ids import field_readers
from keras_calibration.layers.streaming_calibrator import StreamingCalibrator


def feature_names(head: Any) -> tuple[str, ...] | None:
    """The features that a head reads; None where it does not tell."""
    return getattr(head, "feature_names", None)


def lookups(head: Any) -> list[tuple[str, Any]]:
    """The fields that a head looks up, each with its lookup layer."""
    return [
        (name, vocabulary)
        for reader in field_readers(head)
        for name, vocabulary in reader.fields.items()
        if not isinstance(vocabulary, int)
    ]


def known_strings(head: Any, field: str) -> list[str]:
    """Some words that the lookups of a field know."""
    found = [lookup for name, lookup in lookups(head) if name == field]
    vocabularies = [each.get_vocabulary() for each in found if hasattr(each, "get_vocabulary")]
    return [word for vocabulary in vocabularies for word in vocabulary[:20]]


def lone_calibrator(head: Any) -> Any:
    """The calibrator of the logit that is the whole head; None where there is more to it."""
    is_alone = getattr(head, "field_network", head) is None
    return head.calibrator if is_alone else None


def curve_of(head: Any) -> dict[str, Any] | None:
    """Knots and values of a head's curve; None where it has none."""
    part: Any
    for part in (head, getattr(head, "calibrator", None)):
        if hasattr(part, "get_knots") and hasattr(part, "get_values"):
            return {"knots": part.get_knots(), "values": part.get_values()}
    return None


def histogram_of(head: Any) -> Any:
    """The sums over logits that a head's calibrator has kept from its fit, or None."""
    calibrator = getattr(head, "calibrator", None)
    return calibrator._histogram if isinstance(calibrator, StreamingCalibrator) else None


def fit_head(
    head: Any,
    logits: Any,
    labels: Any,
    features: Mapping[str, Any],
    sample_weight: Any,
    arguments: Mapping[str, Any],
) -> Any:
    """What the head's own `fit` returns."""
    curve = lone_calibrator(head)
    if curve is not None:
        return curve.fit(logits, labels, sample_weight, **arguments)
    if not callable(getattr(head, "fit", None)):
        raise ValueError(
            f"The head has no `fit`. Received: {type(head).__name__}. Train it in a "
            "CalibratedModel and export that."
        )
    return head.fit(logits, features, labels, sample_weight, **arguments)
