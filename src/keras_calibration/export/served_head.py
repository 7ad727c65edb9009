"""The head as it is served: the same function, with what no request changes worked out once."""

from typing import Any

from keras_calibration.export.served_curve import ServedCurve
from keras_calibration.export.served_network import ServedNetwork
from keras_calibration.layers.blended_head import BlendedHead
from keras_calibration.layers.field_bias import FieldBias
from keras_calibration.layers.field_ilps import FieldILPS
from keras_calibration.layers.field_network import FieldNetwork
from keras_calibration.layers.ilps import ILPS
from keras_calibration.layers.neural_calibration import NeuralCalibration


def served_head(head: Any) -> Any:
    """A head that gives what `head` gives, in fewer operations; it cannot be trained.

    At a batch of one row, operations cost and not arithmetic. Curves become tables of lines and
    the first layers of field networks tables of rows (`ServedCurve`, `ServedNetwork`); a layer for
    which there is nothing to gain stays the layer that it is. The number and shapes of the weights
    depend on the head's arguments alone, so that a head that was fitted again fits in.

    Args:
        head: A fitted head, called as `head(logits, features)`.

    Returns:
        A layer that is called likewise.

    Example:
        >>> import numpy as np
        >>> head = served_head(NeuralCalibration(ILPS()))
        >>> head(np.array([[0.5]], "float32"), {}).numpy().tolist()
        [[0.5]]
    """
    if type(head) is BlendedHead:
        return BlendedHead([served_head(part) for part in head.heads], dtype=head.dtype_policy)
    if type(head) is NeuralCalibration:
        return _served_neural(head)
    if type(head) in (FieldBias, FieldILPS) and type(head.calibrator) is ILPS:
        return _with_served_curve(head)
    return head


def weights_of_tables(head: Any) -> list[Any]:
    """The weights of the curves and networks that `served_head` has made.

    Args:
        head: What `served_head` has returned.

    Returns:
        Keras variables.

    Example:
        >>> [weight.name for weight in weights_of_tables(served_head(NeuralCalibration(ILPS())))]
        ['lines']
    """
    parts = getattr(head, "heads", [head])
    layers = [
        getattr(part, name, None) for part in parts for name in ("calibrator", "field_network")
    ]
    tables = [layer for layer in layers if isinstance(layer, ServedCurve | ServedNetwork)]
    return [weight for layer in tables for weight in layer.weights]


def _served_neural(head: NeuralCalibration) -> Any:
    # A subclass may compute anything, here and elsewhere.
    curve: Any = head.calibrator
    network: Any = head.field_network
    is_curve = type(curve) is ILPS
    shift = 0.0
    if head.members and all(type(member) is FieldNetwork for member in head.members):
        network = ServedNetwork(head.members, with_bias=not is_curve)
        shift = network.left_out
    elif len(head.members) > 1:
        return head
    curve = ServedCurve(curve, shift) if is_curve else curve
    return NeuralCalibration(curve, network, dtype=head.dtype_policy)


def _with_served_curve(head: Any) -> Any:
    served = type(head).from_config({**head.get_config(), "calibrator": None})
    served.calibrator = ServedCurve(head.calibrator)
    served.build()
    weights: dict[str, Any] = {}
    head.save_own_variables(weights)
    served.load_own_variables(weights)
    return served
