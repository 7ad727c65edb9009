"""F2: the slope over the number of development rows, and the rows that a size takes."""

import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "field_aware_calibration"
sys.path.append(str(EXAMPLE))
import development_rows  # noqa: E402
import training  # noqa: E402
from calibration_task import CalibrationTask, NetworkSize  # noqa: E402
from development_rows import METHODS, NEURAL, PLATT  # noqa: E402
from jackknife import NUM_BLOCKS, append_jackknife  # noqa: E402

from keras_calibration.seeds import Ledger  # noqa: E402
from verdicts import verdict  # noqa: E402

pytestmark = pytest.mark.slow


def write_runs(ledger, table, slope, generator, sizes=(1000, 3000, 10_000, 20_000)):
    """Losses whose log ratio to those of Platt scaling falls by a slope, with noise."""
    rows = 0.02 * generator.normal(size=NUM_BLOCKS)
    for size in sizes:
        settings = {"data": table, "development_rows": size}
        for seed in (100, 101, 102):
            noise = 0.0005 * generator.normal()
            for name in METHODS:
                log_ratio = 0 if name == PLATT else 0.1 + slope * np.log(size) + noise
                blocks = (0.5 + rows) * np.exp(log_ratio)
                loss = float(blocks.mean())
                without = ((blocks.sum() - blocks) / (NUM_BLOCKS - 1)).tolist()
                record = {
                    "pipeline": name,
                    "seed": seed,
                    "status": "finished",
                    "epochs": [0],
                    "metrics": {"log_loss": [loss]},
                    "configuration": {"settings": settings, "data": {}},
                }
                append_jackknife(ledger.path, record, {"log_loss": without})
                ledger.append(record)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    found = Ledger(tmp_path_factory.mktemp("ledger"))
    generator = np.random.default_rng(0)
    for table, slope in zip(
        development_rows.DATA_SETS[:4], (-0.01, -0.012, -0.02, -0.009), strict=True
    ):
        write_runs(found, table, slope, generator)
    return found


def test_the_slope_is_that_of_a_line(ledger):
    tables = development_rows.groups_of(ledger)
    assert list(tables) == list(development_rows.DATA_SETS[:4])
    groups = tables["nycflights13_337k"]
    sizes = [each.settings["development_rows"] for each in groups]
    assert sizes == [1000, 3000, 10_000, 20_000]
    slopes = []
    for seed in (100, 101, 102):
        ratios = [
            each.runs[NEURAL][seed]["log_loss"] / each.runs[PLATT][seed]["log_loss"]
            for each in groups
        ]
        slopes.append(np.polyfit(np.log(sizes), np.log(ratios), 1)[0])
    value, error = development_rows.slope(groups)
    assert value == pytest.approx(np.mean(slopes))
    # The noise of the seeds alone: the blocks of rows have the same ratio.
    expected = np.std(slopes, ddof=1) / np.sqrt(3)
    assert error == pytest.approx(expected, rel=0.01)
    assert development_rows.slope(groups[:2]) is None


def test_the_mean_slope_has_a_verdict(ledger):
    tables = development_rows.groups_of(ledger)
    found = development_rows.mean_slope(tables)
    assert found.value == pytest.approx(0.0128, abs=0.002)
    assert verdict(found) == "reproduced"
    upwards = found._replace(value=-found.value, low=-found.high, high=-found.low, p_value=1.0)
    assert verdict(upwards) == "not reproduced"
    page = development_rows.markdown(tables)
    assert "| nycflights13_337k" in page
    assert page.count("| mean") == 3
    assert development_rows.markdown({}) == ""


def test_the_last_development_rows_are_taken():
    rows = training.Rows({"site": np.arange(10, dtype=np.int32)}, np.arange(10, dtype=np.float32))
    logits = np.arange(10, dtype=np.float32)
    others = dict.fromkeys(("train", "test", "base", "test_logits"))
    task = CalibrationTask(
        **others,
        name="made up",
        field="site",
        num_values={"site": 10},
        development=rows,
        development_logits=logits,
        seed=0,
        size=NetworkSize(2, (4,)),
        batch_size=30,
    )
    few = development_rows.last_rows(task, 3)
    for found in (few.development.labels, few.development.features["site"], few.development_logits):
        np.testing.assert_array_equal(found, [7, 8, 9])
    assert len(task.development.labels) == 10
    assert development_rows.sizes_of(20_000) == [1000, 3000, 10_000, 20_000]
    assert development_rows.sizes_of(3000) == [1000, 3000]
