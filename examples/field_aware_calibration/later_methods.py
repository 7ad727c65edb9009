"""Two methods that came after the paper, trained on the development rows: UMC and SBCR.

Both learn a calibration map that increases in the base model's logit, and that a network adapts to
the row. As in their public code, the network reads the base model's embeddings of all columns,
which stay as they are.

The public code trains for 20 epochs with Adam at 1e-3, on millions of rows. On a development set of
thousands of rows that overfits. Here they are trained as Neural Calibration is (`training.py`): the
same rate, batches, and number of steps, and the same random tenth of the development rows decides
when to stop. (At a rate of 1e-4 both were worse on the data sets tried.)

The loss of UMC is 0.01 times the sum over bins of (rows of the bin in the batch) · (squared error
of the bin), beside the mean log loss of the batch. At the authors' 16,384 rows a batch, that is 164
times the mean squared error; in batches of 32 to 256 rows, 0.3 to 2.6 times. The development sets
here are smaller than one batch of the authors, so both readings are rows of the tables: the formula
in our batches ("UMC"), and the weight that it has in theirs.
"""

import functools
from collections.abc import Callable

import keras
import numpy as np
from calibration_task import CalibrationTask, Method
from numpy.typing import NDArray
from sbcr import SBCR
from training import inputs_of, train_to_the_end
from umc import UMC, SmoothCalibrationLoss

from keras_calibration.layers import FieldNetwork, Head
from keras_calibration.seeds import set_seeds


WEIGHT_PER_ROW = 0.01


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
    train_to_the_end(model, inputs, rows.labels, task.batch_size, task.seed)
    return model.predict_logits(inputs_of(task.test_logits, task.test, columns))


def umc(task: CalibrationTask, name: str, batch_size: int | None = None) -> NDArray[np.float32]:
    """UMC, its loss weighted as for batches of this size, or of the size that is used."""
    weight = WEIGHT_PER_ROW * (task.batch_size if batch_size is None else batch_size)
    return calibrated_test_logits(task, name, UMC, lambda: SmoothCalibrationLoss(weight))


METHODS: dict[str, Method] = {
    "UMC": functools.partial(umc, name="UMC"),
    "UMC, loss as in batches of 16,384": functools.partial(
        umc, name="UMC of 16,384", batch_size=16_384
    ),
    # The calibration module alone, trained by the log loss.
    "SBCR": functools.partial(calibrated_test_logits, name="SBCR", make_calibrate=SBCR),
}
