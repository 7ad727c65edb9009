"""The pages in docs/ and CONTRIBUTING.md speak of what is there."""

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import keras
import matplotlib
import matplotlib.pyplot
import numpy as np
import pytest

import keras_calibration as kc
from tiers import slow_except

ROOT = Path(__file__).parents[1]
PAGES = ["docs/architecture.md", "docs/data_flow.md", "docs/field_solver.md", "CONTRIBUTING.md"]
PAGES += ["docs/add.md"]


def test_the_architecture_page_lists_every_room():
    text = (ROOT / PAGES[0]).read_text("utf-8")
    rooms = {path.parent.name for path in (ROOT / "src").glob("*/*/**/*.py")}
    assert len(rooms) > 15
    assert {room for room in rooms if f"── {room}/ " not in text} == set()


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_are_there(page):
    text = (ROOT / page).read_text("utf-8")
    named = set(re.findall(r"`([\w/]+\.(?:py|md))`", text)) | set(
        re.findall(r"\]\(([^:)#]+)[)#]", text)
    )
    present = {
        path.relative_to(ROOT).as_posix()
        for folder in ("src", "tests", "docs", "examples", "benchmarks", "savedmodels")
        for path in (ROOT / folder).rglob("*.*")
    } | {path.name for path in ROOT.iterdir()}
    assert named
    missing = {
        name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in present)
    }
    assert missing == set()


def test_figures_from_the_studies_stand_on_their_pages():
    studies = ["examples/calibrated_metric/README.md"]
    studies += ["examples/RESULTS.md", "examples/TABLES.md"]
    shown = {
        number
        for study in studies
        for number in re.findall(r"\d+\.\d+", (ROOT / study).read_text("utf-8"))
    }
    text = (ROOT / "docs/topics/evidence.md").read_text("utf-8")
    quoted = [
        number
        for paragraph in text.split("\n\n")
        if "RESULTS.md" in paragraph or "flights" in paragraph
        for number in re.findall(r"\d+\.\d+", paragraph)
    ]
    assert len(quoted) >= 3
    assert set(quoted) <= shown


