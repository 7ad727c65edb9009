"""Sums of trees, beside a loop over rows, trees and splits in float64."""

import keras
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import examples
from keras_calibration._ops.boosted_trees import tree_sums

VALUES = st.floats(width=32) | st.sampled_from([0.0, -0.0, 0.5, 1.0, 1e30, -1e30, np.nan])


def reference(columns, splits, thresholds, leaves):
    sums = np.zeros((len(columns), 1))
    for row, values in enumerate(columns):
        finite = np.clip(values, np.finfo("float32").min, np.finfo("float32").max)
        signed = [*finite, *(-value for value in finite)]
        for tree, table in enumerate(leaves):
            bits = [
                float(signed[split]) > float(threshold)
                for split, threshold in zip(splits[:, tree], thresholds[:, tree], strict=True)
            ]
            sums[row, 0] += table[sum(2**k for k, bit in enumerate(bits) if bit)]
    return sums


@settings(max_examples=examples(240))
@given(st.data())
def test_it_is_the_sum_of_the_leaves(data):
    num_columns, num_rows = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 5))
    num_trees = 16 * data.draw(st.integers(1, 2))
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    drawn = data.draw(st.lists(VALUES, min_size=num_rows * num_columns, max_size=99))
    columns = np.array(drawn[: num_rows * num_columns], "float32").reshape(-1, num_columns)
    # Subnormal numbers may count as 0.
    columns[np.abs(columns) < np.finfo("float32").tiny] = 0.0
    splits = generator.integers(0, 2 * num_columns, (7, num_trees)).astype("int32")
    choices = np.array([0.0, 0.5, 1.0, 1e30, -0.5, np.inf, -1e30], "float32")
    thresholds = generator.choice(choices, (7, num_trees))
    leaves = generator.normal(size=(num_trees, 128)).astype("float32")
    arguments = (columns, splits, thresholds, leaves)
    expected = reference(*arguments)
    received = keras.ops.convert_to_numpy(tree_sums(*arguments))
    np.testing.assert_allclose(received, expected, rtol=0, atol=5e-6)
