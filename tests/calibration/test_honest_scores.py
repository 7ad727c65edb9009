"""The figures of the chosen calibration: no choice has seen the rows that score it."""

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import expit

import keras_calibration as kc
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.stacking import combined_weights, cross_fitted_weights
from keras_calibration.calibration.cross_fitted_scores import combined, field_chance

NUM_ROWS = 900


def losses_of(labels, logits):
    return np.logaddexp(0, logits) - labels * logits


def test_the_labels_of_a_fold_do_not_change_the_weights_that_score_it():
    generator = np.random.default_rng(3)
    logits = generator.normal(-1, 1, NUM_ROWS)
    labels = (generator.random(NUM_ROWS) < expit(0.85 * logits - 0.9)).astype(float)
    weights = generator.uniform(0.5, 1.5, NUM_ROWS)
    fold = np.arange(NUM_ROWS) % 3
    columns = np.stack([logits, logits - 0.8, 0.85 * logits - 0.9])
    turned = np.where(fold == 1, 1 - labels, labels)
    before, after = (
        cross_fitted_weights(columns, Rows(logits, targets, weights), fold)
        for targets in (labels, turned)
    )
    np.testing.assert_array_equal(before[1], after[1])
    assert np.abs(before - after)[[0, 2]].max() > 0.01


def test_a_choice_that_does_not_last_is_not_made():
    # The rows of each fold ask for another bias, so that what the others say is wrong.
    shift = np.repeat([1.5, -1.5, 0.0], 300)
    generator = np.random.default_rng(0)
    logits = generator.normal(-1, 1, NUM_ROWS)
    labels = (generator.random(NUM_ROWS) < expit(logits + shift)).astype(float)
    fold = np.repeat([0, 1, 2], 300)
    fitted = {"identity": logits, "up": logits + 1, "down": logits - 1}
    choice = combined(fitted, Rows(logits, labels, None), fold)
    assert choice.weights == {"identity": 1.0}
    columns = list(fitted.values())
    by_fold = cross_fitted_weights(columns, Rows(logits, labels, None), fold)
    scored = np.einsum("nk,kn->n", by_fold[fold], np.stack(columns))
    assert (losses_of(labels, scored) - losses_of(labels, logits)).mean() > 0.01
    seen = combined_weights(columns, Rows(logits, labels, None))
    naive = losses_of(labels, np.tensordot(seen, columns, axes=1))
    assert (naive - losses_of(labels, logits)).mean() <= 1e-12


def test_a_choice_that_folds_disagree_on_is_less_certain():
    """The evidence, the share and the expected error count the spread of the folds' choices."""
    generator = np.random.default_rng(1)
    num_rows, fold = 3000, np.repeat([0, 1, 2], 1000)
    logits = generator.normal(-1, 1, num_rows)
    effect, size = generator.normal(0, 1, num_rows), np.array([0.8, 0.5, 0.3])[fold]
    labels = (generator.random(num_rows) < expit(logits + size * effect)).astype(float)
    columns = [logits, logits + effect]
    rows = Rows(logits, labels, None)
    choice = combined({"identity": columns[0], "other": columns[1]}, rows, fold)
    by_fold = cross_fitted_weights(columns, rows, fold)
    assert by_fold[0, 1] == 0
    assert by_fold[1:, 1].min() > 0.5

    def blend(weights):
        mean = weights @ np.stack(columns)
        if weights[0] == 1:
            return mean
        off = optimize.brentq(lambda c: expit(mean + c).sum() - labels.sum(), -5, 5, xtol=1e-13)
        return mean + off

    blends = np.stack([blend(weights) for weights in by_fold])
    stacked = blends[fold, np.arange(num_rows)]
    slopes = (labels - expit(logits)) * (stacked - logits)
    of_rows = slopes.std() / np.sqrt(num_rows)
    means = [losses_of(labels, eta).mean() for eta in blends]
    of_choice = np.sqrt(2 / 3 * np.sum((means - np.mean(means)) ** 2))
    evidence = slopes.mean() / np.hypot(of_rows, of_choice)
    assert evidence < 0.95 * slopes.mean() / of_rows
    assert choice.evidence == pytest.approx(evidence, rel=1e-6)
    share = 1 - (stats.norm.isf(0.01) / evidence) ** 3
    assert choice.share == pytest.approx(share, rel=1e-6)
    change = losses_of(labels, logits + share * (stacked - logits)) - losses_of(labels, logits)
    by_chance = share * (1 - share) * slopes.mean()
    error = np.sqrt(change.var() / num_rows + (share * of_choice) ** 2 + by_chance**2)
    assert choice.expected_change == pytest.approx((change.mean() + by_chance, error), rel=1e-6)


