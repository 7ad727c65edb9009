"""Export of a calibrated model as one SavedModel, checked after writing."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras import ops

from keras_calibration.export.head_file import write_head
from keras_calibration.export.model_checks import check_model, outputs_on, warn_if_unfitted
from keras_calibration.export.model_rows import (
    given_rows,
    head_inputs,
    random_rows,
    signature_input,
)
from keras_calibration.export.provenance import (
    describe_base,
    describe_fit,
    describe_head,
    files_sha256,
    known_logits,
    origin,
    write_provenance,
)
from keras_calibration.export.signatures import (
    CALIBRATE,
    COMPILED_SIZES,
    RAW,
    SERVING,
    write_signatures,
)
from keras_calibration.export.verification import (
    check_tolerance,
    check_way,
    tolerance_for,
    verify_signatures,
)
from keras_calibration.export.version_folder import (
    check_version_folder,
    move_into_place,
    temporary_folder,
)
from keras_calibration.export.warmup import write_warmup
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.models.calibrated_model import CalibratedModel

_WARMUP_SIZES = (1, 32)
_Columns = dict[str, Any]


def export_savedmodel(
    model: CalibratedModel,
    path: str | os.PathLike[str],
    sample: Any = None,
    *,
    version: int | str | None = None,
    jit_compile: bool = False,
    fill_up: bool = True,
    warmup_sizes: Sequence[int] | None = None,
    fit_summary: FitSummary | None = None,
    verify: str = "new_process",
    tolerance: float | None = None,
) -> Path:
    """Writes a calibrated model as a TensorFlow SavedModel, for TF Serving or `tf.saved_model`.

    The SavedModel needs neither Keras nor this package to run. Its signatures, batch size free, all
    outputs float32 (batch, 1):

    - `serving_default`: the model's inputs, by name (`signature_input`) and in their own dtypes, to
      `probability`, the calibrated probability σ(η(l) + g(x)); `uncalibrated_probability`, σ(l);
      and `logit`, the base model's l.
    - `raw`: the same inputs to `uncalibrated_probability` and `logit`, without the head.
    - `calibrate`: `logit` and the features that the head reads, to `probability`, for those who
      run the base model elsewhere.

    In `assets.extra`: `provenance.json` (what was fitted on how many rows, versions, figures before
    and after, knots and values), `head.keras` (for `refresh_savedmodel`; where `fit` has left sums
    over rows for a later `update`, they are in it) and TensorFlow Serving's warm-up requests, made
    of the sample's rows.

    It is written to a temporary folder beside its place, loaded in a new process that has
    TensorFlow alone, compared there with the Keras model on sample rows, and only then moved into
    place in one step: there is a whole, checked model or none, whenever the process is killed. What
    a killed process leaves is no version, and the next export clears it away.

    Small weights, the base model's too, are in the graph as constants besides (up to four megabytes
    of each): TensorFlow works out when it loads the graph what else every request would.

    Bad input at serving. An id or string that a field of the head does not know counts as its
    "other" value; what the base model does with it is its own affair (Keras' `Embedding` refuses an
    id outside its table with an error on a CPU, takes zeros on a GPU, and the nearest under XLA;
    the error may tell the id and the end of a table of n rows n higher than they are).
    A missing feature, a wrong dtype or shape is an error of the request that names the input. NaN
    in a numeric column of the head's `FieldNetwork` is a missing value; a NaN logit of the base
    model gives a NaN probability, never an error. No row changes what another row gets.

    XLA. `jit_compile=True` compiles the base model and the head, each where it can be (a part with
    strings or lookups cannot; the provenance tells). It is off by default: TensorFlow Serving does
    not compile on a CPU unless it is started with `--xla_cpu_compilation_enabled=true`, and refuses
    every request of a compiled model otherwise. XLA also compiles for every batch size, for up to a
    second each: batches are filled up to powers of 2 (from 1024 on, multiples of it), and the
    warm-up requests go through them. Where the server sends few different sizes by itself, as
    TensorFlow Serving does with `allowed_batch_sizes`, or only ever one row, `fill_up=False` saves
    the microseconds that this takes.

    Args:
        model: The calibrated model.
        path: The folder to make; it must not exist. For TF Serving, end it in a version number.
            With `version`, the folder of the model, in which the version is made.
        sample: Input rows to compare on, as the model takes them, at most 64 are used; by default
            random rows of the inputs' shapes and dtypes. They stand in the warm-up requests.
        version: Number of the version to make in `path`; `"next"`, one more than the highest there,
            whoever else exports at the same time; None where `path` has it.
        jit_compile: Whether to compile by XLA what can be.
        fill_up: Whether compiled batches are filled up to powers of 2.
        warmup_sizes: Numbers of rows of the warm-up requests; by default 1 and 32, with XLA the
            powers of 2 up to 1024. Empty for no requests.
        fit_summary: What the head's `fit` returned, for the provenance.
        verify: `"new_process"`, or `"same_process"`: seconds quicker, and says less.
        tolerance: How far the SavedModel's logits may be from the Keras model's, as a share of the
            largest logit of the rows (of 1, if that is more); probabilities, a quarter as far. By
            default 4e-6, and for what half precision rounds 1/128 (float16) or 1/16 (bfloat16).

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
    check_model(model)
    _check_names(model)
    check_way(verify)
    check_tolerance(tolerance)
    check_version_folder(path, version)
    sizes = (
        (COMPILED_SIZES if jit_compile else _WARMUP_SIZES)
        if warmup_sizes is None
        else (tuple(warmup_sizes))
    )
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise ValueError(
            "Argument `warmup_sizes` must hold numbers of rows above 0. "
            f"Received: warmup_sizes={warmup_sizes!r}."
        )
    rows = random_rows(model) if sample is None else given_rows(model, sample)
    logit, probability = outputs_on(model, rows, is_random=sample is None)
    expected = _expected_rows(model, rows, logit, probability)
    if fit_summary is None:
        warn_if_unfitted(model, probability, expected[RAW][1]["uncalibrated_probability"])
    with temporary_folder(path.parent if version is None else path) as temporary:
        savedmodel = temporary / "model"
        xla = write_signatures(model, savedmodel, rows, jit_compile, fill_up)
        extra = savedmodel / "assets.extra"
        extra.mkdir()
        write_head(model, extra)
        model_name = path.parent.name if version is None else path.name
        # Every number of rows to the main signature, one row to the others.
        requests = [(SERVING, expected[SERVING][0], size) for size in sizes]
        requests += [(name, expected[name][0], 1) for name in (RAW, CALIBRATE) if sizes]
        if requests:
            write_warmup(extra, model_name, requests)
        differences = verify_signatures(
            savedmodel, expected, verify, tolerance_for(logit, model.base_model, tolerance)
        )
        provenance = {
            **origin(),
            "files_sha256": files_sha256(savedmodel),
            "base_model": describe_base(model),
            "head": describe_head(model.head),
            "fit": describe_fit(model, fit_summary),
            "logits": known_logits(model, None if sample is None else logit),
            "xla": xla,
            "verification": {
                "in": verify,
                "num_rows": len(next(iter(rows.values()))),
                "rows": "random" if sample is None else "sample",
                "largest_differences": differences,
            },
        }
        write_provenance(extra, provenance)
        return move_into_place(savedmodel, path, version)


def _check_names(model: CalibratedModel) -> None:
    if "logit" in head_inputs(model):
        raise ValueError(
            "The signature `calibrate` takes the base model's logit as `logit`. Received: a head "
            "that reads a feature of this name. Rename that input of the base model."
        )


def _expected_rows(
    model: CalibratedModel, rows: Mapping[str, Any], logit: Any, probability: Any
) -> dict[str, tuple[_Columns, _Columns]]:
    """Signature → inputs and what the Keras model gives for them, by their names in it."""
    raw = {"uncalibrated_probability": ops.sigmoid(logit), "logit": logit}
    inputs = {signature_input(name): values for name, values in rows.items()}
    of_head = {signature_input(name): rows[name] for name in head_inputs(model)}
    return {
        # Its probability is held against that of `calibrate`.
        SERVING: (inputs, raw),
        RAW: (inputs, raw),
        CALIBRATE: ({"logit": logit, **of_head}, {"probability": probability}),
    }
