"""What a layer has learnt, put back where a fit is refused half-way."""

import contextlib
from collections.abc import Iterator
from typing import Any

from keras_calibration.layers.network_training import weights_of
from keras_calibration.layers.streaming_calibrator import StreamingCalibrator


@contextlib.contextmanager
def unchanged_if_refused(layer: Any) -> Iterator[None]:
    """Gives a built layer its weights and summaries back if the block raises.

    The summaries are the histograms that `update` adds new rows to.

    Args:
        layer: A head or calibrator.
    """
    weights = weights_of(layer)
    histograms = [(part, part._histogram) for part in _streaming_calibrators(layer)]
    try:
        yield
    except BaseException:
        layer.set_weights(weights)
        for part, histogram in histograms:
            part._histogram = histogram
        raise


def _streaming_calibrators(layer: Any) -> list[StreamingCalibrator]:
    if isinstance(layer, StreamingCalibrator):
        return [layer]
    parts = [getattr(layer, "calibrator", None), *getattr(layer, "heads", ())]
    return [each for part in parts if part is not None for each in _streaming_calibrators(part)]
