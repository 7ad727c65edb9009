"""What a SavedModel's signatures give, held against recorded outputs, by TensorFlow alone.

Run as a program it is that check in a process of its own, in which neither Keras nor this package
can be imported: `python check_savedmodel.py SAVEDMODEL ROWS.npz`. It must not import the package.
"""

import json
import sys
from typing import Any

import numpy as np


def largest_differences(path: str, rows_file: str) -> dict[str, float]:
    """The largest difference of each output of each signature from what is expected.

    Two NaN, or two infinities of the same sign, do not differ.

    Args:
        path: Folder of the SavedModel.
        rows_file: A NumPy file of arrays named `SIGNATURE/inputs/NAME` and
            `SIGNATURE/outputs/NAME`, as `write_rows` writes it.

    Returns:
        `"SIGNATURE/OUTPUT"` → the largest difference.
    """
    import tensorflow as tf

    rows: dict[str, dict[str, dict[str, Any]]] = {}
    with np.load(rows_file) as arrays:
        for key in arrays:
            signature, kind, name = key.split("/", 2)
            rows.setdefault(signature, {"inputs": {}, "outputs": {}})[kind][name] = arrays[key]
    loaded = tf.saved_model.load(path)
    received: dict[str, Any] = {}
    with tf.device("CPU:0"):
        for signature, columns in rows.items():
            inputs = {name: tf.constant(values) for name, values in columns["inputs"].items()}
            received[signature] = loaded.signatures[signature](**inputs)
        if "serving_default" in rows:
            # Held against `calibrate` on its own logits: a curve of steps may jump between two
            # logits that differ by their rounding alone.
            of_head = {name: tf.constant(v) for name, v in rows["calibrate"]["inputs"].items()}
            of_head["logit"] = received["serving_default"]["logit"]
            calibrated = loaded.signatures["calibrate"](**of_head)
            rows["serving_default"]["outputs"]["probability"] = calibrated["probability"].numpy()
    return {
        f"{signature}/{name}": _difference(received[signature][name].numpy(), values)
        for signature, columns in rows.items()
        for name, values in columns["outputs"].items()
    }


def _difference(received: np.ndarray, expected: np.ndarray) -> float:
    if received.shape != expected.shape:
        return float("inf")
    a, b = received.astype("float64"), expected.astype("float64")
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        differences = np.where(same, 0.0, np.abs(a - b))
    return float(np.nan_to_num(differences, nan=np.inf).max(initial=0.0))


if __name__ == "__main__":
    for module in ("keras", "keras_calibration", "tf_keras"):
        sys.modules[module] = None  # type: ignore[assignment]  # cannot be imported
    print(json.dumps(largest_differences(sys.argv[1], sys.argv[2])))
