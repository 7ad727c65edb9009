"""Stories of hostile users: field values, calibrators, exports, several outputs.

Each was written from the documentation alone, and is held against NumPy, pandas or SciPy.
"""

import keras
import numpy as np
import pandas as pd
import pytest

import keras_calibration as kc
from served import outputs_of
from stories import references
from stories.references import sigmoid

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

GRID = np.linspace(-4, 4, 9)


class Sites:
    """Rows of a base model `σ(1.2 price - 0.3)` that knows nothing of the site."""

    def __init__(self, num_rows=2000, seed=0):
        rng = np.random.default_rng(seed)
        self.price = rng.normal(size=num_rows).astype("float32")
        self.site = rng.integers(0, 4, num_rows)
        self.logits = 1.2 * self.price.astype("float64") - 0.3
        truth = sigmoid(0.8 * self.logits + 0.6 * (self.site - 1.5))
        self.y = (rng.random(num_rows) < truth).astype(int)
        self.later = (rng.random(num_rows) < sigmoid(0.5 * self.logits - self.site + 1)).astype(int)
        self.weights = rng.integers(0, 3, num_rows)
        self.order = rng.permutation(num_rows)


@pytest.fixture(scope="module")
def sites():
    return Sites()


_VALUES = {
    "negative": lambda site: site - 3,
    "near 2⁶⁴": lambda site: site.astype("uint64") + 2**63,
    "fractions": lambda site: site / 3,
    "strings": lambda site: np.array([f"é{value}" for value in site]),
    "category": lambda site: pd.Series(site.astype(str)).astype("category"),
    "dates": lambda site: np.datetime64("2026-01-01") + site,
    "Int64 with NA": lambda site: pd.Series(site, dtype="Int64").where(site != 3, pd.NA),
    "NaN": lambda site: np.where(site == 3, np.nan, site),
}


@pytest.mark.parametrize("kind", _VALUES)
def test_field_values_of_many_kinds(kind, sites):
    values, p = _VALUES[kind](sites.site), sigmoid(sites.logits)
    expected = references.field_ece(sites.y, p, values, sites.weights)
    received = kc.scoring.field_ece(sites.y, p, values, sites.weights)
    assert received == pytest.approx(expected)
    columns = {"label": sites.y, "probability": p, "site": values, "w": sites.weights}
    frame = pd.DataFrame(columns).set_index(sites.order)
    log = kc.logs.ScoredLog(frame, fields=["site"], sample_weight="w")
    assert kc.scoring.score(log, verbose=0)["site_field_ece"] == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["int", "Int64", "bool", "float16"])
def test_platt_with_weights_of_many_kinds(kind, sites):
    from scipy import stats

    weights = pd.Series(sites.weights, index=sites.order).astype(kind)
    values = np.asarray(weights, "float64")
    layer = kc.layers.PlattScaling()
    logits_and_labels = pd.Series(sites.logits), pd.Series(sites.y, dtype="Int8")
    # The rows are matched by position, and the index of the weights is in another order.
    with pytest.warns(UserWarning, match="`logits` and `sample_weight` have the same index"):
        summary = layer.fit(*logits_and_labels, sample_weight=weights, weights_are="counts")
    (scale, bias), hessian = references.platt(sites.logits, sites.y, values)
    np.testing.assert_allclose(layer(GRID), scale * GRID + bias, atol=1e-3)
    fitted = sigmoid(scale * sites.logits + bias)
    assert summary.log_loss_in_sample == pytest.approx(references.log_loss(sites.y, fitted, values))
    columns = np.stack([GRID, np.ones(len(GRID))], axis=1)
    spread = np.sqrt(np.einsum("ij,jk,ik->i", columns, np.linalg.inv(hessian), columns))
    lower, upper = layer.interval(GRID, level=0.9)
    distance = stats.norm.ppf(0.95) * spread
    np.testing.assert_allclose(np.ravel(lower), sigmoid(columns @ (scale, bias) - distance), 2e-3)
    np.testing.assert_allclose(np.ravel(upper), sigmoid(columns @ (scale, bias) + distance), 2e-3)


def test_rates_of_each_row(tmp_path):
    rng = np.random.default_rng(0)
    inputs = {"l": keras.Input((1,), name="l"), "kept": keras.Input((), name="kept")}
    base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["l"]))
    made = kc.models.CalibratedModel(base, kc.layers.SamplingCorrection("kept"))
    x = {
        "l": rng.normal(size=(50, 1)).astype("float32"),
        "kept": rng.uniform(0.01, 1, 50).astype("float32"),
    }
    expected = sigmoid(x["l"][:, 0].astype("float64") + np.log(x["kept"].astype("float64")))
    np.testing.assert_allclose(made.predict(x, verbose=0)[:, 0], expected, rtol=1e-5)
    path = kc.export_savedmodel(made, tmp_path / "1")
    np.testing.assert_allclose(outputs_of(path, x)["probability"][:, 0], expected, rtol=1e-5)
    x["kept"][:4] = [0, -1, 1.5, np.nan]
    with pytest.warns(UserWarning, match="4 of 50 predictions are NaN"):
        predicted = made.predict(x, verbose=0)[:, 0]
    assert np.isnan(predicted).tolist() == [True] * 4 + [False] * 46
