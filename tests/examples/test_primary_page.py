"""V1 and A1 on the page of results, from ledgers that are made up."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_calibration.seeds import Ledger

sys.path.append(str(Path(__file__).parents[2] / "examples" / "calibrated_metric"))
import block_losses
import clicks
import primary_clicks
import primary_page
from click_study import Pipeline, make_study
from pairs import Pair

pytestmark = pytest.mark.slow

NAMES = ("fnn", "deepfm", "dcn", "without_dense")
PLAN = primary_clicks.PLANS["primary"]._replace(
    tables=("table_a", "table_b"), pipelines=NAMES, num_folds=3, num_seeds=8
)
NUM_BLOCKS = 10


def write_fold(folder, table, fold, *, low=(), num_seeds=PLAN.num_seeds, names=NAMES[:3]):
    """Runs of a fold: each pipeline is worse than the one before, with a bias in the plain loss."""
    generator = np.random.default_rng([fold, len(table)])
    setting = {"data": table, "mixing": 1.0, "fold": fold, "num_positives": 300}
    base = clicks.as_json(Pipeline(batch_size=8))
    setting |= {"num_train": 80, "num_held_out": 20, "base": base, "l2_scale": 200.0}
    ledger = Ledger(folder / clicks.ledger_name(setting))
    lines = []
    for place, name in enumerate(("logistic_regression", *names)):
        for seed in range(num_seeds if place else 1):
            seed += fold * num_seeds
            own, bias = 0.01 * generator.normal(size=2)
            calibrated = 0.4 + 0.006 * place + own
            losses = {clicks.PLAIN: calibrated + 2 * bias, clicks.CALIBRATED["ours"]: calibrated}
            losses[clicks.PAPERS] = 9.0
            metrics = {key: [value] for key, value in losses.items()}
            metrics["val_auc"] = [0.5 if name in low else 0.7 + 0.01 * place]
            run = {"pipeline": name, "seed": seed, "status": "finished", "epochs": [0]}
            ledger.append({**run, "metrics": metrics, "configuration": {"setting": setting}})
            rows = 0.002 * generator.normal(size=NUM_BLOCKS)
            blocks = {key: (value + rows - rows.mean()).tolist() for key, value in losses.items()}
            lines.append(json.dumps({"pipeline": name, "seed": seed, "losses": blocks}))
    (ledger.path / block_losses.FILE).write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    for table in PLAN.tables:
        for fold in range(PLAN.num_folds):
            write_fold(tmp_path, table, fold)
    return tmp_path


def results_of(folder, plan=PLAN):
    runs = primary_page.read_runs(folder, plan)
    return [primary_page.result_of(each, num_draws=200, seed=k) for k, each in enumerate(runs)]


def cells(page, start):
    """The cells of the first line of the page that starts with a text."""
    for line in page.splitlines():
        found = [cell.strip() for cell in line.strip("|").split("|")]
        if found[0].startswith(start):
            return found
    raise AssertionError(f"no line {start}")


def test_complete_runs_have_verdicts(folder):
    results = results_of(folder)
    assert [each.runs.name for each in results] == list(PLAN.tables)
    # The cross-fitted loss stands for the papers', which has 30 positives for its bias.
    assert all(fold.calibrated.max() < 1 for each in results for fold in each.runs.folds)
    page = primary_page.markdown(results, PLAN)
    line = cells(page, "V1")
    assert 0.3 < float(line[2].split()[0]) < 0.65  # of variances 1 and 5
    assert line[4] == "reproduced"
    assert cells(page, "A1")[4] in ("reproduced", "undecided")
    assert cells(page, "table_a")[:3] == ["table_a", "3", "3 of 3"]
    # The published mean beside ours.
    assert "(0.37971)" in page
    assert "not tested" not in page.replace("*Not tested*", "")


def test_incomplete_runs_have_no_verdict(folder):
    page = primary_page.markdown(results_of(folder, PLAN._replace(num_folds=4)), PLAN)
    assert cells(page, "V1")[4] == "reproduced"
    page = primary_page.markdown(results_of(folder), PLAN._replace(num_folds=4))
    assert cells(page, "V1")[4] == "runs under way"
    # A fold with missing seeds is left out.
    page = primary_page.markdown(results_of(folder, PLAN._replace(num_seeds=9)), PLAN)
    assert cells(page, "V1")[2:] == ["–", "–", "runs under way"]


def test_a_network_below_the_regression_is_not_tested(tmp_path):
    for fold in range(PLAN.num_folds):
        write_fold(tmp_path, "table_a", fold, low=("dcn",))
    (result,) = results_of(tmp_path)
    assert result.runs.pipelines == ["fnn", "deepfm"]
    assert set(result.runs.pairs) == {Pair("architecture", "deepfm", "fnn")}
    page = primary_page.markdown([result], PLAN)
    assert "not tested" in page.replace("*Not tested*", "")


def test_the_published_figures_are_those_of_the_plan():
    plan = primary_clicks.PLANS["primary"]
    ratios = [38 / 47, 42 / 50, 33 / 44, 37 / 59, 40 / 64, 34 / 48, 38 / 58, 39 / 48, 36 / 39]
    expected = np.mean(np.log([*ratios, 42 / 61]))
    assert primary_page.published_ratio(plan.pipelines) == pytest.approx(expected)
    study = primary_clicks.study_of(plan, Pipeline())
    assert set(study.pipelines) == set(plan.pipelines)
    assert len(study.published) == 15
    assert study.pipelines[primary_clicks.L2].l2 == pytest.approx(2e-4)
    assert primary_page.relevant_gain(study.published.values()) == pytest.approx(0.0307, abs=1e-4)


def test_the_plans_are_those_of_the_hypotheses():
    text = (Path(__file__).parents[2] / "examples" / "HYPOTHESES.md").read_text("utf-8")
    for plan in primary_clicks.PLANS.values():
        assert all(f"`{table}`" in text for table in plan.tables)
        known = make_study(Pipeline(), primary_clicks.L2_SCALE).pipelines
        assert set(plan.pipelines) <= set(known)
    last = [
        primary_clicks.FIRST_SEED + plan.num_folds * plan.num_seeds - 1
        for plan in primary_clicks.PLANS.values()
    ]
    assert last == [2059, 2029, 2039]
    assert "Seeds 2000 to 2059" in text
    assert "seeds 2015 to 2029 fold 1" in text
