"""Export of a calibrated model as one SavedModel, checked after writing. TensorFlow only."""

import keyword
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calibration.models.calibrated_model import CalibratedModel, inputs_by_name

_TOLERANCE = 1e-6
_NUM_SAMPLE_ROWS = 64


def export_savedmodel(
    model: CalibratedModel, path: str | os.PathLike[str], sample: Any = None
) -> Path:
    """Writes a calibrated model as a TensorFlow SavedModel, for TF Serving or `tf.saved_model`.

    The SavedModel needs neither Keras nor this package to run. Its signatures, batch size free:

    - `serving_default`: the model's inputs, by name (`signature_input`) and in their own dtypes, to
      `probability`, the calibrated probability σ(η(l) + g(x)); `uncalibrated_probability`, σ(l);
      and `logit`, the base model's l. All float32 (batch, 1).
    - `calibrate`: `logit` and the features that the head reads, to `probability`, for those who
      run the base model elsewhere.

    It is written to a temporary folder beside `path`, loaded again and compared with the Keras
    model on sample rows, and only then moved to `path`: there is a whole, checked model or none.

    Args:
        model: The calibrated model.
        path: The folder to make; it must not exist. For TF Serving, end it in a version number.
        sample: Input rows to compare on, as the model takes them, at most 64 are used; by default
            random rows of the inputs' shapes and dtypes.

    Returns:
        The path of the SavedModel.

    Raises:
        ValueError: If `path` exists, the model is no `CalibratedModel`, or Keras does not run on
            TensorFlow.
        RuntimeError: If the SavedModel gives other probabilities than the Keras model (more than
            1e-6 apart); nothing is left at `path` then.

    Example:
        >>> from keras_calibration.layers import ILPS
        >>> inputs = {"price": keras.Input((1,), name="price")}
        >>> base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["price"]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export_savedmodel(CalibratedModel(base, ILPS()), f"{folder}/ctr/1")
        ...     sorted(entry.name for entry in path.iterdir())
        ['assets', 'fingerprint.pb', 'saved_model.pb', 'variables']
    """
    path = Path(path)
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "A SavedModel is written by the TensorFlow backend. Received: "
            f"{keras.backend.backend()!r}. Save to .keras, set KERAS_BACKEND=tensorflow, load and "
            "export."
        )
    if not isinstance(model, CalibratedModel):
        raise ValueError(
            f"Expected a CalibratedModel. Received: {type(model).__name__}. Other Keras models "
            "export with model.export(path)."
        )
    if path.exists():
        raise ValueError(
            f"Received: path={str(path)!r}, which exists. An export never overwrites: choose a new "
            "version number."
        )
    rows = _random_rows(model) if sample is None else _given_rows(model, sample)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        _write(model, temporary / "model")
        _verify(model, temporary / "model", rows)
        os.rename(temporary / "model", path)
    finally:
        shutil.rmtree(temporary)
    return path


def signature_input(feature: str) -> str:
    """The name under which a signature takes a feature: its own, followed by `_` for a keyword.

    TensorFlow cannot give an input the name of a Python keyword.

    Args:
        feature: Name of an input of the model.

    Returns:
        The name of the signature's input.

    Example:
        >>> signature_input("site_id"), signature_input("class")
        ('site_id', 'class_')
    """
    return feature + "_" * keyword.iskeyword(feature)


def _write(model: CalibratedModel, path: Path) -> None:
    import tensorflow as tf

    base, head = model.base, model.head
    # Its own graph: one pass through the base model gives all three outputs.
    serving = keras.Model(model.input, [base.output, model.output])
    inputs = {name: _spec(name, tensor) for name, tensor in _input_tensors(model).items()}

    def serving_default(features: Mapping[str, Any]) -> dict[str, Any]:
        logit, probability = serving(_restructured(model, features), training=False)
        return {
            "probability": probability,
            "uncalibrated_probability": ops.sigmoid(logit),
            "logit": logit,
        }

    head_features = getattr(head, "feature_names", None)
    names = list(inputs if head_features is None else head_features)

    def calibrate(rows: Mapping[str, Any]) -> dict[str, Any]:
        features = {name: rows[name] for name in names}
        return {"probability": model.probability(head(rows["logit"], features))}

    logit_spec = tf.TensorSpec((None, 1), base.dtype, name="logit")
    calibrate_inputs = {"logit": logit_spec, **{name: inputs[name] for name in names}}
    archive = keras.export.ExportArchive()
    archive.track(serving)
    archive.add_endpoint("serving_default", serving_default, input_signature=[inputs])
    archive.add_endpoint("calibrate", calibrate, input_signature=[calibrate_inputs])
    archive.write_out(str(path), verbose=False)


