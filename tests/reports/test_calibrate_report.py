"""Every number that `print(model.report)` of `calibrate_scores` shows, computed from the rows."""

import keras
import numpy as np
import pytest
from scipy import special

from calibrate_references import Judged
from keras_calibration import calibrate, calibrate_scores
from keras_calibration.layers import ILPS, FieldBias
from printed import check_numbers


def numbers_of_report(judged, forced=None, level=()):
    """All numbers, from the verdict to the last note; `level` has those of a level over time."""
    rows = [judged.row(logits) for logits in judged.of.values()]
    weights = sorted(judged.weights.values(), reverse=True)
    verdict = weights if len(weights) > 1 else []
    if forced is None:
        verdict += [judged.evidence, judged.needed]
        if judged.chosen == "identity":
            verdict += [judged.smallest]
        else:
            verdict += [judged.expected, *[judged.share] * int(judged.share < 1)]
    before = judged.chance(judged.of["identity"])[1]
    floor, after = judged.chance(judged.of[judged.chosen])
    after = [] if judged.chosen == "identity" else after
    table = [rows, judged.num_rows, judged.num_folds]
    return [verdict, table, floor, before, after, [*level], judged.still_off()]


def check_bias(report, judged):
    """The bias of a blend, which is served and not printed."""
    if judged.chosen == "blend":
        assert report.bias == pytest.approx((judged.served_bias,), abs=1e-4)


def rows_of(num, scale, shift, spread, seed=0):
    rng = np.random.default_rng(seed)
    logits, site = rng.normal(-1.0, 1.2, num), rng.choice(4, num, p=[0.4, 0.3, 0.2, 0.1])
    true = scale * logits + shift + spread * np.array([0.5, -0.4, 0.1, -1.0])[site]
    labels = (rng.random(num) < special.expit(true)).astype(float)
    return logits, labels, site, rng.integers(0, 3, num)


CURVES = ["bias", "temperature", "platt"]


@pytest.mark.parametrize(
    ("world", "methods", "kind"),
    [
        ((3000, 0.7, 0.4, 0.0), CURVES, "plain"),
        ((1500, 0.9, 0.1, 0.0), CURVES, "plain"),  # a share of the change
        ((800, 1.0, 0.0, 0.0), ["bias", "platt"], "plain"),  # no change
        ((3000, 0.9, 0.1, 0.8), ["bias", "platt"], "importance"),  # segments still off
        ((1500, 0.9, 0.1, 0.8), CURVES, "counts"),
        ((2400, 0.8, 0.2, 0.1), CURVES, "groups"),
        ((2000, 0.9, 0.2, 0.7), ["platt", "field_bias"], "plain"),
        ((3000, 0.7, 0.4, 0.0), CURVES, "blocks"),
        ((1000, 0.9, 0.3, 0.0), ["platt"], "forced"),
        ((9000, 1.0, -5.0, 0.0), ["bias", "platt"], "plain"),  # rates per day
        ((900, 0.7, 0.3, 0.0), ["bias", "platt"], "model"),
    ],
)
def test_every_number(world, methods, kind):
    logits, y, site, fold = rows_of(*world)
    options = {"fields": ["site"], "methods": methods, "folds": fold, "from_logits": True}
    judging, times = {}, np.ones(len(y), int)
    if kind == "counts":  # of coarse columns, in which chance makes rows equal
        logits, times = logits.round(), np.random.default_rng(1).integers(1, 4, len(y))
        options |= {"sample_weight": times, "weights_are": kind}
    if kind == "importance":
        judging = {"w": np.random.default_rng(1).uniform(0.5, 2.0, len(y))}
        options |= {"sample_weight": judging["w"]}
    if kind == "groups":
        groups = np.random.default_rng(1).integers(0, 60, len(y))
        fold = groups % 3
        judging = {"groups": groups}
        options |= {"groups": groups, "folds": fold}
    if kind == "blocks":
        fold, judging = np.arange(len(y)) * 5 // len(y), {"blocks": True}
        options["folds"] = "blocks"
    if kind == "forced":
        options["methods"] = methods[0]
    if kind == "model":
        del options["from_logits"]
        inputs = {name: keras.Input((1,), name=name) for name in ("score", "site")}
        base = keras.Model(
            inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs["score"])
        )
        logits = logits.astype("float32").astype("float64")
        model = calibrate(base, {"score": logits, "site": site}, y, verbose=0, **options)
    else:
        model = calibrate_scores(logits, y, {"site": site}, verbose=0, **options)
    judged = Judged(*(np.repeat(c, times) for c in (logits, y, site, fold)), methods, **judging)
    if kind == "forced":
        judged.chosen, judged.weights = methods[0], {methods[0]: 1.0}
    else:
        judged.decide()
    check_numbers(str(model.report), numbers_of_report(judged, kind == "forced" or None))
    check_bias(model.report, judged)


@pytest.mark.parametrize("kind", ["steady", "jumps", "trend", "noise"])
def test_every_number_over_time(kind):
    has_level = kind in ("trend", "noise")
    methods = ["bias", "ilps+level" if has_level else "platt"]
    seed, time = {"jumps": 1, "noise": 2}.get(kind, 0), np.arange(1600) / 200
    logits, y, site, _ = rows_of(1600, 0.8, 0.2, 0.0, seed)
    rng, drawn = np.random.default_rng(1), np.random.default_rng(1).normal(size=32)
    # Blocks in which the best candidate gains, and the mean of all of them does harm; a level.
    levels = {"jumps": 0.3 * drawn[time.astype(int)] + 0.3, "trend": 0.3 * (time - 2)}
    levels["noise"] = levels["trend"] + 0.5 * drawn[np.arange(1600) // 50]
    if kind in levels:
        y = (rng.random(1600) < special.expit(logits + levels[kind])).astype(float)
    if kind == "noise":
        methods = methods[1:]
    model = calibrate_scores(
        *(logits, y, {"site": site}),
        fields=["site"],
        methods=methods,
        time=time,
        from_logits=True,
        verbose=0,
    )
    judged = Judged(logits, y, site, np.arange(1600) // 200, methods, time=time)
    if kind == "noise":
        judged.chosen, judged.weights = methods[0], {methods[0]: 1.0}
    else:
        judged.decide()
    level = []
    if has_level:
        # The fit to all rows, whose level has a slope by generalized least squares.
        curve = ILPS(smoothness="auto", monotonic="strict")
        layer = FieldBias({}, calibrator=curve, follows_time=True)
        layer.fit(logits, y, time=time)
        found = layer.level()
        weights = 1 / (found.errors**2 + found.noise**2)
        slope, covariance = np.polyfit(
            found.times, found.values, 1, w=np.sqrt(weights), cov="unscaled"
        )
        level = [slope[0], np.sqrt(covariance[0, 0]), found.walk, found.noise, found.last]
    # The fits to the earlier blocks start from that to all rows, and end a little elsewhere.
    slack = 0.01 if kind == "noise" else 1e-9
    expected = numbers_of_report(judged, kind == "noise" or None, level)
    check_numbers(str(model.report), expected, slack)
    check_bias(model.report, judged)
