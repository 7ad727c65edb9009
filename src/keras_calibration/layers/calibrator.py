"""Calibrator: the base class of the heads that read the logits alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from keras_calibration._typing import Features, Shape, Tensor
from keras_calibration.layers.head import Head


class Calibrator(Head):
    """Base of the heads that read no features and return the shape of their logits.

    A subclass implements `calibrate` and creates its weights in `build`; their shapes must not
    depend on the input.
    """

    def call(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Calibrated logits, with the shape of `logits`."""
        return self.calibrate(ops.cast(logits, self.compute_dtype))

    def calibrate(self, logits: Tensor) -> Tensor:
        """Calibrated logits, for logits of any shape in the layer's dtype."""
        raise NotImplementedError(f"{type(self).__name__} does not define `calibrate`.")

    def ensure_built(self) -> None:
        """Creates the weights if no call has done so yet."""
        if not self.built:
            self.build((None, 1))

    def compute_output_shape(
        self, logits_shape: Shape, features_shape: Mapping[str, Shape] | None = None
    ) -> Shape:
        """The shape of the logits; raises for logits that the head does not serve."""
        self.check_logits(logits_shape)
        return tuple(logits_shape)


def check_calibrator(calibrator: Any) -> None:
    """Raises unless η of a head is a head that reads no features, or None.

    Example:
        >>> check_calibrator("ilps")
        Traceback (most recent call last):
        ...
        ValueError: Argument `calibrator` must be a head that reads no features, for example ILPS(),
        or None. Received: calibrator='ilps'. To use a layer of your own, subclass Head.
    """
    is_head = calibrator is None or isinstance(calibrator, Head)
    if not is_head or (calibrator is not None and calibrator.feature_names != ()):
        raise ValueError(
            "Argument `calibrator` must be a head that reads no features, for example ILPS(), or "
            f"None. Received: calibrator={calibrator!r}. To use a layer of your own, subclass Head."
        )
