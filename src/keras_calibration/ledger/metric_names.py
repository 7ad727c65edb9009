"""Infers the direction of a metric and pairs of losses from metric names."""

import re
from collections.abc import Collection

BIAS_SUFFIX = "_bias"
DIRECTIONS = ("min", "max")
_MAXIMIZED = frozenset(
    "auc accuracy acc precision recall f1 fbeta ndcg mrr map hit hits r2 iou dice similarity "
    "correlation specificity sensitivity".split()
)
_MINIMIZED = frozenset(
    "loss logloss error entropy crossentropy nll brier ece rce mce mse mae rmse mape msle hinge "
    "divergence perplexity".split()
)
# Their ideal value is 1 or 0: neither larger nor smaller is better.
_NEITHER = frozenset(("ratio", "bias", "gain"))
# Names of the plain loss that belongs to "calibrated_log_loss".
_PLAIN_NAMES = ("log_loss", "binary_crossentropy", "loss")


def direction_of(metric: str) -> str | None:
    """`"min"` or `"max"` if the metric's name tells which is better, otherwise `None`.

    Example:
        >>> direction_of("val_auc"), direction_of("val_loss"), direction_of("uplift")
        ('max', 'min', None)
    """
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    found = [
        direction
        for direction, known in (("max", _MAXIMIZED), ("min", _MINIMIZED))
        if words & known and not words & _NEITHER
    ]
    return found[0] if len(found) == 1 else None


def loss_partners(metric: str, names: Collection[str]) -> tuple[str | None, str | None]:
    """The names of the plain and the calibrated loss that belong to a metric.

    `names` are the recorded metrics; a loss that is not among them is `None`.

    Example:
        >>> loss_partners("val_calibrated_log_loss", ["val_calibrated_log_loss", "val_loss"])
        ('val_loss', 'val_calibrated_log_loss')
    """
    prefix = "val_" if metric.startswith("val_") else ""
    base = metric.removeprefix(prefix)
    is_loss = direction_of(base) == "min"
    plain, calibrated = [base.replace("calibrated_", "")], [base]
    if "calibrated_" not in base:
        calibrated = [f"calibrated_{base}"]
    if plain[0] in _PLAIN_NAMES or not is_loss:
        known = [plain[0]] if plain == [base] and is_loss else []
        plain, calibrated = [*known, *_PLAIN_NAMES], [*calibrated, "calibrated_log_loss"]
    found = [
        next((prefix + name for name in group if prefix + name in names), None)
        for group in (plain, calibrated)
    ]
    return found[0], found[1]


def main_metric(names: Collection[str]) -> str | None:
    """The metric to show where there is room for one; `None` if none of them is known.

    It is the first of a calibrated loss of the held-out rows, `"val_loss"`, a calibrated loss and
    `"loss"`; of several calibrated losses, the one with the shortest name.

    Example:
        >>> main_metric(["loss", "val_auc", "val_calibrated_log_loss", "val_loss"])
        'val_calibrated_log_loss'
    """
    known = sorted(names, key=lambda name: (len(name), name))
    calibrated = [name for name in known if "calibrated_" in name and direction_of(name) == "min"]
    held_out = [name for name in calibrated if name.startswith("val_")]
    shown = [*held_out, "val_loss", *calibrated, "loss"]
    return next((name for name in shown if name in names), None)
