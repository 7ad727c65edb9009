"""What the name of a metric says of it."""

from collections.abc import Collection

BIAS_SUFFIX = "_bias"
_MAXIMIZED = ("auc", "accuracy", "acc", "precision", "recall", "f1", "ndcg")
# Names that a plain loss goes by, beside "calibrated_log_loss".
_PLAIN_NAMES = ("log_loss", "binary_crossentropy", "loss")


def is_maximized(metric: str) -> bool:
    """Whether larger values of a metric are better.

    Args:
        metric: its name in the logs.

    Example:
        >>> is_maximized("val_auc"), is_maximized("val_loss")
        (True, False)
    """
    return any(word in _MAXIMIZED for word in metric.lower().split("_"))


def loss_partners(metric: str, names: Collection[str]) -> tuple[str | None, str | None]:
    """The plain and the calibrated loss that belong to a metric, of those recorded.

    Args:
        metric: name of either, or of a metric that is no loss, as AUC.
        names: names of all metrics recorded.

    Returns:
        The two names; `None` for what is not recorded.

    Example:
        >>> loss_partners("val_calibrated_log_loss", ["val_calibrated_log_loss", "val_loss"])
        ('val_loss', 'val_calibrated_log_loss')
    """
    prefix = "val_" if metric.startswith("val_") else ""
    base = metric.removeprefix(prefix)
    plain, calibrated = [base.replace("calibrated_", "")], [base]
    if "calibrated_" not in base:
        calibrated = [f"calibrated_{base}"]
    if plain[0] in _PLAIN_NAMES or is_maximized(base):
        known = [plain[0]] if plain == [base] and not is_maximized(base) else []
        plain, calibrated = [*known, *_PLAIN_NAMES], [*calibrated, "calibrated_log_loss"]
    found = [
        next((prefix + name for name in group if prefix + name in names), None)
        for group in (plain, calibrated)
    ]
    return found[0], found[1]
