"""What all tests share."""

import os
import pathlib

import pytest

# Read when TensorFlow and Matplotlib are first imported, hence before any test module.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")


@pytest.fixture(scope="session")
def data_root() -> pathlib.Path:
    """The folder of real data; tests that need it are skipped where there is none."""
    given = os.environ.get("KERAS_CALIBRATION_DATA")
    beside = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
    root = pathlib.Path(given) if given else beside
    if root.is_dir():
        return root
    if given:
        pytest.fail(f"KERAS_CALIBRATION_DATA is {given}, which is no folder.")
    pytest.skip(
        "No real data at ../shared/data beside the checkout: set KERAS_CALIBRATION_DATA to the "
        "path of a copy to run this test."
    )
