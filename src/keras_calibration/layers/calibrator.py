"""The check of η of a head, which must be a calibrator: a head that reads no features."""

from __future__ import annotations

from typing import Any

from calibration_records._check import refused
from keras_calibration.layers.head import Head


def check_calibrator(calibrator: Any) -> None:
    """Raises unless η of a head is a head that reads no features, or None.

    Example:
        >>> check_calibrator("ilps")
        Traceback (most recent call last):
        ...
        ValueError: Argument `calibrator` must be a head that reads no features or times, such as
        ILPS(), or None. Received: calibrator='ilps'. Subclass Head for your own.
    """
    is_head = isinstance(calibrator, Head) and not calibrator.follows_time
    if calibrator is not None and not (is_head and calibrator.feature_names == ()):
        expected = "a head that reads no features or times, such as ILPS(), or None"
        raise refused("calibrator", expected, calibrator, "Subclass Head for your own.")
