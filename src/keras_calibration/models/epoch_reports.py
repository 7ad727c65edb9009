"""Reports fits with and without training to callbacks and the progress bar."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import keras

from keras_calibration.models.head_rows import HeadRows
from keras_calibration.models.head_training import log_loss_of

_BATCH_SIZE = 4096

Callbacks: TypeAlias = keras.callbacks.CallbackList | Sequence[keras.callbacks.Callback] | None


class _FiniteProgress(keras.callbacks.ProgbarLogger):
    """Keras' progress bar without metrics that are NaN after the batches so far."""

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Shows the finite metrics."""
        finite = {name: v for name, v in (logs or {}).items() if math.isfinite(float(v))}
        super().on_train_batch_end(batch, finite)


def with_finite_progress(
    callbacks: Callbacks, verbose: int | str
) -> list[keras.callbacks.Callback]:
    """Callbacks for `keras.Model.fit`, with a progress bar that shows no NaN within an epoch.

    Example:
        >>> with_finite_progress(None, verbose=0)
        []
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    given = keras.tree.flatten(callbacks) if callbacks else []
    has_bar = any(isinstance(each, keras.callbacks.ProgbarLogger) for each in given)
    # Last, as in Keras, so that it shows what the others add to the logs.
    return given if has_bar or not verbose else [*given, _FiniteProgress()]


class EndOfTraining(keras.callbacks.CallbackList):
    """The callbacks of a training that may not be kept.

    When training ends, `EarlyStopping` restores its weights first. Then `decide` keeps the trained
    head or replaces it. If it is replaced, the other callbacks see one more epoch with the figures
    of the final head before their `on_train_end`: the last thing they record is the final model.
    """

    callbacks: list[keras.callbacks.Callback]

    def __init__(
        self,
        callbacks: list[keras.callbacks.Callback],
        decide: Callable[[], dict[str, float] | None],
        **arguments: Any,
    ) -> None:
        super().__init__(callbacks, add_history=True, **arguments)
        self._decide = decide
        self._last_epoch = -1

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """As `CallbackList.on_epoch_begin`; also stores the number of the epoch."""
        self._last_epoch = epoch
        super().on_epoch_begin(epoch, logs)

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Ends the training of all callbacks, `EarlyStopping` first."""
        callbacks = self.callbacks
        restoring = [c for c in callbacks if isinstance(c, keras.callbacks.EarlyStopping)]
        for callback in restoring:
            callback.on_train_end(logs)
        figures = self._decide()
        others = [c for c in callbacks if c not in restoring]
        if figures is not None:
            # Not for `EarlyStopping`, whose best epoch is not the final head.
            self.callbacks = others
            # One epoch more than announced, unless training stopped early: not "Epoch 3/2".
            epochs = max(self.params.get("epochs") or 0, self._last_epoch + 2)
            self.set_params({**self.params, "epochs": epochs})
            self.on_epoch_begin(self._last_epoch + 1)
            self.on_epoch_end(self._last_epoch, figures)
        for callback in others:
            callback.on_train_end(figures or logs)
        self.callbacks = []
        super().on_train_end(logs)
        self.callbacks = callbacks


@contextlib.contextmanager
def reported_as_epoch(
    model: keras.Model, callbacks: Any, verbose: int | str
) -> Iterator[Callable[[dict[str, float]], None]]:
    """Reports a fit without training to callbacks as one epoch."""
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
    model: keras.Model, rows: HeadRows, held_out: HeadRows | None, batch_size: int | None
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
