"""The generated click log: reproducible, in the promised form, and drifting as promised."""

import numpy as np
import pytest
from scipy.special import logit

from keras_calibration.datasets import generate_click_log


@pytest.fixture(scope="module")
def table():
    return generate_click_log(num_rows=100_000, seed=3)


@pytest.fixture(scope="module")
def still():
    return generate_click_log(num_rows=100_000, seed=3, drift=0.0)


@pytest.fixture(scope="module")
def moved(table, still):
    """What the drift adds to the true logits."""
    return logit(table.probabilities) - logit(still.probabilities)


def test_the_seed_alone_gives_the_table():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first, again, other = (generate_click_log(2000, seed) for seed in (5, 5, 6))
    for column in first.features:
        np.testing.assert_array_equal(first.features[column], again.features[column])
    np.testing.assert_array_equal(first.labels, again.labels)
    np.testing.assert_array_equal(first.probabilities, again.probabilities)
    assert not np.array_equal(first.features["site_id"], other.features["site_id"])
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_columns_have_the_promised_types_and_ranges(table):
    assert table.fields[0] == "site_id"
    assert set(table.features) == {*table.num_values, *table.numeric}
    for column, num_values in table.num_values.items():
        ids = table.features[column]
        assert ids.dtype == np.int32
        assert ids.min() >= 0
        assert ids.max() < num_values
    for column in table.numeric:
        assert table.features[column].dtype == np.float32
    missing = np.isnan(table.features["days_since_visit"])
    assert 0.14 < missing.mean() < 0.16
    assert table.labels.dtype == np.float32
    assert set(np.unique(table.labels)) == {0.0, 1.0}
    assert table.probabilities.dtype == np.float64
    # The split is by time, and covers every row once.
    sizes = {part: len(table.part(part)[1]) for part in table.parts}
    assert sizes == {"train": 60_000, "development": 20_000, "test": 20_000}
    np.testing.assert_array_equal(table.rows, np.arange(100_000))


def test_labels_follow_the_true_probabilities(table):
    # By decile of the truth, the observed rate is within 4.5 standard errors.
    order = np.argsort(table.probabilities)
    for rows in np.array_split(order, 10):
        truth = table.probabilities[rows]
        error = np.sqrt(np.sum(truth * (1.0 - truth))) / rows.size
        assert abs(table.labels[rows].mean() - truth.mean()) < 4.5 * error


def test_ids_are_skewed_and_some_appear_only_after_the_redesign(table):
    train = np.bincount(table.part("train")[0]["site_id"], minlength=500)
    test = np.bincount(table.part("test")[0]["site_id"], minlength=500)
    assert train[0] > 20 * train[498]
    # The switch is smooth, so a few rows about t = 0.6 see the new ids early.
    assert train[9::10].sum() < 0.003 * train.sum()
    assert test[9::10].sum() > 0.05 * test.sum()


def test_base_rate_rises_at_the_redesign_and_then_stays(table, still):
    """Without drift, it stays."""
    (train, development, test), of_still = (
        [of.probabilities[rows].mean() for rows in table.parts.values()] for of in (table, still)
    )
    assert 0.03 < train < 0.09
    assert development > 1.4 * train
    assert abs(test / development - 1.0) < 0.15
    assert abs(of_still[2] / of_still[0] - 1.0) < 0.1


def test_bias_by_site_learnt_on_development_holds_on_test(table, moved):
    # A model that knows the truth of the training period: what moved, by site, moved alike.
    sites = {part: table.part(part)[0]["site_id"] for part in table.parts}
    frequent = np.flatnonzero(np.bincount(sites["development"], minlength=500) > 100)
    means = [
        [moved[table.parts[part]][sites[part] == site].mean() for site in frequent]
        for part in ("development", "test")
    ]
    assert np.std(means[0]) > 0.25
    assert np.corrcoef(means)[0, 1] > 0.9


def test_sudden_effects_begin_with_the_redesign_and_gradual_ones_with_the_first_row(moved):
    # By seventieths of the time, of which the redesign divides the 42nd from the 43rd.
    spreads = np.array([part.std() for part in np.array_split(moved, 70)])
    assert spreads[0] < 0.02
    assert spreads[40] == pytest.approx(40.5 * spreads[1] / 1.5, rel=0.2)
    assert spreads[43] > 1.5 * spreads[40]


def test_some_features_of_a_part_and_what_is_refused(table):
    features, labels = table.part("test", ["device"])
    assert list(features) == ["device"]
    assert features["device"].shape == labels.shape
    assert list(table.part("test", "device")[0]) == ["device"]
    with pytest.raises(KeyError, match="devise"):
        table.part("test", ["devise"])
    with pytest.raises(ValueError, match=r"name='tain'\. Did you mean 'train'"):
        table.part("tain")
    for num_rows in (-1, 0, 4, 10.5, None):
        with pytest.raises(ValueError, match=f"num_rows={num_rows}"):
            generate_click_log(num_rows)
