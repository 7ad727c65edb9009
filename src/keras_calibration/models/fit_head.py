"""fit_head: fits the calibration head of a model directly, in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import instance
from keras_calibration._graph.head_in_model import HeadInModel, find_head, find_heads
from keras_calibration._rows.reader import given_labels
from keras_calibration._typing import Data
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.fits import assign_all, check_fit, settings_for
from keras_calibration.layers.refit import refit


@np.errstate(under="ignore")
def fit_head(
    model: keras.Model,
    x: Data,
    y: Any = None,
    sample_weight: ArrayLike | str | None = None,
    *,
    groups: ArrayLike | str | None = None,
    time: ArrayLike | str | None = None,
    weights_are: str = "importance",
    settings: FitSettings | None = None,
    only_if_better: bool = True,
    verbose: int | str = "auto",
) -> FitSummary | dict[str, FitSummary]:
    """Fits the calibration head of a model directly, in place, to rows that it was not trained on.

    The logits of the rows are computed once, and the head's direct fit replaces its weights: exact,
    in seconds, without `compile` (see `Head.fit`). All other weights of the model stay as they are,
    and no layer is frozen. Call it after the model has been trained, with the head or without it:
    a base model is overconfident on its training rows, and so is a head that was trained with it.

    The fit is compared with the present head on rows that the fit did not see: each third of the
    rows is scored by a fit on the other two thirds. If the log loss of these fits is higher, the
    present head stays.

    Args:
        model: A Functional or Sequential model whose output is a head, or its sigmoid or softmax;
            for example a `CalibratedModel`.
        x: Inputs of the development set: arrays by name or a data frame, with `y`, or a finite data
            set of batches `(x, y)` or `(x, y, sample_weight)`.
        y: Labels in [0, 1], (n,) or (n, 1), of both classes, if `x` holds arrays. For K classes:
            class numbers (n,) or (n, 1), or one-hot or soft labels (n, K). For a model with several
            outputs, a dictionary by output, also in the batches of a data set: the heads of the
            named outputs are fitted, and labels of outputs without a head are ignored. Weights may
            be a dictionary too. Names of columns of `x` that are no inputs may stand for labels and
            weights.
        sample_weight: Sample weights (n,), if `x` holds arrays; see `weights_are`.
        groups: Which rows belong together, such as the rows of a customer, see `calibrate`. Folds
            are drawn by group, and the error of the change is that of independent groups.
        time: For a head that follows time, such as `FieldBias(…, follows_time=True)`: the name of
            an input or of another column of `x`, an array (n,) of numbers or dates, or `"order"`,
            if the rows are in order of time.
        weights_are: `"importance"`, known up to a common factor, or `"counts"` of rows, see
            `Head.fit`.
        settings: How to train the head's network, if it has one.
        only_if_better: Whether the present head stays if the fit predicts new rows worse. Pass
            False to use the fit in any case, for example if the present head was fitted to some of
            these rows.
        verbose: `"auto"` or 1 shows progress and prints the summary; 0 shows nothing.

    Returns:
        The `FitSummary` of the head: the log loss before the fit, its cross-fitted change, whether
        the fit is used, the number of steps, convergence. If several heads were fitted: name of the
        output → its summary.

    Raises:
        ValueError: If the model has no head, the head has no direct fit, or a row is invalid. The
            model is then unchanged.

    Warns:
        UserWarning: If the fit predicts new rows worse than the present head; if the present head
            is far off in total on logits that are right without it, as if it had calibrated them
            already; if the mean prediction differs from the mean label after the fit; if a field
            has values that are not in its vocabulary; if labels contradict probabilities of exactly
            0 or 1.

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
    instance("only_if_better", only_if_better, (bool, np.bool_), "a bool")
    heads = find_heads(model)
    are_several = len({id(match.calibrated) for match in heads}) > 1
    to_fit: list[Any] = _find_outputs_to_fit(heads, x, y) if are_several else [None]
    matches = [find_head(model, name) for name in to_fit]

    for match in matches:
        check_fit(match.head, time)
    settings = settings_for([match.head for match in matches], settings, verbose)
    # Read and check the rows of all heads before fitting one, and assign no fit before all are
    # made: an error leaves the model as it was.
    read = [
        (
            match.head,
            match.reader.read(
                x,
                y,
                sample_weight,
                time=time,
                groups=groups,
                folds=settings.folds,
                weights_are=weights_are,
                verbose=verbose,
            ),
        )
        for match in matches
    ]
    fits = [(head, refit(head, rows, settings, only_if_better)) for head, rows in read]
    for name, (_, fit) in zip(to_fit, fits, strict=True):
        if verbose:
            print(f"Output {name!r}. {fit.summary}" if are_several else fit.summary)
    assign_all([(head, fit) for head, fit in fits if fit.summary.is_used])
    summaries = [fit.summary for _, fit in fits]
    return dict(zip(to_fit, summaries, strict=True)) if are_several else summaries[0]


def _find_outputs_to_fit(heads: Sequence[HeadInModel], x: Data, y: Any) -> list[str]:
    """The names of the outputs with a head; if labels are by output, only of those with labels."""
    labels = given_labels(x, y)
    headed = list(dict.fromkeys(match.output_name for match in heads))
    labelled = [name for name in headed if not isinstance(labels, Mapping) or name in labels]
    if not labelled:
        raise ValueError(
            f"Argument `y` must have the labels of an output with a head, {headed}. Received: "
            f"labels of {list(labels)}."
        )
    return labelled
