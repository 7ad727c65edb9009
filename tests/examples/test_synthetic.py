"""The papers' synthetic experiments, small."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from keras_calibration.metrics import CalibratedLogLoss, CalibratedQuadraticLoss, LogLoss

EXAMPLE = Path(__file__).parents[2] / "examples" / "calibrated_metric" / "synthetic.py"


@pytest.fixture(scope="module")
def synthetic():
    specification = importlib.util.spec_from_file_location("synthetic", EXAMPLE)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def linear(synthetic):
    return synthetic.run(synthetic.LINEAR, num_rounds=12, num_seeds=20, seed=1)


@pytest.fixture(scope="module")
def logistic(synthetic):
    return synthetic.run(synthetic.LOGISTIC, num_rounds=12, num_seeds=20, seed=1)


def test_quadratic_losses_have_their_exact_expectations(synthetic, linear):
    expected = synthetic.expected_quadratic_losses()
    found = synthetic.figures(linear)
    for form in synthetic.FORMS:
        value, error = found[f"mean, {form}"]
        assert abs(value - expected[form]) < 4 * error
    # On the same rows the ratios are known far better than the losses.
    for form in ("in-sample", "cross-fitted"):
        ratios = linear.mean[form] / linear.mean["plain"]
        error = ratios.std(ddof=1) / np.sqrt(len(ratios))
        assert error < 3e-4
        assert abs(ratios.mean() - expected[form] / expected["plain"]) < 4 * error


def test_one_run_each_finds_the_better_as_often_as_it_should(linear, logistic):
    # 92.5 and 81.7 over many test sets, which differ by 3.8 and 5.3 points.
    assert abs(linear.accuracy["plain"].mean() - 92.5) < 4 * 4.5 / np.sqrt(12)
    assert abs(logistic.accuracy["plain"].mean() - 81.7) < 4 * 6.5 / np.sqrt(12)
    for rounds in (linear, logistic):
        # Steadier over the test sets than the hold-out, by far.
        gains = {form: rounds.accuracy[form] - rounds.accuracy["plain"] for form in rounds.accuracy}
        assert gains["in-sample"].std() < 0.7 * gains["hold-out"].std()
        assert gains["cross-fitted"].mean() > -0.5


def test_log_losses_are_those_expected(logistic):
    assert abs(logistic.mean["plain"].mean() - 0.5325) < 4 * 0.0042 / np.sqrt(12)
    ratio = np.mean(logistic.std["in-sample"]) / np.mean(logistic.std["plain"])
    assert 0.94 < ratio < 1.0


def test_the_losses_are_those_of_the_metrics(synthetic):
    rng = np.random.default_rng(3)
    outputs, labels = rng.normal(size=(4000, 2)), rng.integers(0, 2, 4000).astype(float)
    found = synthetic.log_losses(outputs, labels, 400)
    for run in range(2):
        for form, metric in (
            ("plain", LogLoss(from_logits=True)),
            ("in-sample", CalibratedLogLoss(num_folds=1, from_logits=True)),
        ):
            metric.update_state(labels, outputs[:, run])
            np.testing.assert_allclose(found[form][run], float(metric.result()), rtol=1e-6)
    found = synthetic.quadratic_losses(outputs, labels, 400)
    metric = CalibratedQuadraticLoss(num_folds=1)
    metric.update_state(labels, outputs[:, 0])
    np.testing.assert_allclose(found["in-sample"][0], float(metric.result()), rtol=1e-6)


def test_the_hold_out_and_the_folds_fit_on_other_rows_than_they_score(synthetic):
    outputs = np.zeros((8, 1))
    labels = np.array([1.0, 1, 1, 0, 0, 0, 1, 0])
    found = synthetic.quadratic_losses(outputs, labels, 2)
    np.testing.assert_allclose(found["hold-out"], [np.mean((labels[2:] - 1) ** 2)])
    halves = ((labels[:4] - 0.25) ** 2).sum() + ((labels[4:] - 0.75) ** 2).sum()
    np.testing.assert_allclose(found["cross-fitted"], [halves / 8])


def test_separable_training_sets_are_refused(synthetic):
    x = np.linspace(-1, 1, 8).reshape(1, 8, 1)
    with pytest.raises((ValueError, np.linalg.LinAlgError)):
        synthetic.fit_logistic(x, (x[..., 0] > 0).astype(float))


def test_the_picture_and_the_table(synthetic, logistic, tmp_path):
    lines = synthetic.table(synthetic.LOGISTIC, logistic)
    (line,) = [line for line in lines if line.startswith("accuracy, plain")]
    assert f"{logistic.accuracy['plain'].mean():.2f}" in line
    assert line.endswith("79.62 / 85.93")
    path = synthetic.draw_picture([(synthetic.LOGISTIC, logistic)] * 2, tmp_path / "picture.png")
    import matplotlib.image

    assert matplotlib.image.imread(path).shape[1] > 1000
