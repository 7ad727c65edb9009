"""export_savedmodel: writes a calibrated model as a SavedModel and verifies it."""

from __future__ import annotations

import os
from pathlib import Path

import keras

from keras_calibration._ops.losses import probabilities_from_logits
from keras_calibration._typing import Features, Inputs, Tensor
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
    interval_of,
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

_WARMUP_SIZES = (1, 32)


def export_savedmodel(
    model: keras.Model,
    path: str | os.PathLike[str],
    sample: Inputs | None = None,
    *,
    version: int | str | None = None,
    jit_compile: bool | str = False,
    interval: float | None = None,
    calibrated_output: str | int | None = None,
    verify: str = "new_process",
    tolerance: float | None = None,
) -> Path:
    """Writes a calibrated model as a TensorFlow SavedModel, for TF Serving or `tf.saved_model`.

    The SavedModel runs without Keras and without this package. It has three signatures, for any
    number of rows. Their outputs are float32 (batch, 1), or (batch, K) for K classes, where softmax
    takes the place of σ:

    - `serving_default` takes the model's inputs, by name (`signature_input`) and in their own
      dtypes. It returns `probability`, the calibrated probability σ(η(l) + g(x));
      `uncalibrated_probability`, σ(l); and `logit`, the base model's l.
    - `raw` takes the same inputs and returns `uncalibrated_probability` and `logit`, without the
      head.
    - `calibrate` takes `logit` and the features that the head is called with, and returns
      `probability`. Use it if the base model runs elsewhere.

    If the model has other outputs than the calibrated one, `serving_default` and `raw` also return
    these, unchanged, by their names. Of several heads, all calibrate in `serving_default`; the one
    of `calibrated_output` also has `calibrate` and can be refreshed.

    With `interval=0.95`, `serving_default` and `calibrate` also return `probability_lower` and
    `probability_upper`, the 95 % interval of the calibrated probability (`Head.interval`).

    The folder `assets.extra` holds `provenance.json` (rows of the fit, versions, figures before and
    after, knots and values), `head.keras` for `refresh_savedmodel` (with the logit histogram that a
    later `update` needs, if `fit` has stored one) and warm-up requests for TensorFlow Serving: of 1
    and 32 rows, with XLA of the powers of 2 up to 1024.

    The SavedModel is written to a temporary folder, loaded in a new process with TensorFlow alone,
    and compared with the Keras model on sample rows. Only then is it moved into place, in one step.
    If the process is killed, there is either a complete version or none; the next export removes
    what is left.

    **Invalid input at serving.** An id or string outside the vocabulary of a field of the head is
    the field's "other" value. The base model handles it in its own way: Keras' `Embedding` rejects
    an id outside its table on a CPU, returns zeros on a GPU, and uses the nearest id under XLA. A
    missing feature or a wrong dtype is an error of the request, which names the input. One value
    per row may come as (n,) or (n, 1), whatever the signature declares; any other shape, or numbers
    of rows that differ, is an error that the graph raises when it runs, in every server. NaN in a
    numeric column of the head's `FieldNetwork` is a missing value. A NaN logit gives a NaN
    probability, never an error. Rows do not affect each other.

    **XLA.** `jit_compile=True` compiles the base model and the head, each if possible: parts with
    strings or lookups are not compiled, and the provenance says so. It is off by default, because
    TensorFlow Serving compiles on a CPU only with `--xla_cpu_compilation_enabled=true` and
    otherwise rejects every request to a compiled model. XLA compiles again for every batch size,
    which takes up to a second. Batches are therefore padded to powers of 2 (above 1024, to
    multiples of 1024), and the warm-up requests cover these sizes. `jit_compile="unpadded"` saves
    the microseconds of padding, for servers that send few different sizes (`allowed_batch_sizes`)
    or single rows.

    Args:
        model: A Functional or Sequential model with a head, whose output is the head's logit, or
            its sigmoid or softmax; for example a `CalibratedModel`.
        path: The folder to create; it must not exist. For TF Serving, its name must be a version
            number. With `version`, the model's folder, in which the version is created.
        sample: Input rows for the comparison, in the form that the model takes; at most 64 are
            used. The default is random rows. The warm-up requests consist of these rows.
        version: Number of the version to create in `path`; `"next"` for one more than the highest
            there, which is safe with concurrent exports; None if `path` is the version's folder.
        jit_compile: Whether to compile with XLA where possible; `"unpadded"` compiles without
            padding of batches.
        interval: Level of the intervals to return as well, in (0, 1); None returns none.
        calibrated_output: Key, index or name of the output to calibrate, if several have a head.
        verify: `"new_process"`, or `"same_process"`, which saves some seconds but does not show
            that the SavedModel runs with TensorFlow alone.
        tolerance: Largest allowed difference between the logits of the SavedModel and of the Keras
            model, as a share of the largest absolute logit (at least 1); for probabilities, a
            quarter of it. The default is 4e-6; for a base model in half precision, 1/128 (float16)
            or 1/16 (bfloat16).

    Returns:
        The path of the SavedModel.

    Raises:
        ValueError: If the path exists, an argument is out of its range, the model has no head (or
            several, and `calibrated_output` names none), Keras does not run on TensorFlow, another
            output of the model has the name of an output above or depends on the head, or intervals
            are asked for and the head has none. Nothing is written.
        RuntimeError: If outputs of the SavedModel differ from the Keras model by more than
            `tolerance`, it does not load, or another process removed files of it. Nothing is left
            at `path`.

    Warns:
        UserWarning: If the head changes no probability and has not been fitted.

    Example:
        >>> import tempfile
        >>> from keras_calibration.layers import ILPS
        >>> inputs = {"price": keras.Input((1,), name="price")}
        >>> logit = keras.layers.Dense(1)(inputs["price"])
        >>> head = ILPS()
        >>> model = keras.Model(inputs, keras.layers.Activation("sigmoid")(head(logit)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     summary = head.fit([-2.0, -1.0, 0.0, 1.0], [0, 1, 0, 1])
        ...     path = export_savedmodel(
        ...         model, f"{folder}/ctr", version="next", verify="same_process"
        ...     )
        ...     path.name, sorted(entry.name for entry in (path / "assets.extra").iterdir())
        ('1', ['head.keras', 'provenance.json', 'tf_serving_warmup_requests'])
    """
    path = Path(path)
    spec = serving_spec(model, calibrated_output)
    _check_names(spec)
    check_verification(verify, tolerance)
    check_version_folder(path, version)
    _check_jit_compile(jit_compile)
    rows = sample_rows(spec, sample)
    found = outputs_on(spec, rows, is_random=sample is None)
    logit, probability = found["logit"], found["probability"]
    others = {name: found[name] for name in spec.other_outputs}
    outputs = {
        "probability": probability,
        **interval_of(spec.head, logit, spec.head_features(rows), interval),
    }
    expected = _expected_rows(spec, rows, logit, outputs, others)
    warn_if_unfitted(spec, probability, logit)
    with temporary_folder(path.parent if version is None else path) as temporary:
        savedmodel = temporary / "model"
        xla = write_signatures(spec, savedmodel, rows, jit_compile, interval)
        extra = savedmodel / "assets.extra"
        extra.mkdir()
        write_head(spec, extra)
        # All sizes for the main signature, one row for the others.
        sizes = COMPILED_SIZES if jit_compile else _WARMUP_SIZES
        requests = [(SERVING, expected[SERVING][0], size) for size in sizes]
        requests += [(name, expected[name][0], 1) for name in (RAW, CALIBRATE)]
        write_warmup(extra, path.parent.name if version is None else path.name, requests)
        differences = verify_signatures(
            savedmodel,
            expected,
            verify,
            tolerance_for(logit, spec.base_dtypes, tolerance, others),
        )
        provenance = {
            **describe_files(savedmodel),
            **describe_model(spec, None if sample is None else logit),
            "xla": xla,
            "interval": interval,
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
    if "logit" in spec.found.features:
        raise ValueError(
            "No feature of the head may be named `logit`: the signature `calibrate` takes the base "
            "model's logit under this name. Received: a head that reads a feature `logit`. Rename "
            "that input of the base model."
        )


def _check_jit_compile(jit_compile: bool | str) -> None:
    if not (isinstance(jit_compile, bool) or jit_compile == UNPADDED):
        raise ValueError(
            f'Argument `jit_compile` must be a bool or "{UNPADDED}". '
            f"Received: jit_compile={jit_compile!r}."
        )


def _expected_rows(
    spec: ServingSpec,
    rows: Features,
    logit: Tensor,
    outputs: dict[str, Tensor],
    others: dict[str, Tensor],
) -> Rows:
    """Inputs and expected outputs of each signature, from the Keras model."""
    raw = {
        "uncalibrated_probability": probabilities_from_logits(logit),
        "logit": logit,
        **others,
    }
    inputs = by_signature(rows)
    return {
        # What the head returns is compared with the signature `calibrate`.
        SERVING: (inputs, raw),
        RAW: (inputs, raw),
        CALIBRATE: (
            {"logit": logit, **by_signature(spec.head_features(rows))},
            outputs,
        ),
    }
