"""OnnxBase: the model from elsewhere whose scores a calibrated ONNX file computes itself."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keras_calibration._typing import Features, Inputs
from keras_calibration.export.onnx_graph import BASE, on_base, onnx_packages
from keras_calibration.export.portable_file import Rows, check_close, named_errors
from keras_calibration.export.serving_spec import (
    NUM_SAMPLE_ROWS,
    ServingSpec,
    by_signature,
    sample_rows,
    warn_if_unfitted,
)
from keras_calibration.export.verification import tolerance_for
from keras_calibration.export.version_folder import (
    check_file,
    move_file_into_place,
    temporary_folder,
)

if TYPE_CHECKING:
    import onnx

# The input of a model of `calibrate_scores`.
_SCORE = "score"
_KINDS = {1: np.float32, 6: np.int32, 7: np.int64, 8: np.object_, 9: np.bool_, 11: np.float64}


@dataclass(frozen=True, eq=False)
class OnnxBase:
    """An ONNX model, and which of its outputs is the score.

    Args:
        model: The model.
        output: Its output.
        column: Which of the output's columns; None for all.
        shape: Shape of the scores of a row, as the calibrated model takes them.
        sha256: Hash of the file.
    """

    model: onnx.ModelProto
    output: str
    column: int | None
    shape: tuple[int, ...]
    sha256: str

    @classmethod
    def read(cls, path: str | os.PathLike[str], output: str | None, spec: ServingSpec) -> OnnxBase:
        """Reads the file.

        Raises:
            ValueError: If it is no ONNX file, has no such output, or the model takes no score.
        """
        onnx_packages()
        import onnx

        if _SCORE not in spec.inputs:
            raise ValueError(
                "Argument `base` is for a model of `calibrate_scores`, which takes its scores. "
                f"Received: a model with the inputs {[*spec.inputs]}. Leave `base` out."
            )
        content = Path(path).read_bytes()
        try:
            model = onnx.load_from_string(content)
            onnx.checker.check_model(model)
        except Exception as error:
            raise ValueError(
                f"Argument `base` must name an ONNX file. Received: {os.fspath(path)!r} "
                f"({str(error).splitlines()[0][:200]})."
            ) from error
        sizes = _numeric_outputs(model)
        if output is None and len(sizes) == 1:
            (output,) = sizes
        if output not in sizes:
            raise ValueError(
                "Argument `base_output` must name an output of numbers of the base. Received: "
                f"base_output={output!r}, and the outputs {sizes}. Convert a classifier with "
                "zipmap=False."
            )
        score = spec.inputs[_SCORE]
        shape = tuple(int(size) for size in score.shape[1:])
        num_scores = int(np.prod(shape))
        size = sizes[output]
        if size not in (num_scores, None) and not (num_scores == 1 and size == 2):
            raise ValueError(
                f"Argument `base_output` must have {num_scores} columns, or 2 for labels 0 and 1. "
                f"Received: base_output={output!r} with {size}."
            )
        column = 1 if num_scores == 1 and size == 2 else None
        return cls(model, output, column, shape, hashlib.sha256(content).hexdigest())

    def under(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The calibrated model on top of this one."""
        from onnx import helper, numpy_helper

        all_columns, one, shaped = (f"{BASE}{self.output}{step}" for step in ("", "/one", "/as"))
        column, shape = f"{BASE}column", f"{BASE}shape"
        constants = [numpy_helper.from_array(np.array([-1, *self.shape]), shape)]
        nodes = [
            helper.make_node("Reshape", [all_columns, shape], [shaped]),
            helper.make_node("Cast", [shaped], [_SCORE], to=1),
        ]
        if self.column is not None:
            constants.append(numpy_helper.from_array(np.array([self.column]), column))
            nodes[0].input[0] = one
            nodes.insert(0, helper.make_node("Gather", [all_columns, column], [one], axis=1))
        between = helper.make_graph(nodes, "between", [], [], initializer=constants)
        return on_base(self.model, model, between, _SCORE)

    def write(
        self,
        spec: ServingSpec,
        path: Path,
        sample: Inputs | None,
        convert: Callable[[Features], bytes],
        run: Callable[[Path, Rows], Rows],
    ) -> Path:
        """Converts, compares with the Keras model on the scores of this one, and moves the file."""
        check_file(path)
        rows = self._rows(spec, sample)
        with tempfile.TemporaryDirectory() as folder, named_errors("onnxruntime"):
            alone = Path(folder, "base.onnx")
            alone.write_bytes(self.model.SerializeToString())
            scores = run(alone, rows)[self.output]
        scores = scores[:, [self.column]] if self.column is not None else scores
        columns = {name: rows[each.name] for name, each in spec.inputs.items() if name != _SCORE}
        columns[_SCORE] = scores.reshape(-1, *self.shape).astype(np.float32)
        given = sample_rows(spec, columns)
        outputs = spec.outputs(spec.found.structured(given), training=False)
        warn_if_unfitted(spec, outputs["probability"], outputs["logit"])
        with named_errors("onnxruntime"):
            content = convert(given)
        with temporary_folder(path.parent) as temporary:
            file = temporary / path.name
            file.write_bytes(content)
            with named_errors("onnxruntime"):
                received = run(file, rows)
            tolerance = tolerance_for(received["logit"], spec.base_dtypes)
            for name in ("probability", "logit"):
                check_close(
                    received[name],
                    np.asarray(outputs[name]),
                    tolerance.allowed(name),
                    name,
                    "onnxruntime",
                )
            return move_file_into_place(file, path)

    def _rows(self, spec: ServingSpec, sample: Inputs | None) -> Rows:
        """Rows of the base's inputs and of the features of the head, by name."""
        features = {
            each.name: values
            for (name, each), values in zip(
                spec.inputs.items(), sample_rows(spec, None).values(), strict=True
            )
            if name != _SCORE
        }
        rows = {name: np.asarray(values) for name, values in features.items()}
        generator = np.random.default_rng(0)
        for value in self.model.graph.input:
            tensor = value.type.tensor_type
            dims = [each.dim_value or 1 for each in tensor.shape.dim[1:]]
            numbers = generator.normal(size=(NUM_SAMPLE_ROWS, *dims))
            if value.name not in rows:
                rows[value.name] = numbers.astype(_KINDS.get(tensor.elem_type, np.float32))
        if sample is None:
            return rows
        given = by_signature(sample) if isinstance(sample, Mapping) else {}
        if not rows.keys() <= given.keys():
            received = sorted(sample) if isinstance(sample, Mapping) else type(sample).__name__
            raise ValueError(
                "Argument `sample` must map the inputs of the base and the features of the head "
                f"to rows: {sorted(rows)}. Received: {received}."
            )
        return {
            name: np.asarray(given[name])[:NUM_SAMPLE_ROWS].astype(
                np.object_ if values.dtype.kind in "OSU" else values.dtype
            )
            for name, values in rows.items()
        }


def _numeric_outputs(model: onnx.ModelProto) -> dict[str, int | None]:
    """Outputs that are tensors of numbers → their number of columns; None if it is not told."""
    sizes: dict[str, int | None] = {}
    for value in model.graph.output:
        tensor = value.type.tensor_type
        if value.type.HasField("tensor_type") and tensor.elem_type in (1, 11):
            dims = [each.dim_value or None for each in tensor.shape.dim]
            sizes[value.name] = dims[1] if len(dims) > 1 else 1
    return sizes
