"""From data to a calibrated, exported model: the main features of the package in one run.

    ./dev quickstart                                       on a generated click log
    ./dev quickstart --data DIR                            on a folder with a meta.json

A base model is trained on the first part of the rows, and Neural Calibration is fitted on the
second. The third part shows the effect: scores before and after, a picture, the variation over
three seeds, and a SavedModel that serves the calibrated probabilities.
"""

import argparse
import time
from pathlib import Path

import keras
import numpy as np
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

import keras_calibration as kc
from data_folder import read_data_folder
from keras_calibration.datasets import generate_click_log
from keras_calibration.datasets.table import Table
from keras_calibration.export import signature_input
from keras_calibration.plots import FieldDisplay, ReliabilityDisplay

BATCH_SIZE = 512


def main() -> None:
    """Parses the arguments and runs all steps."""
    arguments = parse_arguments()
    started = time.monotonic()
    table = read_table(arguments)
    folder = arguments.output / table.name
    folder.mkdir(parents=True, exist_ok=True)
    print_table_facts(table)

    results = []
    for number, seed in enumerate(range(arguments.seeds), start=1):
        keras.utils.set_random_seed(seed)
        title = f"Seed {number} of {arguments.seeds}"
        base = train_base_model(table, f"{title}: base model")
        model = calibrate(table, base, folder / "runs", seed, f"{title}: calibration")
        test, _ = table.part("test")
        before = base.predict(test, batch_size=4096, verbose=0)[:, 0]
        after = model.predict(test, batch_size=4096, verbose=0)[:, 0]
        results.append((model, before, after))

    model, before, after = results[0]
    print_scores(table, before, after)
    print_verdict(table, [result[1:] for result in results])
    print(f"Picture:    {draw(table, before, after, folder / 'calibration.png')}")
    print(f"SavedModel: {export(table, model, folder / 'savedmodel')}")
    print(f"Ledger:     {folder / 'runs'}")
    print(f"Done in {time.monotonic() - started:.0f} s.")


def parse_arguments() -> argparse.Namespace:
    """The command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with a meta.json and its tables")
    parser.add_argument(
        "--num-rows", type=int, default=200_000, help="rows of the generated log (default: 200000)"
    )
    parser.add_argument("--field", help="field of the errors and the picture (default: the first)")
    parser.add_argument("--order-by", nargs="+", help="columns that order the rows in time")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder for results")
    arguments = parser.parse_args()
    if arguments.seeds < 1:
        parser.error(f"--seeds must be at least 1. Received: {arguments.seeds}.")
    return arguments


def read_table(arguments: argparse.Namespace) -> Table:
    """The generated click log, or the folder of `--data`."""
    if arguments.data is None:
        return generate_click_log(arguments.num_rows)
    return read_data_folder(arguments.data, field=arguments.field, order_by=arguments.order_by)


def train_base_model(table: Table, title: str) -> keras.Model:
    """A standard model for such tables: embeddings and a multi-layer perceptron, one epoch."""
    features, labels = table.part("train")
    inputs = {
        **{name: keras.Input((), dtype="int32", name=name) for name in table.num_values},
        **{name: keras.Input((), name=name) for name in table.numeric},
    }
    columns = [
        keras.layers.Embedding(num_values, 16)(inputs[name])
        for name, num_values in table.num_values.items()
    ]
    for name in table.numeric:
        value = keras.ops.expand_dims(inputs[name], 1)
        missing = keras.ops.isnan(value)
        training = features[name].astype("float64")
        # Python floats keep the graph in float32: LiteRT has no float64.
        standard = (value - float(np.nanmean(training))) / float(np.nanstd(training) + 1e-6)
        columns.append(keras.ops.where(missing, 0.0, keras.ops.clip(standard, -10, 10)))
        columns.append(keras.ops.cast(missing, "float32"))
    hidden = keras.layers.Concatenate()(columns)
    for _ in range(2):
        hidden = keras.layers.Dense(200, activation="relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="binary_crossentropy")
    print(f"\n{title}")
    model.fit(features, labels, batch_size=BATCH_SIZE)
    return model


def calibrate(
    table: Table, base: keras.Model, ledger: Path, seed: int, title: str
) -> kc.models.CalibratedModel:
    """Neural Calibration, fitted on the development part: a curve of the logit and a network."""
    fields = {name: table.num_values[name] for name in table.fields}
    head = kc.layers.NeuralCalibration(
        calibrator=kc.layers.ILPS(),
        field_network=kc.layers.FieldNetwork(fields, seed=seed),
        num_members=3,
    )
    model = kc.models.CalibratedModel(base, head)
    field, num_values = table.fields[0], table.num_values[table.fields[0]]
    model.compile(
        loss="binary_crossentropy",
        metrics=[
            kc.metrics.LogLoss(),
            kc.metrics.CalibratedLogLoss(),
            keras.metrics.AUC(name="auc"),
        ],
        field_metrics={field: [kc.metrics.FieldECE(num_values), kc.metrics.FieldRCE(num_values)]},
    )
    print(f"\n{title}")
    kc.fit_head(model, *table.part("development"))
    # The test part decides nothing: the ledger only records how its metrics vary with the seed.
    scores = model.evaluate(*table.part("test"), batch_size=4096, verbose=0, return_dict=True)
    kc.seeds.Ledger(ledger).append(
        {
            "pipeline": "neural_calibration",
            "seed": seed,
            "status": "finished",
            "epochs": [0],
            "metrics": {f"val_{name}": [float(value)] for name, value in scores.items()},
        }
    )
    return model


def print_table_facts(table: Table) -> None:
    """Prints the size and the positive rate of each part."""
    print(f"\n{table.name}: fields {', '.join(table.fields)}")
    for part in table.parts:
        _, labels = table.part(part)
        print(f"  {part:<12} {len(labels):>8,} rows   {labels.mean():7.2%} positive")


def print_scores(table: Table, before: np.ndarray, after: np.ndarray) -> None:
    """Prints the scores of the test part before and after calibration, for the first seed."""
    columns = [scores(table, probabilities) for probabilities in (before, after)]
    print(f"\nTest part, {len(before):,} rows, first seed")
    print(f"  {'':<32} {'before':>10} {'after':>10}")
    for name, old in columns[0].items():
        new = columns[1][name]
        # Lower is better, except for the AUC and for the ratio, which should be 1.
        is_worse = new < old if name == "AUC" else new > old
        if name.startswith("mean prediction"):
            is_worse = abs(np.log(new)) > abs(np.log(old))
        print(f"  {name:<32} {old:>10.5f} {new:>10.5f}{'   worse' if is_worse else ''}")


def scores(table: Table, probabilities: np.ndarray) -> dict[str, float]:
    """All scores of the test part."""
    features, labels = table.part("test")
    field, num_values = table.fields[0], table.num_values[table.fields[0]]
    calibrated = kc.metrics.CalibratedLogLoss()
    calibrated.update_state(labels, probabilities)
    field_errors = [kc.metrics.FieldECE(num_values), kc.metrics.FieldRCE(num_values)]
    for metric in field_errors:
        metric.update_state(labels, probabilities, field=features[field])
    result = {
        "log loss": log_loss(labels, probabilities),
        "Calibrated Log Loss": float(calibrated.result()),
        "Brier score": brier_score_loss(labels, probabilities),
        "AUC": roc_auc_score(labels, probabilities),
        f"Field-ECE ({field})": float(field_errors[0].result()),
        f"Field-RCE ({field})": float(field_errors[1].result()),
        "mean prediction / mean label": probabilities.mean() / labels.mean(),
    }
    if table.probabilities is not None:
        true = table.probabilities[table.parts["test"]]
        result["distance to the truth (mean KL)"] = float(np.mean(divergence(true, probabilities)))
    return result


def divergence(true: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Kullback–Leibler divergence of the predicted from the true probability of each row."""
    predicted = probabilities.astype("float64")
    return true * np.log(true / predicted) + (1 - true) * np.log((1 - true) / (1 - predicted))


