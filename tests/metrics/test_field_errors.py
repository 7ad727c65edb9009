import csv
import math
import re

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import ON_TENSORFLOW, digits, examples, few_lengths
from keras_calibration._ops.compiled import compiled
from keras_calibration.metrics import FieldECE, FieldRCE

NUM_VALUES = 6
METRICS = [FieldECE(NUM_VALUES), FieldRCE(NUM_VALUES), FieldRCE(NUM_VALUES, epsilon=0.5)]


def known(field):
    field = np.asarray(field, np.float64)
    return np.where((field >= 0) & (field < NUM_VALUES), field, NUM_VALUES)


def field_ece(labels, predictions, field, weights):
    total = 0.0
    for value in set(field):
        here = field == value
        total += abs(np.sum(weights[here] * (labels[here] - predictions[here])))
    return total / np.sum(weights) if np.sum(weights) else math.nan


def field_rce(labels, predictions, field, weights, epsilon):
    total = 0.0
    for value in set(field):
        here = field == value
        count = np.sum(weights[here])
        error = abs(np.sum(weights[here] * (labels[here] - predictions[here])))
        denominator = np.sum(weights[here] * (labels[here] + epsilon))
        total += count * error / denominator if count else 0.0
    return total / np.sum(weights) if np.sum(weights) else math.nan


def reference(metric, labels, predictions, field, weights=None):
    labels, predictions = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    weights = np.ones(len(labels)) if weights is None else weights
    if isinstance(metric, FieldECE):
        return field_ece(labels, predictions, known(field), weights)
    return field_rce(labels, predictions, known(field), weights, metric.epsilon)


def score(metric, labels, predictions, field, weights=None, batch_size=None):
    metric.reset_state()
    batch_size = batch_size or max(len(labels), 1)
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        part_weights = None if weights is None else weights[part]
        metric.update_state(labels[part], predictions[part], part_weights, field=field[part])
    return float(metric.result())


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    field = rng.integers(-1, NUM_VALUES, 2003)
    predictions = rng.beta(1, 5, 2003)
    labels = (rng.random(2003) < np.clip(predictions * (0.5 + 0.2 * field), 0, 1)).astype(float)
    labels[field == 2] = 0
    return labels, predictions, field, rng.exponential(size=2003)


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: f"{m.name}{getattr(m, 'epsilon', '')}")
class TestBoth:
    def test_equals_reference(self, rows, metric):
        labels, predictions, field, weights = rows
        for w in (None, weights):
            for y in (labels, 0.2 + 0.5 * labels):
                expected = reference(metric, y, predictions, field, w)
                assert score(metric, y, predictions, field, w) == pytest.approx(
                    expected, abs=digits(1e-12)
                )

    def test_equals_reference_from_float32(self, rows, metric):
        labels, predictions, field, _ = rows
        predictions32 = predictions.astype("float32")
        result = score(metric, labels.astype("float32"), predictions32, field)
        assert result == pytest.approx(
            reference(metric, labels, predictions, field), abs=digits(1e-6)
        )

    @pytest.mark.quick_cases(1)
    def test_batch_size_changes_nothing(self, rows, metric):
        labels, predictions, field, weights = (array[:150] for array in rows)
        expected = score(metric, labels, predictions, field, weights)
        for batch_size in (1, 7, 256):
            result = score(metric, labels, predictions, field, weights, batch_size)
            assert result == pytest.approx(expected, abs=digits(1e-12))

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
        assert expected != score(metric, labels, predictions, np.clip(field, 0, NUM_VALUES - 1))

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

    @pytest.mark.quick_cases(1)
    def test_counts_beyond_what_float32_can_count(self, rows, metric):
        labels, predictions, field, weights = rows
        heavy = np.where(np.arange(2003) % 2, 2.0**24, weights)
        assert score(metric, labels, predictions, field, heavy, 50) == pytest.approx(
            reference(metric, labels, predictions, field, heavy), rel=digits(1e-12)
        )
        metric.reset_state()
        metric.variables[0].assign(np.full((NUM_VALUES + 1, 7), 2.0**25))
        metric.update_state([1.0], [0.0], field=[0])
        # Of y - p, y, w, w², w² p (1 - p), p and p², four count this row.
        state = [np.asarray(variable, np.float64) for variable in metric.variables]
        assert np.sum(state) == 49 * 2.0**25 + 4

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


@settings(max_examples=examples(40))
@given(
    few_lengths(
        st.tuples(
            st.sampled_from([0.0, 1.0, 0.5]),
            st.sampled_from([0.0, 1.0, 0.3, 1e-30]),
            st.sampled_from([-1.0, 0.0, 2.0, 5.0, math.nan]),
            st.sampled_from([0.0, 0.1, 3.0]),
        ),
        max_size=20,
    ),
    st.integers(1, 7),
    st.sampled_from(METRICS),
)
def test_equals_reference_on_any_few_rows(rows, batch_size, metric):
    labels, predictions, field, weights = np.array(rows, np.float64).reshape(-1, 4).T
    expected = reference(metric, labels, predictions, field, weights)
    result = score(metric, labels, predictions, field, weights, batch_size)
    assert result == pytest.approx(expected, rel=digits(1e-9), abs=digits(1e-12), nan_ok=True)


def test_figures_worked_out_by_hand():
    labels, predictions, field = [1, 0, 1, 1], [0.5] * 4, [0, 0, 1, 1]
    assert score(FieldECE(2), labels, predictions, field) == 0.25
    # Value 0 is right; value 1 has an error of 1 on 2 positives: 2 · 1 / (2 + 0.02) / 4.
    assert score(FieldRCE(2), labels, predictions, field) == pytest.approx(2 / 2.02 / 4)
    # A value without positives counts, by ε: 1 · 0.5 / 0.01.
    assert score(FieldRCE(2), [0], [0.5], [0]) == pytest.approx(50)


@pytest.mark.parametrize("num_values", [0, -1, 2.5, "5", None])
def test_a_bad_number_of_values_is_refused(num_values):
    for metric in (FieldECE, FieldRCE):
        with pytest.raises(ValueError, match="num_values"):
            metric(num_values)


@pytest.mark.parametrize("epsilon", [0.0, -0.01, math.inf, math.nan])
def test_a_bad_epsilon_is_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon"):
        FieldRCE(3, epsilon=epsilon)


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
