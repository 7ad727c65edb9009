"""What the package gives for fixed rows: fits as hex floats, signatures, and files that it wrote.

`make_goldens.py` writes these values into `goldens.json` and `heads.tar.xz`, and `test_goldens.py`
compares. They are made before code is moved or rewritten, so that nothing is lost by it.
"""

import hashlib
import importlib
import inspect
import io
import json
import re
import sys
import tarfile
from pathlib import Path

import keras
import lightgbm
import numpy as np
import scipy
import tensorflow as tf

import keras_calibration as kc
from every_head import HEADS, NUM_CLASSES, NUM_SITES, has_classes

FILE = Path(__file__).with_name("goldens.json")
ARCHIVE = Path(__file__).with_name("heads.tar.xz")
NUM_ROWS, NUM_SHOWN = 500, 20
PACKAGES = ("keras_calibration", "calibration_records")
ROOMS = (
    *("callbacks", "datasets", "layers", "logs", "metrics", "models", "plots", "scoring"),
    *("seeds", "statistics"),
)
REFRESHED = (
    *("BiasCorrection", "PlattScaling", "ILPS", "FieldBias, curve", "FieldILPS", "BoostedTrees"),
    *("NeuralCalibration", "BlendedHead", "VectorScaling"),
)
SETTINGS = kc.layers.FitSettings(folds=2, max_epochs=2)


class Rows:
    """A generated data set: logits (n,) and labels, class logits (n, K) and classes, features."""

    def __init__(self, seed: int, noise: float = 1.0) -> None:
        rng = np.random.default_rng(seed)
        self.features = {
            "site": np.minimum(rng.geometric(0.4, NUM_ROWS) - 1, NUM_SITES - 1),
            "price": rng.normal(size=NUM_ROWS).astype("float32"),
        }
        self.logits = rng.normal(-1, 1.5 * noise, NUM_ROWS).astype("float32")
        shift = 0.7 * self.logits + 0.4 * self.features["site"] - 0.3 * self.features["price"]
        self.labels = (rng.random(NUM_ROWS) < 1 / (1 + np.exp(-shift))).astype("float64")
        self.class_logits = rng.normal(0, 1.5, (NUM_ROWS, NUM_CLASSES)).astype("float32")
        drawn = 0.6 * self.class_logits + rng.gumbel(size=self.class_logits.shape)
        self.classes = np.argmax(drawn, axis=1)
        self.weights = None
        self.weights_are = "importance"

    def of(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Logits and labels for a head."""
        given = (
            (self.class_logits, self.classes) if has_classes(name) else (self.logits, self.labels)
        )
        return given


def data_sets() -> dict[str, Rows]:
    """Clean rows; importances and missing prices; rows that are counted, with soft labels."""
    clean, weighted, counted = Rows(0), Rows(1, noise=0.5), Rows(2)
    rng = np.random.default_rng(3)
    weighted.weights = rng.exponential(size=NUM_ROWS)
    weighted.weights[::50] = 0
    weighted.features["price"][::7] = np.nan
    counted.weights = rng.integers(1, 4, NUM_ROWS).astype("float64")
    counted.weights_are = "counts"
    return {"clean": clean, "weighted": weighted, "counted": counted}


def base_model(name: str) -> keras.Model:
    """A model whose output is its input logit, with the features beside it."""
    size = NUM_CLASSES if has_classes(name) else 1
    inputs = {
        "logit": keras.Input((size,), name="logit"),
        "site": keras.Input((), dtype="int32", name="site"),
        "price": keras.Input((), name="price"),
    }
    used = inputs["logit"] + 0 * keras.ops.expand_dims(keras.ops.cast(inputs["site"], "float32"), 1)
    used += 0 * keras.ops.expand_dims(keras.ops.nan_to_num(inputs["price"]), 1)
    return keras.Model(inputs, keras.layers.Activation("linear", name="base")(used))


def hexed(values: object) -> list[str]:
    """Numbers as hex floats."""
    return [float(value).hex() for value in np.asarray(values, np.float64).reshape(-1)]


def shown(head: kc.layers.Head, logits: np.ndarray, features: dict[str, np.ndarray]) -> list[str]:
    """The calibrated logits of the first rows."""
    calibrated = head(logits[:NUM_SHOWN], few(features))
    return hexed(keras.ops.convert_to_numpy(calibrated))


def fitted(name: str, rows: Rows) -> tuple[kc.layers.Head, object]:
    """A head, fitted by its own `fit`, and the summary."""
    keras.utils.set_random_seed(0)
    head = HEADS[name][0]()
    logits, labels = rows.of(name)
    summary = head.fit(
        *(logits, labels, rows.features, rows.weights),
        settings=SETTINGS,
        weights_are=rows.weights_are,
    )
    return head, summary


def calibrated_model(name: str, head: kc.layers.Head) -> kc.models.CalibratedModel:
    """The model of a head behind its logits."""
    return kc.models.CalibratedModel(base_model(name), head, base_output="logit")


def requests(name: str, rows: Rows) -> dict[str, np.ndarray]:
    """The inputs of a model."""
    logits = rows.of(name)[0].reshape(NUM_ROWS, -1)
    return {**rows.features, "logit": logits}


def few(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The first rows."""
    return {name: column[:NUM_SHOWN] for name, column in columns.items()}


def fits(name: str) -> dict[str, list[str]]:
    """A head by `fit` and `fit_head` on each data set: calibrated logits, and losses of `fit`."""
    found = {}
    for data, rows in data_sets().items():
        logits, labels = rows.of(name)
        head, summary = fitted(name, rows)
        found[f"fit, {data}"] = [
            *shown(head, logits, rows.features),
            *hexed([summary.log_loss_before, summary.log_loss_after]),
        ]
        keras.utils.set_random_seed(0)
        model = calibrated_model(name, HEADS[name][0]())
        kc.fit_head(
            *(model, requests(name, rows), labels, rows.weights),
            weights_are=rows.weights_are,
            settings=SETTINGS,
            verbose=0,
        )
        found[f"fit_head, {data}"] = shown(model.head, logits, rows.features)
    return found


def calibrations() -> dict[str, list[str]]:
    """`calibrate`, by the logit and by a field, on each data set."""
    found = {}
    for data, rows in data_sets().items():
        for fields in ([], ["site"]):
            keras.utils.set_random_seed(0)
            x, base = requests("", rows), base_model("")
            model = kc.calibrate(
                keras.Model(base.input, keras.ops.sigmoid(base.output)),
                *(x, rows.labels, rows.weights),
                fields=fields,
                weights_are=rows.weights_are,
                verbose=0,
            )
            found[f"calibrate, {data}, {fields}"] = hexed(model.predict(few(x), verbose=0))
    return found


def signatures() -> dict[str, list[str]]:
    """Public name → signature, without modules of annotations, and a hash of the docstring."""
    found = {}
    for room in ("", *ROOMS):
        module = importlib.import_module(f"keras_calibration.{room}".rstrip("."))
        for name in sorted(getattr(module, "__all__", None) or dir(module)):
            member = getattr(module, name)
            if inspect.ismodule(member) or name.startswith("_"):
                continue
            found[f"{room}.{name}".lstrip(".")] = described(member)
            if inspect.isclass(member):
                for attribute in sorted(each for each in dir(member) if not each.startswith("_")):
                    value = inspect.getattr_static(member, attribute)
                    owner = getattr(value, "fget", value)
                    if (getattr(owner, "__module__", None) or "").startswith(PACKAGES):
                        value = getattr(member, attribute)
                        found[f"{room}.{name}.{attribute}".lstrip(".")] = described(value)
    return found


def described(member: object) -> list[str]:
    """The signature of a member as text, and the beginning of the hash of its docstring."""
    try:
        text = str(inspect.signature(member)) if callable(member) else type(member).__name__
    except (TypeError, ValueError):
        text = ""
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)
    doc = inspect.getdoc(member) or ""
    return [text, hashlib.sha256(doc.encode()).hexdigest()[:16]]


