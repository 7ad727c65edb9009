"""Two methods that came after the paper, trained on the development rows: UMC and SBCR.

Both learn a calibration map that increases in the base model's logit, and that a network adapts to
the row. As in their public code, the network reads the base model's embeddings of all columns,
which stay as they are.

The public code trains for 20 epochs with Adam at 1e-3, on millions of rows. On a development set of
thousands of rows that overfits. Here they are trained as Neural Calibration is (`training.py`): the
same rate, batches, and number of steps, and the same random tenth of the development rows decides
when to stop. (At a rate of 1e-4 both were worse on the data sets tried.)

The loss of UMC is 0.01 times the sum over bins of (rows of the bin in the batch) · (squared error
of the bin), beside the mean log loss of the batch. In the authors' batches of 16,384 rows, that is
164 times the mean of (share of the bin) · (squared error of the bin), and so it is here: the
balance of the two losses is the authors', in batches in which the bins are noisier. (The formula
itself in batches of 64 rows would weigh 0.6, next to nothing. The development sets here are smaller
than one batch of the authors.)
"""

import functools
from collections.abc import Callable

import keras
import numpy as np
from calibration_task import CalibrationTask, Method
from numpy.typing import NDArray
from sbcr import SBCR
from training import inputs_of, train_with_early_stopping
from umc import UMC, SmoothCalibrationLoss

from keras_calibration.layers import FieldNetwork, Head
from keras_calibration.seeds import set_seeds

SMOOTH_CALIBRATION_WEIGHT = 0.01 * 16_384


class OnEmbeddings(Head):
    """A calibration map of the base model's logit and embeddings, which stay as they are.

    Args:
        network: The base model's network, whose embeddings are copied.
        calibrate: Layer that maps logits (batch, 1) and a context (batch, dim) to logits.
    """

    def __init__(self, network: FieldNetwork, calibrate: keras.layers.Layer) -> None:
        """Copies the embeddings, and builds the map."""
        super().__init__()
        # Frozen after it is built: Keras leaves the weights of layers inside one that is created
        # frozen, as that of a calibrated base model, trainable.
        self.network = FieldNetwork.from_config({**network.get_config(), "trainable": True})
        self.network.build()
        self.network.set_weights(network.get_weights())
        self.network.trainable = False
        self.calibrate = calibrate
        self.calibrate.build((None, 1), (None, len(network.fields) * network.embedding_dim))
        self.built = True

    @property
    def feature_names(self) -> tuple[str, ...]:
        """All columns."""
        return self.network.feature_names

    def call(
        self, logits: keras.KerasTensor, features: dict[str, keras.KerasTensor]
    ) -> keras.KerasTensor:
        """Returns calibrated logits, shape (batch, 1)."""
        return self.calibrate(logits, self.network.embed(features))


def calibrated_test_logits(
    task: CalibrationTask,
    name: str,
    make_calibrate: Callable[[], keras.layers.Layer],
    make_loss: Callable[[], keras.layers.Layer] | None = None,
) -> NDArray[np.float32]:
    """The logits of the test rows, by a map trained on the development rows."""
    set_seeds(initialization=task.seed, order=task.seed)
    (network,) = (layer for layer in task.base.layers if isinstance(layer, FieldNetwork))
    columns, rows = network.feature_names, task.development
    head = OnEmbeddings(network, make_calibrate())
    model = task.model(name, head, columns, make_loss() if make_loss else None)
    inputs = inputs_of(task.development_logits, rows, columns)
    train_with_early_stopping(model, inputs, rows.labels, task.batch_size, task.seed)
    return model.predict_logits(inputs_of(task.test_logits, task.test, columns))


METHODS: dict[str, Method] = {
    "UMC": functools.partial(
        calibrated_test_logits,
        name="UMC",
        make_calibrate=UMC,
        make_loss=lambda: SmoothCalibrationLoss(SMOOTH_CALIBRATION_WEIGHT),
    ),
    # The calibration module alone, trained by the log loss.
    "SBCR": functools.partial(calibrated_test_logits, name="SBCR", make_calibrate=SBCR),
}
