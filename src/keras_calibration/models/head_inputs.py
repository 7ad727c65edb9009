"""base_logits and interval: what a calibration head gets for rows, and how sure it is."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import keras
import numpy as np

from keras_calibration._typing import Data, Inputs, Tensor
from keras_calibration.models.development_set import DevelopmentSet, as_inputs, is_batches
from keras_calibration.models.head_in_model import LOGIT_OUTPUT, HeadInModel, find_head
from keras_calibration.models.head_rows import HeadRows
from keras_calibration.models.input_columns import refused_in_graphs
from keras_calibration.models.model_inputs import LogitModel, expected_inputs
from keras_calibration.models.output_names import symbolic_input, symbolic_output

_BATCH_SIZE = 4096


def base_logits(
    model: keras.Model,
    x: Data,
    *,
    calibrated_output: str | int | None = None,
    verbose: int | str = 0,
) -> np.ndarray:
    """Computes the uncalibrated logits that the calibration head of a model gets.

    Args:
        model: A Functional or Sequential model with a head, for example a `CalibratedModel`.
        x: Inputs: arrays, a data frame, or a data set of batches. Columns that are not inputs of
            the model are ignored.
        calibrated_output: Key, index or name of the output with the head, if several have one.
        verbose: As for `keras.Model.predict`.

    Returns:
        Logits (n, 1), or (n, K) for K classes, in the dtype of the head, float32 as a rule.

    Raises:
        ValueError: If the model has no head, or an input is missing.

    Example:
        >>> from keras_calibration.layers import ILPS
        >>> inputs = keras.Input((1,))
        >>> logit = keras.layers.Rescaling(2.0)(inputs)
        >>> model = keras.Model(inputs, keras.layers.Activation("sigmoid")(ILPS()(logit)))
        >>> print(base_logits(model, np.array([[0.5], [-1.0]])))
        [[ 1.]
         [-2.]]
    """
    found = head_of(model, calibrated_output)
    values = base_values(found, as_inputs(x, symbolic_input(model), found.ids), verbose)
    logits: np.ndarray = values[LOGIT_OUTPUT]
    return logits


def interval(
    model: keras.Model,
    x: Data,
    *,
    level: float = 0.95,
    calibrated_output: str | int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Computes an interval of the calibrated probability of each row; see `Head.interval`.

    It tells how well the rows of the fit determine the probability. It is not an interval of the
    label, and knows neither of drift nor of errors of the base model that the head cannot express.

    Args:
        model: A Functional or Sequential model with a head, for example a `CalibratedModel`.
        x: Inputs: arrays, or a data frame.
        level: Posterior probability of the interval, in (0, 1).
        calibrated_output: Key, index or name of the output with the head, if several have one.

    Returns:
        Lower and upper probabilities (n, 1), float64.

    Raises:
        ValueError: If the model has no head, the head has no interval, was not fitted by its direct
            fit, or was trained since; if an input is missing, or `level` is out of its range.

    Example:
        >>> from keras_calibration.layers import PlattScaling
        >>> inputs = keras.Input((1,), name="score")
        >>> model = keras.Model(inputs, keras.layers.Activation("sigmoid")(PlattScaling()(inputs)))
        >>> rng = np.random.default_rng(0)
        >>> score = rng.normal(size=(500, 1))
        >>> summary = model.layers[1].fit(score, rng.random(500) < 0.3 + 0.1 * score[:, 0])
        >>> lower, upper = interval(model, np.zeros((1, 1)))
        >>> print(np.concatenate([lower, upper]).ravel().round(2))
        [0.24 0.32]
    """
    if is_batches(x):
        raise ValueError(
            "Argument `x` of `interval` must hold arrays or be a data frame. Received: a data "
            f"set of type {type(x).__name__}. Call `interval` for each batch."
        )
    found = head_of(model, calibrated_output)
    structure = symbolic_input(model)
    inputs = expected_inputs(as_inputs(x, structure, found.ids), structure)
    values = base_values(found, inputs)
    features = found.features_from(_by_name(found, inputs), values)
    return found.head.interval(values[LOGIT_OUTPUT], features, level=level)


def head_of(model: keras.Model, calibrated_output: str | int | None = None) -> HeadInModel:
    """As `find_head`; remembers what it found, because Keras traces every new model."""
    remembered: dict[Any, tuple[list[Any], HeadInModel]] = getattr(model, "_heads_found", {})
    # A Sequential model may have been changed since.
    outputs = keras.tree.flatten(symbolic_output(model)) if isinstance(model, keras.Model) else []
    before, found = remembered.get(calibrated_output, ([], None))
    if found is None or list(map(id, before)) != list(map(id, outputs)):
        found = find_head(model, calibrated_output)
        remembered = {**remembered, calibrated_output: (outputs, found)}
        # Bypasses Keras' tracking of layers in attributes.
        object.__setattr__(model, "_heads_found", remembered)
    return found


def base_values(found: HeadInModel, inputs: Data, verbose: int | str = 0) -> dict[str, np.ndarray]:
    """The logits, and the features that the model computes, as arrays."""
    with refused_in_graphs():
        values: dict[str, np.ndarray] = _base_part(found).predict(
            inputs, batch_size=_BATCH_SIZE, verbose=verbose
        )
    return values


def rows_for_head(
    found: HeadInModel, rows: DevelopmentSet, verbose: int | str, also: Collection[str] = ()
) -> HeadRows:
    """The rows as the head sees them; `also` names further inputs to keep."""
    inputs = expected_inputs(rows.inputs, symbolic_input(found.model))
    is_long = bool(verbose) and len(rows.labels) > _BATCH_SIZE
    if is_long:
        print(f"Computing the base logits of {len(rows.labels):,} rows:")
    values = base_values(found, inputs, verbose if is_long else 0)
    logits, columns = values[LOGIT_OUTPUT], _by_name(found, inputs)
    features = found.features_from(columns, values)
    features |= {name: columns[name] for name in also if name in columns and name not in features}
    # One shape of labels, (n, 1) or (n, K), so that all metrics see the same.
    labels = np.asarray(rows.labels, "float32").reshape(len(logits), -1)
    weights = None if rows.weights is None else np.asarray(rows.weights, "float32").reshape(-1)
    return HeadRows(logits, features, labels, weights)


def _by_name(found: HeadInModel, inputs: Inputs) -> dict[str, Tensor]:
    return dict(zip(found.inputs, keras.tree.flatten(inputs), strict=True))


def _base_part(found: HeadInModel) -> keras.Model:
    """A model from the inputs to the logit and the features that the model computes."""
    part = found.__dict__.get("_base_part")
    if part is None:
        part = LogitModel(symbolic_input(found.model), found.base_outputs, name="base_logits")
        found.__dict__["_base_part"] = part
    return part