def file_name(name: str) -> str:
    """The name of the files of a head."""
    return name.lower().replace(", ", "_")


def write_files(folder: Path) -> None:
    """A `.keras` file and a SavedModel of each head, fitted to the clean rows."""
    rows = data_sets()["clean"]
    for name in HEADS:
        model = calibrated_model(name, fitted(name, rows)[0])
        model.save(folder / f"{file_name(name)}.keras")
        x = few(requests(name, rows))
        kc.export_savedmodel(model, folder / file_name(name), x, version=1, verify="same_process")


def outputs_of_files(folder: Path) -> dict[str, list[str]]:
    """What the files of `write_files` give for the first rows."""
    rows, found = data_sets()["clean"], {}
    for name in HEADS:
        x = few(requests(name, rows))
        model = keras.models.load_model(folder / f"{file_name(name)}.keras")
        found[f"{name}, keras"] = hexed(model.predict(x, verbose=0))
        for key, values in answers(folder / file_name(name) / "1", x).items():
            found[f"{name}, savedmodel, {key}"] = values
    return found


def refreshed(folder: Path) -> dict[str, list[str]]:
    """The SavedModels of some heads, refreshed by the weighted rows: their answers."""
    data, found = data_sets(), {}
    for name in REFRESHED:
        logits, labels = data["weighted"].of(name)
        path = kc.refresh_savedmodel(
            *(folder / file_name(name) / "1", logits, labels),
            *(data["weighted"].features, data["weighted"].weights),
            from_logits=True,
            settings=SETTINGS,
            destination=folder / f"{file_name(name)}_again",
            verify="same_process",
        )
        found |= {
            f"{name}, {key}": values
            for key, values in answers(path, few(requests(name, data["clean"]))).items()
        }
    return found


def answers(path: Path, x: dict[str, np.ndarray]) -> dict[str, list[str]]:
    """What a SavedModel answers to a request."""
    function = tf.saved_model.load(str(path)).signatures["serving_default"]
    specs = function.structured_input_signature[1]
    given = {
        key: tf.reshape(tf.cast(x[key], spec.dtype), [-1, *spec.shape[1:]])
        for key, spec in specs.items()
    }
    return {key: hexed(value) for key, value in sorted(function(**given).items())}


def pack(folder: Path) -> None:
    """The files as an archive, without times and owners."""
    with tarfile.open(ARCHIVE, "w:xz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                entry = tarfile.TarInfo(str(path.relative_to(folder)))
                content = path.read_bytes()
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def unpack(folder: Path) -> None:
    """The files of the archive."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")


def environment() -> dict[str, str]:
    """What decides the last bits: versions, and the features of the processor."""
    from numpy._core._multiarray_umath import __cpu_features__

    features = sorted(name for name, has in __cpu_features__.items() if has)
    modules = {"numpy": np, "scipy": scipy, "tensorflow": tf, "keras": keras, "lightgbm": lightgbm}
    found = {name: module.__version__ for name, module in modules.items()}
    return found | {
        "python": ".".join(map(str, sys.version_info[:2])),
        "processor": hashlib.sha256(" ".join(features).encode()).hexdigest()[:16],
    }


def read() -> dict[str, dict]:
    """The recorded values."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))
