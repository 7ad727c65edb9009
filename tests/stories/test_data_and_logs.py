"""Stories of hostile users: arrays and scored logs.

Each was written from the documentation alone, and is held against NumPy, pandas or SciPy.
"""

import numpy as np
import pandas as pd
import pytest

import keras_calibration as kc
from stories import references
from stories.references import sigmoid

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

RNG = np.random.default_rng(0)
P = sigmoid(RNG.normal(-1, 1.2, 2000))
Y = (RNG.random(2000) < P).astype(int)
WEIGHTS = RNG.integers(0, 4, 2000)
SITE = RNG.integers(0, 5, 2000)
ORDER = RNG.permutation(2000)

_VALUES = {
    "negative": lambda site: site - 3,
    "near 2⁶⁴": lambda site: site.astype("uint64") + 2**63,
    "fractions": lambda site: site / 3,
    "strings": lambda site: np.array([f"é{value}" for value in site]),
    "category": lambda site: pd.Series(site.astype(str)).astype("category"),
    "dates": lambda site: np.datetime64("2026-01-01") + site,
    "Int64 with NA": lambda site: pd.Series(site, dtype="Int64").where(site != 3, pd.NA),
    "NaN": lambda site: np.where(site == 3, np.nan, site),
}


@pytest.mark.parametrize("kind", _VALUES)
def test_field_values_of_many_kinds(kind):
    values = _VALUES[kind](SITE)
    expected = references.field_ece(Y, P, values, WEIGHTS)
    assert kc.scoring.field_ece(Y, P, values, WEIGHTS) == pytest.approx(expected)
    columns = {"label": Y, "probability": P, "site": values, "w": WEIGHTS}
    frame = pd.DataFrame(columns).set_index(ORDER)
    log = kc.logs.ScoredLog(frame, fields=["site"], sample_weight="w")
    assert kc.scoring.score(log, verbose=0)["site_field_ece"] == pytest.approx(expected)
