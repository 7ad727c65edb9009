"""Calibrators of more than two classes: `./dev run python benchmarks/class_calibrators.py`.

A base model is trained on the training part of each data set: a dense Keras network on images, and
scikit-learn's histogram gradient boosting on tables. Every calibrator is fitted to its
probabilities on development rows, all or the first few of them, and scored on the test part, beside
scikit-learn's and, where it is installed, the structured matrix scaling of its authors' package
(`pip install probmetrics numba`). Printed are the test log loss of the base, and the change by each
calibrator, with the seconds of its fit.

The data are looked for in $KERAS_CALIBRATION_DATA, else in ../shared/data. `--data NAME ...` runs
some of them, `--rows 500` chooses the smaller development set.
"""

import argparse
import importlib.util
import os
import pathlib
import sys
import time
from dataclasses import dataclass

import keras
import numpy as np
import pandas as pd
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from keras_calibration.layers import (
    StructuredMatrixScaling,
    TemperatureScaling,
    VectorScaling,
)

ROOT = pathlib.Path(__file__).parents[1]
sys.path += [str(ROOT / "examples"), str(ROOT / "examples" / "calibrated_metric")]

from images import read_cifar10, read_mnist, shrink  # noqa: E402

from data_folder import read_data_folder  # noqa: E402
from markdown_table import markdown_table  # noqa: E402

SMALLEST = 1e-15


@dataclass
class Part:
    """Log probabilities (n, K) of a base model, and class numbers (n,)."""

    logits: np.ndarray
    labels: np.ndarray

    def first(self, num_rows):
        """The first rows."""
        return Part(self.logits[:num_rows], self.labels[:num_rows])


class LogProbabilities(ClassifierMixin, BaseEstimator):
    """A classifier for scikit-learn whose input already is its output."""

    def fit(self, x, y):
        """Learns nothing but the number of classes."""
        self.classes_ = np.arange(x.shape[1])
        return self

    def decision_function(self, x):
        """The logits that scikit-learn's temperature scales."""
        return x

    def predict(self, x):
        """The most likely classes."""
        return np.argmax(x, axis=1)

    def predict_proba(self, x):
        """The probabilities of the base."""
        return np.exp(log_softmax(x, axis=1))


def mnist(root):
    train, held_out = read_mnist(root, 50_000, 13_000)
    return images(train, part_of(held_out, 0, 10_000), part_of(held_out, 10_000, 13_000))


def cifar10(root):
    train, test = read_cifar10(root, 20_000, 10_000)
    return images(part_of(train, 0, 16_000), part_of(train, 16_000, 20_000), test)


def part_of(rows, start, end):
    return type(rows)(*(column[start:end] for column in rows))


def images(train, *parts):
    """The log probabilities of a dense network for the other parts."""

    def inputs(rows):
        small = shrink(rows.pixels, 2)
        return small.reshape(len(small), -1).astype("float32") / 255 - 0.5

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(256, "relu"), keras.layers.Dense(256, "relu")]
    base = keras.Sequential([*layers, keras.layers.Dense(10)])
    base.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    base.fit(inputs(train), train.labels, batch_size=256, epochs=10, verbose=0)
    return [
        Part(log_softmax(base.predict(inputs(rows), verbose=0), axis=1), rows.labels)
        for rows in parts
    ]


def table(folder, column, classes, order_by=None):
    """Three classes of a table whose `meta.json` has two."""
    data = read_data_folder(folder, order_by=order_by)
    names = pd.concat(
        [pd.read_csv(path, usecols=[column], dtype=str) for path in sorted(folder.glob("data*"))]
    )[column].to_numpy()
    labels = np.array([classes.index(name) for name in names[data.rows]])
    x = np.stack([np.ravel(column) for column in data.features.values()], axis=1)
    train, *others = data.parts.values()
    base = HistGradientBoostingClassifier(random_state=0, early_stopping=False)
    base.fit(x[train], labels[train])
    return [
        Part(np.log(np.maximum(base.predict_proba(x[part]), SMALLEST)), labels[part])
        for part in others
    ]


def ours(layer_class):
    def fit(part):
        num_classes = part.logits.shape[1]
        arguments = {} if layer_class is TemperatureScaling else {"num_classes": num_classes}
        layer = layer_class(**arguments)
        layer.fit(part.logits, part.labels)
        return lambda logits: log_softmax(
            keras.ops.convert_to_numpy(layer(logits)).astype(float), axis=1
        )

    return fit


def scikit_learn(method):
    def fit(part):
        base = FrozenEstimator(LogProbabilities().fit(part.logits, part.labels))
        model = CalibratedClassifierCV(base, method=method).fit(part.logits, part.labels)
        return lambda logits: np.log(np.maximum(model.predict_proba(logits), SMALLEST))

    return fit


def logistic_regression(part):
    model = LogisticRegression(max_iter=1000).fit(part.logits, part.labels)
    return lambda logits: np.log(np.maximum(model.predict_proba(logits), SMALLEST))


def authors_sms(part):
    """Structured matrix scaling by the package of the paper's authors."""
    from probmetrics.calibrators import SMSCalibrator

    model = SMSCalibrator().fit(np.exp(part.logits).astype("float64"), part.labels)
    return lambda logits: np.log(np.maximum(model.predict_proba(np.exp(logits)), SMALLEST))


METHODS = {
    "TemperatureScaling": ours(TemperatureScaling),
    "VectorScaling": ours(VectorScaling),
    "StructuredMatrixScaling": ours(StructuredMatrixScaling),
    "scikit-learn, temperature": scikit_learn("temperature"),
    "scikit-learn, sigmoid": scikit_learn("sigmoid"),
    "scikit-learn, isotonic": scikit_learn("isotonic"),
    "scikit-learn, matrix scaling": logistic_regression,
}
if importlib.util.find_spec("probmetrics"):
    METHODS["probmetrics, structured matrix"] = authors_sms
DATA = {
    "mnist": mnist,
    "cifar10": cifar10,
    "diabetes": lambda root: table(
        root / "diabetes_readmit_102k", "readmitted", ["NO", ">30", "<30"], "encounter_id"
    ),
    "hotel": lambda root: table(
        root / "hotel_bookings_119k", "reservation_status", ["Check-Out", "Canceled", "No-Show"]
    ),
}


def log_loss(part, logits):
    return -np.mean(logits[np.arange(len(logits)), part.labels])


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--rows", type=int, default=500)
    options = parser.parse_args()
    root = pathlib.Path(os.environ.get("KERAS_CALIBRATION_DATA", ROOT.parent / "shared" / "data"))
    header, rows = ["method"], [["base"], *([name] for name in METHODS)]
    for name in options.data:
        development, test = DATA[name](root)
        before = log_loss(test, test.logits)
        for num_rows in (options.rows, len(development.labels)):
            header.append(f"{name}, {num_rows:,}")
            rows[0].append(f"{before:.4f}")
            for row, fit in zip(rows[1:], METHODS.values(), strict=True):
                start = time.process_time()
                calibrated = fit(development.first(num_rows))
                seconds = time.process_time() - start
                change = log_loss(test, calibrated(test.logits)) - before
                row.append(f"{change:+.4f} ({seconds:.2f} s)")
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main()
