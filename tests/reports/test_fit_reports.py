"""Every number that `fit_head`, `Head.fit` and a refresh print, computed from the rows."""

import json

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
from keras_calibration.layers import ILPS, BoostedTrees, FieldBias, FitSettings, PlattScaling
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
        self.in_sample = w @ losses_of(y, fit(logits, y, w, None)(logits, None)) / w.sum()
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
        return [len(self.y), self.before, *figures, STEPS]

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
    loss = Fitted(fit, logits, y, w).in_sample
    check_numbers(capsys.readouterr().out, [1200, loss, loss, (0, 1e-6), STEPS])


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
    check_numbers(str(summary), [1200, fitted.before, fitted.in_sample, difference, STEPS])


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
    check_numbers(capsys.readouterr().out, [1600, before, before + change, change, error, STEPS])


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
    text = text[text.index("1,500 rows") :]
    check_numbers(text, [1500, before, both, list(changes), steps, list(gain), without, both])


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
    check_numbers(capsys.readouterr().out, [2, 2, seconds, new.printed])

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


def test_calibrate_leaves_no_logits_in_the_order_of_its_fit():
    logits, y, _ = rows_of(600)
    x = np.arange(600) % 2.0
    options = {"numeric": ["x"], "methods": "trees", "from_logits": True, "verbose": 0}
    model = calibrate_scores(logits, y, {"x": x}, **options)
    assert not len(model.head.fit_summary.cross_fitted_logits)