def cells_of(page):
    """The code cells of a page in docs/, in their order; of a program, the whole."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    if page.endswith(".py"):
        return [text]
    cells = re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(r"^:[\w-]+:.*\n", "", cell, flags=re.MULTILINE) for cell in cells]


@pytest.fixture
def run_page(tmp_path, monkeypatch):
    """Runs a page as the site does, from top to bottom in an empty folder; returns its names."""

    def run(page):
        monkeypatch.chdir(tmp_path)
        names = {"__name__": "__main__"}
        cells = cells_of(page)
        assert cells
        for cell in cells:
            exec(compile(cell, page, "exec"), names)
        return names

    matplotlib.use("agg")
    yield run
    matplotlib.pyplot.close("all")


PICTURES = ROOT / "docs" / "reference" / "pictures"


@pytest.mark.tensorflow
@pytest.mark.parametrize("picture", sorted(path.name for path in PICTURES.glob("*.py")))
def test_a_picture_of_the_reference(picture, run_page):
    run_page(f"reference/pictures/{picture}")
    assert matplotlib.pyplot.get_fignums()


# Those with a test of their own below.
WITH_CHECKS = ("exposure", "groups", "lightgbm", "sampling", "scores", "serve")
CHECKED = {f"guides/{name}.md" for name in WITH_CHECKS}
QUICK = {"guides/monitor.md", "coming_from/netcal.md", "coming_from/tensorflow_lattice.md"}
GUIDES = {
    path.relative_to(ROOT / "docs").as_posix()
    for folder in ("guides", "coming_from")
    for path in (ROOT / "docs" / folder).glob("*.md")
    if "{code-cell}" in path.read_text("utf-8")
}


@pytest.mark.tensorflow
@pytest.mark.parametrize("page", slow_except(QUICK, sorted(GUIDES - CHECKED)))
def test_a_page_runs(page, run_page):
    run_page(page)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_the_network_over_strings_of_the_page_on_heads():
    """The lines that replace some of README's program fit, learn the field, and are saved."""
    text = (ROOT / "docs" / "guides" / "2_head.md").read_text("utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    rng = np.random.default_rng(0)
    rows = {name: rng.choice(["a", "b", "é"], 600).astype(object) for name in ("carrier", "dest")}
    late = rng.random(600) < np.where(rows["carrier"] == "é", 0.7, 0.2)
    names = {"keras": keras, "kc": kc, "fields": list(rows)}
    names["inputs"] = {name: keras.Input((1,), dtype="string", name=name) for name in rows}
    names["ids"] = {name: keras.layers.StringLookup(vocabulary=["a", "é"]) for name in rows}
    exec(compile(program, "2_head.md", "exec"), names)
    model = names["model"]
    model.compile("adam", "binary_crossentropy")
    model.fit(rows, late, batch_size=50, verbose=0)
    settings = kc.layers.FitSettings(folds=2, max_epochs=20, batch_size=50)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Fields have values that are not in their vocabulary")
        summary = kc.fit_head(model, rows, late, settings=settings, verbose=0)
    assert summary.change < 0
    asked = {name: np.array(["é", "b", "new"], object) for name in rows}
    first, second, unknown = model.predict(asked, verbose=0)[:, 0]
    assert first > second + 0.2
    assert unknown == pytest.approx(second)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_the_page_on_sampling(run_page):
    """What the page says of its base model and of sampled rows is right among all rows."""
    names = run_page("guides/sampling.md")
    base, rate, test_x, test_y = (names[name] for name in ("base", "rate", "test_x", "test_y"))
    assert names["model"].report is None
    assert test_y.mean() == pytest.approx(names["p"].mean(), rel=0.1)

    def sampled(x, y, seed):
        kept = (y == 1) | (np.random.default_rng(seed).random(len(y)) < rate)
        return {name: column[kept] for name, column in x.items()}, y[kept]

    x, y = sampled(names["x"], names["y"], 11)
    of_sample = kc.calibrate(base, x, y, fields=["site_id"], methods="quick", verbose=0)
    correction = kc.layers.SamplingCorrection(rate)
    for model in (names["model"], kc.models.CalibratedModel(of_sample, correction)):
        model.compile(
            "adam", "binary_crossentropy", weighted_metrics=[kc.metrics.CalibrationRatio()]
        )
        x, y = sampled(test_x, test_y, 12)
        weights = np.where(y == 1, 1.0, 1 / rate)
        for figures in (
            model.evaluate(test_x, test_y, verbose=0, return_dict=True),
            model.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True),
        ):
            assert figures["calibration_ratio"] == pytest.approx(1, rel=0.1)
    sites = {"site_id": x["site_id"]}
    error = kc.scoring.multicalibration_error(y, base.predict(x, verbose=0), sites)
    assert error.p_value > 0.1


@pytest.mark.tensorflow
@pytest.mark.slow
def test_the_page_on_exposure(run_page):
    """Both ways have the total of each length and region; each row twice is the same fit."""
    names = run_page("guides/exposure.md")
    table, days, claims = (names[name] for name in ("table", "days", "claims"))
    logit = np.log(np.expm1(names["rate"] / 365))
    groups = table.drop(columns="years").groupby(names["region"] == "south").sum()
    assert groups["before"][True] < 0.6 * groups["observed"][True]
    for way in ("per day", "log exposure"):
        np.testing.assert_allclose(groups[way], groups["observed"], rtol=0.06)
        by_length = table.groupby("years", observed=True)[[way, "observed"]].sum()
        away = (by_length[way] - by_length["observed"]) / np.sqrt(by_length["observed"])
        assert np.abs(away).max() < 3
    twice = kc.layers.FieldBias({"region": 3})
    twice.fit(
        np.tile(logit, 2),
        np.repeat([1, 0], len(claims)),
        {"region": np.tile(names["ids"], 2)},
        np.concatenate([claims, days - claims]),
        weights_are="counts",
    )
    offsets = names["head"].get_offsets("region")
    np.testing.assert_allclose(twice.get_offsets("region"), offsets, atol=1e-3)
    assert np.ptp(offsets) > 0.5
    as_importances = kc.layers.FieldBias({"region": 3})
    with pytest.warns(UserWarning, match="look like counts"):
        as_importances.fit(logit, claims / days, {"region": names["ids"]}, days)
    assert np.ptp(as_importances.get_offsets("region")) < 0.7 * np.ptp(offsets)
    with pytest.raises(ValueError, match="abels"):
        kc.layers.BiasCorrection().fit(logit[:2], [2.5, 0], sample_weight=[0.4, 0.4])


