"""Refusals of what no calibration can be fitted on, and rows of weight 0, which are no rows."""

import keras
import numpy as np
import pytest
from scipy.special import expit

import keras_calibration as kc
from keras_calibration._rows import checks
from keras_calibration._rows.checks import (
    are_0_or_1,
    logits_of_probabilities,
    warn_if_swapped,
    warn_of_contradicted_ends,
)
from keras_calibration._rows.door import Given, rows_of
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.weights import counted_rows


def check_rows(logits, labels=None, weights=None, both_classes=False):
    counted = counted_rows(weights)
    return checks.check_rows(
        counted.of(logits, "l"), counted.of(labels, "y"), counted, both_classes
    )


def read_rows(*rows, **how):
    return rows_of(Given(*rows, **how))


def test_rows_come_back_flat_in_float64():
    rows = check_rows(
        keras.ops.convert_to_tensor([[0.5], [-1.0]]),
        np.array([True, False]),
        [[2], [3]],
        both_classes=False,
    )
    for received, expected in (
        (rows.logits, [0.5, -1]),
        (rows.labels, [1, 0]),
        (rows.weights, [2, 3]),
    ):
        np.testing.assert_array_equal(received, expected)
        assert received.dtype == np.float64
    assert check_rows([1.0]).labels is None
    assert check_rows([1.0]).weights is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "empty"),
        ((np.zeros((0, 1)),), "empty"),
        ((np.zeros((3, 2, 1)),), r"`logits`.*shape \(3, 2, 1\)"),
        ((0.5,), r"`logits`.*shape \(\)"),
        (([0.0, np.nan, 1.0, np.inf],), "2 of 4.*nan in row 1"),
        (([0.0, -np.inf],), "1 of 2.*-inf in row 1"),
        (([0.0, 1.0], [0]), "'logits': 2, 'labels': 1"),
        (([0.0, 1.0], [0, 1], [1.0]), "'sample_weight': 1"),
        (([0.0, 1.0], [0, 2]), r"(?i)labels.* 2\.0 in row 1"),
        (([0.0, 1.0], [-1, 1]), r"(?i)labels.*-1\.0 in row 0"),
        (([0.0, 1.0], [np.nan, 1]), r"(?i)labels.*nan in row 0"),
        (([0.0, 1.0], np.zeros((2, 2))), r"`labels`.*shape"),
        (([0.0, 1.0], [0, 1], [1, -1]), r"`sample_weight`.*-1\.0 in row 1"),
        (([0.0, 1.0], [0, 1], [np.nan, 1]), "`sample_weight`.*nan in row 0"),
        (([0.0, 1.0], [0, 1], [0, 0]), "`sample_weight`.*positive"),
        (([0.0, 1.0], [1, 1], None, True), "`labels`.*2 rows.*class 0"),
        (([0.0, 1.0], [0, 0], None, True), "`labels`.*2 rows.*class 1"),
        (([0.0, 1.0, 2.0], [0, 1, 1], [0.0, 0.3, 0.1], True), "`labels`.*one class"),
    ],
)
def test_bad_rows_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        check_rows(*arguments)


def test_a_row_of_weight_0_is_no_row():
    logits, labels, weights = [np.nan, 2.0, -1e9, -1.0], [-1, 1, np.nan, 0], [0, 2, 0, 3]
    rows = check_rows(logits, labels, weights, both_classes=True)
    np.testing.assert_array_equal(rows.logits, [2, -1])
    np.testing.assert_array_equal(rows.labels, [1, 0])
    np.testing.assert_array_equal(rows.weights, [2, 3])
    with pytest.raises(ValueError, match=r"`labels`.*one class"):
        check_rows([0.0, 1.0, 2.0], [np.nan, 1, 1], [0, 1, 1], both_classes=True)
    # The number of a row that is refused is that of the caller.
    with pytest.raises(ValueError, match=r"1 of 2 rows.* 7\.0 in row 2"):
        check_rows([0.0, 1.0, 2.0], [7, 1, 7], [0, 1, 1])
    assert counted_rows(np.ones(3)).numbers is None
    np.testing.assert_array_equal(counted_rows(weights).numbers, [1, 3])
    probabilities = np.array([np.nan, 0.3, 7.0, 0.6])
    rows = read_rows(probabilities, [-1, 1, 0.5, 0.2], weights, from_logits=False)
    np.testing.assert_allclose(rows.logits, np.log([0.3 / 0.7, 0.6 / 0.4]))
    np.testing.assert_allclose(rows.unit * rows.weights, [2, 3])
    with pytest.raises(ValueError, match=r"`logits`.*NaN"):
        read_rows(probabilities, [0, 1, 0, 0], from_logits=False)


