"""A run as a trial on TensorBoard's HParams page."""

import json
import os
from collections.abc import Mapping
from typing import Any


def import_hparams() -> Any:
    """TensorBoard's own code for that page."""
    try:
        from tensorboard.plugins.hparams import api
    except ImportError as error:
        raise ImportError(
            "Received tensorboard_folder, and TensorBoard is not installed, whose own code writes "
            "for its HParams page; install it by `pip install tensorboard`, or leave "
            "tensorboard_folder out."
        ) from error
    return api


def tensorboard_trial(folder: str | os.PathLike[str], record: Mapping[str, Any]) -> Any:
    """TensorBoard's callback for one run on its HParams page."""
    configuration = record["configuration"]
    named = configuration if isinstance(configuration, Mapping) else {}
    # The page takes no other values. The seed is left out: the runs of a trial share them.
    values = {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in named.items()
    }
    values["pipeline"] = record["pipeline"]
    return import_hparams().KerasCallback(os.fspath(folder), values, trial_id=values["pipeline"])
