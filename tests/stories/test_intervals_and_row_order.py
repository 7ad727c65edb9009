"""Stories of hostile users: intervals, the order of rows, segments, touched exports.

Each was written from the documentation alone, and is held against a computation of its own.
"""

import itertools
import json
import shutil

import keras
import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

import keras_calibration as kc
from keras_calibration.calibration import fit_calibrator
from keras_calibration.logs import ScoredLog

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

NUM_ROWS, NUM_SITES = 4000, 12


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    site = rng.integers(0, NUM_SITES, NUM_ROWS)
    logit = rng.normal(-2, 1, NUM_ROWS)
    chance = expit(logit + rng.normal(0, 0.4, NUM_SITES)[site])
    label = (rng.random(NUM_ROWS) < chance).astype(int)
    return pd.DataFrame({"logit": logit, "label": label, "site": site})


def _interval(rows, weights=None, num_sites=NUM_SITES, sites=None, logit=-2.0):
    """Bounds at one logit for all sites, after a fit of `FieldBias` to arrays."""
    head = kc.layers.FieldBias({"site": num_sites})
    head.fit(rows["logit"], rows["label"], {"site": rows["site"]}, weights, weights_are="counts")
    return _bounds(head, logit, sites)


def _bounds(head, logit=-2.0, sites=None):
    sites = np.arange(NUM_SITES) if sites is None else sites
    return np.reshape(head.interval(np.full(NUM_SITES, logit), {"site": sites}), (2, NUM_SITES))


# 1. A user fits a head to a log without weights, and asks for intervals.


@pytest.mark.parametrize("bins", ["as chosen", "few rows each"])
def test_intervals_after_a_fit_to_a_log(bins, rows):
    # The sums of a group of rows became two rows of half its weight, "not counts": refused.
    some = rows if bins == "as chosen" else rows[:301]
    head = kc.layers.FieldBias({"site": NUM_SITES})
    fit_calibrator(head, ScoredLog(some, logit="logit", fields=["site"]), verbose=0)
    np.testing.assert_allclose(_bounds(head), _interval(some), atol=2e-4)


def test_intervals_after_a_fit_to_a_log_with_inverse_rates(rows):
    weights = 1 / np.random.default_rng(1).uniform(0.1, 1, NUM_ROWS)
    head = kc.layers.FieldBias({"site": NUM_SITES})
    log = ScoredLog(rows.assign(w=weights), logit="logit", fields=["site"], sample_weight="w")
    fit_calibrator(head, log, verbose=0)
    with pytest.raises(ValueError, match="must be equal, or counts of rows"):
        _bounds(head)


# 2. A user asks whether intervals depend on what they must not depend on.


def test_intervals_of_the_same_rows_told_otherwise(rows):
    rng = np.random.default_rng(2)
    found = _interval(rows)
    np.testing.assert_allclose(_interval(rows.sample(frac=1, random_state=0)), found, atol=1e-9)
    np.testing.assert_allclose(_interval(rows, num_sites=50), found, atol=1e-9)
    named = rng.permutation(NUM_SITES)
    renamed = rows.assign(site=named[rows["site"]])
    np.testing.assert_allclose(_interval(renamed, sites=named), found, atol=1e-9)
    mirrored = rows.assign(logit=-rows["logit"], label=1 - rows["label"])
    np.testing.assert_allclose(1 - _interval(mirrored, logit=2.0)[::-1], found, atol=1e-9)
    counts = rng.integers(0, 4, NUM_ROWS)
    copies = rows.loc[rows.index.repeat(counts)]
    np.testing.assert_allclose(_interval(rows, counts), _interval(copies), atol=1e-9)


# 3. A user sorts the features, but not the labels.


@pytest.mark.parametrize("what", ["labels", "features", "weights"])
def test_pandas_in_another_order(what, rows):
    # Rows are matched by position; nothing was said, and the calibration was that of noise.
    parts = {
        "labels": rows["label"],
        "features": rows[["site"]],
        "weights": 0.5 + expit(rows["logit"]),
    }
    parts[what] = parts[what].sort_index(ascending=False)
    with pytest.warns(UserWarning, match="the same index in another order"):
        kc.calibrate_scores(
            rows["logit"],
            parts["labels"],
            parts["features"],
            parts["weights"],
            from_logits=True,
            fields=["site"],
            methods="identity",
            verbose=0,
        )