@pytest.mark.tensorflow
@pytest.mark.slow
def test_the_page_on_groups(run_page):
    """By rows the gain is reported too high, by far more than its error; by groups it is not."""
    by_rows, by_groups = run_page("guides/groups.md")["figures"].values()
    for figures, is_right in ((by_rows, False), (by_groups, True)):
        gain, error = map(float, figures["reported change"].split(" ± "))
        away = float(figures["change on fresh customers"]) - gain
        assert (away < 2 * error) == is_right
        assert away > -2 * error
    fresh = [float(figures["change on fresh customers"]) for figures in (by_rows, by_groups)]
    assert fresh[1] < fresh[0] - 0.005
    weights = [figures["weight of offsets by shop"] for figures in (by_rows, by_groups)]
    assert weights[0] > 0.9
    assert weights[1] < 0.1


@pytest.mark.tensorflow
@pytest.mark.slow
def test_the_page_on_scores(run_page):
    """Gradient boosting that does not know the site is corrected by site."""
    names = run_page("guides/scores.md")
    report = names["model"].report
    assert sum(report.weights.get(name, 0) for name in ("field_bias", "field_ilps")) > 0.8
    assert report.after.log_loss < report.before.log_loss - 0.03
    assert names["probabilities"].mean() == pytest.approx(names["test"]["clicked"].mean(), rel=0.1)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_the_page_on_serving(run_page):
    """The requests that are shown, but not sent, are answered as the page says."""
    from serving import rest

    names = run_page("guides/serve.md")
    text = (ROOT / "docs" / "guides" / "serve.md").read_text("utf-8")
    columns, rows, head = (
        json.loads(rest.answer(names["path"], body))
        for body in re.findall(r"curl -d '([^']*)'", text)
    )
    printed = {name: np.asarray(values) for name, values in names["reply"].items()}
    for name, values in printed.items():
        np.testing.assert_allclose(columns["outputs"][name], values, atol=1e-6)
        by_row = [row[name] for row in rows["predictions"]]
        np.testing.assert_allclose(by_row, values, atol=1e-6)
    assert head["outputs"].keys() == {"probability", "probability_lower", "probability_upper"}


@pytest.mark.slow
@pytest.mark.tensorflow
# What LightGBM 4.5 and 4.6 say with scikit-learn 1.6 and 1.7.
@pytest.mark.filterwarnings("ignore:X does not have valid feature names", "ignore:'force_all_fin")
def test_the_page_on_lightgbm(run_page, tmp_path):
    """The file needs ONNX Runtime alone; the next one has the same trees and a newer head."""
    onnx = pytest.importorskip("onnx")
    names = run_page("guides/lightgbm.md")
    assert names["difference"] < 1e-6
    service = (
        "import sys, onnxruntime; onnxruntime.InferenceSession('ctr.onnx'); "
        "print({'tensorflow', 'keras'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", service], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"

    features, site, clicks = (names[name] for name in ("features", "site", "clicks"))
    session = names["session"]
    (logged,) = session.run(["uncalibrated_probability"], {"features": features, "site": site})
    sample = {"score": logged[:, 0], "site": site}
    newer = kc.calibrate_scores(
        sample["score"], clicks, sample, fields=["site"], methods="field_bias", verbose=0
    )
    correction = onnx.load(kc.export_onnx(newer, "calibration-2.onnx", sample, interval=0.95))
    after = onnx.compose.merge_models(names["scored"], correction, [("of_click", "score")])
    session = names["onnxruntime"].InferenceSession(after.SerializeToString())
    (probabilities,) = session.run(["probability"], {"features": features, "site": site})
    score = names["booster"].predict_proba(features)[:, 1]
    expected = newer.predict({"score": score, "site": site}, verbose=0)
    np.testing.assert_allclose(probabilities, expected, rtol=0, atol=1e-6)
    before = onnx.load(tmp_path / "ctr.onnx")
    trees = [
        [node for node in model.graph.node if node.op_type == "TreeEnsembleClassifier"]
        for model in (before, after)
    ]
    assert len(trees[0]) == 1
    assert trees[0] == trees[1]
