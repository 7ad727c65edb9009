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
# Names of the plain loss that belongs to a calibrated loss. `"loss"` of a regression can be any
# loss: it is not taken for the squared error.
_PLAIN_NAMES = {
    "calibrated_log_loss": ("log_loss", "binary_crossentropy", "loss"),
    "calibrated_categorical_log_loss": (
        *("categorical_crossentropy", "sparse_categorical_crossentropy", "loss"),
    ),
    "calibrated_quadratic_loss": ("mean_squared_error", "mse"),
}


def direction_of(metric: str) -> str | None:
    """`"min"` or `"max"` if the metric's name tells which is better, otherwise `None`.

    Example:
        >>> direction_of("val_auc"), direction_of("val_loss"), direction_of("uplift")
        ('max', 'min', None)
    """
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    is_max, is_min = bool(words & _MAXIMIZED), bool(words & _MINIMIZED)
    if words & _NEITHER or is_max == is_min:
        return None
    return "max" if is_max else "min"


def loss_partners(metric: str, names: Collection[str]) -> tuple[str, str] | tuple[None, None]:
    """The names of the plain and the calibrated loss that belong to a metric.

    `names` are the recorded metrics. Both are `None` unless both losses are among them.

    Example:
        >>> loss_partners("val_calibrated_log_loss", ["val_calibrated_log_loss", "val_loss"])
        ('val_loss', 'val_calibrated_log_loss')
    """
    for plain, calibrated in loss_pairs(metric, names):
        if plain in names and calibrated in names:
            return plain, calibrated
    return None, None


def loss_pairs(metric: str, names: Collection[str]) -> list[tuple[str, str]]:
    """Names that a plain and a calibrated loss can have, the likeliest pair first.

    If the metric is a loss, it is in each pair. `names` are the recorded metrics.

    Example:
        >>> loss_pairs("val_mse", [])
        [('val_mse', 'val_calibrated_quadratic_loss')]
    """
    prefix = "val_" if metric.startswith("val_") else ""
    pairs = [
        (prefix + plain, prefix + calibrated)
        for calibrated, plain_names in _PLAIN_NAMES.items()
        for plain in plain_names
    ]
    if direction_of(metric) == "min":
        own = metric.replace("calibrated_", "")
        named_alike = [(own, name) for name in names if name.replace("calibrated_", "") == own]
        pairs = [pair for pair in [*named_alike, *pairs] if metric in pair and pair[0] != pair[1]]
    return pairs


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
