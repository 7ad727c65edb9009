import csv
import math
import re

import keras
import numpy as np
import pytest

from backends import ON_TENSORFLOW, digits
from keras_calibration._ops.compiled import compiled
from keras_calibration.metrics import FieldECE, FieldRCE

NUM_VALUES = 6
METRICS = [FieldECE(NUM_VALUES), FieldRCE(NUM_VALUES)]


def score(metric, labels, predictions, field, weights=None):
    metric.reset_state()
    metric.update_state(labels, predictions, weights, field=field)
    return float(metric.result())


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    field = rng.integers(-1, NUM_VALUES, 2003)
    predictions = rng.beta(1, 5, 2003)
    labels = (rng.random(2003) < np.clip(predictions * (0.5 + 0.2 * field), 0, 1)).astype(float)
    return labels, predictions, field, rng.exponential(size=2003)


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
class TestBoth:
    def test_ids_of_any_shape_and_dtype(self, rows, metric):
        labels, predictions, field, weights = rows
        expected = score(metric, labels, predictions, field, weights)
        for ids in (field[:, None], field.astype("float32"), field.astype("int8")):
            result = score(metric, labels, predictions, ids, weights)
            assert result == pytest.approx(expected, abs=digits(1e-12))

    def test_missing_ids_are_one_value(self, rows, metric):
        labels, predictions, field, _ = rows
        ids = np.where(field < 0, math.nan, field)
        expected = score(metric, labels, predictions, field)
        assert score(metric, labels, predictions, ids) == pytest.approx(expected, abs=digits(1e-12))

    @pytest.mark.quick_cases(3)
    @pytest.mark.parametrize(
        "bad", [NUM_VALUES, -2, 2**32 + 1, 2.0**40, math.inf, np.uint8(200)], ids=str
    )
    def test_other_ids_are_refused(self, rows, metric, bad):
        labels, predictions, field, _ = (array[:10] for array in rows)
        ids = np.abs(field).astype(np.asarray(bad).dtype)
        ids[7] = bad
        received = re.escape(f"{bad:.0f} in row 7, 1 of 10 rows")
        with pytest.raises(ValueError, match=f"from 0 to 5, or -1.*{received}"):
            score(metric, labels, predictions, ids)
        # A compiled step cannot raise.
        step = compiled(lambda *rows: metric.update_state(*rows[:2], field=rows[2]) or rows[0])
        metric.reset_state()
        if keras.backend.backend() == "tensorflow":
            step(*map(keras.ops.convert_to_tensor, (labels, predictions, ids)))
            with pytest.warns(RuntimeWarning, match="id of a field"):
                assert math.isnan(metric.result())

    def test_rows_that_do_not_align_are_refused(self, metric):
        with pytest.raises(ValueError, match="field=ids"):
            metric.update_state([0, 1], [0.5, 0.5])
        with pytest.raises(ValueError, match="3 field values"):
            metric.update_state([0, 1], [0.5, 0.5], field=[0, 1, 2])
        with pytest.raises(ValueError, match=r"`y_true` must .* 3 entries"):
            metric.update_state([0, 1, 1], [0.5, 0.5], field=[0, 1])
        with pytest.raises(ValueError, match="one probability per row"):
            metric.update_state([0, 1], [[0.5, 0.5], [0.5, 0.5]], field=[0, 1])
        if not ON_TENSORFLOW:
            return  # JAX itself refuses strings
        with pytest.raises(ValueError, match="strings"):
            metric.update_state([0, 1], [0.5, 0.5], field=["a", "b"])


def test_figures_worked_out_by_hand():
    labels, predictions, field = [1, 0, 1, 1], [0.5] * 4, [0, 0, 1, 1]
    assert score(FieldECE(2), labels, predictions, field) == 0.25
    # Value 0 is right; value 1 has an error of 1 on 2 positives: 2 · 1 / (2 + 0.02) / 4.
    assert score(FieldRCE(2), labels, predictions, field) == pytest.approx(2 / 2.02 / 4)
    # A value without positives counts, by ε: 1 · 0.5 / 0.01.
    assert score(FieldRCE(2), [0], [0.5], [0]) == pytest.approx(50)


@pytest.mark.parametrize(
    "arguments",
    [
        *({"num_values": each} for each in (0, -1, 2.5, "5", None, (5,), (), (5, 0), ("5", 2))),
        {"num_values": (2**20, 2**20)},
        *({"epsilon": each} for each in (0.0, -0.01, math.inf, math.nan)),
        {"epsilon": -1, "skip_without_positives": True},
    ],
    ids=str,
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        FieldRCE(**{"num_values": 3, **arguments})


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
