"""Files for other runtimes: converted, compared with the Keras model, then moved into place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_calibration._keras import flatten_layers
from keras_calibration._ops.losses import probabilities_from_logits
from keras_calibration._typing import Features, Inputs
from keras_calibration.export.serving_spec import (
    ServingSpec,
    by_signature,
    outputs_on,
    sample_rows,
    warn_if_unfitted,
)
from keras_calibration.export.signatures import interval_of
from keras_calibration.export.verification import largest_difference, tolerance_for
from keras_calibration.export.version_folder import (
    check_file,
    move_file_into_place,
    temporary_folder,
)

_LOOKUPS = (
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.Hashing,
    keras.layers.TextVectorization,
)
Rows = dict[str, np.ndarray]


def write_portable(
    spec: ServingSpec,
    path: Path,
    sample: Inputs | None,
    runtime: str,
    convert: Callable[[Features], bytes],
    run: Callable[[Path, Rows], Rows],
    interval: float | None = None,
) -> Path:
    """Converts a model, compares the file with it in the runtime, and moves it into place.

    Args:
        spec: The model.
        path: The file to write.
        sample: Rows for the comparison, or None for random ones.
        runtime: Name of the runtime, for errors.
        convert: Gives the content of the file; it gets the rows of the comparison.
        run: Runs the file on rows by their names in a signature.
        interval: Level of the intervals that the file returns too, or None.
    """
    check_file(path)
    rows = sample_rows(spec, sample)
    outputs = outputs_on(spec, rows, is_random=sample is None)
    warn_if_unfitted(spec, outputs["probability"], outputs["logit"])
    # Raises if the head has no interval.
    interval_of(spec.head, outputs["logit"], spec.head_features(rows), interval)
    with named_errors(runtime):
        content = convert(rows)
    with temporary_folder(path.parent) as temporary:
        file = temporary / path.name
        file.write_bytes(content)
        for num_rows in (len(next(iter(rows.values()))), 1):
            part = {name: values[:num_rows] for name, values in rows.items()}
            given = {name: np.asarray(values) for name, values in by_signature(part).items()}
            with named_errors(runtime):
                received = run(file, given)
            _compare(spec, part, received, runtime, interval)
        return move_file_into_place(file, path)


def lookups_of(spec: ServingSpec) -> list[keras.layers.Layer]:
    """The layers of base and head that turn values into ids by a table or a hash."""
    vocabularies = [v for reader in spec.head.field_readers() for v in reader.fields.values()]
    return [
        each for each in [*flatten_layers(spec.base), *vocabularies] if isinstance(each, _LOOKUPS)
    ]


@contextlib.contextmanager
def named_errors(runtime: str) -> Iterator[None]:
    """Turns the errors of a converter or runtime into a short `ValueError`."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        words = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        raise ValueError(
            f"{runtime} does not support this model: {words[:300]}. Nothing was written. Serve the "
            f"model as a SavedModel, or serve only the base model with {runtime} and calibrate its "
            "logits with the signature 'calibrate' of the SavedModel."
        ) from error


def _compare(
    spec: ServingSpec, rows: Features, received: Rows, runtime: str, interval: float | None
) -> None:
    """Raises if outputs differ by more than rounding explains.

    The head is compared on the runtime's own logits, because a step function may jump between two
    logits that differ only by rounding.
    """
    logit = ops.convert_to_tensor(received["logit"])
    features = spec.head_features(rows)
    outputs = spec.base_outputs(rows)[0]
    others = {name: outputs[name] for name in spec.other_outputs}
    expected = {
        "probability": probabilities_from_logits(spec.head(logit, features)),
        "uncalibrated_probability": probabilities_from_logits(outputs["logit"]),
        **interval_of(spec.head, logit, features, interval),
        **others,
    }
    tolerance = tolerance_for(received["logit"], spec.base_dtypes, others=others)
    for name, values in expected.items():
        check_close(received[name], np.asarray(values), tolerance.allowed(name), name, runtime)


def check_close(
    received: np.ndarray, expected: np.ndarray, allowed: float, name: str, runtime: str
) -> None:
    """Raises if an output of a runtime differs from Keras' by more than is allowed."""
    error = largest_difference(received, expected)
    if not error <= allowed:
        raise RuntimeError(
            f"The {name} from {runtime} may differ from the Keras model's by at most {allowed:g}. "
            f"Received: a difference of {error:g} on {len(expected)} rows. Nothing was written."
        )
