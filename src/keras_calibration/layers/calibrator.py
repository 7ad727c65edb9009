"""What η of a head may be: a calibrator, a head that reads no features."""

from __future__ import annotations

from typing import Any

from keras_calibration.layers.head import Head


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
    if isinstance(calibrator, Head) and calibrator.follows_time:
        raise ValueError(
            "Argument `calibrator` must not follow time: that is for the head around it. Received: "
            f"calibrator={calibrator!r}. Use FieldBias(fields, ILPS(), follows_time=True)."
        )
    if not is_head or (calibrator is not None and calibrator.feature_names != ()):
        raise ValueError(
            "Argument `calibrator` must be a head that reads no features, for example ILPS(), or "
            f"None. Received: calibrator={calibrator!r}. To use a layer of your own, subclass Head."
        )
