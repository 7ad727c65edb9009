"""The same bits as when the goldens were made; elsewhere, where others round, nearly the same."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))
import goldens
from every_head import HEADS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),
]
RECORDED = goldens.read()
IS_SAME_MACHINE = goldens.environment() == RECORDED["environment"]


def assert_same(received, recorded):
    assert list(received) == list(recorded)
    for name, values in recorded.items():
        if IS_SAME_MACHINE:
            assert received[name] == values, name
        numbers = ([float.fromhex(value) for value in each] for each in (received[name], values))
        np.testing.assert_allclose(*numbers, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("name", HEADS)
def test_fits(name):
    assert_same(goldens.fits(name), RECORDED["fits"][name])


def test_calibrate():
    assert_same(goldens.calibrations(), RECORDED["calibrations"])


def test_files_of_before(tmp_path):
    goldens.unpack(tmp_path)
    assert_same(goldens.outputs_of_files(tmp_path), RECORDED["files"])
    assert_same(goldens.refreshed(tmp_path), RECORDED["refreshed"])


def test_signatures_and_docstrings():
    received = goldens.signatures()
    assert list(received) == list(RECORDED["signatures"])
    changed = [name for name in received if received[name] != RECORDED["signatures"][name]]
    assert changed == []
