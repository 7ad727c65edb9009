"""The papers' synthetic experiments, small."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import synthetic
from scipy import stats

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples" / "calibrated_metric"


@pytest.fixture(scope="module")
def linear():
    return synthetic.run(synthetic.LINEAR, num_rounds=12, num_seeds=20, seed=1)


@pytest.fixture(scope="module")
def logistic():
    return synthetic.run(synthetic.LOGISTIC, num_rounds=12, num_seeds=20, seed=1)


def test_quadratic_losses_have_their_exact_expectations(linear):
    expected = synthetic.expected_quadratic_losses()
    figures = synthetic.figures(linear)
    for form in synthetic.FORMS:
        value, error = figures[f"mean, {form}"]
        assert abs(value - expected[form]) < 4 * error
    # On the same rows the ratios are known far better than the losses.
    for form in ("in-sample", "cross-fitted"):
        ratios = linear.mean[form] / linear.mean["plain"]
        error = ratios.std(ddof=1) / np.sqrt(len(ratios))
        assert error < 3e-4
        assert abs(ratios.mean() - expected[form] / expected["plain"]) < 4 * error


@pytest.mark.parametrize(("num_features", "num_train"), [(2, 60), (6, 200)])
def test_the_law_of_the_linear_losses(num_features, num_train):
    rng = np.random.default_rng(num_train)
    losses = synthetic.simulate_linear(num_features, num_train, 8000, rng)
    exact = synthetic.linear_law(num_features, num_train, variance=1.0)
    for simulated, deviation in zip(losses, exact, strict=True):
        squares = (simulated - simulated.mean()) ** 2
        assert abs(squares.mean() - deviation**2) < 4 * squares.std() / math.sqrt(8000)
    # The whole law: C − 1 is a ratio of chi-squares, and (L/C − 1) n a chi-square apart from it.
    plain, calibrated = losses
    shapes = (num_features / 2, (num_train - num_features) / 2)
    assert stats.kstest(calibrated - 1, stats.betaprime(*shapes).cdf).pvalue > 1e-3
    bias = (plain / calibrated - 1) * num_train
    assert stats.kstest(bias, stats.chi2(1).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(bias, calibrated)[0, 1]) < 4 / math.sqrt(8000)
    # One coefficient's noise of d + 1.
    leading = math.sqrt(num_features / (num_features + 1))
    assert abs(exact[1] / exact[0] - leading) < 2 / num_train


def test_the_readme_has_the_stored_figures():
    stored = json.loads((FOLDER / "synthetic.json").read_text("utf-8"))
    assert synthetic.section(stored) in (FOLDER / "README.md").read_text("utf-8")


def test_the_section_is_made_from_the_stored_figures(linear, logistic):
    runs = [(synthetic.LINEAR, linear), (synthetic.LOGISTIC, logistic)]
    law = {"num_features": 2, "num_train": 9, "num_runs": 5, "simulated": 0.8, "error": 0.01}
    law |= {"excess": 1.12, "excess_error": 0.02, "scaled": 0.79}
    values = synthetic.to_json(runs, [{**law, "exact": 0.81, "leading": 0.82}])
    text = synthetic.section(json.loads(json.dumps(values, allow_nan=False)))
    assert "| 2 | 9 | 0.8000 ± 0.0100 | 0.8100 | 0.8200 | 1.12000 ± 0.02000 | 1.11111 |" in text
    assert f"| accuracy, plain | {linear.accuracy['plain'].mean():.2f} ± " in text
    # Φ⁻¹(.9349) = 1.513 and Φ⁻¹(.9581) = 1.729.
    assert "| B.1 linear regression | 93.49 % | 0.969 | +0.58 | +2.32 | 0.875 |" in text