def _verify(model: CalibratedModel, path: Path, rows: dict[str, Any]) -> None:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    expected = ops.convert_to_numpy(model(_restructured(model, rows), training=False))
    arguments = {signature_input(name): values for name, values in rows.items()}
    outputs = loaded.signatures["serving_default"](**arguments)
    head_features = getattr(model.head, "feature_names", None)
    names = rows if head_features is None else head_features
    features = {signature_input(name): rows[name] for name in names}
    again = loaded.signatures["calibrate"](logit=outputs["logit"], **features)
    for signature, received in (("serving_default", outputs), ("calibrate", again)):
        error = np.max(np.abs(received["probability"].numpy() - expected))
        if not error <= _TOLERANCE:
            raise RuntimeError(
                f"The SavedModel's signature {signature!r} gives probabilities up to {error:g} "
                f"from the Keras model's on {len(expected)} rows; expected at most {_TOLERANCE:g}. "
                "Nothing was written. Look for layers that compute differently when saved."
            )


def _input_tensors(model: CalibratedModel) -> dict[str, Any]:
    """The symbolic inputs by name."""
    return inputs_by_name(model.input, model.input)


def _restructured(model: CalibratedModel, by_name: Mapping[str, Any]) -> Any:
    """Inputs by name in the structure that the model takes."""
    if isinstance(model.input, Mapping):
        return dict(by_name)
    return keras.tree.map_structure(lambda tensor: by_name[tensor.name], model.input)


def _spec(name: str, tensor: Any) -> Any:
    import tensorflow as tf

    return tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype, name=signature_input(name))


def _given_rows(model: CalibratedModel, sample: Any) -> dict[str, Any]:
    """The first rows of a sample as tensors of the inputs' shapes and dtypes."""
    import tensorflow as tf

    inputs = _input_tensors(model)
    by_name = inputs_by_name(sample, model.input)
    missing = [name for name in inputs if name not in by_name]
    if missing:
        raise ValueError(
            f"The sample must have the model's inputs {sorted(inputs)}. "
            f"Received: {sorted(by_name)}, without {missing}."
        )
    rows = {}
    for name, tensor in inputs.items():
        values = tf.convert_to_tensor(np.asarray(by_name[name])[:_NUM_SAMPLE_ROWS])
        values = values if tensor.dtype == "string" else tf.cast(values, tensor.dtype)
        rows[name] = tf.reshape(values, (-1, *tensor.shape[1:]))
    return rows


def _random_rows(model: CalibratedModel) -> dict[str, Any]:
    """Rows of the inputs' shapes and dtypes: some ids and strings are known, some are not."""
    import tensorflow as tf

    generator = np.random.default_rng(0)
    rows = {}
    for name, tensor in _input_tensors(model).items():
        shape = (_NUM_SAMPLE_ROWS, *(size or 1 for size in tensor.shape[1:]))
        if tensor.dtype == "string":
            words = [*_known_strings(model, name), "", "unknown"]
            values = tf.constant(generator.choice(words, shape).astype(object))
        elif "int" in tensor.dtype:
            values = tf.cast(generator.integers(0, 10, shape), tensor.dtype)
        else:
            values = tf.cast(generator.normal(size=shape), tensor.dtype)
        rows[name] = values
    return rows


def _known_strings(model: CalibratedModel, name: str) -> list[str]:
    network = getattr(model.head, "field_network", None)
    lookup: Any = getattr(network, "fields", {}).get(name)
    return lookup.get_vocabulary()[:20] if hasattr(lookup, "get_vocabulary") else []
