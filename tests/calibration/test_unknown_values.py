"""A fit to rows with values that a field does not know says so, at every door, once."""

import warnings

import keras
import numpy as np
import pandas as pd
import pytest

import every_head
import keras_calibration as kc
from keras_calibration.calibration import fit_calibrator
from keras_calibration.layers import FieldBias
from keras_calibration.models import CalibratedModel
from symbols import symbols

pytestmark = pytest.mark.filterwarnings(
    "ignore:The (head|fit of the head|mean prediction|sample weights|calibration)"
)
KNOWN = every_head.NUM_SITES
READERS = {n: make for n, (make, _) in every_head.HEADS.items() if make().reads().fields}


def world(share=0.2, num_rows=800, effect=2.0, seed=0):
    """Logits, labels and features; a share of the rows is of a site that no head knows."""
    rng = np.random.default_rng(seed)
    site = np.where(rng.random(num_rows) < share, KNOWN + 2, np.arange(num_rows) % KNOWN)
    score = rng.normal(-1, 1, num_rows)
    chance = 1 / (1 + np.exp(-score - effect * (site >= KNOWN)))
    price = rng.normal(size=num_rows).astype("float32")
    return score, (rng.random(num_rows) < chance).astype(int), {"site": site, "price": price}


def said(fit):
    """What a fit warns of unknown values."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    return [str(w.message) for w in caught if "vocabulary" in str(w.message)]


def model_of(head):
    inputs = symbols(score=(), site="int32", price=())
    base = keras.Model(inputs, keras.layers.Reshape((1,))(inputs["score"]))
    return CalibratedModel(base, head, "logit")


def by_fit(head, score, label, x):
    head.fit(score, label, x)


def by_fit_head(head, score, label, x):
    kc.fit_head(model_of(head), {"score": score, **x}, label, verbose=0)


def by_log(head, score, label, x):
    table = pd.DataFrame({"y": label, "z": score, **x})
    log = kc.logs.ScoredLog(table, label="y", logit="z", fields=[*x])
    fit_calibrator(head, log, verbose=0)


def by_calibrate(head, score, label, x):
    columns = {name: x[name] for name in head.feature_names}
    fields = {"fields": {"site": KNOWN}, "methods": "field_bias", "verbose": 0}
    kc.calibrate_scores(score, label, columns, from_logits=True, **fields)


DOORS = {door.__name__: door for door in (by_fit, by_fit_head, by_log, by_calibrate)}


CASES = [("FieldBias", door) for door in DOORS]
CASES += [("FieldILPS", "by_fit"), ("BoostedTrees", "by_fit")]
CASES += [
    pytest.param(name, door, marks=pytest.mark.slow)
    for name in READERS
    for door in ("by_fit", "by_fit_head", "by_log")
    if name != "FieldBias" and (name, door) not in CASES
]


@pytest.mark.parametrize(("name", "door"), CASES)
def test_every_head_and_door_names_field_share_and_remedy(name, door):
    score, label, x = world()
    (message,) = said(lambda: DOORS[door](READERS[name](), score, label, x))
    assert "'site': 19.8 % of the rows, such as those of '7', of which 0.69" in message
    assert "fields=[…]" in message


def texts(site):
    return np.array(list("abcdefgh"), object)[site]


StringLookup, IntegerLookup = keras.layers.StringLookup, keras.layers.IntegerLookup
# Vocabulary, the values of sites for it, and the token of unknown values, if it has one.
LOOKUPS = {
    "numbers": (KNOWN, np.asarray, -1),
    "texts": (StringLookup(vocabulary=list("abcde")), texts, "[UNK]"),
    "masked": (StringLookup(vocabulary=list("abcde"), mask_token=""), texts, "[UNK]"),
    "ids": (IntegerLookup(vocabulary=[*range(KNOWN)]), np.asarray, -1),
    "buckets": (IntegerLookup(vocabulary=[*range(KNOWN)], num_oov_indices=3), np.float64, None),
}
NUMBERED = ("numbers", "ids", "buckets")


@pytest.mark.parametrize("kind", LOOKUPS)
def test_large_shares_and_rates_that_are_off(kind):
    vocabulary, values, token = LOOKUPS[kind]

    def fit(as_token=False, **arguments):
        score, label, x = world(num_rows=4000, **arguments)
        site = values(x["site"])
        site = np.where(x["site"] >= KNOWN, token, site) if as_token else site
        return said(lambda: FieldBias({"site": vocabulary}).fit(score, label, {"site": site}))

    assert fit(share=0.0) == []
    assert fit(share=0.002, effect=0.0) == []
    if token is not None:  # who passes it means it
        assert fit(as_token=True) == []
    (message,) = fit(share=0.03, effect=0.0)
    assert f"% of the rows, such as those of {'7' if kind in NUMBERED else 'h'!r}" in message


def test_a_small_share_counts_if_its_rate_is_off_in_rows_or_counts():
    score, label, x = world(share=0.007, num_rows=9000, effect=4.0)
    head = FieldBias({"site": KNOWN})
    (message,) = said(lambda: head.fit(score, label, x))
    score, site = np.round(score), x["site"]
    apart = said(lambda: head.fit(score, label, {"site": site}))
    (*distinct, site), counts = np.unique([score, label, site], axis=1, return_counts=True)
    distinct += [{"site": site}, counts]
    assert apart == said(lambda: head.fit(*distinct, weights_are="counts"))
    assert "'site': 0.6" in message
    assert len(apart) == 1


@pytest.mark.tensorflow
def test_a_refresh_says_it(tmp_path):
    score, label, x = world(share=0.0)
    names = {"site": texts(x["site"])}
    model = kc.calibrate_scores(
        score, label, names, from_logits=True, fields=["site"], methods="field_bias", verbose=0
    )
    path = kc.export_savedmodel(model, tmp_path / "1")
    score, label, x = world()
    rows = {"features": {"site": texts(x["site"])}, "from_logits": True}
    (message,) = said(lambda: kc.refresh_savedmodel(path, score, label, **rows))
    assert "'site': 19.8 % of the rows, such as those of 'h'" in message


def test_certain_and_right_predictions_of_one_value_hide_no_other():
    rng = np.random.default_rng(0)
    logits, site = rng.normal(size=20_000), rng.integers(0, 3, 20_000)
    labels = rng.random(20_000) < 1 / (1 + np.exp(-logits))
    site[:10], logits[:10], labels[:10] = 7, 60.0, True
    # All such values share one correction, which two of opposite labels leave near 0.
    site[10:90], logits[10:90], labels[10:90] = np.arange(80) % 2 + 8, 0.0, np.arange(80) % 2
    with pytest.warns(UserWarning, match="'(8|9)'"):
        FieldBias({"site": 3}).fit(logits, labels, {"site": site})


def test_every_class_is_tested():
    """The unknown site has the classes 0 and 1 in turn where 0 is predicted, and no class 2."""
    rng = np.random.default_rng(0)
    logits, site = rng.normal(size=(6000, 3)), rng.integers(0, KNOWN, 6000)
    classes = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    site[:40] = KNOWN + 1
    logits[:40] = [4.0, 0.0, -9.0]
    options = {"from_logits": True, "fields": {"site": KNOWN}, "verbose": 0}

    def fit(first):
        classes[:40] = np.where(np.arange(40) % 2, first, 0)
        return said(lambda: kc.calibrate_scores(logits, classes, {"site": site}, **options))

    (message,) = fit(first=1)
    assert "'site': 0.667 % of the rows" in message
    assert fit(first=0) == []
