"""The rows of the tables: the paper's (tables 1-6), and those of this package.

Each row is a function of a `CalibrationTask` that returns the logits of the test rows. To add a row
of your own, write such a function and add it to `METHODS`.
"""

import functools
from collections.abc import Sequence

import keras
import numpy as np
from base_network import Split, field_network, make_task
from calibration_task import CalibrationTask, Method
from numpy.typing import NDArray
from paper_ilps import PaperILPS
from training import (
    PREDICTED_TOGETHER,
    Rows,
    inputs_of,
    train_on_all_rows,
    train_one_epoch,
    train_with_early_stopping,
)

import keras_calibration as kc

# Added to the seed: else the network g would start from the embeddings of the base model f.
AUXILIARY_SEEDS = 10_000
# The values of η move ten times as fast as the network's weights, which are a tenth of their size:
# at equal rates, 3,000 steps leave η short of its optimum on the larger tables.
CURVE_STEP = 10.0


def model_1(task: CalibrationTask) -> NDArray[np.float32]:
    """The base model, trained on the training rows."""
    return task.test_logits


def model_2(task: CalibrationTask) -> NDArray[np.float32]:
    """Model-1, trained for another epoch on the development rows with a fresh Adam."""
    columns, rows = tuple(task.num_values), task.development
    network = field_network(task.num_values, task.size, task.seed)
    head = kc.layers.NeuralCalibration(None, network)
    head.build((None, 1), {name: (None,) for name in columns})
    network.set_weights(task.base.get_weights())
    model = task.model("Model-2", head, columns)
    inputs = inputs_of(np.zeros_like(rows.labels), rows, columns)
    train_one_epoch(model, inputs, rows.labels, task.batch_size, task.seed)
    return model.predict_logits(inputs_of(np.zeros_like(task.test.labels), task.test, columns))


def isotonic_regression(task: CalibrationTask) -> NDArray[np.float32]:
    """Isotonic regression, as in scikit-learn but with finite logits at both ends."""
    return fitted_head(task, kc.layers.IsotonicRegression(keep_ranking=False))


def platt_scaling(task: CalibrationTask) -> NDArray[np.float32]:
    """Platt scaling: logistic regression on the logit."""
    return fitted_head(task, kc.layers.PlattScaling())


def temperature_scaling(task: CalibrationTask) -> NDArray[np.float32]:
    """Temperature scaling; not a row of the paper."""
    return fitted_head(task, kc.layers.TemperatureScaling())


def histogram_binning(task: CalibrationTask) -> NDArray[np.float32]:
    """The rates of 20 bins of equal numbers of rows, half a positive or negative at least."""
    logits, labels = np.ravel(task.development_logits), np.ravel(task.development.labels)
    edges = np.quantile(logits, np.arange(1, 20) / 20)
    bins = np.searchsorted(edges, logits, side="right")
    sizes = np.maximum(np.bincount(bins, minlength=20), 1)
    positives = np.clip(np.bincount(bins, labels, minlength=20), 0.5, sizes - 0.5)
    rates = positives / sizes
    test_bins = np.searchsorted(edges, np.ravel(task.test_logits), side="right")
    return np.log(rates / (1 - rates))[test_bins].astype(np.float32)


def paper_ilps(task: CalibrationTask, to_the_end: bool = True) -> NDArray[np.float32]:
    """The paper's ILPS."""
    return trained_head(task, (), to_the_end)


def paper_ilps_at_its_optimum(task: CalibrationTask) -> NDArray[np.float32]:
    """The paper's ILPS, fitted directly to all development rows: the isotonic optimum."""
    return fitted_head(task, kc.layers.ILPS.from_paper())


def paper_neural_calibration(task: CalibrationTask, to_the_end: bool = True) -> NDArray[np.float32]:
    """The paper's Neural Calibration: ILPS and a network over all columns, trained jointly."""
    return trained_head(task, tuple(task.num_values), to_the_end)


def paper_neural_calibration_of_field(
    task: CalibrationTask, to_the_end: bool = True
) -> NDArray[np.float32]:
    """The paper's Neural Calibration with a network over the field z only."""
    return trained_head(task, (task.field,), to_the_end)


def base_on_development(task: CalibrationTask) -> NDArray[np.float32]:
    """The base model, trained on the development rows only."""
    return inverted(task).test_logits


def inverted_ilps(task: CalibrationTask) -> NDArray[np.float32]:
    """The paper's ILPS, with training and development rows exchanged."""
    return paper_ilps(inverted(task))


def inverted_neural_calibration(task: CalibrationTask) -> NDArray[np.float32]:
    """The paper's Neural Calibration, with training and development rows exchanged."""
    return paper_neural_calibration(inverted(task))


def ilps(task: CalibrationTask) -> NDArray[np.float32]:
    """Our ILPS: class-balanced knots, linear ends, fitted directly."""
    return fitted_head(task, kc.layers.ILPS())


