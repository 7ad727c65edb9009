"""fit_head: fits the calibration head of a model directly, in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
from numpy.typing import ArrayLike

from keras_calibration._graph.head_in_model import HeadInModel, find_heads, head_of
from keras_calibration._graph.outputs import output_names, symbolic_input
from keras_calibration._rows.development_set import read_development_set
from keras_calibration._typing import Data
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.head import Head
from keras_calibration.models.head_rows import HeadRows, rows_for_head
from keras_calibration.models.head_training import (
    check_development_rows,
    fit_exactly,
    model_summary,
)
from keras_calibration.models.model_fit_summary import ModelFitSummary


def fit_head(
    model: keras.Model,
    x: Data,
    y: Any = None,
    sample_weight: ArrayLike | None = None,
    *,
    calibrated_output: str | int | None = None,
    steps_per_epoch: int | None = None,
    weights_are: str = "importance",
    settings: FitSettings | None = None,
    verbose: int | str = "auto",
) -> ModelFitSummary | dict[str, ModelFitSummary]:
    """Fits the calibration head of a model directly, in place, to rows that it was not trained on.

    The logits of the rows are computed once, and the head's direct fit replaces its weights: exact,
    in seconds, without `compile` (see `Head.fit`). All other weights of the model stay as they are,
    and no layer is frozen. Call it after the model has been trained, together with the head or
    without: a head that was trained with its base model knows only rows that the base model fits.

    Args:
        model: A Functional or Sequential model whose output is a head, or its sigmoid or softmax;
            for example a `CalibratedModel`.
        x: Inputs of the development set: arrays by name or a data frame, with `y`, or a finite data
            set of batches `(x, y)` or `(x, y, sample_weight)`.
        y: Labels in [0, 1], (n,) or (n, 1), of both classes, if `x` holds arrays. For K classes:
            class numbers (n,) or (n, 1), or one-hot or soft labels (n, K). Labels, and weights, may
            also be a dictionary by output.
        sample_weight: Sample weights (n,), importances unless `weights_are` says otherwise, if `x`
            holds arrays.
        weights_are: `"importance"`, known up to a common factor, or `"counts"` of rows, see
            `Head.fit`.
        calibrated_output: Key, index or name of the output whose head is fitted. By default all
            heads are fitted; with a dictionary `y`, those of its outputs.
        steps_per_epoch: Number of batches to read from a generator or an infinite data set; they
            are then the whole development set.
        settings: How to train the head's network, if it has one.
        verbose: `"auto"` or 1 shows progress and prints the summary; 0 shows nothing.

    Returns:
        A `ModelFitSummary`: log loss before and after, number of steps, convergence. If several
        heads were fitted: the name of the output → its summary.

    Raises:
        ValueError: If the model has no head, the head has no direct fit, or a row is invalid. The
            model is then unchanged.

    Warns:
        UserWarning: If the mean prediction differs from the mean label after the fit; if labels
            contradict probabilities of exactly 0 or 1; if a class has no rows (see `Head.fit`).

    Example:
        >>> import numpy as np
        >>> from keras_calibration.layers import ILPS
        >>> inputs = keras.Input((1,))
        >>> logit = keras.layers.Dense(1, kernel_initializer="ones")(inputs)
        >>> model = keras.Model(inputs, keras.layers.Activation("sigmoid")(ILPS()(logit)))
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(2000, 1))
        >>> y = rng.random(2000) < 0.1 + 0.2 * (x[:, 0] > 0)
        >>> summary = fit_head(model, x, y, verbose=0)
        >>> bool(abs(model.predict(x, verbose=0).mean() - y.mean()) < 1e-3)
        True
    """
    heads = find_heads(model)
    are_several = calibrated_output is None and len({id(found.head) for found in heads}) > 1
    wanted: list[Any] = [calibrated_output]
    if are_several:
        wanted = _wanted_outputs(model, heads, x, y)
    found_heads = [head_of(model, name) for name in wanted]
    # The rows of all heads are read and checked before any head is changed.
    data = x, y, sample_weight, steps_per_epoch
    rows = [_rows(each, *data, weights_are, settings, verbose) for each in found_heads]
    summaries = [
        _fit(found.head, *part, verbose) for found, part in zip(found_heads, rows, strict=True)
    ]
    return dict(zip(wanted, summaries, strict=True)) if are_several else summaries[0]


def _wanted_outputs(model: keras.Model, heads: Sequence[HeadInModel], x: Data, y: Any) -> list[str]:
    """The names of the outputs with a head; with labels by output, of those that have labels."""
    names = output_names(model)
    found = list(dict.fromkeys(names[each.position] for each in heads))
    if isinstance(x, Iterator):
        raise ValueError(
            f"Argument `x` must hold rows that can be read for each of the heads {found}. "
            f"Received: {type(x).__name__}, which can be read once. Pass arrays or a dataset, or "
            "the `calibrated_output` whose head is to be fitted."
        )
    wanted = [name for name in found if not isinstance(y, Mapping) or name in y]
    if not wanted:
        raise ValueError(
            f"Argument `y` must have the labels of an output with a head, {found}. Received: "
            f"labels of {list(y)}."
        )
    return wanted


def _rows(
    found: HeadInModel,
    x: Data,
    y: Any,
    sample_weight: Any,
    steps_per_epoch: int | None,
    weights_are: str,
    settings: FitSettings | None,
    verbose: int | str,
) -> tuple[HeadRows, FitSettings | None]:
    """The rows that count as one head reads them, checked, and the settings for these."""
    found.head.check_direct_fit()
    data = x, y, sample_weight, steps_per_epoch, symbolic_input(found.model)
    development = read_development_set(*data, found.label_names, found.ids)
    counted, used = development.counted(weights_are)
    settings = settings and settings.take(used, len(development.labels))
    rows = rows_for_head(found, counted, verbose)
    found.head.check_rows(rows.logits, rows.labels, rows.weights, True)
    check_development_rows(rows, is_trained=False)
    return rows, settings


def _fit(
    head: Head, rows: HeadRows, settings: FitSettings | None, verbose: int | str
) -> ModelFitSummary:
    exact = fit_exactly(head, rows, bool(verbose), settings)
    summary = model_summary(head, rows, exact)
    head.remember_fit(summary)
    if verbose:
        print(summary)
    return summary
