"""The drift of a real model's scores is found, and a refresh mends it: what the guide says."""

import re
from pathlib import Path

import pytest

from employment_drift import rows_of_survey, run

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "drift.md"


@pytest.mark.slow
def test_the_guide_has_the_figures_of_the_example(data_root, tmp_path, capsys):
    if not (data_root / "employment_ma_278k").is_dir():
        pytest.skip(f"{data_root} is no whole copy: point KERAS_CALIBRATION_DATA at one.")
    found = run(rows_of_survey(data_root), tmp_path, verify="same_process")
    alerts = capsys.readouterr().out
    assert "At the end of 2016: 0 alerts" in alerts
    assert "RELP 0: under-predicts since 2016" in alerts
    table = GUIDE.read_text().split("## On real rows")[1]
    for name, figures in found.items():
        (cells,) = re.findall(rf"\| {name} \|(.*)\|", table)
        columns = [float(cell) for cell in cells.split("|")]
        expected = [figures[key] for key in ("log_loss", "calibration_ratio", "RELP_field_rce")]
        assert columns == pytest.approx(expected, abs=1e-3)
        assert columns[0] == pytest.approx(expected[0], abs=1e-4)