@pytest.mark.parametrize("labels", [[-1, 0, 1, 2], np.eye(3)[[0, 0, 1, 2]]])
def test_class_rows_of_weight_0_are_no_rows(labels):
    scores = np.arange(12.0).reshape(4, 3)
    scores[0] = np.nan
    labels = np.array(labels, "float64")
    labels[0] = np.nan
    rows = check_rows(scores, labels, [0, 1, 1, 2])
    np.testing.assert_array_equal(rows.logits, scores[1:])
    np.testing.assert_array_equal(rows.labels, np.eye(3))
    np.testing.assert_array_equal(rows.weights, [1, 1, 2])
    with pytest.raises(ValueError, match="drop these rows"):
        check_rows(np.zeros((4, 3)), labels)


@pytest.mark.parametrize(
    ("labels", "advice"),
    [
        ([0, np.nan, 1], "drop these rows"),
        ([0, None, True], "drop these rows"),
        ([1, -1, -1], r"as \(labels \+ 1\) / 2"),
        ([-1, -1, np.nan], "drop these rows.* -1 stands"),
        ([0, -1, 1], "If -1 stands"),
        ([1, 2, 2], "as labels - 1"),
        ([0, 1, 3], r"\(n, K\)"),
        ([0, 1, 70.5], "shares"),
        (["no", "yes", "no"], r"labels must be numbers.*\(labels == 'yes'\)"),
        (["no", None, "yes"], r"labels must be numbers"),
        (["no", "", "yes"], "labels must be numbers"),
        (["a", "b", "c"], "labels must be numbers"),
        (["0", "1", "0"], r"with labels.astype\(float\)"),
    ],
)
def test_advice_for_labels_that_are_none(labels, advice):
    with pytest.raises(ValueError, match=advice):
        check_rows([0.0, 1.0, 2.0], labels)


