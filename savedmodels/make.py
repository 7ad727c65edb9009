"""Makes the small SavedModel that stands here: `./dev run python savedmodels/make.py`.

It trains a small base model and a head on a short generated click log, exports them to
`savedmodels/click_log/VERSION`, and writes sample rows with their probabilities beside it, so that
a later release can be held to the same numbers.
"""

import json
from pathlib import Path

import keras
import numpy as np

import keras_calibration as kc

FOLDER = Path(__file__).parent / "click_log"
FIELDS = ("site_id", "device")
NUM_SAMPLE_ROWS = 32


def main() -> None:
    """Trains, exports, and writes the sample."""
    keras.utils.set_random_seed(0)
    table = kc.datasets.generate_click_log(num_rows=20_000, seed=0)
    base = make_base_model(table)
    base.compile(optimizer="adam", loss="binary_crossentropy")
    base.fit(*inputs_and_labels(table, "train"), batch_size=256, verbose=0)

    fields = {name: table.num_values[name] for name in FIELDS}
    network = kc.layers.FieldNetwork(
        fields, numeric=["log_bid"], embedding_dim=4, hidden_units=[8], seed=0
    )
    model = kc.models.CalibratedModel(base, kc.layers.NeuralCalibration(kc.layers.ILPS(), network))
    model.compile(optimizer=keras.optimizers.Adam(3e-3))
    model.fit(*inputs_and_labels(table, "development"), batch_size=256, epochs=5, verbose=0)

    rows, _ = inputs_and_labels(table, "test")
    sample = {name: column[:NUM_SAMPLE_ROWS] for name, column in rows.items()}
    # An id that no vocabulary has, and a missing number, are served too.
    sample["site_id"][0] = 10**6
    sample["log_bid"][1] = np.nan
    version = 1 + max((int(entry.name) for entry in FOLDER.glob("[0-9]*")), default=0)
    path = kc.export_savedmodel(model, FOLDER / str(version), sample)
    probabilities = model.predict(sample, verbose=0)[:, 0]
    write_sample(sample, probabilities, FOLDER / f"sample_{version}.json")
    print(f"{path}: {sum(f.stat().st_size for f in path.rglob('*') if f.is_file()) / 1024:.0f} KiB")


def make_base_model(table: kc.datasets.Table) -> keras.Model:
    """Two embeddings and a number, one hidden layer."""
    inputs = {name: keras.Input((), dtype="int32", name=name) for name in FIELDS}
    inputs["log_bid"] = keras.Input((), name="log_bid")
    bid = keras.ops.expand_dims(inputs["log_bid"], 1)
    columns = [keras.ops.where(keras.ops.isnan(bid), 0.0, bid)]
    for name in FIELDS:
        num_values = table.num_values[name]
        known = keras.ops.clip(inputs[name], 0, num_values - 1)
        columns.append(keras.layers.Embedding(num_values, 4)(known))
    hidden = keras.layers.Dense(16, activation="relu")(keras.layers.Concatenate()(columns))
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))


def inputs_and_labels(
    table: kc.datasets.Table, part: str
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The columns that the model takes, as copies."""
    features, labels = table.part(part)
    return {name: features[name].copy() for name in (*FIELDS, "log_bid")}, labels


def write_sample(sample: dict[str, np.ndarray], probabilities: np.ndarray, path: Path) -> None:
    """Rows and probabilities as JSON; a missing number is null."""
    columns = {
        name: [None if value != value else value for value in column.tolist()]
        for name, column in sample.items()
    }
    text = json.dumps({"inputs": columns, "probability": probabilities.tolist()}, indent=1)
    path.write_text(text + "\n")


if __name__ == "__main__":
    main()
