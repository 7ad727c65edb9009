"""A new version of an exported model whose calibration alone is fitted again."""

import math
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from keras_calibration.export.checkpoint import collection_keys, read_tensors, replace_tensors
from keras_calibration.export.constants import replace_constants
from keras_calibration.export.head_file import head_features, head_of, read_head, save_head
from keras_calibration.export.model_rows import NUM_SAMPLE_ROWS, signature_input
from keras_calibration.export.provenance import (
    describe_head,
    files_sha256,
    origin,
    read_provenance,
    summary_figures,
    write_provenance,
)
from keras_calibration.export.served_head import served_head
from keras_calibration.export.signatures import CALIBRATE, HEAD_WEIGHTS
from keras_calibration.export.verification import (
    check_way,
    tolerance_for,
    verify_signatures,
)
from keras_calibration.export.version_folder import (
    NEXT,
    check_version_folder,
    move_into_place,
    temporary_folder,
    versions_in,
)
from keras_calibration.layers.streaming_calibrator import StreamingCalibrator
from keras_calibration.models.logit_range import describe_logits
from keras_calibration.ops.losses import logits_from_probabilities


def refresh_savedmodel(
    path: str | os.PathLike[str],
    logits: Any,
    labels: Any,
    features: Mapping[str, Any] | None = None,
    sample_weight: Any = None,
    *,
    from_logits: bool = True,
    update: bool = False,
    destination: str | os.PathLike[str] | None = None,
    verify: str = "new_process",
    **fit_arguments: Any,
) -> Path:
    """Fits the calibration of an exported model to new rows, and writes the next version.

    The Keras model is not needed, nor its inputs: the served `logit` of logged rows, their labels,
    and what the head reads of them. The head is fitted by its own `fit`, afresh. All weights
    but the head's, and the graph but for constants that are the head's, are those of the old
    version, bit for bit; the old version stays.

    The new version is checked and put in place as by `export_savedmodel`; its provenance has the
    figures of this fit, and those of the version before under `"refreshed_from"`.

    Args:
        path: The version to start from, or the folder of the model: then its highest version.
        logits: The base model's logits (n,) or (n, 1), as `serving_default` and `raw` give them in
            `logit`.
        labels: Labels in [0, 1] (n,) or (n, 1).
        features: Name → values (n,) or (n, 1) of the features that the head reads, under the
            model's own names; not needed for a curve of the logit alone.
        sample_weight: Weights (n,), not negative; ones by default.
        from_logits: Whether `logits` are logits; False for the base model's probabilities
            (`uncalibrated_probability`), which are turned into logits.
        update: Add the rows to those of earlier fits (`StreamingCalibrator.update`) instead of
            fitting to them alone; for a head that is such a calibrator.
        destination: The folder to make; by default the next version number beside `path`.
        verify: As for `export_savedmodel`.
        **fit_arguments: What else the head's `fit` takes (`seed` of `NeuralCalibration.fit`), or
            `update` (`forget`).

    Returns:
        The path of the new version.

    Raises:
        ValueError: If the SavedModel was not written by `export_savedmodel`, a feature is missing,
            the rows cannot be fitted to, the logits look like probabilities where those of the
            version before do not, `update=True` finds no summary of earlier rows, or the
            destination exists. Nothing is written then.
        RuntimeError: If the new SavedModel gives other probabilities than the refitted head.

    Warns:
        UserWarning: If all logits lie in [0, 1] and the version before does not tell its logits, or
            if the median logit is beyond all of those.

    Example:
        >>> import tempfile
        >>> import keras
        >>> from keras_calibration import export_savedmodel
        >>> from keras_calibration.layers import PlattScaling
        >>> from keras_calibration.models import CalibratedModel
        >>> inputs = {"price": keras.Input((1,), name="price")}
        >>> base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["price"]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model = CalibratedModel(base, PlattScaling())
        ...     logits = np.linspace(-3, 3, 200)
        ...     labels = np.arange(200) % 10 < 5 + 2 * logits
        ...     summary = model.head.calibrator.fit(logits[::2], labels[::2])
        ...     first = export_savedmodel(model, f"{folder}/ctr/1", verify="same_process")
        ...     second = refresh_savedmodel(first, logits, labels, verify="same_process")
        ...     second.name
        '2'
    """
    source = _version(Path(path))
    check_way(verify)
    target, version = _target(source, destination)
    check_version_folder(target, version)
    wrapped = read_head(source / "assets.extra")
    head = head_of(wrapped)
    keys = collection_keys(source, HEAD_WEIGHTS)
    tensors = read_tensors(source)
    served_form = _served_form(head, [tensors[key] for key in keys], source)
    before = read_provenance(source / "assets.extra")
    if before.get("files_sha256", files_sha256(source)) != files_sha256(source):
        raise ValueError(
            f"The graph or the weights in {str(source)!r} are not those that were exported: "
            "their hash differs from that in provenance.json. Export the model again."
        )
    logits = _logits(logits, from_logits, before.get("logits"))
    columns = _columns(wrapped, features)
    with warnings.catch_warnings():
        # `_logits` knows what the earlier logits were and has said what there is to say.
        warnings.filterwarnings("ignore", "The logits look like probabilities", UserWarning)
        summary = _fit(head, logits, columns, labels, sample_weight, update, fit_arguments)
    rows = _expected_rows(wrapped, logits, columns)
    with temporary_folder(target.parent if version is None else target) as temporary:
        savedmodel = temporary / "model"
        shutil.copytree(source, savedmodel)
        extra = savedmodel / "assets.extra"
        weights = _weights(served_form(head))
        replace_constants(savedmodel, weights)
        replace_tensors(savedmodel, dict(zip(keys, weights, strict=True)))
        save_head(wrapped, extra)
        differences = verify_signatures(
            savedmodel, {CALIBRATE: rows}, verify, tolerance_for(rows[0]["logit"])
        )
        figures = summary_figures(summary)
        how = {"fitted_at": summary.fitted_at, "update": update, **fit_arguments}
        provenance = {
            **before,
            **origin(),
            "files_sha256": files_sha256(savedmodel),
            "head": describe_head(head),
            "fit": {"num_rows": summary.num_rows, "summary": figures, **how},
            "logits": describe_logits(logits, "fitted on"),
            "verification": {
                "in": verify,
                "num_rows": len(rows[1]["probability"]),
                "rows": "fitted on",
                "largest_differences": differences,
            },
            "refreshed_from": {
                "version": source.name,
                **{name: before[name] for name in before if name in _KEPT},
            },
        }
        write_provenance(extra, provenance)
        return move_into_place(savedmodel, target, version)


