"""OnnxBase: the model from elsewhere whose scores a calibrated ONNX file computes itself."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibration_records._columns import by_name
from calibration_records._warn import warn
from keras_calibration._rows.columns import as_array
from keras_calibration._typing import Inputs
from keras_calibration.export.onnx.graph import BASE, on_base, onnx_packages
from keras_calibration.export.publish import named_errors
from keras_calibration.export.sample import NUM_SAMPLE_ROWS
from keras_calibration.export.spec import OWN_OUTPUTS, Spec, by_signature
from keras_calibration.export.verification import Outputs

if TYPE_CHECKING:
    import onnx
    import tensorflow as tf

# The input of a model of `calibrate_scores`.
_SCORE = "score"
# How the name of a feature as the head reads it ends, where the base's input is of another form.
_FEATURE = "_feature"


@dataclass(frozen=True, eq=False)
class OnnxBase:
    """An ONNX model, and which of its outputs is the score.

    Args:
        model: The model.
        output: Its output.
        column: Which of the output's columns; None for all.
        features: Name → input of the calibrated model, the score among them.
        sha256: Hash of the file.
    """

    model: onnx.ModelProto
    output: str
    column: int | None
    features: dict[str, tf.TensorSpec]
    sha256: str

    @classmethod
    def read(cls, path: str | os.PathLike[str], output: str | None, spec: Spec) -> OnnxBase:
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
        try:
            content = Path(path).read_bytes()
            model = onnx.load(path)  # with weights in other files
            onnx.checker.check_model(model)
        except Exception as error:
            raise ValueError(
                f"Argument `base` must name an ONNX file. Received: {os.fspath(path)!r} "
                f"({type(error).__name__}: {str(error)[:200]})."
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
        features = {each.name: each for each in spec.inputs.values()}
        found = cls(model, output, column, features, hashlib.sha256(content).hexdigest())
        if taken := sorted({*OWN_OUTPUTS, *found.renamed.values()} & found._inputs.keys()):
            raise ValueError(
                "The inputs of `base` must not have the names of the outputs of the calibrated "
                f"model. Received: {taken}. Rename these inputs of the base."
            )
        for name in found._inputs:
            found._check_input(name)
        return found

    @property
    def renamed(self) -> dict[str, str]:
        """Features that are computed from the base → the names under which they are."""
        names = {_SCORE: _SCORE + _FEATURE}
        for name, (dtype, shape) in self._inputs.items():
            if name in self.features and name != _SCORE:
                feature = self.features[name]
                if (dtype, shape) != (feature.dtype.as_numpy_dtype, tuple(feature.shape[1:])):
                    names[name] = name + _FEATURE
        return names

    def under(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The calibrated model on top of this one."""
        import onnx
        from onnx import helper, numpy_helper

        nodes, constants = [], []
        score = BASE + self.output
        if self.column is not None:
            all_columns, column, score = score, f"{BASE}column", f"{score}/one"
            constants.append(numpy_helper.from_array(np.array([self.column]), column))
            nodes.append(helper.make_node("Gather", [all_columns, column], [score], axis=1))
        above = onnx.ModelProto()
        above.CopyFrom(model)
        for name, new in self.renamed.items():
            spec = self.features[name]
            source = score if name == _SCORE else name
            row, shaped = f"{BASE}{new}/row", f"{BASE}{new}/as"
            number = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype.as_numpy_dtype))
            constants.append(numpy_helper.from_array(np.array([-1, *spec.shape[1:]]), row))
            nodes.append(helper.make_node("Reshape", [source, row], [shaped]))
            nodes.append(helper.make_node("Cast", [shaped], [new], to=number))
            for node in above.graph.node:
                node.input[:] = [new if each == name else each for each in node.input]
            for value in above.graph.input:
                value.name = new if value.name == name else value.name
        between = helper.make_graph(nodes, "between", [], [], initializer=constants)
        return on_base(self.model, above, between, self.renamed.values())

    def rows(self, spec: Spec, run: Callable[[bytes, Outputs], Outputs]) -> tuple[Outputs, Outputs]:
        """Rows of the inputs of the whole file, and the rows of the calibrated model that they are.

        Args:
            spec: The calibrated model, with a sample of the inputs of the whole, if there is one.
            run: Runs the content of an ONNX file, for the scores.
        """
        rows = self._rows(spec, spec.sample)
        with named_errors("onnxruntime"):
            scores = run(self.model.SerializeToString(), rows)[self.output]
        _check_scores(scores, spec, self.column)
        scores = scores if self.column is None else scores[:, self.column]
        columns = {
            name: (scores if name == _SCORE else rows[each.name]).reshape(-1, *each.shape[1:])
            for name, each in spec.inputs.items()
        }
        return rows, columns

    def _rows(self, spec: Spec, sample: Inputs | None) -> Outputs:
        """Rows of the base's inputs and of the features of the head, by name."""
        rows = {
            each.name: np.asarray(values)
            for each, values in zip(
                spec.inputs.values(), replace(spec, sample=None).rows.values(), strict=True
            )
            if each.name != _SCORE
        }
        generator = np.random.default_rng(0)
        for name, (kind, shape) in self._inputs.items():
            numbers = generator.normal(size=(NUM_SAMPLE_ROWS, *shape))
            rows[name] = rows.get(name, numbers).reshape(numbers.shape).astype(kind)
        if sample is None:
            return rows
        given = by_name(sample)
        given = by_signature(given) if isinstance(given, Mapping) else {}
        if not rows.keys() <= given.keys():
            received = sorted(given) or type(sample).__name__
            raise ValueError(
                "Argument `sample` must map the inputs of the base and the features of the head "
                f"to rows: {sorted(rows)}. Received: {received}."
            )
        found = {}
        for name, values in rows.items():
            column = as_array(given[name])[:NUM_SAMPLE_ROWS]
            kind = np.dtype(object) if values.dtype.kind in "OSU" else values.dtype
            found[name] = column.reshape(len(column), *values.shape[1:]).astype(kind)
        return found

    @property
    def _inputs(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Input of the base → its dtype in NumPy, and the shape of a row."""
        from onnx import helper

        constants = {each.name for each in self.model.graph.initializer}
        return {
            value.name: (
                # What is no tensor of a known type is left to onnxruntime, as float32.
                helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type or 1),
                tuple(each.dim_value or 1 for each in value.type.tensor_type.shape.dim[1:]),
            )
            for value in self.model.graph.input
            if value.name not in constants
        }

    def _check_input(self, name: str) -> None:
        """Raises if an input takes one number of rows only, or is not what the feature is."""
        value = next(each for each in self.model.graph.input if each.name == name)
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_value:
            raise ValueError(
                f"The inputs of `base` must take any number of rows. Received: {name!r} for "
                f"{dims[0].dim_value}. Export the base with a dynamic first dimension."
            )
        feature = self.features.get(name)
        if feature is None or name == _SCORE:
            return
        (dtype, shape), wanted = self._inputs[name], np.dtype(feature.dtype.as_numpy_dtype)
        # An id that comes as a float32 has lost digits; a number that comes as an integer has not.
        fits = (dtype.kind == "O") == (wanted.kind == "O") and dtype.kind + wanted.kind != "fi"
        if not fits or np.prod(shape, dtype=int) != np.prod(feature.shape[1:], dtype=int):
            raise ValueError(
                "An input of `base` with the name of a feature of the head must be that feature. "
                f"Received: {name!r}, in the base {dtype.name} of shape (batch, "
                f"{', '.join(map(str, shape))}), in the head {feature.dtype.name} of shape "
                f"{tuple(feature.shape)}. Give one of them another name, or convert the base with "
                "the feature's type."
            )


def _check_scores(scores: np.ndarray, spec: Spec, column: int | None) -> None:
    """Raises for logits in the place of probabilities; warns of the contrary."""
    base = spec.found.base_layer
    kind = None if base is None else base.base_output
    scores = scores[np.isfinite(scores.reshape(len(scores), -1)).all(axis=1)]
    if not len(scores):
        return
    is_within = bool(np.all((scores >= 0) & (scores <= 1)))
    if kind == "probability" and not is_within:
        raise ValueError(
            "The scores of `base` must be probabilities, as those of `calibrate_scores` were. "
            f"Received: scores from {np.min(scores):.3g} to {np.max(scores):.3g}. Convert the base "
            "with probabilities, or calibrate its logits with from_logits=True."
        )
    if kind == "logit" and is_within:
        warn(
            "The scores of `base` are all in [0, 1], while those of `calibrate_scores` were logits "
            "(from_logits=True). If they are probabilities, the calibrated ones are wrong: convert "
            "the base with its raw scores."
        )
    total = scores.sum(axis=1) if column is not None else np.zeros(1)
    wanted = 1.0 if is_within else 0.0  # scikit-learn's raw scores are -z and z
    if column is not None and not np.allclose(total, wanted, atol=1e-3):
        raise ValueError(
            "Two columns of scores must be the probabilities of labels 0 and 1, or -z and z for "
            f"a logit z. Received: rows with a sum of {total.min():.3g} to {total.max():.3g}. "
            "Convert the base with one output: of two logits, their difference."
        )


def _numeric_outputs(model: onnx.ModelProto) -> dict[str, int | None]:
    """Outputs that are tensors of numbers → their number of columns; None if it is not told."""
    sizes: dict[str, int | None] = {}
    for value in model.graph.output:
        tensor = value.type.tensor_type
        if value.type.HasField("tensor_type") and tensor.elem_type in (1, 10, 11):
            dims = [each.dim_value or None for each in tensor.shape.dim]
            sizes[value.name] = dims[1] if len(dims) > 1 else 1
    return sizes
