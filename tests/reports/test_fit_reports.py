"""Every number that `fit_head`, `Head.fit` and a refresh print, computed from the rows."""

import json
import math
from pathlib import Path

import keras
import numpy as np
import pytest
from scipy import special

from keras_calibration import (
    calibrate_scores,
    export_savedmodel,
    fit_head,
    refresh_savedmodel,
)
from keras_calibration.export.savedmodel.refresh import Refresh
from keras_calibration.layers import (
    ILPS,
    BoostedTrees,
    FieldBias,
    FitSettings,
    PlattScaling,
    VectorScaling,
)
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.models import CalibratedModel
from printed import check_numbers
from row_references import fitted_line, losses_of, mean_and_error

STEPS = (50, 49)  # of a solver: any number from 1 to 99


def rows_of(num, scale=0.7, shift=0.3, seed=0):
    """Logits in float32, as a model computes them; labels and importances."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1.2, 1.0, num).astype("float32").astype("float64")
    y = rng.random(num) < special.expit(scale * logits + shift)
    return logits, y.astype(float), rng.uniform(0.5, 2.0, num)


def drawn_folds(logits, y):
    """The folds as the package draws them: of rows by increasing logit, and stratified by label."""
    order, fold = np.argsort(logits), np.empty(len(y), int)
    by_chance = np.random.default_rng(0).random(len(y))
    fold[order[np.lexsort((by_chance, y[order]))]] = np.arange(len(y)) % 3
    return fold


def fitted_ilps(logits, y, w, _=None):
    layer = ILPS()
    layer.fit(logits, y, sample_weight=w)
    return lambda new, _: np.asarray(layer(new), np.float64)


FITS = {"platt": (PlattScaling, fitted_line), "ilps": (ILPS, fitted_ilps)}


class Fitted:
    """The figures of a fit, beside the logits of the head before it."""

    def __init__(self, fit, logits, y, w, before=None):
        self.logits, self.y, self.w = logits, y, w
        losses = losses_of(y, logits if before is None else before)
        self.before = w @ losses / w.sum()
        fitted = fit(logits, y, w, None)(logits, None)
        self.in_sample = w @ losses_of(y, fitted) / w.sum()
        # The mean prediction by the head before and by the fit, and the mean label.
        columns = special.expit(logits if before is None else before), special.expit(fitted), y
        self.means = [w @ column / w.sum() for column in columns]
        fold, crossed = drawn_folds(logits, y), np.empty(len(y))
        for number in range(3):
            rows, new = fold != number, fold == number
            crossed[new] = fit(logits[rows], y[rows], w[rows], None)(logits[new], None)
        self.change, self.error = mean_and_error(losses_of(y, crossed) - losses, w)

    @property
    def printed(self):
        after = self.before + self.change
        # The importances of a part are scaled anew, which changes the smoothness a little.
        figures = [(figure, 5e-6) for figure in (after, self.change, self.error)]
        return [self.before, *figures, *self.means, len(self.y), STEPS]

    def in_file(self):
        """The numbers that the provenance has of a fit, and of its logits."""
        order = np.argsort(self.logits)
        shares = np.cumsum(self.w[order]) / self.w.sum()
        levels = (0.01, 0.1, 0.5, 0.9, 0.99)
        quantiles = [self.logits[order][np.searchsorted(shares, level)] for level in levels]
        fit = {
            "num_rows": len(self.y),
            "log_loss_before": self.before,
            "log_loss_in_sample": self.in_sample,
            "num_iterations": STEPS,
            "change": self.change,
            "change_error": self.error,
            "log_loss_after": self.before + self.change,
            "means": {
                name: [mean]
                for name, mean in zip(("before", "after", "observed"), self.means, strict=True)
            },
        }
        logits = {
            "num_rows": len(self.y),
            "min": self.logits.min(),
            "max": self.logits.max(),
            "mean": self.w @ self.logits / self.w.sum(),
            "quantiles": dict(zip(map(str, levels), quantiles, strict=True)),
        }
        return {"fit": fit, "logits": logits}


def model_with(head, *features):
    inputs = {name: keras.Input((1,), name=name) for name in ("score", *features)}
    base = keras.Model(inputs, keras.layers.Identity()(inputs["score"]))
    return CalibratedModel(base, head, base_output="logit")


def test_fit_head_of_rates_per_day(capsys):
    logits, y, _ = rows_of(20_000, 1.0, -5.5)
    fit_head(model_with(PlattScaling()), {"score": logits}, y)
    shown = capsys.readouterr().out
    shown = shown[shown.index("The head") :]
    check_numbers(shown, Fitted(fitted_line, logits, y, np.ones(20_000)).printed)


@pytest.mark.parametrize("kind", FITS)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_fit_head(kind, is_weighted, capsys):
    make, fit = FITS[kind]
    logits, y, w = rows_of(1200)
    w = w * 1200 / w.sum() if is_weighted else np.ones(1200)
    model = model_with(make())
    fit_head(model, {"score": logits}, y, w if is_weighted else None)
    check_numbers(capsys.readouterr().out, Fitted(fit, logits, y, w).printed)
    # Again to the same rows: the head has seen them, so that there is no comparison.
    fit_head(model, {"score": logits}, y, w if is_weighted else None)
    fitted = Fitted(fit, logits, y, w)
    loss, means = fitted.in_sample, [fitted.means[place] for place in (1, 1, 2)]
    check_numbers(capsys.readouterr().out, [loss, loss, (0, 1e-6), means, 1200, STEPS])


def test_a_fit_that_is_not_used(capsys):
    model, (logits, y, _) = model_with(PlattScaling()), rows_of(20_000)
    fit_head(model, {"score": logits}, y, verbose=0)
    logits, y, _ = rows_of(240, seed=3)
    before = model.head.scale * logits + model.head.bias
    fitted = Fitted(fitted_line, logits, y, np.ones(240), before)
    with pytest.warns(UserWarning, match="only_if_better") as warned:
        fit_head(model, {"score": logits}, y)
    assert fitted.change > 0
    check_numbers(capsys.readouterr().out, fitted.printed)
    check_numbers(str(warned[0].message), [fitted.change, fitted.error, 240])


def test_a_direct_fit():
    logits, y, w = rows_of(1200)
    fitted = Fitted(fitted_line, logits, y, w)
    difference = fitted.in_sample - fitted.before
    summary = PlattScaling().fit(logits, y, sample_weight=w)
    check_numbers(str(summary), [fitted.before, fitted.in_sample, difference, 1200, STEPS])


def test_a_head_that_follows_time(capsys):
    logits, y, _ = rows_of(1600)
    time = np.arange(1600.0)

    def head():
        return FieldBias({}, calibrator=PlattScaling(), follows_time=True)

    model, earlier = model_with(head()), head()
    fit_head(model, {"score": logits}, y, time=time)
    # The last eighth is scored by a fit to the others.
    earlier.fit(logits[:1400], y[:1400], time=time[:1400])
    late, seen = logits[1400:], y[1400:]
    changes = losses_of(seen, np.asarray(earlier(late)).reshape(-1)) - losses_of(seen, late)
    change, error = mean_and_error(changes, np.ones(200))
    before = losses_of(y, logits).mean()
    fitted = special.expit(np.asarray(model.head(logits), np.float64)).mean()
    means = [special.expit(logits).mean(), fitted, y.mean()]
    figures = [before, before + change, change, error, *means]
    check_numbers(capsys.readouterr().out, [*figures, 1600, STEPS])


def test_trees_on_given_folds(capsys):
    logits, _, _ = rows_of(1500)
    rng = np.random.default_rng(4)
    x = rng.normal(size=1500).astype("float32")
    y = (rng.random(1500) < special.expit(0.7 * logits + np.abs(x) - 1)).astype(float)
    fold, ones = np.arange(1500) % 3, np.ones(1500)
    model = model_with(BoostedTrees({}, ["x"], PlattScaling()), "x")
    settings = FitSettings(folds=fold)
    summary = fit_head(model, {"score": logits, "x": x}, y, settings=settings)
    curve = np.empty(1500)
    for number in range(3):
        rows = fold != number
        line = fitted_line(logits[rows], y[rows], ones[rows], None)
        curve[~rows] = line(logits[~rows], None)
    # The package's own logits with trees, each from trees that did not see the fold.
    losses = [losses_of(y, eta) for eta in (logits, curve, summary.cross_fitted_logits)]
    before, without, both = (loss.mean() for loss in losses)
    changes = mean_and_error(losses[2] - losses[0], ones)
    gain = mean_and_error(losses[2] - losses[1], ones)
    text, steps = capsys.readouterr().out, (500, 499)
    # A line of the folds' progress comes first, if there is one.
    text = text[text.index("The head") :]
    fitted = np.asarray(model.head(logits, {"x": x}), np.float64).reshape(-1)
    means = [special.expit(logits).mean(), special.expit(fitted).mean(), y.mean()]
    figures = [before, both, list(changes), means, 1500, steps]
    check_numbers(text, [*figures, without, both, list(gain)])


def numbers_in(tree, path=()):
    """The numbers of a JSON file by their places, and pairs of numbers, as above."""
    if isinstance(tree, dict | list):
        parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {n: x for key, part in parts for n, x in numbers_in(part, (*path, key)).items()}
    return {} if isinstance(tree, bool | str | None) else {path: tree}


@pytest.mark.parametrize("kind", ["platt", "ilps"])
def test_refresh(kind, tmp_path, capsys):
    make, fit = FITS[kind]
    old, (logits, y, w) = rows_of(800), rows_of(900, 0.9, 0.1, seed=5)
    model = model_with(make())
    fit_head(model, {"score": old[0]}, *old[1:], verbose=0)
    export_savedmodel(model, tmp_path / "ctr" / "1")
    refreshed = refresh_savedmodel(tmp_path / "ctr", logits, y, None, w, from_logits=True)
    served = np.asarray(model.head(logits), np.float64)
    first, new = Fitted(fit, *old), Fitted(fit, logits, y, w, served)
    seconds = [(30, 30)] * 3
    check_numbers(capsys.readouterr().out, [2, 2, seconds, 2, new.printed])
    # A trial prints the same figures of the fit, and its verdict has the version that stays.
    options = {"from_logits": True, "dry_run": True, "verbose": 0}
    again = refresh_savedmodel(tmp_path / "ctr" / "1", logits, y, None, w, **options)
    check_numbers(again.report, [1, new.printed])
    # Of the rows of its own fit, a head has no figure on new rows.
    again = refresh_savedmodel(refreshed, logits, y, None, w, **options)
    loss, means = new.in_sample, [new.means[place] for place in (1, 1, 2)]
    check_numbers(again.report, [2, loss, loss, (0, 1e-6), means, 900, STEPS])

    # The figures of this fit, and under "refreshed_from" those of the one before.
    expected = {**new.in_file(), "refreshed_from": first.in_file()}
    if kind == "ilps":
        model.head.fit(logits, y, sample_weight=w)
        curve = {"knots": model.head.get_knots().tolist()}
        expected["head"] = {"curve": curve | {"values": model.head.get_values().tolist()}}
    expected = numbers_in(expected)
    provenance = json.loads((refreshed / "assets.extra" / "provenance.json").read_text())
    difference = provenance.pop("verification")["largest_differences"]
    assert max(difference.values()) < 1e-6
    found = numbers_in(provenance)
    assert found.keys() == expected.keys()
    for place, number in found.items():
        is_count = place[-1] == "num_iterations"
        assert 0 < number < 99 if is_count else abs(number - expected[place]) < 1e-5, place


def verdict_of(change, error, is_used=True):
    """The first line of a summary, and of the reports of a refresh that is written, and is not."""
    figures = {"change": change, "change_error": error, "is_used": is_used}
    summary = FitSummary(100, 0.3, 0.2, 3, True, **figures)
    refreshes = [Refresh(Path("ctr/7"), summary, is_written) for is_written in (True, False)]
    texts = [str(summary), *(refresh.report for refresh in refreshes)]
    return [" ".join(text.partition("\nLog loss")[0].split()) for text in texts]


def test_the_verdict_says_what_changes_and_why():
    """The first line alone tells whether a fit is used, and by which rule."""
    fits = [(-0.02, 0.004), (-0.002, 0.004), (0.0, 0.004), (0.002, 0.004), (0.02, 0.004)]
    worse = [False, False, False, True, True]
    within = [False, True, False, True, False]
    for (change, error), is_worse, is_within in zip(fits, worse, within, strict=True):
        head, written, tried = verdict_of(change, error)
        for text in (head, written, tried):
            assert ("worse" in text) == is_worse
            assert ("within the standard error" in text) == is_within
        # A fit that is worse is used only if that was asked for.
        assert ("only_if_better=False" in head) == ("although" in written) == is_worse
        assert head.startswith("The head changes")
        assert written.startswith("Version 7 is written")
        assert tried.startswith("Nothing is written, because dry_run=True")
        assert "Version 7 stays" in tried
    head, _, kept = verdict_of(0.002, 0.004, is_used=False)
    assert head.startswith("The head stays as it was, because")
    assert kept.startswith("Nothing is written, because the fit predicts new rows worse")
    for text in verdict_of(math.nan, math.nan):
        assert not {"better", "worse"} & set(text.split())


def test_the_mean_of_the_class_that_moves_most_is_printed():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(600, 3)).astype("float32")
    y = rng.choice(3, 600, p=[0.5, 0.3, 0.2])
    inputs = keras.Input((3,), name="score")
    outputs = keras.layers.Activation("softmax")(VectorScaling(3)(keras.layers.Identity()(inputs)))
    model = keras.Model(inputs, outputs)
    before = special.softmax(logits.astype(float), axis=1).mean(axis=0)
    summary = fit_head(model, logits, y, verbose=0)
    after, observed = model.predict(logits, verbose=0).mean(axis=0), np.bincount(y) / 600
    most = int(np.argmax(np.abs(after - before)))
    (line,) = (line for line in str(summary).splitlines() if line.startswith("Mean"))
    means = [before[most], (after[most], 1e-5), observed[most]]
    check_numbers(line, [most, *means])


def test_several_heads_are_named(capsys):
    rng = np.random.default_rng(0)
    inputs = keras.Input((1,))
    heads = [PlattScaling(), PlattScaling()]
    names = ("click", "buy")
    outputs = {
        name: keras.layers.Activation("sigmoid", name=name)(head(inputs))
        for name, head in zip(names, heads, strict=True)
    }
    x = rng.normal(size=(300, 1))
    true = special.expit(0.3 * x[:, 0] + 0.8)
    y = {name: (rng.random(300) < true).astype(float) for name in names}
    fit_head(keras.Model(inputs, outputs), x, y)
    shown = capsys.readouterr().out
    assert [shown.count(repr(name)) for name in names] == [1, 1]


def test_calibrate_leaves_no_logits_in_the_order_of_its_fit():
    logits, y, _ = rows_of(600)
    x = np.arange(600) % 2.0
    options = {"numeric": ["x"], "methods": "trees", "from_logits": True, "verbose": 0}
    model = calibrate_scores(logits, y, {"x": x}, **options)
    assert not len(model.head.fit_summary.cross_fitted_logits)
