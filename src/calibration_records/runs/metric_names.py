"""Infers the direction of a metric and pairs of losses from metric names."""

import re
from collections.abc import Collection

BIAS_SUFFIX = "_bias"
DIRECTIONS = ("min", "max")
# Only complete names match, for example `auc` and not `auc_gap`. Left out are metrics whose best
# value lies in between (`bias`, `calibration_ratio`), and names that are a loss for some users and
# a gain for others (`cosine_similarity`, `gini`, `score`).
# scikit-learn negates these losses, so that larger is better for all of its scorers.
_NEGATED = frozenset(
    "brier_score log_loss max_error mean_absolute_error mean_absolute_percentage_error "
    "mean_gamma_deviance mean_poisson_deviance mean_squared_error mean_squared_log_error "
    "median_absolute_error negative_likelihood_ratio root_mean_squared_error "
    "root_mean_squared_log_error".split()
)
_MINIMIZED = (
    frozenset(
        "bce binary_crossentropy binary_error binary_logloss brier brier_loss brier_score_loss "
        "calibrated_categorical_log_loss calibrated_log_loss calibrated_quadratic_loss "
        "categorical_log_loss quadratic_loss "
        "categorical_crossentropy categorical_hinge cross_entropy crossentropy ece error "
        "error_rate expected_calibration_error field_ece field_rce hamming_loss hinge hinge_loss "
        "kl_divergence logcosh logloss loss mae mape mce mean_squared_logarithmic_error merror "
        "mlogloss mse msle multi_error multi_logloss negative_log_likelihood nll "
        "normalized_entropy perplexity plain_categorical_log_loss plain_log_loss "
        "plain_quadratic_loss poisson rce rmse rmsle sparse_categorical_crossentropy "
        "squared_hinge".split()
    )
    | _NEGATED
)
_MAXIMIZED = frozenset(
    "acc accuracy adjusted_mutual_info_score adjusted_rand_score auc auc_roc aucpr auprc auroc "
    "average_precision average_precision_score balanced_accuracy binary_accuracy binary_io_u "
    "categorical_accuracy completeness_score concordance_correlation d2_absolute_error_score "
    "d2_brier_score d2_log_loss_score dice explained_variance f1_score fbeta_score "
    "fowlkes_mallows_score gauc hit_rate homogeneity_score io_u iou logit_auc map "
    "matthews_corrcoef mcc mean_io_u miou mrr mutual_info_score ndcg normalized_mutual_info_score "
    "one_hot_io_u one_hot_mean_io_u pearson_correlation positive_likelihood_ratio pr_auc "
    "precision_at_recall r2 r2_score rand_score recall_at_precision roc_auc roc_auc_ovo "
    "roc_auc_ovo_weighted roc_auc_ovr roc_auc_ovr_weighted roc_auc_score sensitivity "
    "sensitivity_at_specificity sparse_categorical_accuracy sparse_top_k_categorical_accuracy "
    "specificity specificity_at_sensitivity top_k_accuracy top_k_categorical_accuracy "
    "v_measure_score".split()
).union(
    (f"neg_{name}" for name in _NEGATED),
    (
        f"{name}{average}"
        for name in ("f1", "jaccard", "precision", "recall")
        for average in ("", "_macro", "_micro", "_samples", "_weighted")
    ),
)
# The rows of a value (`val_auc`); the number that Keras appends to equal names (`auc_1`), and the
# length of a ranking (`ndcg@10`).
_PREFIX = re.compile(r"^(val|valid|validation|test|train|training|eval)(_\d+)?(_|/|-|'s )")
_SUFFIX = re.compile(r"(_|@)\d+$")
# Names of the plain loss that belongs to a calibrated loss, the surest first: Keras' `"loss"` may
# have weights of rows, penalties of weights or smoothed labels. That of a regression can be any
# loss, so it does not count as squared error.
_PLAIN_NAMES = {
    "calibrated_log_loss": ("log_loss", "binary_crossentropy", "loss"),
    "calibrated_categorical_log_loss": (
        "categorical_log_loss",
        "categorical_crossentropy",
        "sparse_categorical_crossentropy",
        "loss",
    ),
    "calibrated_quadratic_loss": ("quadratic_loss", "mean_squared_error", "mse"),
}


def plain_name(metric: str, own: bool = False) -> str:
    """The name of the plain loss of a calibrated loss, as `SeedVariance` records it.

    `own` is for a loss beside another one that has its name, of other weights or rows.

    Example:
        >>> plain_name("val_calibrated_log_loss_1")
        'val_log_loss_1'
        >>> plain_name("val_calibrated_log_loss_1", own=True)
        'val_plain_log_loss_1'
    """
    return metric.replace("calibrated_", "plain_" if own else "")


def direction_of(metric: str) -> str | None:
    """`"min"` or `"max"` if the metric's name is known, otherwise `None`.

    Example:
        >>> direction_of("val_auc_1"), direction_of("loss"), direction_of("loss_improvement")
        ('max', 'min', None)
    """
    name = _SUFFIX.sub("", _PREFIX.sub("", metric.lower()))
    return "max" if name in _MAXIMIZED else "min" if name in _MINIMIZED else None


def loss_partners(metric: str, names: Collection[str]) -> tuple[str, str] | tuple[None, None]:
    """The names of the plain and the calibrated loss that belong to a metric.

    `names` are the recorded metrics. Both are `None` unless both losses are among them.

    Example:
        >>> loss_partners("val_calibrated_log_loss", ["val_calibrated_log_loss", "val_loss"])
        ('val_loss', 'val_calibrated_log_loss')
    """
    prefix = "val_" if metric.startswith("val_") else ""
    pairs = [
        (prefix + plain, prefix + calibrated)
        for calibrated, plain_names in _PLAIN_NAMES.items()
        for plain in (plain_name(calibrated, own=True), *plain_names)
    ]
    alike = [
        (plain, name)
        for name in names
        for plain in (plain_name(name, own=True), plain_name(name))
        if plain != name and metric in (plain, name)
    ]
    with_metric = [pair for pair in [*alike, *pairs] if metric in pair]
    # A loss without a partner gets none. For the total loss, which may be more than the plain one,
    # and for a metric that is not a loss, the run's pair is shown.
    is_of_pair = metric != f"{prefix}loss" and direction_of(metric) == "min"
    likely = with_metric if is_of_pair or alike else pairs
    recorded = (
        pair
        for pair in likely
        if {*pair} <= {*names} and plain_name(pair[1], own=True) not in {*names} - {*pair}
    )
    return next(recorded, (None, None))


def main_metric(names: Collection[str]) -> str | None:
    """The metric to show where there is room for one; `None` if no name is known.

    It is the first recorded of: a held-out calibrated loss, `"val_loss"`, a calibrated loss,
    `"loss"`. Of several calibrated losses, it is the one with the shortest name.

    Example:
        >>> main_metric(["loss", "val_auc", "val_calibrated_log_loss", "val_loss"])
        'val_calibrated_log_loss'
    """
    by_length = sorted(names, key=lambda name: (len(name), name))
    calibrated = [name for name in by_length if _SUFFIX.sub("", name).endswith(tuple(_PLAIN_NAMES))]
    held_out = [name for name in calibrated if name.startswith("val_")]
    shown = [*held_out, "val_loss", *calibrated, "loss"]
    return next((name for name in shown if name in names), None)