def field_bias(task: CalibrationTask) -> NDArray[np.float32]:
    """Our `FieldBias`: an offset for each value of z, shrunk."""
    return fitted_head(task, kc.layers.FieldBias({task.field: task.num_values[task.field]}))


def field_ilps(task: CalibrationTask) -> NDArray[np.float32]:
    """Our `FieldILPS`: a curve for each value of z, shrunk."""
    return fitted_head(task, kc.layers.FieldILPS({task.field: task.num_values[task.field]}))


def neural_calibration(task: CalibrationTask) -> NDArray[np.float32]:
    """Our `NeuralCalibration` of all columns with its defaults, fitted directly by `fit_head`."""
    network = kc.layers.FieldNetwork(task.num_values, seed=task.seed)
    return fitted_head(task, kc.layers.NeuralCalibration(kc.layers.ILPS(), network))


@functools.lru_cache(maxsize=1)
def calibrate(task: CalibrationTask) -> NDArray[np.float32]:
    """Our `calibrate` with all columns as fields: it weighs the methods by cross-fitting."""
    fields = {task.field: task.num_values[task.field], **task.num_values}
    rows = task.development
    model = kc.calibrate(
        keras.Model(task.base.input, keras.ops.sigmoid(task.base.output)),
        rows.features,
        rows.labels,
        fields=fields,
        verbose=0,
    )
    return head_logits(model.head, task.test_logits, task.test)


PAPER: dict[str, Method] = {
    "Model-1": model_1,
    "Model-2": model_2,
    "Histogram binning": histogram_binning,
    "Isotonic regression": isotonic_regression,
    "Platt scaling": platt_scaling,
    "Temperature scaling": temperature_scaling,
    "ILPS": functools.partial(paper_ilps, to_the_end=False),
    "ILPS to the end": paper_ilps,
    "Neural Calibration": functools.partial(paper_neural_calibration, to_the_end=False),
    "Neural Calibration to the end": paper_neural_calibration,
    "Neural Calibration to the end, z only": paper_neural_calibration_of_field,
    "Base on development": base_on_development,
    "ILPS to the end, inverted": inverted_ilps,
    "Neural Calibration to the end, inverted": inverted_neural_calibration,
}
OURS: dict[str, Method] = {
    "ILPS at its optimum": paper_ilps_at_its_optimum,
    "Our ILPS": ilps,
    "FieldBias": field_bias,
    "FieldILPS": field_ilps,
    "Our NeuralCalibration": neural_calibration,
    "calibrate": calibrate,
}
METHODS: dict[str, Method] = PAPER | OURS


@functools.lru_cache(maxsize=1)
def inverted(task: CalibrationTask) -> CalibrationTask:
    """The task with training and development rows exchanged, and its own base model."""
    exchanged = Split(
        task.name, task.field, task.num_values, task.development, task.train, task.test
    )
    return make_task(
        exchanged, task.size, task.batch_size, task.seed, task.compiled, "inverted base"
    )


def fitted_head(task: CalibrationTask, head: kc.layers.Head) -> NDArray[np.float32]:
    """Fits a head directly to the development rows."""
    rows = task.development
    head.fit(task.development_logits, rows.labels, rows.features)
    return head_logits(head, task.test_logits, task.test)


def trained_head(
    task: CalibrationTask, columns: Sequence[str] = (), to_the_end: bool = True
) -> NDArray[np.float32]:
    """Trains the paper's head on the development rows with Adam.

    Args:
        task: The data and the base logits.
        columns: What the network g reads; without columns, the head is ILPS alone.
        to_the_end: Whether ILPS is trained to convergence, and a network until held-out rows stop
            it; else one epoch, as in the paper.

    Returns:
        Calibrated logits of the test rows, shape (n,).
    """
    num_values = {name: task.num_values[name] for name in columns}
    network = field_network(num_values, task.size, AUXILIARY_SEEDS + task.seed) if columns else None
    curve = PaperILPS(step=CURVE_STEP) if to_the_end else PaperILPS()
    head = kc.layers.NeuralCalibration(curve, network)
    head.build((None, 1), {name: (None,) for name in columns})
    model = task.model(f"head of {columns}, step {curve.step}", head, columns)
    rows = task.development
    to_the_end_of = train_with_early_stopping if columns else train_on_all_rows
    train = to_the_end_of if to_the_end else train_one_epoch
    inputs = inputs_of(task.development_logits, rows, columns)
    train(model, inputs, rows.labels, task.batch_size, task.seed)
    return model.predict_logits(inputs_of(task.test_logits, task.test, columns))


def head_logits(
    head: kc.layers.Head, logits: NDArray[np.float32], rows: Rows
) -> NDArray[np.float32]:
    """Calibrated logits of a head, shape (n,)."""
    calibrated = []
    for start in range(0, len(logits), PREDICTED_TOGETHER):
        part = slice(start, start + PREDICTED_TOGETHER)
        columns = {name: column[part] for name, column in rows.features.items()}
        calibrated.append(keras.ops.convert_to_numpy(head(logits[part], columns)))
    return np.concatenate(calibrated).reshape(-1)