def test_probabilities_near_0_and_1_are_mirrored():
    near = np.array([1e-15, 1e-12, 1e-9, 1e-6, 0.3])
    logits, mirrored = (logits_of_probabilities(p) for p in (near, 1 - near))
    # 1 - p has an error of 1e-16.
    np.testing.assert_allclose(logits, -mirrored, atol=0.2)
    np.testing.assert_allclose(logits[1:], -mirrored[1:], atol=1e-4)
    for dtype in ("float32", "float64"):
        ends = logits_of_probabilities(np.array([1, 0, 1e-40], dtype))
        np.testing.assert_allclose(ends, [36.7368, -36.7368, -36.7368], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_labels_that_contradict_probabilities_of_0_and_1_are_counted(dtype):
    probabilities = np.array([0, 0, 0, 1, 1, 1, 0.5, 1e-12], dtype)
    labels = np.array([1, 0, 0.1, 0, 1, 0, 1, 1])
    logits = logits_of_probabilities(probabilities).astype(dtype).astype("float64")
    with pytest.warns(UserWarning, match="^4 of 8 rows.*Smooth"):
        warn_of_contradicted_ends(Rows(logits, labels, None))
    some = Rows(logits, labels, None).take(np.array([1, 3, 4, 6, 7]))
    with pytest.warns(UserWarning, match="^1 of 5 rows"):
        warn_of_contradicted_ends(some)
    shares = np.array([[0.0, 0.5, 0.5], [0, 0, 1], [0.2, 0.8, 0]])
    rows = Rows(logits_of_probabilities(shares), np.eye(3)[[0, 2, 0]], None)
    with pytest.warns(UserWarning, match=r"^1 of 3 rows.*\(V \+ K / 2\)"):
        warn_of_contradicted_ends(rows)


def test_rows_that_agree_with_probabilities_of_0_and_1_are_not_warned_of():
    logits = logits_of_probabilities(np.array([0, 1, 0.5, 1e-12, 1e-300]))
    warn_of_contradicted_ends(Rows(logits, np.array([0.0, 1, 0, 1, 0]), None))
    # Logits that are given may be anything.
    warn_of_contradicted_ends(Rows(np.array([-80.0, 100, -1e6]), np.array([1.0, 0, 1]), None))
    # Of decisions, or labels in place of probabilities, there are no other rows.
    decisions = logits_of_probabilities(np.array([0.0, 0, 1, 1]))
    warn_of_contradicted_ends(Rows(decisions, np.array([0.0, 1, 0, 1]), None))
    decisions = logits_of_probabilities(np.eye(3))
    warn_of_contradicted_ends(Rows(decisions, np.eye(3)[::-1], None))


@pytest.mark.parametrize("unit", [2.0**-10, 1.0, 1e6])
def test_importances_count_as_many_rows_as_say_as_much(unit):
    """Kish's number, `(Σ w)² / Σ w²`, in any unit."""
    weights = np.random.default_rng(0).gamma(0.5, size=200)
    rows = read_rows(np.linspace(-2, 2, 200), np.arange(200) % 2, unit * weights)
    assert rows.weights.sum() == pytest.approx(weights.sum() ** 2 / (weights @ weights))
    np.testing.assert_allclose(rows.weights / rows.weights[0], weights / weights[0])


def test_few_predictions_in_bfloat16_are_read():
    from ml_dtypes import bfloat16

    predictions = np.array([0.0, 1.0, 0.0]).astype(bfloat16)
    assert are_0_or_1(predictions)
    assert not are_0_or_1(np.array([0.5]).astype(bfloat16))
    warn_if_swapped(np.array([0, 1, 1]), predictions)


def turned_round(num_rows=400, strength=1.5, seed=0):
    """Logits that fall with the probability, and labels."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=num_rows)
    return -logits, (generator.random(num_rows) < expit(strength * logits)).astype(float)


TURNED_ROUND_IS_AN_ERROR = pytest.mark.filterwarnings("error:The scores rank:UserWarning")


@TURNED_ROUND_IS_AN_ERROR
@pytest.mark.parametrize("factor", [1.0, 1e-30, 1e30])
def test_scores_in_the_wrong_order_are_noticed_in_every_unit_and_once(factor):
    logits, labels = turned_round()
    pairs = logits[labels == 1][:, None] - logits[labels == 0]
    with pytest.warns(UserWarning, match=f"AUC is {(pairs > 0).mean():.2f}"):
        read_rows(factor * logits, labels)
    with pytest.warns(UserWarning, match="1 - p"):
        read_rows(expit(logits), labels, from_logits=False)
    with pytest.warns(UserWarning, match="1 - p"):
        read_rows(factor * logits, labels, np.full(400, 2), weights_are="counts")
    read_rows(-factor * logits, labels)
    read_rows(factor * logits, 1 - labels)


@TURNED_ROUND_IS_AN_ERROR
def test_an_order_that_chance_may_turn_round_is_not_noticed():
    for seed in range(200):
        logits, labels = turned_round(60, 0.0, seed)
        labels[:2] = 0, 1
        read_rows(logits, labels)  # a warning is an error here
    read_rows(*turned_round(12))
    # Far beyond chance, but no order to speak of.
    read_rows(*turned_round(20_000, 0.1))
    rows = turned_round()
    read_rows(*rows, np.where(np.arange(400) < 12, 1.0, 1e-9))


@pytest.mark.parametrize("door", ["calibrate", "calibrate_scores", "fit_head", "fit", "refresh"])
def test_every_door_notices_scores_in_the_wrong_order(door, tmp_path):
    logits, labels = turned_round()
    score = keras.Input((1,), name="score")
    base = keras.Model({"score": score}, keras.layers.Identity()(score))
    model = kc.models.CalibratedModel(base, kc.layers.ILPS(), base_output="logit")
    x, path = {"score": logits.astype("float32")}, tmp_path / "1"
    how = {"from_logits": True, "methods": "identity", "verbose": 0}
    if door == "refresh":
        model.head.fit(-logits, labels)
        kc.export_savedmodel(model, path)
    doors = {
        "calibrate": lambda: kc.calibrate(model, x, labels, methods="identity", verbose=0),
        "calibrate_scores": lambda: kc.calibrate_scores(logits, labels, **how),
        "fit_head": lambda: kc.fit_head(model, x, labels, verbose=0),
        "fit": lambda: kc.layers.ILPS().fit(logits, labels),
        "refresh": lambda: kc.refresh_savedmodel(path, logits, labels, from_logits=True),
    }
    with pytest.warns(UserWarning, match="1 - p"):
        doors[door]()
