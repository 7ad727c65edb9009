"""Boosted trees: their tables beside LightGBM's own prediction, and rounds by folds."""

import lightgbm
import numpy as np
import pytest
from scipy import optimize
from scipy.special import expit

from keras_calibration._ops.boosted_trees import tree_sums
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.boosting import _Trees, boost, tables_of

HOSTILE = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, -1e-30, 1e30, -1e30, np.inf, -np.inf, 3.4e38, 2**24 + 1]
)


def numpy_sums(model, columns):
    tables = tables_of(model, 16 * (1 + model.num_trees() // 16))
    return np.asarray(tree_sums(columns.astype("float32"), *tables))[:, 0]


def trained(columns, labels):
    settings = {
        "objective": "binary",
        "num_leaves": 8,
        "min_data_in_leaf": 3,
        "min_data_in_bin": 1,
        "num_threads": 1,
        "verbose": -1,
    }
    return lightgbm.train(settings, lightgbm.Dataset(columns, labels), 40)


def near_thresholds(model, num_columns):
    """Rows in which each column has each threshold of the model, and its neighbours."""
    rows = []

    def visit(node):
        if "split_index" not in node:
            return
        threshold = np.float32(np.clip(node["threshold"], -3e38, 3e38))
        for value in (threshold, np.nextafter(threshold, np.float32(np.inf))):
            rows.append(np.full(num_columns, value))
        rows.append(np.full(num_columns, np.nextafter(threshold, np.float32(-np.inf))))
        visit(node["left_child"])
        visit(node["right_child"])

    for info in model.dump_model()["tree_info"]:
        visit(info["tree_structure"])
    return np.array(rows, "float32")


@pytest.mark.parametrize("has_missing", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_the_tables_are_the_trees(seed, has_missing):
    generator = np.random.default_rng(seed)
    columns = np.stack(
        [
            generator.normal(size=800),
            generator.integers(0, 3, 800),
            generator.choice(HOSTILE[:9], 800),
            np.round(generator.exponential(size=800), 1),
        ],
        axis=1,
    ).astype("float32")
    if has_missing:
        columns[generator.random(columns.shape) < 0.2] = np.nan
    score = np.nan_to_num(columns[:, 0] + columns[:, 1] - (columns[:, 2] > 0.2), nan=2.0)
    labels = (score + generator.normal(size=800) > 0.5).astype(float)
    model = trained(columns, labels)
    hostile = generator.choice([*HOSTILE, np.nan], (2000, 4)).astype("float32")
    new = np.concatenate([columns, hostile, near_thresholds(model, 4)])
    expected = model.predict(new, raw_score=True)
    assert np.ptp(expected) > 0.5
    np.testing.assert_allclose(numpy_sums(model, new), expected, rtol=0, atol=1e-6)


def test_trees_without_splits_and_no_trees():
    columns = np.zeros((100, 2), "float32")
    model = trained(columns, np.arange(100) % 2 == 0)
    np.testing.assert_allclose(
        numpy_sums(model, columns), model.predict(columns, raw_score=True), atol=1e-6
    )
    assert not np.asarray(tree_sums(columns, *tables_of(None, 16))).any()


def folds_of(num_rows, number=3):
    fold = np.arange(num_rows) % number
    return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(number)]


def rows_of(num_rows, seed, effect, num_columns=5):
    generator = np.random.default_rng(seed)
    columns = generator.normal(size=(num_rows, num_columns)).astype("float32")
    logits = generator.normal(-1, 1, num_rows)
    true = logits + effect * columns[:, 0] * columns[:, 1]
    labels = (generator.random(num_rows) < 1 / (1 + np.exp(-true))).astype(float)
    return Rows(logits, labels, None), columns


def test_cross_fitted_logits_did_not_see_their_rows():
    rows, columns = rows_of(3000, 0, 1.0)
    boosted = boost(rows, columns, folds_of(3000), largest_num_rounds=100)
    assert 10 < boosted.num_rounds <= 100
    assert boosted.model.current_iteration() == boosted.num_rounds
    assert boosted.log_loss_with < boosted.log_loss_without - 5 * boosted.standard_error
    # Fitted to rows without its labels, another model gives the same logits.
    fitted, held_out = folds_of(3000)[1]
    alone = boost(
        Rows(rows.logits, np.where(np.isin(np.arange(3000), fitted), rows.labels, 0.5), None),
        columns,
        [(fitted, held_out)],
        largest_num_rounds=boosted.num_rounds,
    )
    if alone.num_rounds == boosted.num_rounds:
        np.testing.assert_array_equal(alone.logits[held_out], boosted.logits[held_out])


def test_no_trees_without_an_effect():
    kept = [
        boost(*rows_of(600, seed, 0.0), folds_of(600), largest_num_rounds=50).num_rounds > 0
        for seed in range(40)
    ]
    # A standard error is exceeded by chance in about a sixth of cases, if rounds were fixed.
    assert sum(kept) <= 12
    assert boost(*rows_of(600, 0, 0.0), folds_of(600), largest_num_rounds=50).model is None


def test_rows_that_no_part_can_fit_keep_their_logits():
    rows, columns = rows_of(3000, 0, 1.0)
    blocks = np.array_split(np.arange(3000), 4)
    parts = [(np.concatenate([np.empty(0, int), *blocks[:k]]), blocks[k]) for k in range(4)]
    boosted = boost(rows, columns, parts, largest_num_rounds=60)
    assert boosted.num_rounds
    np.testing.assert_array_equal(boosted.logits[blocks[0]], rows.logits[blocks[0]])
    assert np.all(boosted.logits[blocks[3]] != rows.logits[blocks[3]])


class Steps:
    """Trees that multiply the distance from the label by what a number of rounds leaves of it."""

    def __init__(self, gains):
        self.gains = gains

    def predict(self, columns, raw_score, num_iteration):
        return self.gains[num_iteration] * columns[:, 0]


def trees_of(rows, columns, parts, fits):
    trees = _Trees(rows, columns, parts, None, 0)
    trees.curves, trees.models = (list(values) for values in zip(*fits, strict=True))
    return trees


def test_the_rounds_that_score_a_part_are_best_for_the_others():
    # The column points to the label; by part, other rounds are best.
    labels = np.arange(300) % 4 == 0
    columns = (2.0 * labels - 1)[:, None]
    rows, parts = Rows(np.zeros(300), labels.astype(float), None), np.split(np.arange(300), 3)
    gains = [[0.0, 0.2, 0.1], [0.0, 0.1, 0.3], [0.0, 0.1, 0.3]]
    fits = [([np.log1p(np.exp(-gain)) for gain in by_round], Steps(by_round)) for by_round in gains]
    held_out = trees_of(rows, columns, parts, fits)
    assert [held_out.best_rounds(others) for others in ([1, 2], [0], [0, 2])] == [2, 1, 2]
    without, change, error = held_out.change([0, 1], held_out.logits([0, 1], [1, 2, 0]))
    assert without == pytest.approx(np.log(2))
    assert change == pytest.approx(np.mean([fits[0][0][1], fits[1][0][2]]) - np.log(2))
    assert error > 0
    logits = held_out.logits(range(3), [1, 2, 0])
    np.testing.assert_allclose(logits, np.repeat([0.2, 0.3, 0.0], 100) * columns[:, 0])
    # Not beyond a standard error: no trees.
    noise = np.where(np.arange(300) % 2, 5.0, -5.0)[:, None] * columns
    worse = trees_of(rows, noise, parts, fits)
    assert worse.best_rounds([1, 2]) == 0


def test_the_logits_of_a_part_are_those_of_its_own_rounds():
    rows, columns = rows_of(1500, 0, 1.0)
    parts = folds_of(1500)
    boosted = boost(rows, columns, parts, largest_num_rounds=80)
    fits = _Trees(rows, columns, [scored for _, scored in parts], None, 0)
    for number, (fitted, _) in enumerate(parts):
        fits.fit_part(number, fitted, rows.logits, columns, 80)
    length = max(map(len, fits.curves))
    curves = np.stack([np.pad(c, (0, length - len(c)), mode="edge") for c in fits.curves])
    rounds, sums = [], np.empty(1500)
    for number, (_, scored) in enumerate(parts):
        rounds.append(int(np.argmin(np.delete(curves, number, axis=0).mean(axis=0))))
        model = fits.models[number]
        sums[scored] = model.predict(columns[scored], raw_score=True, num_iteration=rounds[-1])
    assert boosted.num_rounds == round(np.mean(rounds))
    # And a bias gives all of them the observed total.
    assert boosted.bias == pytest.approx(bias_by_brent(rows.logits + sums, rows.labels), abs=1e-9)
    np.testing.assert_allclose(boosted.logits, rows.logits + sums + boosted.bias)


def bias_by_brent(logits, labels):
    """The bias that gives logits the total of the labels."""
    return optimize.brentq(lambda c: expit(logits + c).sum() - labels.sum(), -9, 9, xtol=1e-13)


def test_a_bias_stands_in_the_tables_of_trees():
    generator = np.random.default_rng(0)
    columns = generator.normal(size=(300, 3)).astype("float32")
    columns[::7, 1] = np.nan
    model = trained(np.nan_to_num(columns), columns[:, 0] > 0)
    tables = tables_of(model, 48, bias=0.7)
    sums = np.asarray(tree_sums(columns, *tables))[:, 0]
    expected = model.predict(columns, raw_score=True) + 0.7
    np.testing.assert_allclose(sums, expected, rtol=0, atol=1e-5)
