import numpy as np
import pytest

from quantile_buckets import quantile_buckets

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("is_training", [slice(0, 100), np.arange(103) < 100])
def test_numeric_columns_become_ids_by_quantiles_of_the_training_rows(is_training):
    ages = np.r_[np.arange(100.0), np.nan, -5, 1000]
    ids, number = quantile_buckets(ages, is_training)
    assert number == 25
    assert list(ids[[0, 99, 100, 101, 102]]) == [0, 23, 24, 0, 23]
    counts = np.bincount(ids[:100], minlength=25)
    assert counts[:24].min() >= 4
    assert counts[:24].max() <= 5


def test_a_column_without_values_has_one_bucket_besides_the_missing():
    ids, number = quantile_buckets(np.full(4, np.nan), slice(0, 3))
    assert number == 2
    np.testing.assert_array_equal(ids, 1)


def test_repeated_values_share_a_bucket():
    ids, _ = quantile_buckets(np.r_[np.zeros(90), np.ones(10)], slice(None))
    assert len(np.unique(ids)) == 2
    assert ids[0] < ids[-1]
