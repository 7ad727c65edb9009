"""Two methods that came after the paper, trained on the development rows: UMC and SBCR.

Both learn a calibration map that increases in the base model's logit, and that a network adapts to
the row. As in their public code, the network reads the base model's embeddings of all columns,
which stay as they are.

The public code trains for 20 epochs with Adam at 1e-3, on millions of rows. On a development set of
thousands of rows that overfits. Here a random tenth of the development rows decides the number of
epochs, at most 20, by its log loss. (At a rate of 1e-4 both were worse on the data sets tried.)
"""

import functools
from collections.abc import Callable, Mapping

import keras
import numpy as np
from calibration_task import CalibrationTask, Method, Rows
from numpy.typing import NDArray
from sbcr import SBCR
from umc import UMC, SmoothCalibrationLoss

from keras_calibration.layers import FieldNetwork
from keras_calibration.seeds import set_seeds

LEARNING_RATE = 1e-3
MAX_EPOCHS, PATIENCE = 20, 3
HELD_OUT_SHARE = 0.1
PREDICTED_TOGETHER = 2048
# The authors weight the squared error of a bin by 0.01 times its rows in a batch of 16,384.
SMOOTH_CALIBRATION_WEIGHT = 0.01 * 16_384


class ContextCalibrator(keras.Model):
    """A calibration map of the base model's logit and embeddings.

    Args:
        base: The base model, which contains one `FieldNetwork`. Its embeddings are copied.
        calibrate: Layer that maps logits (batch, 1) and a context (batch, dim) to logits.
        auxiliary_loss: Layer that maps labels and logits (batch, 1) to a loss, or None.
    """

    def __init__(
        self,
        base: keras.Model,
        calibrate: keras.layers.Layer,
        auxiliary_loss: keras.layers.Layer | None = None,
    ) -> None:
        """Copies the embeddings."""
        super().__init__()
        (network,) = (layer for layer in base.layers if isinstance(layer, FieldNetwork))
        # Frozen after it is built: Keras leaves the weights of layers inside one that is created
        # frozen, as that of a calibrated base model, trainable.
        self.network = FieldNetwork.from_config({**network.get_config(), "trainable": True})
        self.network.build()
        self.network.set_weights(network.get_weights())
        self.network.trainable = False
        self.calibrate = calibrate
        self.auxiliary_loss = auxiliary_loss

    def build(self, input_shape: object = None) -> None:
        """Creates the weights of the map."""
        width = len(self.network.fields) * self.network.embedding_dim
        self.calibrate.build((None, 1), (None, width))

    def call(self, inputs: Mapping[str, keras.KerasTensor]) -> keras.KerasTensor:
        """Returns calibrated logits, shape (batch, 1), of `inputs` as in `inputs_of`."""
        return self.calibrate(inputs["logits"], self.network.embed(inputs["features"]))

    def compute_loss(
        self,
        x: Mapping[str, keras.KerasTensor] | None = None,
        y: keras.KerasTensor | None = None,
        y_pred: keras.KerasTensor | None = None,
        sample_weight: keras.KerasTensor | None = None,
        training: bool = True,
    ) -> keras.KerasTensor:
        """The log loss, in training with the auxiliary loss."""
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        if training and self.auxiliary_loss is not None:
            loss += SMOOTH_CALIBRATION_WEIGHT * self.auxiliary_loss(y, y_pred)
        return loss


def calibrated_test_logits(
    task: CalibrationTask,
    make_calibrate: Callable[[], keras.layers.Layer],
    make_loss: Callable[[], keras.layers.Layer] | None = None,
) -> NDArray[np.float32]:
    """The logits of the test rows, by a map trained on the development rows."""
    model = train(task, make_calibrate, make_loss)
    inputs = inputs_of(task.test_logits, task.test)
    logits = model.predict(inputs, batch_size=PREDICTED_TOGETHER, verbose=0)
    return np.asarray(logits, np.float32)[:, 0]


METHODS: dict[str, Method] = {
    "UMC": functools.partial(
        calibrated_test_logits, make_calibrate=UMC, make_loss=SmoothCalibrationLoss
    ),
    "UMC without its loss": functools.partial(calibrated_test_logits, make_calibrate=UMC),
    # The calibration module alone, trained by the log loss.
    "SBCR": functools.partial(calibrated_test_logits, make_calibrate=SBCR),
}


def train(
    task: CalibrationTask,
    make_calibrate: Callable[[], keras.layers.Layer],
    make_loss: Callable[[], keras.layers.Layer] | None,
) -> ContextCalibrator:
    """Trains on nine tenths of the development rows until the held-out tenth stops improving.

    Args:
        task: The base model and the rows.
        make_calibrate: Creates the map of logits and context to logits.
        make_loss: Creates the auxiliary loss, if there is one.

    Returns:
        The calibrator after its best epoch.
    """
    is_held_out = held_out_rows(len(task.development.labels), task.seed)
    parts = [
        (
            inputs_of(task.development_logits, task.development, chosen),
            task.development.labels[chosen, None],
        )
        for chosen in (~is_held_out, is_held_out)
    ]
    set_seeds(initialization=task.seed, order=task.seed)
    model = ContextCalibrator(task.base, make_calibrate(), make_loss() if make_loss else None)
    model.compile(
        keras.optimizers.Adam(LEARNING_RATE), keras.losses.BinaryCrossentropy(from_logits=True)
    )
    # Without the auxiliary loss, which is for training, `val_loss` is the log loss.
    stop = keras.callbacks.EarlyStopping("val_loss", patience=PATIENCE, restore_best_weights=True)
    model.fit(
        *parts[0],
        validation_data=parts[1],
        batch_size=task.batch_size,
        validation_batch_size=PREDICTED_TOGETHER,
        epochs=MAX_EPOCHS,
        callbacks=[stop],
        verbose=0,
    )
    return model


def held_out_rows(num_rows: int, seed: int) -> NDArray[np.bool_]:
    """A random tenth of the rows, as a mask."""
    order = np.random.default_rng(seed).permutation(num_rows)
    return order < HELD_OUT_SHARE * num_rows


def inputs_of(
    logits: NDArray[np.float32], rows: Rows, chosen: NDArray[np.bool_] | None = None
) -> dict[str, NDArray[np.generic] | dict[str, NDArray[np.int32]]]:
    """Inputs of a `ContextCalibrator` for the chosen rows, or for all."""
    mask = np.ones(len(logits), bool) if chosen is None else chosen
    features = {name: column[mask] for name, column in rows.features.items()}
    return {"logits": logits[mask, None], "features": features}
