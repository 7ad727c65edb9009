import csv
import math
import re

import keras
import numpy as np
import pytest

from backends import ON_TENSORFLOW
from keras_calibration._ops.compiled import compiled
from keras_calibration.metrics import FieldECE, FieldRCE

NUM_VALUES = 6
METRICS = [FieldECE(NUM_VALUES), FieldRCE(NUM_VALUES)]


def score(metric, labels, predictions, field):
    metric.reset_state()
    metric.update_state(labels, predictions, field=field)
    return float(metric.result())


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
@pytest.mark.parametrize(
    "bad", [NUM_VALUES, -2, 2**32 + 1, 2.0**40, math.inf, np.uint8(200)], ids=str
)
def test_other_ids_are_refused(metric, bad):
    labels, predictions = np.zeros(10), np.full(10, 0.5)
    ids = np.zeros(10, np.asarray(bad).dtype)
    ids[7] = bad
    received = re.escape(f"{bad:.0f} in row 7, 1 of 10 rows")
    with pytest.raises(ValueError, match=f"`field`.*{received}"):
        score(metric, labels, predictions, ids)
    # A compiled step cannot raise.
    step = compiled(lambda *rows: metric.update_state(*rows[:2], field=rows[2]) or rows[0])
    metric.reset_state()
    if ON_TENSORFLOW:
        step(*map(keras.ops.convert_to_tensor, (labels, predictions, ids)))
        with pytest.warns(UserWarning, match="id of a field"):
            assert math.isnan(metric.result())


@pytest.mark.tensorflow  # JAX itself refuses strings
def test_strings_are_refused():
    with pytest.raises(ValueError, match="strings"):
        FieldECE(2).update_state([0, 1], [0.5, 0.5], field=["a", "b"])


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("weight", [1e-30, 1e30])
def test_tiny_and_huge_weights_change_no_table(weight):
    labels, predictions = np.array([1.0, 0, 1, 1]), np.array([0.5, 0.25, 0.5, 0.75])
    plain, weighted = FieldECE(2), FieldECE(2)
    plain.update_state(labels, predictions, field=[0, 0, 1, 1])
    weighted.update_state(labels, predictions, np.full(4, weight), field=[0, 0, 1, 1])
    table = weighted.per_field()
    # In float32 the squares of such weights are past all numbers: no interval, and no verdict.
    is_finite = np.isfinite(table["lower"])
    np.testing.assert_allclose(
        table["lower"][is_finite], plain.per_field()["lower"][is_finite], rtol=1e-5
    )
    assert not table["is_off"][~is_finite].any()


def test_figures_worked_out_by_hand():
    labels, predictions, field = [1, 0, 1, 1], [0.5] * 4, [0, 0, 1, 1]
    assert score(FieldECE(2), labels, predictions, field) == 0.25
    # Value 0 is right; value 1 has an error of 1 on 2 positives: 2 · 1 / (2 + 0.02) / 4.
    assert score(FieldRCE(2), labels, predictions, field) == pytest.approx(2 / 2.02 / 4)
    # A value without positives counts, by ε: 1 · 0.5 / 0.01.
    assert score(FieldRCE(2), [0], [0.5], [0]) == pytest.approx(50)


def test_figures_of_real_rows(data_root):
    rows = np.load(data_root / "adult_49k" / "base_logits.npz")
    with (data_root / "peers.csv").open() as file:
        peers = [
            row
            for row in csv.DictReader(file)
            if (row["dataset"], row["field"], row["method"])
            == ("adult_49k", str(rows["field_name"]), "raw")
        ]
    probabilities = 1 / (1 + np.exp(-rows["test_logit"].astype(np.float64)))
    for metric in (FieldECE(len(rows["field_values"])), FieldRCE(len(rows["field_values"]))):
        result = score(metric, rows["test_label"], probabilities, rows["test_field"])
        assert round(result, 6) == float(peers[0][metric.name])