# The log of the chance below which rows are not taken for those of the same model: one in 10⁹.
_RARE = math.log(1e-9)
# Of the version before; what it was refreshed from itself is in there too.
_KEPT = ("exported_at", "versions", "fit", "logits", "refreshed_from")


def _version(path: Path) -> Path:
    """The folder of a SavedModel: `path`, or the highest version in it."""
    versions = versions_in(path)
    source = path if (path / "saved_model.pb").is_file() or not versions else None
    source = source or path / str(versions[-1])
    if not (source / "saved_model.pb").is_file():
        raise ValueError(
            "Expected the folder of a SavedModel, or of the versions of one. Received: "
            f"path={str(path)!r}, where there is none."
        )
    return source


def _target(source: Path, destination: Any) -> tuple[Path, Any]:
    if destination is not None:
        return Path(destination), None
    if source.name.isascii() and source.name.isdecimal():
        return source.parent, NEXT
    raise ValueError(
        "The next version goes beside one whose folder is a number. Received: "
        f"path={str(source)!r}. Pass `destination`, the folder to make."
    )


def _served_form(head: Any, served: list[Any], source: Path) -> Callable[[Any], Any]:
    """From the head to the layer that the SavedModel serves: itself in files of the first release.

    Refuses a `head.keras` that is not what the SavedModel serves.
    """
    forms: tuple[Callable[[Any], Any], ...] = (served_head, lambda head: head)
    for form in forms:
        weights = _weights(form(head))
        # Tables that another machine has worked out differ in their last digits.
        if len(weights) == len(served) and all(
            w.shape == np.shape(s) and np.allclose(w, s, rtol=1e-5, atol=1e-5, equal_nan=True)
            for w, s in zip(weights, served, strict=True)
        ):
            return form
    raise ValueError(
        f"The head in {str(source / 'assets.extra')!r} is not the one that the SavedModel "
        "serves: their weights differ. Export the model again."
    )


def _weights(layer: Any) -> list[np.ndarray]:
    return [ops.convert_to_numpy(weight) for weight in layer.weights]


