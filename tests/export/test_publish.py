"""A format is `write` and `run`; `publish` does the rest, for one of somebody else too."""

import json

import keras
import numpy as np
import pytest
from scipy.special import expit as sigmoid

import keras_calibration as kc
from keras_calibration.export.publish import Format, publish
from keras_calibration.export.spec import HEAD_OUTPUTS, Spec
from keras_calibration.export.target import Target
from keras_calibration.export.verification import tolerance_for
from keras_calibration.layers import IsotonicRegression, PlattScaling

pytestmark = pytest.mark.tensorflow
X = np.linspace(-2, 2, 60, dtype="float32")
LABELS = np.random.default_rng(0).random(60) < 1 / (1 + np.exp(-2 * X))


class Line(Format):
    """The numbers of a base of one weight and a Platt scaling, as JSON."""

    kind = "line"

    def __init__(self, spec, error=0.0):
        self.spec, self.error = spec, error

    def sign(self, path, differences):
        self.told = differences

    def write(self, path):
        scale = self.spec.head.scale * (1 + self.error)
        path.write_text(json.dumps({"scale": float(scale), "bias": float(self.spec.head.bias)}))

    def run(self, path, requests):
        read = json.loads(path.read_text())
        answers = []
        for request in requests:
            logit = np.asarray(request.inputs["x"], "float64").reshape(-1, 1)
            calibrated = read["scale"] * logit + read["bias"]
            values = {"logit": logit, "probability": sigmoid(calibrated)}
            answers.append({**values, "uncalibrated_probability": sigmoid(logit)})
        return answers


def publish_file(spec, path, form):
    """As an ONNX file is published."""
    target = Target(path, is_file=True)
    target.check()
    return publish(target, form, [spec.request(), spec.request(num_rows=1)], spec.tolerance)


def calibrated(head):
    inputs = keras.Input((), name="x")
    last = keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")
    model = kc.models.CalibratedModel(
        keras.Model(inputs, last(keras.ops.expand_dims(inputs, 1))), head
    )
    model.head.fit(X, LABELS)
    return model


def test_a_format_of_somebody_else(tmp_path):
    spec = Spec.from_model(calibrated(PlattScaling()), X)
    path = publish_file(spec, tmp_path / "new" / "line.json", Line(spec))
    assert json.loads(path.read_text())["scale"] == pytest.approx(spec.head.scale)
    assert [file.name for file in path.parent.iterdir()] == ["line.json"]
    wrong = Line(spec, error=1e-4)
    with pytest.raises(RuntimeError, match="'serving_default/probability' of the line"):
        publish_file(spec, tmp_path / "other" / "line.json", wrong)
    with pytest.raises(ValueError, match="which exists"):
        publish_file(spec, path, Line(spec))
    assert not (tmp_path / "other").exists()


def test_a_head_of_steps_is_compared_on_the_logits_of_the_runtime():
    spec = Spec.from_model(calibrated(IsotonicRegression()), X)
    request = spec.request()
    steps = np.asarray(spec.expected["probability"])
    edge = np.flatnonzero(np.diff(steps[:, 0]) > 0)[0] + 1
    logit = np.asarray(spec.expected["logit"]).copy()
    logit[edge] = logit[edge - 1]
    expected = request.expected({"logit": logit})
    assert np.asarray(expected["probability"])[edge] == steps[edge - 1] < steps[edge]
    np.testing.assert_array_equal(expected["logit"], spec.expected["logit"])


def test_one_row_is_compared_too(tmp_path):
    class OnlyMany(Line):
        def run(self, path, requests):
            answers = super().run(path, requests)
            return [{n: v + (len(v) == 1) for n, v in answer.items()} for answer in answers]

    spec = Spec.from_model(calibrated(PlattScaling()), X)
    with pytest.raises(RuntimeError, match="on 1 rows"):
        publish_file(spec, tmp_path / "line.json", OnlyMany(spec))
    assert not list(tmp_path.iterdir())


def test_the_largest_difference_of_all_requests_is_told(tmp_path):
    class LastIsRight(Line):
        def run(self, path, requests):
            first, last = super().run(path, requests)
            return [{**first, "logit": first["logit"] + 1e-6}, last]

    spec = Spec.from_model(calibrated(PlattScaling()), X)
    form = LastIsRight(spec)
    publish_file(spec, tmp_path / "line.json", form)
    assert form.told["serving_default/logit"] == pytest.approx(1e-6, rel=0.5)


def test_probabilities_may_differ_by_a_quarter_of_what_logits_may():
    """The slope of the sigmoid is at most 1/4; other outputs have their own size."""
    tolerance = tolerance_for([-0.5, 100.0], others={"time": [30.0, np.nan], "id": [10**9]})
    expected = {"logit": 4e-4, "time": 1.2e-4, "probability": 1e-4}
    assert {name: tolerance.allowed(name) for name in expected} == pytest.approx(expected)
    # The head computes in float32 on top of a base in any precision, and so do its intervals.
    half = tolerance_for([100.0], ["bfloat16"])
    assert half.allowed("logit") == pytest.approx(100 / 16)
    assert half.allowed("uncalibrated_probability") == pytest.approx(100 / 64)
    for name in HEAD_OUTPUTS:
        assert half.allowed(name) == pytest.approx(1e-4)