def test_pandas_with_other_indexes_that_are_no_order(rows):
    other = rows["label"].set_axis(np.arange(NUM_ROWS) + 5)
    twice = rows["label"].set_axis(np.zeros(NUM_ROWS, int))
    for labels in (other, twice, rows["label"].to_numpy(), rows["label"].copy()):
        kc.calibrate_scores(rows["logit"], labels, from_logits=True, methods="identity", verbose=0)


def test_a_model_and_labels_in_another_order(rows):
    inputs = keras.Input((1,), name="logit")
    base = keras.Model({"logit": inputs}, keras.layers.Dense(1, "sigmoid")(inputs))
    model = kc.models.CalibratedModel(base, kc.layers.BiasCorrection())
    with pytest.warns(UserWarning, match="Arguments `x` and `y` have the same index in another"):
        kc.fit_head(model, rows[["logit"]], rows["label"][::-1], verbose=0)


# 4. A user computes the multicalibration error by hand.


def _worst_range(label, p, weight):
    """ECCE and its standard deviation, from the formulas of the documentation."""
    order = np.argsort(p, kind="stable")
    label, p, weight = label[order], p[order], weight[order]
    ends = np.append(np.diff(p) > 0, True)
    sums = np.append(0.0, np.cumsum(weight * (label - p))[ends]) / weight.sum()
    return np.ptp(sums), np.sqrt(np.sum(weight**2 * p * (1 - p))) / weight.sum()


@pytest.mark.parametrize("seed", range(4))
def test_multicalibration_error_by_hand(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(200, 1500))
    p = np.round(rng.uniform(0.02, 0.6, n), 1 + seed % 3).clip(0.01, 0.99)
    label = (rng.random(n) < p).astype(float)
    weight = rng.choice([0.5, 1.0, 3.0], n) if seed % 2 else np.ones(n)
    columns = {"a": rng.integers(0, 4, n), "b": rng.choice(["x", "y"], n)}
    found = kc.scoring.multicalibration_error(label, p, columns, weight, min_rows=1)
    masks = [np.ones(n, bool)]
    masks += [values == each for values in columns.values() for each in np.unique(values)]
    masks += [
        (columns["a"] == a) & (columns["b"] == b) for a, b in itertools.product(range(4), "xy")
    ]
    masks = [mask for mask in masks if min(p[mask].sum(), (1 - p[mask]).sum()) >= 10]
    expected = [_worst_range(label[mask], p[mask], weight[mask]) for mask in masks]
    np.testing.assert_allclose(
        sorted(segment.error for segment in found.segments), sorted(e for e, _ in expected)
    )
    _, deviation = _worst_range(label, p, weight)
    assert found.error == pytest.approx(max(e / s for e, s in expected) * deviation)


# 5. Somebody touches an export before it is refreshed.


def _provenance(path, change):
    file = path / "assets.extra" / "provenance.json"
    told = json.loads(file.read_text())
    change(told)
    file.write_text(json.dumps(told))


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


TAMPERED = {
    "figures": lambda path: _provenance(path, lambda told: told["fit"].update(num_rows=5)),
    "interval": lambda path: _provenance(path, lambda told: told.update(interval=0.5)),
    "hash": lambda path: _provenance(path, lambda told: told.update(files_sha256="0" * 64)),
    "graph": lambda path: _flip(path / "saved_model.pb"),
    "head": lambda path: _flip(path / "assets.extra" / "head.keras"),
    "more weights": lambda path: (path / "variables" / "more").write_text("1"),
}


def test_refreshes_of_touched_exports(rows, tmp_path):
    part = rows[:2000]
    features = {"site": part["site"].to_numpy()}
    options = {"from_logits": True, "fields": ["site"], "methods": "field_bias", "verbose": 0}
    model = kc.calibrate_scores(part["logit"], part["label"], features, **options)
    export = tmp_path / "whole"
    kc.export_savedmodel(model, export / "1", interval=0.95, verify="same_process")
    for name, touch in TAMPERED.items():
        shutil.copytree(export, tmp_path / name)
        touch(tmp_path / name / "1")
        with pytest.raises(ValueError, match=r"Argument `path` must be a (whole )?SavedModel"):
            kc.refresh_savedmodel(
                tmp_path / name, part["logit"], part["label"], features, from_logits=True
            )
        assert [each.name for each in (tmp_path / name).iterdir()] == ["1"]
