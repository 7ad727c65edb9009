"""Makes the small models that stand here: `./dev run python savedmodels/make.py [NAME ...]`.

For each NAME (`click_log`, fields as ids; `click_log_strings`, fields as strings; default: both) it
trains a small base model and a head on a short generated click log, exports them in place of
`savedmodels/NAME/1` and of `savedmodels/NAME/1.onnx`, and writes sample rows with their outputs
beside them, for the tests.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_calibration as kc
from keras_calibration.datasets.table import Table
from keras_calibration.export import signature_input

FOLDER = Path(__file__).parent
FIELDS = ("site_id", "device")
NUM_SAMPLE_ROWS = 32
Columns = dict[str, np.ndarray]
# A model and sample rows.
Fitted = tuple[kc.models.CalibratedModel, Columns]


def main() -> None:
    """Trains, exports, and writes the samples."""
    models: dict[str, Callable[[], Fitted]] = {
        "click_log": id_model,
        "click_log_strings": string_model,
    }
    for name in sys.argv[1:] or models:
        keras.utils.set_random_seed(0)
        model, sample = models[name]()
        path = FOLDER / name / "1"
        shutil.rmtree(path, ignore_errors=True)
        kc.export_savedmodel(model, path, sample)
        path.with_suffix(".onnx").unlink(missing_ok=True)
        kc.export_onnx(model, path.with_suffix(".onnx"), as_tensors(sample))
        outputs = served(path, sample)
        expected = model.predict(as_tensors(sample), verbose=0)[:, 0]
        if not np.allclose(outputs["probability"], expected, rtol=0, atol=1e-6, equal_nan=True):
            raise RuntimeError(f"{path} serves something else than the model.")
        write_sample(sample, outputs, path.parent / f"sample_{path.name}.json")
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        print(f"{path}: {size / 1024:.0f} KiB")


def id_model() -> Fitted:
    """Fields as ids, a number; a Neural Calibration head."""
    table = kc.datasets.generate_click_log(num_rows=20_000, seed=0)
    base = base_model(
        {name: keras.Input((), dtype="int32", name=name) for name in FIELDS},
        {name: table.num_values[name] for name in FIELDS},
    )
    base.fit(*inputs_and_labels(table, "train"), batch_size=256, verbose=0)
    fields = {name: table.num_values[name] for name in FIELDS}
    network = kc.layers.FieldNetwork(
        fields, numeric=["log_bid"], embedding_dim=4, hidden_units=[8], seed=0
    )
    model = kc.models.CalibratedModel(base, kc.layers.NeuralCalibration(kc.layers.ILPS(), network))
    kc.fit_head(model, *inputs_and_labels(table, "development"), verbose=0)
    sample = {n: c[:NUM_SAMPLE_ROWS] for n, c in inputs_and_labels(table, "test")[0].items()}
    # An id that no vocabulary has, and a missing number, are served too.
    sample["site_id"][0] = 10**6
    sample["log_bid"][1] = np.nan
    return model, sample


def string_model() -> Fitted:
    """Fields as strings, a number; offsets by field value, fitted directly."""
    table = kc.datasets.generate_click_log(num_rows=20_000, seed=0)
    lookups = {
        name: keras.layers.StringLookup(
            vocabulary=[word(name, number) for number in range(table.num_values[name])]
        )
        for name in FIELDS
    }
    base = base_model(
        {name: keras.Input((), dtype="string", name=name) for name in FIELDS}, lookups
    )
    features, labels = with_words(*inputs_and_labels(table, "train"))
    base.fit(as_tensors(features), labels, batch_size=256, epochs=4, verbose=0)
    model = kc.models.CalibratedModel(base, kc.layers.FieldBias(lookups, kc.layers.ILPS()))
    features, labels = with_words(*inputs_and_labels(table, "development"))
    kc.fit_head(model, as_tensors(features), labels, verbose=0)
    features, _ = with_words(*inputs_and_labels(table, "test"))
    sample = {name: column[:NUM_SAMPLE_ROWS] for name, column in features.items()}
    # Strings that no vocabulary has.
    sample["site_id"][0], sample["device"][1], sample["site_id"][2] = (
        "new",
        "",
        "Straße \N{SNOWMAN}",
    )
    return model, sample


def base_model(inputs: dict[str, keras.KerasTensor], vocabularies: dict[str, Any]) -> keras.Model:
    """Two embeddings and a number, one hidden layer; compiled."""
    inputs = {**inputs, "log_bid": keras.Input((), name="log_bid")}
    bid = keras.ops.expand_dims(inputs["log_bid"], 1)
    columns = [keras.ops.where(keras.ops.isnan(bid), 0.0, bid)]
    for name, vocabulary in vocabularies.items():
        if isinstance(vocabulary, int):
            size, ids = vocabulary, keras.ops.clip(inputs[name], 0, vocabulary - 1)
        else:
            size, ids = vocabulary.vocabulary_size(), vocabulary(inputs[name])
        columns.append(keras.layers.Embedding(size, 4)(ids))
    hidden = keras.layers.Dense(16, activation="relu")(keras.layers.Concatenate()(columns))
    base = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    base.compile(optimizer="adam", loss="binary_crossentropy")
    return base


def inputs_and_labels(table: Table, part: str) -> tuple[Columns, np.ndarray]:
    """The columns that the model takes, as copies."""
    features, labels = table.part(part)
    return {name: features[name].copy() for name in (*FIELDS, "log_bid")}, labels


def word(field: str, number: int) -> str:
    """The string that stands for an id."""
    return f"{field.removesuffix('_id')}-{number}"


def with_words(features: Columns, labels: np.ndarray) -> tuple[Columns, np.ndarray]:
    """Ids as strings."""
    words = {
        name: np.array([word(name, number) for number in features[name]], object) for name in FIELDS
    }
    return {**features, **words}, labels


def as_tensors(columns: Columns) -> dict[str, Any]:
    """Strings as tensors: Keras takes no NumPy array of them."""
    import tensorflow as tf

    return {name: tf.constant(column) for name, column in columns.items()}


def served(path: Path, sample: Columns) -> Columns:
    """What the SavedModel gives for the sample."""
    import tensorflow as tf

    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    inputs = {signature_input(name): column for name, column in as_tensors(sample).items()}
    return {name: values.numpy()[:, 0] for name, values in signature(**inputs).items()}


def write_sample(sample: Columns, outputs: Columns, path: Path) -> None:
    """Rows and outputs as JSON; a missing number is null."""
    columns = {
        name: [None if value != value else value for value in column.tolist()]
        for name, column in sample.items()
    }
    numbers = {name: values.tolist() for name, values in outputs.items()}
    text = json.dumps({"inputs": columns, **numbers}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
