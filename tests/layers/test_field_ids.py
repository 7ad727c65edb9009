"""The names of fields and of numeric columns, as every head and function takes them."""

import re

import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.layers import BoostedTrees, FieldBias, FieldNetwork
from keras_calibration.layers.field_ids import checked_numeric

ROWS = np.zeros(4), np.array([0, 1, 0, 1]), {"hour": np.arange(4)}
BOTH = {"fields": ["hour"], "numeric": ["hour"]}


@pytest.mark.parametrize(
    "call",
    [
        lambda: FieldBias({"hour": 24}, numeric=["hour"]),
        lambda: FieldNetwork({"hour": 24}, ["hour"]),
        lambda: BoostedTrees({"hour": 24}, "hour"),
        lambda: kc.calibrate_scores(*ROWS, from_logits=True, **BOTH),
    ],
    ids=["FieldBias", "FieldNetwork", "BoostedTrees", "calibrate_scores"],
)
def test_a_column_is_a_field_or_a_number(call):
    message = "Received: numeric=['hour']."
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_numeric_names_may_be_an_iterator_and_a_field_a_single_name():
    assert checked_numeric(iter(["price", "age"]), {"site": 3}) == ("price", "age")
    assert checked_numeric("s", "site") == ("s",)
    with pytest.raises(ValueError, match=r"numeric=\['site'\]"):
        checked_numeric("site", "site")