def _logits(values: Any, from_logits: bool, before: Mapping[str, Any] | None) -> np.ndarray:
    """The logits of the rows; refuses probabilities in their place."""
    values = np.asarray(ops.convert_to_numpy(values) if ops.is_tensor(values) else values)
    if not from_logits:
        if not np.all((values >= 0) & (values <= 1)):
            raise ValueError(
                "Argument `logits` must hold probabilities in [0, 1] with from_logits=False. "
                f"Received: values from {np.min(values):g} to {np.max(values):g}."
            )
        return np.asarray(ops.convert_to_numpy(logits_from_probabilities(values)))
    if not values.size or not np.isfinite(values).all():
        return values  # The fit says what is wrong.
    known = before if before and before["num_rows"] else None
    if np.all((values >= 0) & (values <= 1)):
        seen = (
            f"all {values.size} values lie in [0, 1], from {values.min():g} to {values.max():g}, "
            "as probabilities do"
        )
        remedy = "Pass the logged `logit`, or from_logits=False for probabilities."
        if known is None:
            warnings.warn(f"Argument `logits` must hold logits: {seen}. {remedy}", stacklevel=3)
        # Beyond chance: each row would have to fall into [0, 1].
        elif values.size * math.log(max(known["share_in_0_1"], 1 / known["num_rows"])) < _RARE:
            raise ValueError(
                f"Argument `logits` must hold logits. Received: {seen}; those of the version "
                f"before are from {known['min']:g} to {known['max']:g}, "
                f"{known['share_in_0_1']:.0%} of them in [0, 1]. {remedy}"
            )
    elif known is not None and not known["min"] <= np.median(values) <= known["max"]:
        warnings.warn(
            f"The median of the logits, {np.median(values):g}, is beyond all logits of the version "
            f"before, {known['min']:g} to {known['max']:g}. Check that they are the base model's "
            "own `logit`, of the same base model.",
            stacklevel=3,
        )
    return values


def _columns(wrapped: Any, features: Mapping[str, Any] | None) -> dict[str, Any]:
    """The features that the head reads, in their own dtypes."""
    import tensorflow as tf

    inputs, given = head_features(wrapped), features or {}
    missing = [name for name in inputs if name not in given]
    if missing:
        raise ValueError(
            f"The head reads the features {sorted(inputs)}. Received: {sorted(given)}, without "
            f"{missing}. Pass every one of them."
        )
    return {
        name: tf.constant(np.asarray(given[name]))
        if tensor.dtype == "string"
        else np.asarray(given[name]).astype(tensor.dtype)
        for name, tensor in inputs.items()
    }


def _fit(
    head: Any,
    logits: Any,
    columns: Mapping[str, Any],
    labels: Any,
    sample_weight: Any,
    update: bool,
    arguments: Mapping[str, Any],
) -> Any:
    curve: Any = getattr(head, "calibrator", None)
    alone = getattr(head, "field_network", head) is None
    if update and not (alone and isinstance(curve, StreamingCalibrator)):
        raise ValueError(
            "update=True adds rows to a calibrator of the logit alone. Received: a head of "
            f"{type(head).__name__} with {type(curve).__name__}, which reads features or has no "
            "`update`. Pass update=False and all the rows to fit to."
        )
    if update and curve._histogram is None:
        raise ValueError(
            "update=True adds rows to the summary of the earlier ones. Received: a SavedModel "
            "whose head has no such summary, for nobody has fitted it, or by gradient steps alone. "
            "Pass update=False and all the rows to fit to, or fit the head by its own `fit` and "
            "export it again."
        )
    if update:
        return curve.update(logits, labels, sample_weight, **arguments)
    if alone:
        return curve.fit(logits, labels, sample_weight, **arguments)
    return head.fit(logits, labels, columns, sample_weight, **arguments)


def _expected_rows(
    wrapped: Any, logits: Any, columns: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs of `calibrate` and the probabilities that the refitted head gives."""
    import tensorflow as tf

    inputs = {"logit": wrapped.inputs[0], **head_features(wrapped)}
    rows = {}
    for name, values in {"logit": logits, **columns}.items():
        first = tf.convert_to_tensor(values[:NUM_SAMPLE_ROWS])
        first = first if first.dtype == tf.string else tf.cast(first, inputs[name].dtype)
        rows[name] = tf.reshape(first, (-1, *inputs[name].shape[1:]))
    with tf.device("CPU:0"):
        calibrated = wrapped([rows["logit"], {name: rows[name] for name in columns}])
    by_signature = {
        name if name == "logit" else signature_input(name): v for name, v in rows.items()
    }
    return by_signature, {"probability": ops.sigmoid(calibrated)}
