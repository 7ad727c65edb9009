"""What callbacks and the progress bar are told of a fit."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras

from keras_calibration.models.head_rows import HeadRows
from keras_calibration.models.head_training import log_loss_of

_BATCH_SIZE = 4096


class _FiniteProgress(keras.callbacks.ProgbarLogger):
    """Keras' progress bar, which shows a metric once the batches so far define it."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Shows the finite values."""
        finite = {name: v for name, v in (logs or {}).items() if math.isfinite(float(v))}
        super().on_train_batch_end(batch, finite)


def with_finite_progress(callbacks: Any, verbose: Any) -> list[Any]:
    """Callbacks for `keras.Model.fit`, whose progress bar shows no NaN within an epoch.

    Example:
        >>> with_finite_progress(None, verbose=0)
        []
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    given = keras.tree.flatten(callbacks) if callbacks else []
    has_bar = any(isinstance(each, keras.callbacks.ProgbarLogger) for each in given)
    # Last, as Keras' own: it shows what the others put into the logs.
    return given if has_bar or not verbose else [*given, _FiniteProgress()]


class EndOfTraining(keras.callbacks.CallbackList):
    """The callbacks of a training that may turn out not to be kept.

    When training ends, `EarlyStopping` restores its weights first, and then `decide` chooses what
    the head is. If that is not the trained head, the other callbacks see what it is as one more
    epoch, before their own `on_train_end`: what they record last is the model that is left.
    """

    callbacks: list[Any]

    def __init__(
        self, callbacks: list[Any], decide: Callable[[], dict[str, float] | None], **arguments: Any
    ) -> None:
        super().__init__(callbacks, add_history=True, **arguments)
        self._decide = decide
        self._last_epoch = -1

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """As every `CallbackList`."""
        self._last_epoch = epoch
        super().on_epoch_begin(epoch, logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Ends the training of all callbacks, `EarlyStopping` first."""
        callbacks = self.callbacks
        restoring = [c for c in callbacks if isinstance(c, keras.callbacks.EarlyStopping)]
        for callback in restoring:
            callback.on_train_end(logs)
        figures = self._decide()
        others = [c for c in callbacks if c not in restoring]
        if figures is not None:
            # Without those whose best epoch is not the one that is left.
            self.callbacks = others
            self.on_epoch_begin(self._last_epoch + 1)
            self.on_epoch_end(self._last_epoch, figures)
        for callback in others:
            callback.on_train_end(figures or logs)
        self.callbacks = []
        super().on_train_end(logs)
        self.callbacks = callbacks


@contextlib.contextmanager
def reported_as_epoch(
    model: keras.Model, callbacks: Any, verbose: Any
) -> Iterator[Callable[[dict[str, float]], None]]:
    """Tells callbacks of a fit without training, as of one epoch."""
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


def figures_of(
    model: Any, rows: HeadRows, held_out: HeadRows | None, batch_size: int | None
) -> dict[str, float]:
    """The logs of an epoch without training."""
    logs: dict[str, float] = {}
    for prefix, part in (("", rows), ("val_", held_out)):
        if part is None or not len(part):
            continue
        if model.compiled:
            x, y, weights = part.keras_data
            figures = model.evaluate(
                x,
                y,
                sample_weight=weights,
                batch_size=batch_size or _BATCH_SIZE,
                verbose=0,
                return_dict=True,
            )
        else:
            figures = {"loss": log_loss_of(model.head, part)}
        logs |= {f"{prefix}{name}": float(value) for name, value in figures.items()}
    return logs