def print_verdict(table: Table, predictions: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Prints for each seed whether calibration improved the log loss, with standard errors."""
    _, labels = table.part("test")
    print("\nChange of the test log loss by calibration (± standard error over the test rows)")
    changes = []
    for seed, (before, after) in enumerate(predictions):
        difference = row_losses(labels, after) - row_losses(labels, before)
        error = difference.std(ddof=1) / np.sqrt(len(difference))
        changes.append((difference.mean(), error))
        print(f"  seed {seed}: {difference.mean():+.5f} ± {error:.5f}")
    if all(change < -2 * error for change, error in changes):
        print("Calibration improves the probabilities for every seed, beyond chance.")
    elif all(change > 2 * error for change, error in changes):
        print(
            "Calibration makes the log loss WORSE here: the development rows differ from the test "
            "rows (drift). Keep the probabilities of the base model."
        )
    else:
        print(
            "Calibration does NOT improve the log loss beyond chance for every seed. Use more "
            "development rows, or more recent ones."
        )


def row_losses(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Log loss of each row."""
    inside = np.clip(probabilities.astype("float64"), 1e-12, 1 - 1e-12)
    return -np.where(labels == 1, np.log(inside), np.log1p(-inside))


def draw(table: Table, before: np.ndarray, after: np.ndarray, path: Path) -> Path:
    """Saves the picture: reliability and errors by field value on the test part."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    features, labels = table.part("test")
    field = table.fields[0]
    values = features[field]
    if names := table.vocabularies.get(field):
        values = np.array([names[value] for value in values])
    probabilities = {"before": before, "after": after}
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.2), layout="constrained")
    ReliabilityDisplay.from_predictions(labels, probabilities).plot(ax=left)
    FieldDisplay.from_predictions(labels, probabilities, values, field_name=field).plot(ax=right)
    figure.suptitle(f"{table.name}: test part before and after Neural Calibration")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def export(table: Table, model: kc.models.CalibratedModel, folder: Path) -> Path:
    """Exports the model under the next free version number, and serves one row with it."""
    import tensorflow as tf

    features, _ = table.part("test")
    path = kc.export_savedmodel(model, folder, features, version="next")
    served = tf.saved_model.load(str(path)).signatures["serving_default"]
    row = served(
        **{signature_input(name): tf.constant(column[:1]) for name, column in features.items()}
    )
    print(
        f"\nServed row: probability {row['probability'].numpy()[0, 0]:.4f} "
        f"(uncalibrated {row['uncalibrated_probability'].numpy()[0, 0]:.4f})"
    )
    return path


if __name__ == "__main__":
    main()