def test_field_errors_hold_for_new_rows():
    """The rows of a value help to predict each other, so that errors cancel over the folds."""
    generator = np.random.default_rng(0)
    effect = generator.normal(0, 0.6, 40)
    reported, new, floors = [], [], []
    for _ in range(4):

        def draw(num_rows):
            site, logits = generator.integers(0, 40, num_rows), generator.normal(-1, 1, num_rows)
            labels = generator.random(num_rows) < expit(logits + effect[site])
            return logits, labels.astype(float), site

        logits, labels, site = draw(3000)
        options = {"from_logits": True, "fields": ["site"], "methods": "field_bias", "verbose": 0}
        model = kc.calibrate_scores(logits, labels, {"site": site}, **options)
        reported.append(model.report.after.field_ece["site"])
        floors.append(model.report.chance_after["site"].field_ece)
        # As many new rows as a fold has.
        logits, labels, site = draw(1000)
        served = {"score": logits, "site": site}
        probabilities = model.predict(served, batch_size=1000, verbose=0)[:, 0].astype(float)
        sums = np.bincount(site, probabilities - labels)
        new.append(np.abs(sums).sum() / 1000)
    assert np.mean(reported) == pytest.approx(np.mean(new), rel=0.15)
    # Fits to two thirds of the rows are not right in every site: there is more than chance.
    assert np.mean(floors) < np.mean(reported) < 1.5 * np.mean(floors)


def test_beyond_chance_is_nothing_where_the_model_is_right():
    generator = np.random.default_rng(0)
    left = []
    for _ in range(20):
        logits, site = generator.normal(-1, 1, 1500), generator.integers(0, 20, 1500)
        labels = (generator.random(1500) < expit(logits)).astype(float)
        options = {"from_logits": True, "fields": ["site"], "methods": ["bias"], "verbose": 0}
        report = kc.calibrate_scores(logits, labels, {"site": site}, **options).report
        (before, error), _ = report.beyond_chance("site")
        left.append(before / error)
        assert report.still_off == () or report.still_off[0].p_value < 0.01
    assert abs(np.mean(left)) < 3 / np.sqrt(20)
    assert np.std(left) < 1.3
    with pytest.raises(ValueError, match="`field`"):
        report.beyond_chance("shop")


def test_a_share_of_a_change_has_that_share_of_its_bias():
    for seed in range(20):
        generator = np.random.default_rng(seed)
        true = generator.normal(-2, 1, 1500)
        labels = (generator.random(1500) < expit(true)).astype(float)
        # Two fits that are right but for noise; their mean has a lower total than they have.
        fitted = {"identity": true - 0.3, "one": true, "other": true}
        fitted = {name: eta + generator.normal(0, 0.4, 1500) for name, eta in fitted.items()}
        choice = combined(fitted, Rows(true, labels, None), np.arange(1500) % 3)
        if len(choice.weights) == 3 and choice.share < 1:
            break
    assert len(choice.weights) == 3
    assert 0 < choice.share < 1
    weights = np.array([choice.weights.get(name, 0.0) for name in fitted]) / choice.share
    weights[0] += 1 - 1 / choice.share
    mean = weights @ np.stack(list(fitted.values()))

    def difference(bias):
        return expit(mean + bias).sum() - labels.sum()

    expected = choice.share * optimize.brentq(difference, -5, 5)
    assert abs(expected) > 1e-3
    assert choice.bias == pytest.approx([expected], rel=1e-6)


def test_the_error_of_a_field_error_has_no_part_for_certain_predictions():
    """A site of probability 0 whose one positive row cannot be otherwise, and one by chance."""
    rng = np.random.default_rng(0)
    site = np.repeat([0, 1], [300, 3])
    logits = np.where(site == 0, -800.0, 0.5)
    labels = (np.arange(303) % 300 == 0).astype(float)
    error = field_chance(Rows(logits, labels, None), logits, {"site": site})["site"].error
    # Of the three rows, the labels are drawn around the sum that is observed.
    sums = np.abs(1 - 3 * expit(0.5) + rng.normal(0, np.sqrt(3 * expit(0.5) * expit(-0.5)), 10**6))
    assert error == pytest.approx(sums.std() / 303, rel=0.01)
