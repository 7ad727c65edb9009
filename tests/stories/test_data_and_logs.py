"""Stories of hostile users: arrays and scored logs.

Each was written from the documentation alone, and is held against NumPy, pandas or SciPy.
"""

import keras
import numpy as np
import pandas as pd
import pytest

import keras_calibration as kc
from stories import references
from stories.references import sigmoid

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

NUM_ROWS = 2000


class Rows:
    """Scored rows: logits, probabilities, labels, whole weights, sites."""

    def __init__(self, num_rows=NUM_ROWS, seed=0):
        rng = np.random.default_rng(seed)
        self.logits = rng.normal(-1, 1.2, num_rows)
        self.p = sigmoid(self.logits)
        self.y = (rng.random(num_rows) < self.p).astype(int)
        self.weights = rng.integers(0, 4, num_rows)
        self.site = rng.integers(0, 5, num_rows)
        self.order = rng.permutation(num_rows)

    def frame(self, **columns):
        """The rows as a pandas data frame."""
        return pd.DataFrame({"label": self.y, "probability": self.p, **columns})


@pytest.fixture(scope="module")
def rows():
    return Rows()


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
def test_field_values_of_many_kinds(kind, rows):
    values = _VALUES[kind](rows.site)
    expected = references.field_ece(rows.y, rows.p, values, rows.weights)
    found = kc.scoring.field_ece(rows.y, rows.p, values, rows.weights)
    assert found == pytest.approx(expected)
    frame = rows.frame(site=values, w=rows.weights).set_index(rows.order)
    log = kc.logs.ScoredLog(frame, fields=["site"], sample_weight="w")
    assert kc.scoring.score(log, verbose=0)["site_field_ece"] == pytest.approx(expected)


def test_sums_of_shards(rows, tmp_path):
    frame = rows.frame(site=rows.site.astype(str), w=rows.weights, key=np.arange(NUM_ROWS))
    parts = kc.logs.ScoredLog(fields=["site"], sample_weight="w", row_key="key")
    metrics = [kc.metrics.LogLoss(), kc.metrics.CalibratedLogLoss(num_folds=1)]
    queries = kc.scoring.log_queries(parts, metrics)
    sums = [kc.logs.log_sums(parts.of(frame[start::3]), queries) for start in range(3)]
    sums[0].save(tmp_path / "ü sums")
    sums[0] = kc.logs.LogSums.load(tmp_path / "ü sums")
    sums[1] = kc.logs.LogSums.from_bytes(sums[1].to_bytes())
    found = kc.scoring.score(kc.logs.LogSums.merged(sums), metrics, verbose=0)
    corrected = sigmoid(rows.logits + references.bias(rows.logits, rows.y, rows.weights))
    assert found["log_loss"] == pytest.approx(references.log_loss(rows.y, rows.p, rows.weights))
    assert found["calibrated_log_loss"] == pytest.approx(
        references.log_loss(rows.y, corrected, rows.weights), rel=1e-6
    )
    assert found["site_field_ece"] == pytest.approx(
        references.field_ece(rows.y, rows.p, rows.site, rows.weights)
    )


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_compiled_metrics_with_weights(policy, rows):
    import tensorflow as tf

    inputs = {
        "l": keras.Input((1,), name="l"),
        "site": keras.Input((), dtype="int32", name="site"),
    }
    output = keras.layers.Activation("sigmoid", dtype=policy)(inputs["l"])
    model = kc.models.FieldMetricsModel(inputs, output)
    model.compile(
        loss="binary_crossentropy",
        metrics=[kc.metrics.LogLoss(name="unweighted")],
        weighted_metrics=[kc.metrics.CalibratedLogLoss(num_folds=1), kc.metrics.LogLoss()],
        field_metrics={"site": [kc.metrics.FieldECE(5)]},
    )
    x = {"l": rows.logits[:, None].astype("float32"), "site": rows.site.astype("int32")}
    p = model.predict(x, verbose=0)[:, 0].astype("float64")
    weights = rows.weights.astype("float32")
    batches = tf.data.Dataset.from_tensor_slices((x, rows.y, weights)).batch(37)
    found = model.evaluate(batches, verbose=0, return_dict=True)
    logits = np.log(p) - np.log1p(-p)
    corrected = sigmoid(logits + references.bias(logits, rows.y, weights))
    assert found["unweighted"] == pytest.approx(references.log_loss(rows.y, p), rel=1e-5)
    assert found["log_loss"] == pytest.approx(references.log_loss(rows.y, p, weights), rel=1e-5)
    assert found["calibrated_log_loss"] == pytest.approx(
        references.log_loss(rows.y, corrected, weights), rel=1e-5
    )
    assert found["site_field_ece"] == pytest.approx(
        references.field_ece(rows.y, p, rows.site, weights), rel=1e-4
    )
