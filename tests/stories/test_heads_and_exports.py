"""Stories of hostile users: field values, calibrators, exports, several outputs.

Each was written from the documentation alone, and is held against NumPy, pandas or SciPy.
"""

import keras
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import keras_calibration as kc
from served import outputs_of
from stories import references
from stories.references import sigmoid

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

GRID = np.linspace(-4, 4, 9)


NUM_ROWS = 2000


@pytest.fixture(scope="module")
def sites():
    """Rows of a base model `σ(1.2 price - 0.3)` that knows nothing of the site."""
    rng = np.random.default_rng(0)
    site = rng.integers(0, 4, NUM_ROWS)
    logits = 1.2 * rng.normal(size=NUM_ROWS) - 0.3
    labels = (rng.random(NUM_ROWS) < sigmoid(0.8 * logits + 0.6 * (site - 1.5))).astype(int)
    return site, logits, labels, rng.integers(0, 3, NUM_ROWS), rng.permutation(NUM_ROWS)


# All other kinds of ids are in `scoring/test_exact_ids.py`.
_VALUES = {
    "near 2⁶⁴": lambda site: site.astype("uint64") + 2**63,
    "fractions": lambda site: site / 3,
    "dates": lambda site: np.datetime64("2026-01-01") + site,
    "Int64 with NA": lambda site: pd.Series(site, dtype="Int64").where(site != 3, pd.NA),
}


@pytest.mark.parametrize("kind", _VALUES)
def test_field_values_of_many_kinds(kind, sites):
    site, logits, labels, weights, order = sites
    values, p = _VALUES[kind](site), sigmoid(logits)
    expected = references.field_ece(labels, p, values, weights)
    received = kc.scoring.field_ece(labels, p, values, weights)
    assert received == pytest.approx(expected)
    columns = {"label": labels, "probability": p, "site": values, "w": weights}
    frame = pd.DataFrame(columns).set_index(order)
    log = kc.logs.ScoredLog(frame, fields=["site"], sample_weight="w")
    assert kc.scoring.score(log, verbose=0)["site_field_ece"] == pytest.approx(expected)


def test_platt_with_counts_in_another_order_of_the_index(sites):
    _, logits, labels, weights, order = sites
    layer = kc.layers.PlattScaling()
    columns = pd.Series(logits), pd.Series(labels, dtype="Int8")
    counts = pd.Series(weights, index=order, dtype="Int64")
    # The rows are matched by position.
    with pytest.warns(UserWarning, match="`logits` and `sample_weight` have the same index"):
        summary = layer.fit(*columns, sample_weight=counts, weights_are="counts")
    parameters, hessian = references.platt(logits, labels, weights)
    columns = np.stack([GRID, np.ones(len(GRID))], axis=1)
    expected = columns @ parameters
    np.testing.assert_allclose(layer(GRID), expected, atol=1e-3)
    fitted = sigmoid(parameters[0] * logits + parameters[1])
    expected_loss = references.log_loss(labels, fitted, weights)
    assert summary.log_loss_in_sample == pytest.approx(expected_loss)
    spread = np.sqrt(np.einsum("ij,jk,ik->i", columns, np.linalg.inv(hessian), columns))
    ends = layer.interval(GRID, level=0.9)
    for sign, end in zip((-1, 1), ends, strict=True):
        at_end = expected + sign * stats.norm.ppf(0.95) * spread
        np.testing.assert_allclose(np.ravel(end), sigmoid(at_end), 2e-3)


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
