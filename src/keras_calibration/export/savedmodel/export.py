"""export_savedmodel: writes a calibrated model as a SavedModel and verifies it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from calibration_records._check import instance
from keras_calibration._typing import Inputs
from keras_calibration.export.head_file import HEAD_FILE, SavedHead
from keras_calibration.export.provenance import (
    PROVENANCE_FILE,
    describe_model,
    describe_versions,
    files_sha256,
    provenance_text,
)
from keras_calibration.export.publish import CALIBRATE, RAW, SERVING, Format, Request, publish
from keras_calibration.export.savedmodel.files import EXTRA
from keras_calibration.export.savedmodel.signatures import write_signatures
from keras_calibration.export.spec import Spec
from keras_calibration.export.target import Target, as_path
from keras_calibration.export.verification import Outputs, run_savedmodel


def export_savedmodel(
    model: keras.Model,
    path: str | os.PathLike[str],
    sample: Inputs | None = None,
    *,
    version: int | str | None = None,
    jit_compile: bool = False,
    interval: float | None = None,
    calibrated_output: str | int | None = None,
) -> Path:
    """Writes a calibrated model as a TensorFlow SavedModel, for TF Serving or `tf.saved_model`.

    The SavedModel runs without Keras and without this package. It has three signatures, for any
    number of rows. Their outputs are (batch, 1), or (batch, K) for K classes, with softmax in place
    of σ; in the dtype of the head, float32 unless Keras' policy is another:

    - `serving_default` takes the model's inputs, by name (`signature_input`) and in their dtypes.
      It returns `probability`, the calibrated probability σ(η(l) + g(x));
      `uncalibrated_probability`, σ(l); and `logit`, the base model's l.
    - `raw` takes the same inputs and returns `uncalibrated_probability` and `logit`, without the
      head.
    - `calibrate` takes `logit` and the features of the head, and returns `probability`. Use it if
      the base model runs elsewhere.

    `serving_default` and `raw` also return the other outputs of the model, unchanged, by their
    names. If several outputs have a head, all are calibrated in `serving_default`; only that of
    `calibrated_output` has the signature `calibrate` and can be refreshed.

    With `interval=0.95`, `serving_default` and `calibrate` also return `probability_lower` and
    `probability_upper`, the 95 % interval of the calibrated probability (`Head.interval`).

    The folder `assets.extra` holds `provenance.json` (rows of the fit, versions, figures before and
    after, knots and values) and `head.keras` for `refresh_savedmodel`.

    The SavedModel is written to a temporary folder, loaded in a new process with TensorFlow alone,
    and compared with the Keras model on sample rows. Only then is it moved into place, in one step.
    A killed process leaves a complete version or none; a folder `.export-…` may remain, which
    servers ignore. Logits may differ by 4e-6 of the largest absolute logit (at least 1),
    probabilities by a quarter of that; for a base model in half precision, by 1/128 (float16) or
    1/16 (bfloat16).

    **Invalid input at serving.** An id or string outside the vocabulary of a field of the head is
    the field's "other" value. The base model may treat it differently: Keras' `Embedding` rejects
    an id outside its table on a CPU, returns zeros on a GPU, and uses the nearest id under XLA. A
    missing feature or a wrong dtype is an error of the request, which names the input. One value
    per row may come as (n,) or (n, 1), whatever the signature declares. For inputs that the answer
    depends on, any other shape, or different numbers of rows, is an error of the graph, in every
    server. NaN in a numeric column of the head's `FieldNetwork` is a missing value. A NaN logit
    gives a NaN probability, never an error. Rows do not affect each other.

    **XLA.** `jit_compile=True` compiles the base model and the head, each if possible. Parts with
    strings or lookups are not compiled, and the provenance records this. It is off by default,
    because TensorFlow Serving compiles on a CPU only with `--xla_cpu_compilation_enabled=true` and
    otherwise rejects every request to a compiled model. XLA compiles again for every batch size,
    which takes up to a second: use it with a server that sends few different sizes, for example
    TensorFlow Serving with `allowed_batch_sizes`.

    Args:
        model: A Functional or Sequential model with a head, whose output is the head's logit, or
            its sigmoid or softmax; for example a `CalibratedModel`.
        path: The folder to create; it must not exist. For TF Serving, its name must be a version
            number. With `version`, the model's folder, in which the version is created.
        sample: Input rows for the comparison, in the form of the model's inputs; at most 64 are
            used. The default is random rows.
        version: Number of the version to create in `path`; `"next"` for one more than the highest
            there, which is safe with concurrent exports; None if `path` is the version's folder.
        jit_compile: Whether to compile with XLA where possible.
        interval: Level of the intervals to return too, in (0, 1); None returns none.
        calibrated_output: Name (or key) of the output to calibrate, or its index in a list, if
            several have a head.

    Returns:
        The path of the SavedModel.

    Raises:
        ValueError: If the path exists, an argument is out of its range, the model has no head (or
            several, and `calibrated_output` names none), Keras does not run on TensorFlow, another
            output of the model has the name of an output above or depends on the head, or
            `interval` is set and the head has no intervals. Nothing is written.
        RuntimeError: If outputs of the SavedModel differ from the Keras model by more than rounding
            can explain, or it does not load. Nothing is left at `path`.

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
        ...     path = export_savedmodel(model, f"{folder}/ctr", version="next")
        ...     path.name, sorted(entry.name for entry in (path / "assets.extra").iterdir())
        ('1', ['head.keras', 'provenance.json'])
    """
    spec = Spec.from_model(model, sample, interval, calibrated_output)
    instance("jit_compile", jit_compile, bool, "a bool")
    target = Target(as_path(path), version)
    target.check()
    requests = [spec.request(signature) for signature in (CALIBRATE, SERVING, RAW)]
    spec.warn_if_unfitted()
    return publish(target, _SavedModel(spec, jit_compile), requests, spec.tolerance)


class SavedModelFormat(Format):
    """A SavedModel with its provenance in `assets.extra`.

    Attributes:
        provenance: The provenance, without the hash of the files and the comparison.
        rows_are: The kind of the compared rows, for the provenance.
    """

    kind = "SavedModel"
    provenance: Mapping[str, Any]
    rows_are: str

    def run(self, path: Path, requests: Sequence[Request]) -> list[Outputs]:
        """Runs it with TensorFlow alone."""
        return run_savedmodel(path, [(request.signature, request.inputs) for request in requests])

    def sign(self, path: Path, differences: Mapping[str, float]) -> None:
        """Writes the provenance, with the hash of the files and the differences."""
        provenance = {
            **self.provenance,
            **describe_versions(),
            "files_sha256": files_sha256(path),
            "verification": {"rows": self.rows_are, "largest_differences": differences},
        }
        text = provenance_text(provenance)
        (path / EXTRA / PROVENANCE_FILE).write_text(text + "\n", encoding="utf-8")


@dataclass
class _SavedModel(SavedModelFormat):
    """A model as a SavedModel."""

    spec: Spec
    jit_compile: bool

    def write(self, path: Path) -> None:
        """Writes the signatures and the head."""
        xla = write_signatures(self.spec, path, self.jit_compile)
        self.provenance = {**describe_model(self.spec), "xla": xla}
        self.rows_are = "random" if self.spec.sample is None else "sample"
        (path / EXTRA).mkdir()
        SavedHead.from_spec(self.spec).model.save(path / EXTRA / HEAD_FILE)
