"""Sums by field value and the field errors."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import HAS_FLOAT64, examples, few_lengths, on_a_gpu
from keras_calibration._ops.field_sums import (
    exact_ids,
    field_ece_from_sums,
    field_rce_from_sums,
    field_sums,
    known_ids,
)

LARGEST_ID = 2**63 - 1 if HAS_FLOAT64 else 2**31 - 1


def reference_sums(labels, predictions, weights, ids, num_values):
    sums = np.zeros((num_values + 1, 7))
    rows = zip(labels.tolist(), predictions.tolist(), weights.tolist(), ids.tolist(), strict=True)
    for label, prediction, weight, field_id in rows:
        is_known = 0 <= field_id < num_values  # False for NaN
        sums[int(field_id) if is_known else num_values] += (
            weight * (label - prediction),
            weight * label,
            weight,
            weight**2,
            weight**2 * prediction * (1 - prediction),
            prediction if weight else 0,
            prediction**2 if weight else 0,
        )
    return sums


def some_rows(dtype, num_rows=500, num_values=20):
    generator = np.random.default_rng(2)
    return (
        generator.choice([0, 1, 0.25], num_rows).astype(dtype),
        generator.random(num_rows).astype(dtype),
        generator.choice([0, 1, 2.5], num_rows).astype(dtype),
        generator.integers(-3, num_values + 5, num_rows),
    )


@pytest.mark.parametrize("as_on_gpu", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_field_sums_equal_the_reference(run, dtype, tolerance, as_on_gpu, is_weighted, monkeypatch):
    on_a_gpu(monkeypatch, as_on_gpu)
    labels, predictions, weights, ids = some_rows(dtype)
    weights = weights if is_weighted else weights.astype(bool).astype(dtype)
    rows = labels, predictions, weights, ids

    def sums(*rows):
        return field_sums(*rows, num_values=20, is_weighted=is_weighted)

    received = run(sums, *rows, num_of_any_size=4)
    assert received.dtype == dtype
    np.testing.assert_allclose(
        received, reference_sums(*rows, 20), rtol=tolerance, atol=500 * tolerance / 10
    )


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (np.uint8([0, 4, 255]), [0, 4, 255]),
        (np.int8([0, -1, 127]), [0, 5000, 127]),
        (np.uint16([4999, 5000, 65535]), [4999, 5000, 5000]),
        (np.int16([-32768, 4999, 32767]), [5000, 4999, 5000]),
        (np.uint32([4999, 2**31 + 1, 2**32 - 1]), [4999, 5000, 5000]),
        (np.int64([2**31, 2**32 + 1, -(2**62)]), [5000, 5000, 5000]),
        (np.uint64([3, 2**63, 2**64 - 1]), [3, 5000, 5000]),
        (np.float32([np.nan, np.inf, -np.inf]), [5000, 5000, 5000]),
        (np.float64([1e300, -0.0, 4999]), [5000, 0, 4999]),
        (np.float32([4999.5, 0.5, 1]), [5000, 5000, 1]),
        (np.array([True, False]), [1, 0]),
    ],
)
def test_known_ids_of_every_dtype(run, ids, expected):
    if not HAS_FLOAT64 and ids.dtype.itemsize == 8:
        pytest.skip("Without x64, JAX cuts ids to 32 bits before the kernel sees them.")
    received = run(lambda ids: known_ids(ids, 5000), ids, num_of_any_size=1)
    assert received.dtype == "int32"
    np.testing.assert_array_equal(received, expected)


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 256), ("float16", 2048)])
def test_floats_that_merge_ids_are_no_ids(dtype, most):
    ids = keras.ops.convert_to_tensor([most - 1.0, 4.0, 4.5], dtype)
    np.testing.assert_array_equal(known_ids(ids, most), [most - 1, 4, most])
    with pytest.raises(ValueError, match=f"{dtype}.* {most:,}.*int64"):
        known_ids(ids, most + 1)
    # 2^24 + 1 is 2^24 in float32.
    floats = keras.ops.convert_to_tensor([2.0**24 - 1, 2.0**24, -(2.0**24)], "float32")
    np.testing.assert_array_equal(exact_ids(floats), [2**24 - 1, -1, -1])


def reference_ece(sums):
    return np.abs(sums[:, 0]).sum() / sums[:, 2].sum()


def reference_rce(sums, epsilon):
    residual, positives, rows = sums[sums[:, 2] > 0, :3].T
    return np.sum(rows * np.abs(residual) / (positives + epsilon * rows)) / rows.sum()


@settings(max_examples=examples(40))
@given(
    few_lengths(
        st.tuples(
            st.floats(0, 1, width=32, allow_subnormal=False),
            st.floats(0, 1, width=32, allow_subnormal=False),
            st.sampled_from([0.0, 1.0, 0.5, 100.0]),
            st.one_of(st.integers(-2, 6), st.integers(-LARGEST_ID - 1, LARGEST_ID)),
        ),
        max_size=30,
    )
)
def test_field_sums_of_hostile_rows(rows):
    labels, predictions, weights = (
        np.array([row[place] for row in rows], np.float32) for place in range(3)
    )
    ids = np.array([row[3] for row in rows], np.int64)
    received = field_sums(labels, predictions, weights, ids, 4)
    expected = reference_sums(labels, predictions, weights, ids, 4)
    np.testing.assert_allclose(
        received, expected, rtol=1e-5, atol=1e-5 * (1 + np.square(weights).sum())
    )
    if weights.sum() > 0:
        ece, rce = field_ece_from_sums(received), field_rce_from_sums(received, 0.01)
        np.testing.assert_allclose(ece, reference_ece(expected), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(rce, reference_rce(expected, 0.01), rtol=1e-3, atol=1e-3)


def test_the_errors_of_many_sums_at_once():
    sums = np.random.default_rng(0).uniform(0.1, 5, (2, 3, 7, 3)).astype("float32")
    sums[0, 1, :4, 1] = 0
    for error in (field_ece_from_sums, lambda table: field_rce_from_sums(table, 0.01)):
        one_by_one = [[float(error(table)) for table in row] for row in sums]
        np.testing.assert_allclose(error(sums), one_by_one, rtol=1e-6)
