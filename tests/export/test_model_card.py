"""The model card: what the provenance says, as a page that no name can break."""

import json
from pathlib import Path

import keras
import markdown_it
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.export.model_card import model_card

pytestmark = pytest.mark.tensorflow
SAVEDMODELS = Path(__file__).parents[2] / "savedmodels"
HOSTILE = "a`` | b</td><script>*x*\n# y"


def rows(number, seed):
    generator = np.random.default_rng(seed)
    x = {"score": generator.normal(-1, 1, number), "site": generator.integers(0, 5, number)}
    labels = generator.random(number) < 1 / (1 + np.exp(-x["score"] - 0.5 * (x["site"] - 2)))
    return x, labels.astype(int)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An export of a model from `calibrate`, and its refresh."""
    x, labels = rows(3000, 0)
    model = kc.calibrate_scores(
        x["score"], labels, x, from_logits=True, fields=["site"], methods="quick", verbose=0
    )
    folder = tmp_path_factory.mktemp("ctr")
    first = kc.export_savedmodel(model, folder, version="next", verify="same_process")
    x, labels = rows(2000, 1)
    site = {"site": x["site"]}
    second = kc.refresh_savedmodel(
        folder, x["score"], labels, site, from_logits=True, verify="same_process"
    )
    return model, first, second


def card_of(path):
    return (path / "assets.extra" / "model_card.md").read_text("utf-8")


def provenance_of(path):
    return json.loads((path / "assets.extra" / "provenance.json").read_text("utf-8"))


def test_the_card_of_an_export_has_its_figures(exported):
    model, first, _ = exported
    card, provenance = card_of(first), provenance_of(first)
    assert "`site` (" in card
    assert "- Rows: 3,000\n" in card
    for score in model.report.scores:
        assert f"{score.name}** | {score.log_loss:.5f}" in card or (
            f"| {score.name} | {score.log_loss:.5f}" in card
        )
    assert f"| **{model.report.chosen}** |" in card
    losses = f"{model.report.before.log_loss:.5f} before, {model.report.after.log_loss:.5f} after"
    assert losses in card
    assert all(version in card for version in provenance["versions"].values())
    assert provenance["exported_at"] in card
    assert provenance["files_sha256"] in card
    assert "Earlier versions" not in card


def test_refresh_writes_the_card_anew(exported):
    _, first, second = exported
    card, provenance = card_of(second), provenance_of(second)
    assert "- Rows: 2,000\n" in card
    assert f"{provenance['fit']['summary']['log_loss_after']:.5f} after" in card
    assert (
        f"Version `1`: fitted to 3,000 rows, exported {provenance_of(first)['exported_at']}" in card
    )
    assert "Methods compared" not in card


@pytest.mark.parametrize("name", ["click_log", "click_log_strings"])
def test_the_cards_of_the_shipped_models(name):
    path = SAVEDMODELS / name / "1"
    assert card_of(path) == model_card(provenance_of(path))


def named(provenance, name):
    """The provenance with a name of its user's everywhere."""
    segment = {"name": name, "num_rows": 3, "mean_prediction": 0.1, "observed_rate": 0.2}
    report = {**provenance["fit"]["report"], "still_off": [segment], "reason": f"It is {name}."}
    config = {"fields": {name: 3}, "numeric": [name]}
    return {
        **provenance,
        "base_model": {
            **provenance["base_model"],
            **{"name": name, "calibrated_output": name, "other_outputs": [name]},
        },
        "head": {**provenance["head"], "config": config},
        "fit": {**provenance["fit"], "report": report},
    }


def outline(page):
    return [each.type for each in markdown_it.MarkdownIt().enable("table").parse(page)]


def test_names_are_literal(exported):
    provenance = provenance_of(exported[1])
    hostile = model_card(named(provenance, HOSTILE))
    page = markdown_it.MarkdownIt().enable("table").render(hostile)
    assert outline(hostile) == outline(model_card(named(provenance, "plain")))
    assert "<script>" not in page
    assert "<em>" not in page
    # Title, base model, two outputs, field, column and segment; once more in the reason.
    literal = "a`` | b&lt;/td&gt;&lt;script&gt;*x* # y"
    assert page.count(literal) == 8


def test_what_is_not_known_is_said(tmp_path):
    inputs = keras.Input((1,), name="x")
    model = kc.models.CalibratedModel(
        keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs)), kc.layers.PlattScaling()
    )
    with pytest.warns(UserWarning, match="changes no probability"):
        path = kc.export_savedmodel(model, tmp_path / "1", verify="same_process")
    card = card_of(path)
    assert "- Rows: not known" in card
    assert "not known before, not known after" in card
