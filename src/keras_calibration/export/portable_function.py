"""A calibrated model as one TensorFlow function of operations that other runtimes have too."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_calibration.export.model_rows import input_specs, restructured, signature_input
from keras_calibration.models.calibrated_model import CalibratedModel

OUTPUTS = ("probability", "uncalibrated_probability", "logit")


def portable_function(model: CalibratedModel) -> tuple[Any, dict[str, Any]]:
    """A `tf.function` of a dictionary of features to the three outputs by name, weights inside.

    Neither ONNX nor LiteRT has `UpperBound`, with which a curve finds its segment: the number of
    knots that are not above a logit stands for it.

    Args:
        model: The calibrated model.

    Returns:
        The function, and the specs of the features by the names that a file gives them.
    """
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    both = keras.Model(model.input, [model.base.output, model.output])
    specs = input_specs(model)
    feature_of = {signature_input(name): name for name in specs}
    specs = {spec.name: spec for spec in specs.values()}

    def serve(features: Mapping[str, Any]) -> tuple[Any, ...]:
        by_name = {feature_of[name]: values for name, values in features.items()}
        logit, probability = both(restructured(model, by_name), training=False)
        return probability, ops.sigmoid(logit), logit

    traced = tf.function(serve, autograph=False).get_concrete_function(specs)
    frozen = convert_variables_to_constants_v2(traced)
    graph = _without_upper_bound(frozen.graph.as_graph_def())
    imported = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(graph, name=""), []
    )
    inputs, outputs = ([t.name for t in ends] for ends in (frozen.inputs, frozen.outputs))
    pruned = imported.prune(inputs, outputs)
    # Dictionaries are taken in the order of their keys, by Keras and by TensorFlow alike.
    names = sorted(specs)

    def portable(features: Mapping[str, Any]) -> dict[str, Any]:
        values = pruned(*(features[name] for name in names))
        return dict(zip(OUTPUTS, values, strict=True))

    return tf.function(portable, autograph=False), specs


def _without_upper_bound(graph: Any) -> Any:
    """A graph with `Σ_k [a_k ≤ l]` in place of every `UpperBound(a, l)`."""
    import tensorflow as tf

    rewritten = tf.compat.v1.GraphDef(versions=graph.versions, library=graph.library)
    for node in graph.node:
        if node.op != "UpperBound":
            # Converters would look for the gradient of a curve, which nobody needs here.
            node.attr.pop("_gradient_op_type", None)
            rewritten.node.append(node)
            continue
        knots, values = node.input
        with tf.Graph().as_default() as piece:
            dtype = tf.as_dtype(node.attr["T"].type)
            a = tf.compat.v1.placeholder(dtype, (None, None), name="knots")
            values_of = tf.compat.v1.placeholder(dtype, (None, None), name="values")
            is_below = tf.expand_dims(a, 1) <= tf.expand_dims(values_of, 2)
            out_type = tf.as_dtype(node.attr["out_type"].type)
            tf.reduce_sum(tf.cast(is_below, out_type), axis=2, name="count")
        for part in piece.as_graph_def().node:
            if part.op != "Placeholder":
                rewritten.node.append(_renamed(part, node.name, {"knots": knots, "values": values}))
    return rewritten


def _renamed(part: Any, name: str, ends: Mapping[str, str]) -> Any:
    """A node of the piece under the name of what it stands for; its last one has that name."""
    import tensorflow as tf

    def new_name(of: str) -> str:
        return ends.get(of) or (name if of == "count" else f"{name}/{of}")

    node = tf.compat.v1.NodeDef()
    node.CopyFrom(part)
    node.name = new_name(part.name)
    del node.input[:]
    node.input.extend(map(new_name, part.input))
    return node
