"""What callbacks and the progress bar are told of a fit."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras


class _FiniteProgress(keras.callbacks.ProgbarLogger):
    """Keras' progress bar, which shows a metric once the batches so far define it."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Shows the finite values."""
        finite = {name: v for name, v in (logs or {}).items() if math.isfinite(float(v))}
        super().on_train_batch_end(batch, finite)


def with_finite_progress(callbacks: Any, verbose: Any) -> Any:
    """Callbacks for `keras.Model.fit`, whose progress bar shows no NaN within an epoch.

    Args:
        callbacks: What `fit` was given.
        verbose: What `fit` was given; 0 shows no progress bar.

    Returns:
        A list of callbacks, or the `CallbackList` that was given.

    Example:
        >>> with_finite_progress(None, verbose=0)
        []
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    given = keras.tree.flatten(callbacks) if callbacks else []
    has_bar = any(isinstance(each, keras.callbacks.ProgbarLogger) for each in given)
    # Last, as Keras' own: it shows what the others put into the logs.
    return given if has_bar or not verbose else [*given, _FiniteProgress()]


@contextlib.contextmanager
def reported_as_epoch(
    model: keras.Model, callbacks: Any, verbose: Any
) -> Iterator[Callable[[dict[str, float]], None]]:
    """Tells callbacks of a fit without training, as of one epoch.

    Args:
        model: The model; its `history` is set.
        callbacks: What `fit` was given.
        verbose: What `fit` was given.

    Yields:
        A function that takes the logs of the epoch, to be called when it is over.
    """
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = keras.callbacks.CallbackList(
            callbacks, add_history=True, model=model, verbose=verbose, epochs=1, steps=1
        )
    logs: dict[str, float] = {}
    model.stop_training = False
    callbacks.on_train_begin()
    callbacks.on_epoch_begin(0)
    yield logs.update
    callbacks.on_epoch_end(0, logs)
    callbacks.on_train_end(logs)
