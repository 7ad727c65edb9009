"""A refresh changes what the head has learnt, and nothing else."""

import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import expit as sigmoid

import class_worlds
import keras_calibration as kc
from keras_calibration.export.savedmodel.files import collection_keys, replace_tensors
from served import outputs_of, provenance_of

NUM_ROWS = 600
LOGITS = np.linspace(-2, 2, NUM_ROWS)


def refresh(path, *arguments, **keywords):
    how = {"from_logits": True, "verbose": 0, **keywords}
    return kc.refresh_savedmodel(path, *arguments, **how).path


def base_model():
    keras.utils.set_random_seed(1)
    inputs = {
        "site": keras.Input((), dtype="string", name="site"),
        "class": keras.Input((1,), dtype="int64", name="class"),
        "x": keras.Input((1,), name="x"),
    }
    lookup = keras.layers.StringLookup(vocabulary=["news", "mail"], output_mode="one_hot")
    site = lookup(keras.ops.expand_dims(inputs["site"], 1))
    hidden = keras.layers.Concatenate()([site, inputs["x"]])
    hidden = keras.layers.Dense(4, "relu")(hidden)
    bias = keras.initializers.Constant(-1.0)  # logits that nobody takes for probabilities
    return keras.Model(inputs, keras.layers.Dense(1, "sigmoid", bias_initializer=bias)(hidden))


def rows(seed=0):
    """Features and labels that depend on a field."""
    rng = np.random.default_rng(seed)
    features = {
        "site": rng.choice(["news", "mail", "shop"], NUM_ROWS).astype(object),
        "class": rng.integers(0, 4, NUM_ROWS),
        "x": rng.normal(size=NUM_ROWS).astype("float32"),
    }
    return features, rng.random(NUM_ROWS) < np.where(features["site"] == "mail", 0.7, 0.2)


def tensors_of(features):
    return {
        "site": tf.constant(features["site"]),
        "class": tf.constant(features["class"].reshape(-1, 1)),
        "x": tf.constant(features["x"].reshape(-1, 1)),
    }


def bytes_of_tensors(path):
    reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    keys = reader.get_variable_to_shape_map()
    return {key: np.asarray(reader.get_tensor(key)).tobytes() for key in keys}


def site_lookup():
    return keras.layers.StringLookup(vocabulary=["news", "mail", "shop"])


