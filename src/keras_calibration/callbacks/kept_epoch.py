"""The epoch whose weights a `fit` keeps: the last, or another callback's best one."""

from collections.abc import Mapping, Sequence

import keras

from calibration_records.runs.run_record import LAST


def kept_epoch(
    callbacks: Sequence[keras.callbacks.Callback], logs: Mapping[int, Mapping[str, float]]
) -> int | str:
    """The epoch whose weights were restored, or saved as the best; `"last"` for the last.

    Restored weights take precedence: they are the weights of the model after `fit`.

    Example:
        >>> stopping = keras.callbacks.EarlyStopping(restore_best_weights=True)
        >>> stopping.best_epoch, stopping.best_weights = 3, [0.5]
        >>> kept_epoch([stopping], {3: {"val_loss": 0.5}})
        3
    """
    for callback in callbacks:
        # Keras restores them at the end of training, even if it was not stopped early.
        if isinstance(callback, keras.callbacks.EarlyStopping) and callback.best_weights:
            return callback.best_epoch if callback.best_epoch in logs else LAST
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.ModelCheckpoint) and callback.save_best_only:
            # It stores only the best value, which may be from an earlier fit.
            for epoch, values in logs.items():
                if callback.best is not None and values.get(callback.monitor) == callback.best:
                    return epoch
    return LAST
