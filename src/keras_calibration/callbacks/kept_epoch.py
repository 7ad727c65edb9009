"""Which epoch's weights a `fit` leaves behind: the last, or one that another callback kept."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras


def fit_callbacks() -> list[Any]:
    """The callbacks of the `fit` that calls, in its order; none outside of a `fit`.

    Keras gives a callback the model and no list of its neighbours, so the list is taken from the
    `keras.callbacks.CallbackList` that makes the call.
    """
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList):
            return list(caller.callbacks)
        frame = frame.f_back
    return []


def kept_epoch(callbacks: Sequence[Any], logs: Mapping[int, Mapping[str, Any]]) -> int | None:
    """The epoch of `logs` whose weights were restored, or saved as the best; `None` for the last.

    Restored weights are those of the model that `fit` leaves behind, so they come first.

    Args:
        callbacks: of the fit, when training ends.
        logs: epoch → its logs.

    Example:
        >>> stopping = keras.callbacks.EarlyStopping(restore_best_weights=True)
        >>> stopping.best_epoch, stopping.best_weights = 3, [0.5]
        >>> kept_epoch([stopping], {3: {"val_loss": 0.5}})
        3
    """
    for callback in callbacks:
        # Keras restores them at the end of every training, also of one that was not stopped.
        if isinstance(callback, keras.callbacks.EarlyStopping) and callback.best_weights:
            return callback.best_epoch if callback.best_epoch in logs else None
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.ModelCheckpoint) and callback.save_best_only:
            # It remembers the best value only, which may be that of an earlier fit.
            for epoch, values in logs.items():
                if callback.best is not None and values.get(callback.monitor) == callback.best:
                    return epoch
    return None
