"""`FieldBias.update`: days that are added one by one, without the rows of the days before."""

import keras
import numpy as np
import pytest
from scipy.special import expit

from keras_calibration.layers import ILPS, FieldBias, IsotonicRegression, NeuralCalibration

NUM_ROWS, FIRST, DAY = 9000, 3000, 1000
NUM_SITES = 30


def make_rows(seed=0, slope=0.8):
    """36 days, of which the level moves; a field, and a number with a curve."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1.0, 1.0, NUM_ROWS)
    site = generator.integers(0, NUM_SITES, NUM_ROWS)
    age = np.where(generator.random(NUM_ROWS) < 0.1, np.nan, generator.normal(40, 10, NUM_ROWS))
    time = np.arange(NUM_ROWS) * 36 // NUM_ROWS
    level = np.cumsum(generator.normal(0, 0.2, 36))[time]
    effect = generator.normal(0, 0.5, NUM_SITES)[site] + np.nan_to_num(0.03 * (age - 40), nan=0.4)
    labels = (generator.random(NUM_ROWS) < expit(slope * logits + effect + level)).astype(float)
    return logits, labels, {"site": site, "age": age}, time.astype(float)


LOGITS, LABELS, FEATURES, TIME = make_rows()
HEADS = {
    "fields": {},
    "curve of the logit": {"calibrator": ILPS},
    "isotonic": {"calibrator": IsotonicRegression},
    "number": {"numeric": ["age"], "num_knots": 16},
    "number alone": {"fields": {}, "numeric": ["age"], "calibrator": ILPS},
    "time": {"follows_time": True},
    "all": {
        "calibrator": ILPS,
        "numeric": ["age"],
        "num_knots": 16,
        "follows_time": True,
    },
}


def make(name):
    arguments = dict(HEADS[name])
    calibrator = arguments.pop("calibrator", None)
    fields = arguments.pop("fields", {"site": NUM_SITES})
    return FieldBias(fields, calibrator and calibrator(), **arguments)


def rows_of(head, places, **changes):
    """The arguments of `fit` and `update` for some rows."""
    found = {
        "logits": LOGITS[places],
        "labels": LABELS[places],
        "features": {name: FEATURES[name][places] for name in head.feature_names},
        **({"time": TIME[places]} if head.follows_time else {}),
    }
    return {**found, **changes}


def fitted(name, last=FIRST):
    head = make(name)
    head.fit(**rows_of(head, np.arange(last)))
    return head


def predictions(head):
    features = {name: FEATURES[name][:500] for name in head.feature_names}
    values = head(LOGITS[:500], features), head.logit_standard_deviation(LOGITS[:500], features)
    return [keras.ops.convert_to_numpy(each).astype(float).reshape(-1) for each in values]


def weights_and_sums(head):
    histogram = head.calibrator and head.calibrator.histogram
    moments = [] if histogram is None else [histogram.moments]
    return [*head.get_weights(), *moments]


@pytest.mark.parametrize("name", [name for name in HEADS if name != "isotonic"])
def test_days_one_by_one_are_near_the_fit_to_all(name):
    whole, once, daily = fitted(name, NUM_ROWS), fitted(name), fitted(name)
    for start in range(FIRST, NUM_ROWS, DAY):
        places = np.arange(start, start + DAY)
        summary = daily.update(**rows_of(daily, places))
        assert summary.num_rows == DAY
        assert summary.converged
    assert daily.fit_summary == summary
    expected, errors = predictions(whole)
    found, other_errors = predictions(daily)
    away = np.sqrt(np.mean(((found - expected) / errors) ** 2))
    was_away = np.sqrt(np.mean(((predictions(once)[0] - expected) / errors) ** 2))
    assert away < 0.45
    assert away < 0.4 * was_away
    assert 0.9 < np.median(other_errors / errors) < (1.2 if whole.follows_time else 1.1)
    if whole.follows_time:
        level, other = whole.level(), daily.level()
        # Their means differ: that of the update is over the rows of its first fit.
        moves = np.diff(other.values), np.diff(np.interp(other.times, level.times, level.values))
        assert np.corrcoef(*moves)[0, 1] > 0.75


def test_a_curve_without_a_histogram_stays():
    head = fitted("isotonic")
    before = head.calibrator.get_weights()
    head.update(**rows_of(head, np.arange(FIRST, FIRST + DAY)))
    for one, two in zip(before, head.calibrator.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(head.get_offsets("site"), fitted("isotonic").get_offsets("site"))


@pytest.mark.parametrize("name", ["fields", "curve of the logit", "number"])
def test_all_forgotten_is_near_a_fit_to_the_new_rows(name):
    head, alone = fitted(name), make(name)
    new = rows_of(head, np.arange(FIRST, NUM_ROWS))
    head.update(**new, forget=1.0)
    alone.fit(**new)
    found, (expected, errors) = predictions(head)[0], predictions(alone)
    assert np.sqrt(np.mean(((found - expected) / errors) ** 2)) < 0.2


@pytest.mark.parametrize("name", [name for name in HEADS if name != "isotonic"])
def test_the_order_of_rows_and_rows_of_weight_0_do_not_matter(name):
    places = np.arange(FIRST, FIRST + DAY)
    head, other = fitted(name), fitted(name)
    head.update(**rows_of(head, places))
    others = np.random.default_rng(0).permutation(np.r_[places, places - 2000])
    weights = np.where(others >= FIRST, 7.0, 0.0)
    other.update(**rows_of(other, others, sample_weight=weights))
    for one, two in zip(predictions(head), predictions(other), strict=True):
        np.testing.assert_allclose(one, two, atol=2e-5)


@pytest.mark.parametrize("name", ["fields", "all"])
def test_counts_are_rows(name):
    places = np.arange(FIRST, FIRST + DAY)
    counts = np.random.default_rng(1).integers(1, 4, DAY)
    head, other = fitted(name), fitted(name)
    head.update(**rows_of(head, places, sample_weight=counts, weights_are="counts"))
    other.update(**rows_of(other, np.repeat(places, counts)))
    for one, two in zip(predictions(head), predictions(other), strict=True):
        np.testing.assert_allclose(one, two, atol=2e-5)
    head.interval(LOGITS[:2], {name: FEATURES[name][:2] for name in head.feature_names})
    head.update(**rows_of(head, places + DAY, sample_weight=counts / 7))
    with pytest.raises(ValueError, match="must be equal, or counts"):
        head.interval(LOGITS[:2], {name: FEATURES[name][:2] for name in head.feature_names})
    # They are forgotten with the rows that had them.
    head.update(**rows_of(head, places + 2 * DAY), forget=1.0)
    head.interval(LOGITS[:2], {name: FEATURES[name][:2] for name in head.feature_names})


def test_the_unit_and_the_sign_of_logits_do_not_matter():
    expected = fitted("number")
    expected.update(**rows_of(expected, np.arange(FIRST, FIRST + DAY)))
    for scale, shift in ((1000.0, 0.0), (50.0, 600.0), (1e-4, -1e-3)):
        head = make("number")
        for method, places in ((head.fit, np.arange(FIRST)), (head.update, FIRST + np.arange(DAY))):
            method(**rows_of(head, places, logits=scale * LOGITS[places] + shift))
        found = head(scale * LOGITS[:500] + shift, {n: v[:500] for n, v in FEATURES.items()})
        found = keras.ops.convert_to_numpy(found).reshape(-1)
        np.testing.assert_allclose(found, predictions(expected)[0], atol=1e-4)
    head = make("number")
    for method, places in ((head.fit, np.arange(FIRST)), (head.update, FIRST + np.arange(DAY))):
        method(**rows_of(head, places, logits=-LOGITS[places], labels=1 - LABELS[places]))
    mirrored = head(-LOGITS[:500], {n: v[:500] for n, v in FEATURES.items()})
    mirrored = keras.ops.convert_to_numpy(mirrored).reshape(-1)
    np.testing.assert_allclose(-mirrored, predictions(expected)[0], atol=1e-4)


def test_the_first_update_is_a_fit():
    head, other = make("all"), fitted("all")
    head.update(**rows_of(head, np.arange(FIRST)))
    for one, two in zip(weights_and_sums(head), weights_and_sums(other), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", ["fields", "all"])
def test_a_loaded_head_goes_on(name, tmp_path):
    head = fitted(name)
    head.update(**rows_of(head, np.arange(FIRST, FIRST + DAY)))
    inputs = {each: keras.Input((), name=each) for each in ("logit", *head.feature_names)}
    features = {each: inputs[each] for each in head.feature_names}
    path = tmp_path / "model.keras"
    keras.Model(inputs, head(inputs["logit"], features)).save(path)
    (loaded,) = (
        layer for layer in keras.models.load_model(path).layers if isinstance(layer, FieldBias)
    )
    new = np.arange(FIRST + DAY, FIRST + 2 * DAY)
    assert loaded.update(**rows_of(head, new)) == head.update(**rows_of(head, new))
    for one, two in zip(weights_and_sums(head), weights_and_sums(loaded), strict=True):
        np.testing.assert_array_equal(one, two)


def test_values_not_seen_today_keep_what_is_known_of_them():
    head = fitted("fields")
    before, (_, errors) = head.get_offsets("site"), predictions(head)
    today = np.flatnonzero((FEATURES["site"] < 5) & (TIME >= 12))
    head.update(**rows_of(head, today))
    after = head.get_offsets("site")
    # What the others share with those of today moves a little.
    assert np.abs(after - before)[5:].max() < 0.1
    assert np.abs(after - before)[:5].max() > 0.1
    site = FEATURES["site"][:500]
    ratio = predictions(head)[1] / errors
    assert ratio[site < 5].max() < 0.8
    assert 0.9 < ratio[site >= 5].min() < 1.01
    assert head.get_deviations() == fitted("fields").get_deviations()


def test_forgetting_widens_and_moves_towards_the_prior():
    kept, forgotten = fitted("fields"), fitted("fields")
    row = np.array([FIRST])
    kept.update(**rows_of(kept, row))
    forgotten.update(**rows_of(forgotten, row), forget=0.9)
    assert np.all(predictions(forgotten)[1] > 1.4 * predictions(kept)[1])
    sizes = [np.square(each.get_offsets("site")).sum() for each in (forgotten, kept)]
    assert sizes[0] < 0.95 * sizes[1]


def test_time_that_passes_widens_the_interval_of_the_level():
    soon, late = fitted("time"), fitted("time")
    places = np.arange(FIRST, FIRST + 20)
    soon.update(**rows_of(soon, places, time=TIME[places]))
    late.update(**rows_of(late, places, time=TIME[places] + 50))
    assert np.all(predictions(late)[1] > 1.2 * predictions(soon)[1])
    assert late.level().times[-2] == pytest.approx(-51.0)


def test_rows_in_order_follow_those_before():
    head, other = make("time"), make("time")
    head.fit(**rows_of(head, np.arange(FIRST), time="order"))
    other.fit(**rows_of(other, np.arange(FIRST), time=np.arange(FIRST)))
    places = np.arange(FIRST, FIRST + DAY)
    for _ in range(2):
        head.update(**rows_of(head, places, time="order"))
        other.update(**rows_of(other, places, time=places))
        np.testing.assert_array_equal(predictions(head), predictions(other))
        places = places + DAY


def trained(head):
    head._bias.assign(3.0)


def nothing(head):
    pass


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (nothing, {"forget": 1.5}, "Argument `forget` must"),
        (nothing, {"time": None}, "must hold the time of each row"),
        (
            nothing,
            {"time": np.zeros(DAY)},
            "must not be before the last row of earlier fits, at 11",
        ),
        (nothing, {"labels": np.zeros(DAY), "forget": 1.0}, "must hold both classes"),
        (nothing, {"labels": None}, "must hold a label for each row"),
        (nothing, {"features": {"age": np.zeros(DAY)}}, "site"),
        (nothing, {"logits": np.full(DAY, np.nan)}, "finite"),
        (trained, {}, "requires the posterior of the last fit"),
    ],
)
def test_refused_updates_change_nothing(change, arguments, message):
    head = fitted("all")
    change(head)
    before = weights_and_sums(head)
    places = np.arange(FIRST, FIRST + DAY)
    with pytest.raises(ValueError, match=message):
        head.update(**rows_of(head, places, **arguments))
    for one, two in zip(before, weights_and_sums(head), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_day_of_one_class_is_taken():
    head = fitted("all")
    before = predictions(head)[0]
    places = np.arange(FIRST, FIRST + 50)
    head.update(**rows_of(head, places, labels=np.zeros(50)))
    assert predictions(head)[0].mean() < before.mean() - 0.05


def test_fields_that_always_occur_together_are_refused():
    head = FieldBias({"site": NUM_SITES, "name": NUM_SITES})
    site = FEATURES["site"]
    rows = {"features": {"site": site, "name": NUM_SITES - 1 - site}}
    head.fit(LOGITS, LABELS, **rows)
    with pytest.raises(ValueError, match="'site' and 'name', which always occurred together"):
        head.update(LOGITS, LABELS, **rows)
    # Fields that coincide on the new rows alone are no obstacle.
    head = FieldBias({"site": NUM_SITES, "day": 36})
    features = {"site": site, "day": TIME.astype(int)}
    head.fit(LOGITS, LABELS, features)
    one = np.flatnonzero((site == 3) & (TIME == 2))
    head.update(LOGITS[one], LABELS[one], {name: each[one] for name, each in features.items()})


def test_heads_without_update_say_so():
    head = NeuralCalibration(ILPS(), FieldBias({"site": 3}))
    with pytest.raises(ValueError, match="NeuralCalibration has no `update`"):
        head.update(LOGITS, LABELS, FEATURES)


@pytest.mark.slow
def test_intervals_after_updates_hold_the_truth():
    held = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        site = generator.integers(0, 40, 6000)
        truth = LOGITS[:6000] + generator.normal(0, 0.4, 40)[site]
        labels = generator.random(6000) < expit(truth)
        head = FieldBias({"site": 40})
        for start in range(0, 6000, 1000):
            part = slice(start, start + 1000)
            head.update(LOGITS[part], labels[part], {"site": site[part]})
        lower, upper = head.interval(LOGITS[:6000], {"site": site})
        one = expit(truth)
        held.append(np.mean((lower.reshape(-1) <= one) & (one <= upper.reshape(-1))))
    assert 0.92 < np.mean(held) < 0.98
