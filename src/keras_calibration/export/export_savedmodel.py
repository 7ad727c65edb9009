"""export_savedmodel: a calibrated model as one SavedModel, checked after writing."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras import ops

from keras_calibration.export.provenance import describe_files, describe_model, write_provenance
from keras_calibration.export.savedmodel_files import write_head, write_warmup
from keras_calibration.export.serving_spec import (
    ServingSpec,
    by_signature,
    outputs_on,
    sample_rows,
    serving_spec,
    warn_if_unfitted,
)
from keras_calibration.export.signatures import (
    CALIBRATE,
    COMPILED_SIZES,
    RAW,
    SERVING,
    UNPADDED,
    write_signatures,
)
from keras_calibration.export.verification import (
    Rows,
    check_verification,
    tolerance_for,
    verify_signatures,
)
from keras_calibration.export.version_folder import (
    check_version_folder,
    move_into_place,
    temporary_folder,
)
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.models.calibrated_model import CalibratedModel

_WARMUP_SIZES = (1, 32)


def export_savedmodel(
    model: CalibratedModel,
    path: str | os.PathLike[str],
    sample: Any = None,
    *,
    version: int | str | None = None,
    jit_compile: bool | str = False,
    warmup_sizes: Sequence[int] | None = None,
    fit_summary: FitSummary | None = None,
    verify: str = "new_process",
    tolerance: float | None = None,
) -> Path:
    """Writes a calibrated model as a TensorFlow SavedModel, for TF Serving or `tf.saved_model`.

    The SavedModel needs neither Keras nor this package to run. It has three signatures, for any
    number of rows, with outputs float32 (batch, 1):

    - `serving_default`: the model's inputs, by name (`signature_input`) and in their own dtypes, to
      `probability`, the calibrated probability σ(η(l) + g(x)); `uncalibrated_probability`, σ(l);
      and `logit`, the base model's l.
    - `raw`: the same inputs to `uncalibrated_probability` and `logit`, without the head.
    - `calibrate`: `logit` and the features that the head reads, to `probability`, for those who
      run the base model elsewhere.

    The folder `assets.extra` holds `provenance.json` (rows of the fit, versions, figures before and
    after, knots and values), `head.keras` for `refresh_savedmodel` (with the sums over rows that a
    later `update` needs, where `fit` has left them) and TensorFlow Serving's warm-up requests.

    The SavedModel is written to a temporary folder, loaded in a new process that has TensorFlow
    alone, and compared there with the Keras model on sample rows. Only then is it moved into place,
    in one step. If the process is killed, there is a complete version or none; the next export
    clears away what is left.

    Bad input at serving. An id or string that a field of the head does not know counts as its
    "other" value. What the base model does with it is its own affair: Keras' `Embedding` refuses an
    id outside its table on a CPU, takes zeros on a GPU, and the nearest id under XLA. A missing
    feature, a wrong dtype or a wrong shape is an error of the request that names the input. NaN in
    a numeric column of the head's `FieldNetwork` is a missing value. A NaN logit gives a NaN
    probability, never an error. No row changes what another row gets.

    XLA. `jit_compile=True` compiles the base model and the head, each where it can be: parts with
    strings or lookups cannot, and the provenance says so. It is off by default, because TensorFlow
    Serving compiles on a CPU only with `--xla_cpu_compilation_enabled=true` and otherwise refuses
    every request of a compiled model. XLA compiles anew for every batch size, for up to a second.
    Batches are therefore filled up to powers of 2 (from 1024 on, to multiples of it), and the
    warm-up requests go through these sizes. `jit_compile="unpadded"` saves the microseconds that
    this takes, for servers that send few different sizes (`allowed_batch_sizes`) or single rows.

    Args:
        model: The calibrated model.
        path: The folder to make; it must not exist. For TF Serving, end it in a version number.
            With `version`, the folder of the model, in which the version is made.
        sample: Input rows to compare on, as the model takes them, of which at most 64 are used; by
            default random rows. The warm-up requests consist of these rows.
        version: Number of the version to make in `path`; `"next"`, one more than the highest there,
            whoever else exports at the same time; None where `path` has it.
        jit_compile: Whether to compile by XLA what can be; `"unpadded"` without filling up batches.
        warmup_sizes: Numbers of rows of the warm-up requests; by default 1 and 32, with XLA the
            powers of 2 up to 1024. Empty for no requests.
        fit_summary: What the head's `fit` returned, for the provenance.
        verify: `"new_process"`, or `"same_process"`: seconds quicker, and says less.
        tolerance: How far the SavedModel's logits may be from the Keras model's, as a share of the
            largest logit of the rows (of 1, if that is more); probabilities, a quarter as far. By
            default 4e-6, and for a base model in half precision 1/128 (float16) or 1/16 (bfloat16).

    Returns:
        The path of the SavedModel.

    Raises:
        ValueError: If the path exists, an argument is out of its range, the model is no
            `CalibratedModel`, or Keras does not run on TensorFlow. Nothing is written then.
        RuntimeError: If the SavedModel gives other probabilities than the Keras model (more than
            `tolerance` apart), it does not load, or another process removed files of it; nothing is
            left at `path` then.

    Warns:
        UserWarning: If the head changes nothing and nobody has fitted it.

    Example:
        >>> import tempfile
        >>> import keras
        >>> from keras_calibration.layers import ILPS
        >>> inputs = {"price": keras.Input((1,), name="price")}
        >>> base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["price"]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model = CalibratedModel(base, ILPS())
        ...     summary = model.head.calibrator.fit([-2.0, -1.0, 0.0, 1.0], [0, 1, 0, 1])
        ...     path = export_savedmodel(
        ...         model, f"{folder}/ctr", version="next", verify="same_process"
        ...     )
        ...     path.name, sorted(entry.name for entry in (path / "assets.extra").iterdir())
        ('1', ['head.keras', 'provenance.json', 'tf_serving_warmup_requests'])
    """
    path = Path(path)
    spec = serving_spec(model)
    _check_names(spec)
    check_verification(verify, tolerance)
    check_version_folder(path, version)
    sizes = _warmup_sizes(warmup_sizes, jit_compile)
    rows = sample_rows(model, spec, sample)
    logit, probability = outputs_on(spec, rows, is_random=sample is None)
    expected = _expected_rows(spec, rows, logit, probability)
    if fit_summary is None:
        warn_if_unfitted(model, probability, logit)
    with temporary_folder(path.parent if version is None else path) as temporary:
        savedmodel = temporary / "model"
        xla = write_signatures(spec, savedmodel, rows, jit_compile)
        extra = savedmodel / "assets.extra"
        extra.mkdir()
        write_head(spec, extra)
        if sizes:
            # Every number of rows to the main signature, one row to the others.
            requests = [(SERVING, expected[SERVING][0], size) for size in sizes]
            requests += [(name, expected[name][0], 1) for name in (RAW, CALIBRATE)]
            write_warmup(extra, path.parent.name if version is None else path.name, requests)
        differences = verify_signatures(
            savedmodel, expected, verify, tolerance_for(logit, spec.base_dtypes, tolerance)
        )
        provenance = {
            **describe_files(savedmodel),
            **describe_model(model, fit_summary, None if sample is None else logit),
            "xla": xla,
            "verification": {
                "in": verify,
                "num_rows": len(logit),
                "rows": "random" if sample is None else "sample",
                "largest_differences": differences,
            },
        }
        write_provenance(extra, provenance)
        return move_into_place(savedmodel, path, version)


def _check_names(spec: ServingSpec) -> None:
    if "logit" in spec.head_features:
        raise ValueError(
            "The signature `calibrate` takes the base model's logit as `logit`. Received: a head "
            "that reads a feature of this name. Rename that input of the base model."
        )


def _warmup_sizes(given: Sequence[int] | None, jit_compile: bool | str) -> tuple[int, ...]:
    """The numbers of rows of the warm-up requests."""
    if not (isinstance(jit_compile, bool) or jit_compile == UNPADDED):
        raise ValueError(
            f'Argument `jit_compile` must be a bool or "{UNPADDED}". '
            f"Received: jit_compile={jit_compile!r}."
        )
    if given is None:
        return COMPILED_SIZES if jit_compile else _WARMUP_SIZES
    if not all(isinstance(size, int) and size > 0 for size in given):
        raise ValueError(
            "Argument `warmup_sizes` must hold numbers of rows above 0. "
            f"Received: warmup_sizes={given!r}."
        )
    return tuple(given)


def _expected_rows(
    spec: ServingSpec, rows: Mapping[str, Any], logit: Any, probability: Any
) -> Rows:
    """What the Keras model gives, by signature."""
    raw = {"uncalibrated_probability": ops.sigmoid(logit), "logit": logit}
    inputs = by_signature(rows)
    return {
        # Its probability is held against that of `calibrate`.
        SERVING: (inputs, raw),
        RAW: (inputs, raw),
        CALIBRATE: (
            {"logit": logit, **by_signature(spec.of_head(rows))},
            {"probability": probability},
        ),
    }
