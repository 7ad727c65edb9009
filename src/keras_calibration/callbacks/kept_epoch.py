"""The epoch whose weights a model has after `fit`: the last, or one that a callback restored."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TypeAlias

import keras
import numpy as np

from calibration_records.runs.run_record import LAST

Checksum: TypeAlias = tuple[int, ...]


def checksum_of(model: keras.Model) -> Checksum:
    """A checksum of each weight of a model."""
    # CRC-32 reads 5 GB/s, ten times as much as a hash that has to withstand attacks.
    return tuple(
        zlib.crc32(np.ascontiguousarray(a).reshape(-1).view("uint8").data)
        for a in map(np.asarray, model.weights)
    )


def kept_epoch(checksums: Mapping[int, Checksum], final: Checksum) -> int | str | None:
    """The epoch that ended with the final weights; `"last"` for the last, None if there is none.

    Example:
        >>> checksums = {0: (11,), 1: (22,), 2: (33,)}
        >>> kept_epoch(checksums, (22,)), kept_epoch(checksums, (33,)), kept_epoch(checksums, (4,))
        (1, 'last', None)
    """
    same = [epoch for epoch, checksum in checksums.items() if checksum == final]
    if not same:
        return None
    # If the weights stay the same from some epoch to the end, for example as NaN, the kept epoch is
    # the last. Otherwise, the first of several equal epochs trained them, and a callback restored
    # them later.
    return LAST if same == [epoch for epoch in checksums if epoch >= same[0]] else same[0]
