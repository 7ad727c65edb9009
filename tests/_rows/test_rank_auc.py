"""The AUC of ranks, against all pairs and scikit-learn."""

import numpy as np
import pytest
import sklearn.metrics

from keras_calibration._rows.rank_auc import rank_auc


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_equals_scikit_learn_in_any_unit(unit):
    generator = np.random.default_rng(0)
    scores = generator.normal(size=500).round(1)
    labels, weights = generator.integers(0, 2, 500), generator.exponential(size=500)
    expected = sklearn.metrics.roc_auc_score(labels, scores, sample_weight=weights)
    assert rank_auc(labels, unit * scores + 300, 1e-6 * weights) == pytest.approx(expected)


def test_soft_labels_count_by_pairs():
    labels, scores = np.array([0.2, 0.9, 0.5]), np.array([1.0, 2.0, 2.0])
    pairs = [
        labels[i] * (1 - labels[j]) * ((scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]))
        for i in range(3)
        for j in range(3)
    ]
    assert rank_auc(labels, scores) == pytest.approx(
        sum(pairs) / (labels.sum() * (1 - labels).sum())
    )


def test_it_is_nan_where_there_is_none():
    assert np.isnan(rank_auc(np.ones(3), np.arange(3.0)))
    assert np.isnan(rank_auc(np.array([0, 1]), np.array([0.0, np.nan])))
    assert rank_auc(np.array([0, 1]), np.array([-np.inf, np.inf])) == 1.0
