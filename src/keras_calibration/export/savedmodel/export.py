"""export_savedmodel: writes a calibrated model as a SavedModel and verifies it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from keras_calibration._typing import Inputs
from keras_calibration.export.head_file import HEAD_FILE, SavedHead
from keras_calibration.export.provenance import describe_model
from keras_calibration.export.publish import CALIBRATE, RAW, SERVING, publish
from keras_calibration.export.savedmodel.files import EXTRA, write_warmup
from keras_calibration.export.savedmodel.format import SavedModelFormat
from keras_calibration.export.savedmodel.signatures import (
    COMPILED_SIZES,
    UNPADDED,
    write_signatures,
)
from keras_calibration.export.spec import Spec
from keras_calibration.export.target import Target
from keras_calibration.export.verification import check_verification

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
    spec = Spec.of(model, sample, interval, calibrated_output)
    check_verification(verify, tolerance)
    target = Target(path, version)
    target.check()
    _check_jit_compile(jit_compile)
    requests = [spec.request(signature) for signature in (CALIBRATE, SERVING, RAW)]
    spec.warn_if_unfitted()
    name = path.parent.name if version is None else path.name
    rows_are = "sample" if spec.has_sample else "random"
    form = _SavedModel(spec, rows_are, name, jit_compile, verify)
    return publish(target, form, requests, spec.tolerance(tolerance))


@dataclass
class _SavedModel(SavedModelFormat):
    """A model as a SavedModel.

    Args:
        spec: The model.
        rows_are: "sample" or "random".
        name: Its name on a server, for the warm-up requests.
        jit_compile: See `export_savedmodel`.
        verify: See `export_savedmodel`.
    """

    spec: Spec
    rows_are: str
    name: str
    jit_compile: bool | str
    verify: str

    def write(self, path: Path) -> None:
        """Writes the signatures, the head and the warm-up requests."""
        spec = self.spec
        self.xla = write_signatures(spec, path, self.jit_compile)
        extra = path / EXTRA
        extra.mkdir()
        (extra / HEAD_FILE).write_bytes(SavedHead.of(spec).content())
        # All sizes for the main signature, one row for the others.
        sizes = COMPILED_SIZES if self.jit_compile else _WARMUP_SIZES
        requests = [(spec.request(SERVING), size) for size in sizes]
        requests += [(spec.request(signature), 1) for signature in (RAW, CALIBRATE)]
        write_warmup(extra, self.name, requests)

    def provenance(self) -> dict[str, Any]:
        """What is told of the model."""
        return {**describe_model(self.spec), "xla": self.xla, "interval": self.spec.interval}


def _check_jit_compile(jit_compile: bool | str) -> None:
    if not (isinstance(jit_compile, bool) or jit_compile == UNPADDED):
        raise ValueError(
            f'Argument `jit_compile` must be a bool or "{UNPADDED}". '
            f"Received: jit_compile={jit_compile!r}."
        )
