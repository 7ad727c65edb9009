"""The study of click pipelines, the whole of it on a small table."""

import sys

import block_losses
import click_auc
import clicks
import numpy as np
import pytest

from keras_calibration.seeds import Ledger

pytestmark = pytest.mark.slow


def test_the_whole_study_resumes(data_root, tmp_path, monkeypatch, capsys):
    flags = ["--data", str(data_root / "avazu_head10k"), "--output", str(tmp_path)]
    flags += ["--rows", "1500", "--held-out", "1500", "--embedding-dim", "2"]
    # Batches without a rest are traced once.
    flags += ["--batch-size", "500", "--hidden-units", "8", "4", "--kinds", "size", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["clicks.py", *flags])
    clicks.main()
    assert "1,500 rows to train on, 1,500 held out" in capsys.readouterr().out
    ledger = Ledger(tmp_path / "clicks" / "avazu_head10k_mixing_1")
    runs = ledger.runs()
    trained = {(name, seed) for name in ("xdeepfm", "smaller") for seed in (0, 1)}
    assert {(run["pipeline"], run["seed"]) for run in runs} == {*trained, (click_auc.REGRESSION, 0)}
    clicks.main()
    assert capsys.readouterr().out.count("2 of 2 seeds are in the ledger") == 2
    assert ledger.runs() == runs
    (regression,) = (run for run in runs if run["pipeline"] == click_auc.REGRESSION)
    assert 0.5 < regression["metrics"]["val_auc"][0] < 1
    runs = [run for run in runs if run["pipeline"] != click_auc.REGRESSION]
    assert {"val_auc", clicks.PLAIN, *clicks.CALIBRATED.values()} <= set(runs[0]["metrics"])
    blocks = block_losses.read_block_losses(ledger.path)
    assert set(blocks) == trained
    for run in runs:
        for name, values in blocks[run["pipeline"], run["seed"]].items():
            np.testing.assert_allclose(np.mean(values), run["metrics"][name][0], rtol=1e-5)
            assert len(values) == block_losses.NUM_BLOCKS
            assert np.std(values) > 1e-3
    section = clicks.markdown(ledger)
    assert "`avazu_head10k`" in section
    assert "1 pairs, 2 seeds. Pairs that count:" in section
    # Other rows are no runs of this study.
    monkeypatch.setattr(sys, "argv", ["clicks.py", *flags, "--rows", "1000"])
    with pytest.raises(SystemExit, match="Choose another --output"):
        clicks.main()
