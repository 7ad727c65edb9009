"""Shows a run as a trial on TensorBoard's HParams page."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from keras_calibration._typing import RunRecord

if TYPE_CHECKING:
    import keras


def import_hparams() -> ModuleType:
    """TensorBoard's HParams module."""
    try:
        from tensorboard.plugins.hparams import api
    except ImportError as error:
        raise ImportError(
            "Argument `tensorboard_folder` requires TensorBoard. Install it with `pip install "
            "tensorboard`."
        ) from error
    return api


def tensorboard_trial(
    folder: str | os.PathLike[str], record: RunRecord
) -> keras.callbacks.Callback:
    """TensorBoard's callback that adds a run to its HParams page."""
    configuration = record["configuration"]
    named = configuration if isinstance(configuration, Mapping) else {}
    # The page supports no other types. The seed is left out: the runs of a trial share the values.
    values = {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in named.items()
    }
    values["pipeline"] = record["pipeline"]
    return import_hparams().KerasCallback(os.fspath(folder), values, trial_id=values["pipeline"])