HEADS = {
    "field_bias": lambda: kc.layers.FieldBias(
        {"site": site_lookup(), "class": 4}, kc.layers.PlattScaling()
    ),
    "isotonic": lambda: kc.layers.IsotonicRegression(),
    "field_ilps": lambda: kc.layers.FieldILPS({"class": 4}, kc.layers.ILPS(5)),
    "weighted": lambda: kc.layers.BlendedHead(
        [kc.layers.ILPS(), kc.layers.BoostedTrees({"site": site_lookup(), "class": 4}, ["x"])],
        [0.25, 0.65],
    ),
    "blend": lambda: kc.layers.BlendedHead(
        [
            kc.layers.FieldBias({"site": site_lookup()}, kc.layers.ILPS()),
            kc.layers.NeuralCalibration(
                kc.layers.PlattScaling(),
                kc.layers.FieldNetwork({"class": 4}, ["x"], seed=0),
                num_members=2,
            ),
        ]
    ),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", HEADS)
def test_only_the_head_is_another(kind, tmp_path):
    model = kc.models.CalibratedModel(base_model(), HEADS[kind]())
    features, labels = rows()
    first = kc.export_savedmodel(model, tmp_path / "ctr" / "1", features)
    arguments = {("class_" if n == "class" else n): c for n, c in features.items()}
    logits = outputs_of(first, arguments, "raw")["logit"]
    names = getattr(model.head, "feature_names", ())
    # NeuralCalibration draws from no global state, hence a second fit is the same.
    settings = kc.layers.FitSettings(max_epochs=3, folds=2)
    head_features = {name: features[name] for name in names}
    weights = np.random.default_rng(3).exponential(size=len(labels))
    second = refresh(tmp_path / "ctr", logits, labels, head_features, weights, settings=settings)
    assert second == tmp_path / "ctr" / "2"

    # The graph is the same, and of the weights the head's alone are others.
    before, after = ((path / "saved_model.pb").read_bytes() for path in (first, second))
    assert before == after
    before, after = bytes_of_tensors(first), bytes_of_tensors(second)
    head = set(collection_keys(first, "head_weights"))
    assert set(before) == set(after)
    changed = {key for key in before if before[key] != after[key]}
    assert changed
    assert changed <= head
    assert len(head) < len(before)

    # The same as a fit in Keras, of the model that was exported.
    columns = {name: tensors_of(features)[name] for name in names}
    summary = model.head.fit(logits, labels, columns or None, weights, settings=settings)
    expected = model(tensors_of(features)).numpy()
    outputs = outputs_of(second, arguments)
    np.testing.assert_allclose(outputs["probability"], expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(outputs["logit"], logits)
    assert summary.log_loss_in_sample < summary.log_loss_before
    told = provenance_of(second)
    assert told["fit"]["log_loss_in_sample"] == pytest.approx(summary.log_loss_in_sample)
    # Before is the head that was served.
    p = outputs_of(first, arguments)["probability"][:, 0].astype(float)
    before = -np.average(np.where(labels, np.log(p), np.log1p(-p)), weights=weights)
    assert told["fit"]["log_loss_before"] == pytest.approx(before, abs=1e-6)
    assert told["fit"]["num_rows"] == NUM_ROWS
    assert told["refreshed_from"]["version"] == "1"
    assert told["base_model"] == provenance_of(first)["base_model"]


def test_the_fingerprint_is_the_one_that_tensorflow_takes(exported, tmp_path):
    path = shutil.copytree(exported, tmp_path / "1")
    fingerprint = tf.saved_model.experimental.read_fingerprint
    key = collection_keys(path, "head_weights")[0]
    reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    value = reader.get_tensor(key)
    replace_tensors(path, {key: value})
    by_tensorflow, rewritten = fingerprint(str(exported)), fingerprint(str(path))
    assert rewritten.saved_model_checksum == by_tensorflow.saved_model_checksum
    assert rewritten.signature_def_hash == by_tensorflow.signature_def_hash
    replace_tensors(path, {key: value + 1})
    assert fingerprint(str(path)).checkpoint_hash != rewritten.checkpoint_hash


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    model = kc.models.CalibratedModel(base_model(), HEADS["field_bias"]())
    return kc.export_savedmodel(model, tmp_path_factory.mktemp("exported") / "1")


@pytest.mark.parametrize(
    "change",
    [
        {"labels": np.ones(NUM_ROWS)},
        {"predictions": np.full(NUM_ROWS, np.nan)},
        {"features": {"site": np.zeros(NUM_ROWS)}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_bad_input_writes_nothing(change, exported):
    features, labels = rows()
    arguments = {"predictions": LOGITS, "labels": labels, "features": features, **change}
    with pytest.raises(ValueError, match="Received: "):
        refresh(exported, **arguments)
    assert [entry.name for entry in exported.parent.iterdir()] == ["1"]


def test_what_cannot_be_refreshed_is_refused(exported, tmp_path):
    features, labels = rows()
    arguments = (LOGITS, labels, features)
    with pytest.raises(ValueError, match=r"`path`.*nothing'"):
        refresh(tmp_path / "nothing", *arguments)
    named = shutil.copytree(exported, tmp_path / "named")
    with pytest.raises(ValueError, match=r"`path`.*named'"):
        refresh(named, *arguments)
    plain = tmp_path / "7"
    dense = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    dense.export(plain, verbose=False)
    with pytest.raises(ValueError, match=r"`path`.*damaged"):
        refresh(plain, *arguments)
    (tmp_path / "9").mkdir()
    with pytest.raises(ValueError, match=r"`path`.*9'"):
        refresh(tmp_path, *arguments)
    assert {entry.name for entry in tmp_path.iterdir()} == {"named", "7", "9"}
    for name in ("only_if_better", "dry_run"):
        with pytest.raises(ValueError, match=f"`{name}`"):
            refresh(exported, *arguments, **{name: "no"})


def test_a_version_is_found_by_a_link_and_a_name_with_zeros(tmp_path, monkeypatch):
    first = platt_export(tmp_path / "007", LOGITS)
    (tmp_path / "current").symlink_to(first)
    again = {"labels": labels_of(LOGITS), "dry_run": True}
    monkeypatch.chdir(first)
    for path in (tmp_path, ".", tmp_path / "current"):
        assert refresh(path, LOGITS, **again).samefile(first)
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    assert refresh(first, LOGITS, **again) == first
    with pytest.raises(ValueError, match="`path`"):
        refresh(first, LOGITS, again["labels"])


def test_the_next_of_a_read_only_version_can_be_written(tmp_path):
    first = platt_export(tmp_path / "1", LOGITS)
    modes = {path.relative_to(first): path.stat().st_mode for path in first.rglob("*")}
    for path in (first, *first.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    second = refresh(first, LOGITS, labels_of(LOGITS))
    assert {path.relative_to(second): path.stat().st_mode for path in second.rglob("*")} == modes
    assert second.stat().st_mode & 0o200


@pytest.mark.slow
def test_classes_are_refreshed_by_their_logits(tmp_path):
    x, labels = class_worlds.class_rows(1500)
    model = kc.models.CalibratedModel(class_worlds.base_model(), kc.layers.VectorScaling(3))
    kc.fit_head(model, x, labels, verbose=0)
    path = kc.export_savedmodel(model, tmp_path / "1", x)
    new, labels = class_worlds.class_rows(1500, scale=0.3, seed=2)
    # A softmax leaves open a constant of each row, on which the head's scales depend.
    with pytest.raises(ValueError, match="`from_logits`"):
        refresh(path, model.base_model(new), labels, from_logits=False)
    second = refresh(path, new["scores"], labels)
    model.head.fit(new["scores"], labels)
    np.testing.assert_allclose(outputs_of(second, new)["probability"], model(new), atol=1e-6)


def edit_provenance(path, **entries):
    told = {**provenance_of(path), **entries}
    (path / "assets.extra" / "provenance.json").write_text(json.dumps(told))


def flip_byte(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def data_file(path):
    return next((path / "variables").glob("*.data*"))


def mix(path, other):
    """Another version, copied over this one without its provenance."""
    for name in ("saved_model.pb", "variables/variables.index"):
        shutil.copy(other / name, path / name)
    shutil.copy(data_file(other), data_file(path))


# Damage of each file alone is among the attacks (`test_writer_attacks.py`).
TAMPERED = {
    "weights": lambda path, other: flip_byte(data_file(path)),
    "other head": lambda path, other: shutil.copy(
        other / "assets.extra" / "head.keras", path / "assets.extra"
    ),
    "one file more": lambda path, other: (path / "variables" / "more").touch(),
    "no provenance entry": lambda path, other: edit_provenance(path, files_sha256=None),
    "another version": mix,
    "no quantiles": lambda path, other: edit_provenance(path, logits={"num_rows": 3}),
    "no range": lambda path, other: edit_provenance(
        path, logits={**provenance_of(path)["logits"], "min": None}
    ),
    "no level": lambda path, other: edit_provenance(path, interval="0.9"),
}


def test_what_was_tampered_with_is_refused(tmp_path):
    labels = labels_of(LOGITS)
    first = platt_export(tmp_path / "1", LOGITS, interval=0.9)
    second = refresh(first, LOGITS + 1, labels)
    for name, tamper in TAMPERED.items():
        folder = tmp_path / name
        path = shutil.copytree(first, folder / "1")
        tamper(path, second)
        with pytest.raises(ValueError, match=r"`path`.*Export"):
            refresh(folder, LOGITS, labels)
        assert [entry.name for entry in folder.iterdir()] == ["1"], name


def platt_export(path, logits=None, sample=None, **arguments):
    """A Platt scaling of a base whose logit is its input, fitted where there are logits."""
    inputs = {"x": keras.Input((1,), name="x")}
    last = keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")
    model = kc.models.CalibratedModel(
        keras.Model(inputs, last(inputs["x"])), kc.layers.PlattScaling()
    )
    if logits is not None:
        kc.fit_head(model, {"x": logits[:, None]}, labels_of(logits), verbose=0)
    return kc.export_savedmodel(model, path, sample, **arguments)


def labels_of(logits):
    return np.random.default_rng(0).random(len(logits)) < 1 / (1 + np.exp(-2 * logits))


def test_probabilities_give_what_their_logits_give(tmp_path):
    """Also where the rows of no fit, but of the sample alone, tell the range of the logits."""
    first = platt_export(tmp_path / "1", sample={"x": LOGITS[::10, None]})
    told = provenance_of(first)["logits"]
    assert (told["num_rows"], told["min"]) == (60, pytest.approx(-2, abs=0.02))
    by_probabilities = refresh(tmp_path, sigmoid(LOGITS), labels_of(LOGITS), from_logits=False)
    by_logits = refresh(first, LOGITS, labels_of(LOGITS))
    served = [
        outputs_of(path, {"logit": LOGITS}, "calibrate")["probability"]
        for path in (by_probabilities, by_logits)
    ]
    np.testing.assert_allclose(served[0], served[1], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"`predictions`.*from_logits=True"):
        kc.refresh_savedmodel(tmp_path, LOGITS, labels_of(LOGITS))


def test_a_calibrated_model_is_compared_by_the_rows_of_its_fit(tmp_path):
    """Not by the sample of its export, which may be the first rows in some order."""
    inputs = {"x": keras.Input((1,), name="x")}
    last = keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")
    base, x = keras.Model(inputs, last(inputs["x"])), {"x": LOGITS[:, None]}
    model = kc.calibrate(base, x, labels_of(LOGITS), methods=["platt"], verbose=0)
    path = kc.export_savedmodel(model, tmp_path / "1", {"x": x["x"][-5:]})
    told = provenance_of(path)["logits"]
    assert (told["rows"], told["num_rows"]) == ("fit", NUM_ROWS)
    refresh(path, LOGITS, labels_of(LOGITS))
    with pytest.warns(UserWarning, match=r" -2 to 2\."):
        refresh(path, LOGITS + 5, labels_of(LOGITS))


def test_probabilities_given_as_logits_bring_one_warning(tmp_path):
    platt_export(tmp_path / "1", LOGITS)
    with pytest.warns(UserWarning, match="like probabilities") as warned:
        refresh(tmp_path, sigmoid(LOGITS), labels_of(LOGITS))
    assert sum("like probabilities" in str(warning.message) for warning in warned) == 1


def test_a_head_that_cannot_shift_the_mean_tells_so(tmp_path):
    """A temperature leaves a base logit of 0 at ½, whatever rate is observed."""
    inputs = {"x": keras.Input((1,), name="x")}
    last = keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")
    base = keras.Model(inputs, last(inputs["x"]))
    model = kc.models.CalibratedModel(base, kc.layers.TemperatureScaling())
    path = kc.export_savedmodel(model, tmp_path / "1", {"x": LOGITS[::10, None]})
    labels = np.random.default_rng(0).random(NUM_ROWS) < sigmoid(2 * LOGITS + 1)
    with pytest.warns(UserWarning, match="mean prediction") as warned:
        second = refresh(path, LOGITS, labels)
    served = outputs_of(second, {"logit": LOGITS}, "calibrate")["probability"].mean()
    (told,) = (str(warning.message) for warning in warned if "mean prediction" in str(warning))
    assert f"is {served:.4g} and the mean label {labels.mean():.4g}" in told
