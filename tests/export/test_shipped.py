"""The SavedModels in `savedmodels/` give the numbers that they gave when they were made."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_calibration.export import refresh_savedmodel
from keras_calibration.export.head_file import SavedHead
from keras_calibration.layers import FitSettings
from served import serve, serve_here

SAVEDMODELS = Path(__file__).parents[2] / "savedmodels"
SAMPLES = sorted(SAVEDMODELS.glob("*/sample_*.json"))


def name_of(sample):
    return sample.parent.name


def version_of(sample):
    return sample.parent / sample.stem.removeprefix("sample_")


def recorded_in(sample):
    recorded = json.loads(sample.read_text(encoding="utf-8"))
    return recorded.pop("inputs"), {name: np.array(values) for name, values in recorded.items()}


def test_there_is_one_version_of_each():
    assert [sample.parent.name for sample in SAMPLES] == ["click_log", "click_log_strings"]
    versions = [version_of(sample) for sample in SAMPLES]
    assert sorted(path.parent for path in SAVEDMODELS.glob("*/*/saved_model.pb")) == versions
    for version in versions:
        size = sum(file.stat().st_size for file in version.rglob("*") if file.is_file())
        assert size < 400 * 1024


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=name_of)
def test_it_still_gives_its_numbers(sample):
    inputs, recorded = recorded_in(sample)
    outputs = serve(version_of(sample), inputs)
    assert set(recorded) == set(outputs) == {"probability", "uncalibrated_probability", "logit"}
    for name, values in recorded.items():
        assert len(values) == 32
        np.testing.assert_allclose(outputs[name], values, rtol=1e-6, atol=1e-6)


# Strings and ids that no vocabulary has, and what is easily mistaken for one that it has.
WORDS = [
    "site-1",
    "site-1 ",
    "Site-1",
    "device-0",
    "",
    "[UNK]",
    "NaN",
    "0",
    "日本",
    "a\nb",
    "x" * 999,
]
IDS = [0, 1, -1, 499, 500, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("sample", SAMPLES, ids=name_of)
def test_the_onnx_file_gives_what_the_savedmodel_gives(sample):
    onnx = pytest.importorskip("onnxruntime")
    version = version_of(sample)
    inputs, _ = recorded_in(sample)
    is_text = isinstance(inputs["site_id"][0], str)
    values = WORDS if is_text else IDS
    rng = np.random.default_rng(0)
    hostile = {
        name: inputs[name] + rng.choice(np.array(values, object), 200).tolist()
        for name in ("site_id", "device")
    }
    bids = [np.nan if each is None else each for each in inputs["log_bid"]]
    bids += rng.choice([np.nan, 0.0, -30.0, 1e4, -0.5, 3.0], 200).tolist()
    dtype = object if is_text else np.int32
    columns = {name: np.array(column, dtype) for name, column in hostile.items()}
    columns["log_bid"] = np.array(bids, np.float32)
    session = onnx.InferenceSession(
        version.with_suffix(".onnx"), providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_outputs()]
    received = dict(zip(names, session.run(names, columns), strict=True))
    rows = {
        name: tf.constant(
            column.tolist(), None if name == "log_bid" else tf.string if is_text else tf.int32
        )
        for name, column in columns.items()
    }
    expected = serve_here(version, rows)
    for name in ("probability", "uncalibrated_probability"):
        np.testing.assert_allclose(received[name][:, 0], expected[name], rtol=0, atol=1e-6)
    assert np.isfinite(received["probability"]).all()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("sample", SAMPLES, ids=name_of)
def test_its_head_is_still_read_and_refreshed(sample, tmp_path):
    """Today's layers load the head of then; what they give, the new version serves."""
    inputs, recorded = recorded_in(sample)
    version = version_of(sample)
    file = version / "assets.extra" / "head.keras"
    saved = SavedHead.read(file)
    columns = {
        # JSON has null for a missing number.
        name: tf.constant([np.nan if value is None else value for value in inputs[name]])
        for name in saved.inputs
        if name != "logit"
    }
    logit = recorded["logit"].astype("float32")[:, None]
    calibrated = saved.model([tf.constant(logit), columns]).numpy()[:, 0]
    np.testing.assert_allclose(1 / (1 + np.exp(-calibrated)), recorded["probability"], atol=1e-6)

    shutil.copytree(version, tmp_path / "1")
    labels = np.arange(320) % 10 < np.where(np.tile(logit[:, 0], 10) > np.median(logit), 4, 2)
    features = {name: np.tile(np.array(inputs[name], object), 10) for name in columns}
    path = refresh_savedmodel(
        tmp_path,
        np.tile(logit, (10, 1)),
        labels,
        features,
        from_logits=True,
        settings=FitSettings(max_epochs=3),
    )
    rows = {name: columns.get(name, values) for name, values in inputs.items()}
    after = serve_here(path, rows)
    np.testing.assert_allclose(after["logit"], logit[:, 0], rtol=1e-6, atol=1e-6)
    assert np.mean(after["probability"]) == pytest.approx(labels.mean(), abs=0.02)
