"""Shows a run in TensorBoard: a trial on the HParams page, and statistics over the seeds."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from types import ModuleType

from keras_calibration._typing import RunRecord


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


class TensorBoardTrial:
    """A run in TensorBoard: an entry on the HParams page, and statistics over the seeds.

    Args:
        folder: The `log_dir` of the run.
        record: The record of the run; its pipeline is the name of the trial.
    """

    def __init__(self, folder: str | os.PathLike[str], record: RunRecord) -> None:
        import tensorflow as tf

        configuration = record["configuration"]
        named = configuration if isinstance(configuration, Mapping) else {}
        # The page supports no other types. The seed is left out: the runs of a trial share values.
        values = {
            name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for name, value in named.items()
        }
        values["pipeline"] = record["pipeline"]
        self._entry = import_hparams().KerasCallback(
            os.fspath(folder), values, trial_id=values["pipeline"]
        )
        self._entry.on_train_begin()
        self._writer = tf.summary.create_file_writer(os.path.join(folder, "seeds"))

    def write(self, epoch: int, statistics: Mapping[str, Mapping[str, float]]) -> None:
        """Writes the statistics of each metric at an epoch, except those that are undefined."""
        import tensorflow as tf

        with self._writer.as_default(step=epoch):
            for metric, values in statistics.items():
                for statistic, value in values.items():
                    if not math.isnan(value):
                        tf.summary.scalar(f"{metric}/{statistic}", value)

    def end(self) -> None:
        """Marks the run as successful and closes the files."""
        self._entry.on_train_end()
        self._writer.close()
