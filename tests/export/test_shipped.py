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
from served import serve_here

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


@pytest.mark.parametrize("sample", SAMPLES, ids=name_of)
def test_it_still_gives_its_numbers(sample):
    """In this process; `serving/test_serving.py` asks in one of C."""
    inputs, recorded = recorded_in(sample)
    inputs = {k: [np.nan if v is None else v for v in values] for k, values in inputs.items()}
    outputs = serve_here(version_of(sample), inputs)
    assert set(recorded) == set(outputs) == {"probability", "uncalibrated_probability", "logit"}
    for name, values in recorded.items():
        assert len(values) == 32
        np.testing.assert_allclose(outputs[name], values, rtol=1e-6, atol=1e-6)


# Strings and ids that no vocabulary has, and what is easily mistaken for one that it has.
WORDS = ["site-1", "site-1 ", "Site-1", "device-0", "", "[UNK]", "NaN", "0", "日本", "a\nb"]
IDS = [0, 1, -1, 499, 500, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("sample", SAMPLES, ids=name_of)
def test_the_onnx_file_gives_what_the_savedmodel_gives(sample):
    onnx = pytest.importorskip("onnxruntime")
    version = version_of(sample)
    inputs, _ = recorded_in(sample)
    is_text = isinstance(inputs["site_id"][0], str)
    hostile = np.array(WORDS if is_text else IDS, object if is_text else np.int32)
    rng = np.random.default_rng(0)
    columns = {
        name: np.concatenate([np.array(inputs[name], hostile.dtype), rng.choice(hostile, 200)])
        for name in ("site_id", "device")
    }
    bids = rng.choice([np.nan, 0.0, -30.0, 1e4, -0.5, 3.0], 200)
    # JSON has null for a missing number, which becomes NaN here.
    columns["log_bid"] = np.r_[np.array(inputs["log_bid"], float), bids].astype("float32")
    session = onnx.InferenceSession(
        version.with_suffix(".onnx"), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    received = dict(zip(names, session.run(names, columns), strict=True))
    expected = serve_here(
        version, {k: tf.constant(v.tolist(), v.dtype) for k, v in columns.items()}
    )
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
    rows = np.tile(logit, (10, 1)), labels, features
    settings = FitSettings(max_epochs=3)
    path = refresh_savedmodel(tmp_path, *rows, from_logits=True, settings=settings)
    rows = {name: columns.get(name, values) for name, values in inputs.items()}
    after = serve_here(path, rows)
    np.testing.assert_allclose(after["logit"], logit[:, 0], rtol=1e-6, atol=1e-6)
    assert np.mean(after["probability"]) == pytest.approx(labels.mean(), abs=0.02)
