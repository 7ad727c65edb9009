"""progressive: each period is scored by what was known before it, and by nothing else."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from keras_calibration.calibration import progressive
from keras_calibration.layers import (
    BiasCorrection,
    FieldBias,
    FieldILPS,
    PlattScaling,
    TemperatureScaling,
)

NUM_DAYS, ROWS = 16, 300


def make_rows(seed=0, drift=0.08):
    generator = np.random.default_rng(seed)
    day = np.repeat(np.arange(NUM_DAYS), ROWS)
    logits = generator.normal(-1.0, 1.0, len(day))
    site = generator.integers(0, 8, len(day))
    truth = logits + drift * day + 0.2 * (site - 4)
    return logits, (generator.random(len(day)) < expit(truth)).astype(float), {"site": site}, day


def log_loss(labels, logits, weights=None):
    logits = np.asarray(logits, float).reshape(-1)
    return np.average(np.logaddexp(0, logits) - labels * logits, weights=weights)


@pytest.mark.parametrize("follows_time", [False, True])
def test_each_day_is_scored_before_it_is_learnt(follows_time):
    logits, labels, features, day = make_rows()

    def part(first, last):
        places = (day >= first) & (day < last)
        given = logits[places], labels[places], {"site": features["site"][places]}
        return given, ({"time": day[places]} if follows_time else {})

    head = FieldBias({"site": 8}, PlattScaling(), follows_time=follows_time)
    ways = ["update", "all", 1, 7]
    found = progressive(head, logits, labels, features, time=day, first=9, ways=ways, forget=0.1)
    assert not head.built
    np.testing.assert_array_equal(found.periods, np.arange(9, NUM_DAYS))
    updated = FieldBias({"site": 8}, PlattScaling(), follows_time=follows_time)
    updated.fit(*part(0, 9)[0], **part(0, 9)[1])
    for place, today in enumerate(range(9, NUM_DAYS)):
        given = part(today, today + 1)[0]
        if today > 9:
            before, time = part(today - 1, today)
            updated.update(*before, forget=0.1, **time)
        heads = {"update": updated}
        for name, first in (("all", 0), ("last 1", today - 1), ("last 7", today - 7)):
            heads[name] = FieldBias({"site": 8}, PlattScaling(), follows_time=follows_time)
            rows, time = part(first, today)
            heads[name].fit(*rows, **time)
        for name, each in heads.items():
            expected = log_loss(given[1], each(given[0], given[2]))
            assert found.log_losses[name][place] == pytest.approx(expected, abs=1e-6), name
        assert found.log_losses["raw"][place] == pytest.approx(log_loss(given[1], given[0]))
    assert list(found.log_losses) == ["raw", "update", "all", "last 1", "last 7"]


def test_the_whole_is_the_mean_of_all_rows_and_days_are_independent():
    logits, labels, _, day = make_rows()
    weights = np.random.default_rng(1).integers(1, 3, len(day)) * (day % 3 + 1.0)
    found = progressive(
        PlattScaling(), logits, labels, sample_weight=weights / 7, time=day, ways=["all"]
    )
    later = day >= 7
    assert found.mean["raw"] == pytest.approx(
        log_loss(labels[later], logits[later], weights[later])
    )
    change = found.log_losses["raw"] - found.log_losses["all"]
    mean, error = found.difference("raw", "all")
    assert mean == pytest.approx(np.average(change, weights=found.weights))
    away = found.weights * (change - mean) / found.weights.sum()
    count = len(change)
    assert error == pytest.approx(np.sqrt(count / (count - 1) * np.sum(away**2)))
    text = str(found)
    assert text.startswith("9 periods: log loss, and above that of 'all'")
    assert f"raw  {found.mean['raw']:.6f}  {mean:+.6f} ± {error:.6f}" in text


def test_any_form_of_times_and_any_order_of_rows():
    logits, labels, features, day = make_rows()
    head = FieldBias({"site": 8}, follows_time=True)
    options = {"ways": ["update", 3], "first": 10}
    expected = progressive(head, logits, labels, features, time=day, **options)
    order = np.random.default_rng(0).permutation(len(day))
    shuffled = progressive(
        head, logits[order], labels[order], {"site": features["site"][order]}, time=day[order],
        **options,
    )  # fmt: skip
    dates = pd.Timestamp("2026-03-01") + pd.to_timedelta(day, "D")
    frame = pd.DataFrame({**features, "at": dates})
    by_column = progressive(head, logits, labels, frame, time="at", **options)
    for other in (shuffled, by_column):
        for name, losses in expected.log_losses.items():
            np.testing.assert_allclose(other.log_losses[name], losses, atol=1e-5)


def test_days_of_one_class_are_learnt_by_updates_and_left_out_by_fits():
    logits, labels, _, day = make_rows()
    labels = np.where(day == 10, 0.0, labels)
    found = progressive(BiasCorrection(), logits, labels, time=day, ways=["update", "all", 1])
    # The day after has the fit of the day before, and both are finite.
    bias = BiasCorrection()
    bias.fit(logits[day == 9], labels[day == 9])
    after = day == 11
    expected = log_loss(labels[after], bias(logits[after]))
    assert found.log_losses["last 1"][4] == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(found.log_losses["update"], found.log_losses["all"], atol=1e-6)


@pytest.mark.parametrize(
    ("head", "arguments", "message"),
    [
        (PlattScaling(), {"first": 16}, "`first` must be less than the number of periods, 16"),
        (PlattScaling(), {"first": 0}, "`first` must be an integer of at least 1"),
        (PlattScaling(), {"ways": ["everything"]}, "`ways` must be 'update', 'all' or numbers"),
        (PlattScaling(), {"ways": [0]}, "`ways` must be an integer of at least 1"),
        (PlattScaling(), {"forget": 2.0}, "`forget` must"),
        (PlattScaling(), {"time": "day"}, "must name a column"),
        (FieldILPS({"site": 8}, PlattScaling()), {}, "FieldILPS has no `update`"),
        (TemperatureScaling(), {"labels": np.zeros(NUM_DAYS * ROWS)}, "both classes"),
        (FieldBias({"name": 8}), {}, "name"),
    ],
)
def test_what_cannot_be_done_is_refused(head, arguments, message):
    logits, labels, features, day = make_rows()
    given = {"labels": labels, "time": day, **arguments}
    with pytest.raises(ValueError, match=message):
        progressive(head, logits, features=features, **given)


@pytest.mark.parametrize("moves", [False, True])
def test_the_share_to_forget_is_the_one_that_was_best_so_far(moves):
    """In a period, by the periods before it; and it is large where effects move."""
    generator = np.random.default_rng(3)
    day = np.arange(8_000) // 400
    site = generator.integers(0, 8, 8_000)
    effects = generator.normal(0, 1.5, (2, 8))
    logits = generator.normal(-1, 1, 8_000)
    truth = logits + effects[(day > 6).astype(int) if moves else 0, site]
    labels = (generator.random(8_000) < expit(truth)).astype(float)
    shares, options = [0.0, 0.1, 0.9], {"time": day, "first": 3, "ways": ["update", 1]}
    rows = logits, labels, {"site": site}
    found = progressive(FieldBias({"site": 8}), *rows, forget=shares, **options)
    names = [f"forget={share:g}" for share in shares]
    assert list(found.log_losses) == ["raw", "update", *names, "last 1"]
    alone = [
        progressive(FieldBias({"site": 8}), *rows, forget=share, **options) for share in shares
    ]
    for name, each in zip(names, alone, strict=True):
        np.testing.assert_allclose(found.log_losses[name], each.log_losses["update"], rtol=1e-9)
    losses = np.stack([found.log_losses[name] for name in names])
    for place, used in enumerate(found.log_losses["update"]):
        best = losses[:, :place].sum(axis=1).argmin() if place else 0
        assert used == losses[best, place]
    assert found.forget == shares[losses.sum(axis=1).argmin()]
    assert (found.forget > 0) == moves
    assert ("is forgotten" in str(found)) == moves
    assert progressive(FieldBias({"site": 8}), *rows, time=day, ways=["all"]).forget is None
