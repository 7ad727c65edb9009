"""calibrate of a model that has a head: all changes are from the model as it was passed."""

import functools

import keras
import numpy as np
import pytest
from scipy.special import expit

import keras_calibration as kc
import site_worlds
from site_worlds import mean_loss, model_with

SITES = 6


world = functools.partial(site_worlds.world, offsets=np.linspace(-0.8, 0.8, SITES))


def field_bias():
    return kc.layers.FieldBias({"site": SITES}, kc.layers.ILPS())


def predicted(model, x):
    """The probabilities of all rows, in one batch."""
    return model.predict(x, batch_size=len(x["score"]), verbose=0)


def calibrated(model, x, y, **kwargs):
    return kc.calibrate(model, x, y, **{"fields": ["site"], "verbose": 0, **kwargs})


@pytest.mark.parametrize(
    ("state", "makes"),
    [
        pytest.param("none", field_bias, id="none"),
        *((state, field_bias) for state in ("trained jointly", "fitted before")),
        pytest.param("new", field_bias, marks=pytest.mark.slow),
        *(
            pytest.param(state, kc.layers.PlattScaling, marks=pytest.mark.slow)
            for state in ("new", "trained jointly", "fitted before")
        ),
    ],
)
def test_identity_is_the_model_as_it_was_passed(state, makes):
    head = makes()
    model = model_with(head)
    if state == "none":
        logit = keras.layers.Reshape((1,))(model.input["score"])
        model = keras.Model(model.input, keras.layers.Activation("sigmoid")(logit))
    if state == "trained jointly":
        head.set_weights([np.asarray(w) + 0.3 for w in head.get_weights()])
    if state == "fitted before":
        kc.fit_head(model, *world(3000, seed=2), verbose=0)
    x, y = world(3000)
    loss = mean_loss(y, predicted(model, x))
    report = calibrated(model, x, y).report
    assert report.before.log_loss == pytest.approx(loss, abs=2e-6)
    assert report.scores[0].name == "identity"
    for score in report.scores:
        change = score.log_loss - report.before.log_loss
        assert score.log_loss_change == pytest.approx(change, abs=1e-9)
    assert (report.present is None) == (state == "none")
    if state != "none":
        assert repr(head.name) in str(report)


def test_a_head_that_is_right_stays():
    model = model_with(field_bias())
    kc.fit_head(model, *world(60_000, seed=3), verbose=0)
    x, y = world(2000)
    chosen = calibrated(model, x, y)
    assert chosen.report.weights == {"identity": 1.0}
    assert chosen.report.after is chosen.report.before
    assert str(chosen.report).startswith("The model stays as it is.")
    assert chosen.report.smallest_gain > 0
    np.testing.assert_allclose(predicted(chosen, x), predicted(model, x), rtol=0, atol=1e-7)


def test_a_head_with_a_weight_is_a_part_of_the_mean():
    head = kc.layers.PlattScaling()
    model = model_with(head)
    kc.fit_head(model, *world(300, seed=3), verbose=0)
    for seed in range(20):
        x, y = world(400, seed=seed)
        chosen = calibrated(model, x, y)
        share = chosen.report.weights.get("identity", 0.0)
        if 0 < share < 1:
            break
    assert 0 < share < 1
    parts = dict(zip(chosen.report.weights, chosen.head.heads, strict=True))
    assert parts["identity"] is head
    columns = x["score"][:, None], {"site": x["site"]}
    logits = sum(
        chosen.report.weights[name] * np.asarray(part(*columns)) for name, part in parts.items()
    )
    logits = logits + chosen.head.bias
    np.testing.assert_allclose(np.asarray(chosen.head(*columns)), logits, atol=1e-5)
    probabilities = expit(np.asarray(head(x["score"]), float))
    np.testing.assert_allclose(predicted(model, x)[:, 0], probabilities.reshape(-1), atol=1e-6)


def test_a_head_fitted_to_these_rows_is_scored_by_fits_to_the_other_folds():
    x, y = world(600)
    model = model_with(field_bias())
    summary = kc.fit_head(model, x, y, verbose=0)
    report = calibrated(model, x, y).report
    assert report.is_present_cross_fitted
    assert "fitted to these rows" in " ".join(str(report).split())
    assert report.before.log_loss > summary.log_loss_in_sample + 1e-4
    assert report.weights == {"identity": 1.0}
    # A second call on what the first has made changes nothing.
    x, y = world(3000)
    methods = ["platt", "field_bias"]
    first = calibrated(model_with(field_bias()), x, y, methods=methods)
    assert first.report.chosen != "identity"
    second = calibrated(first, x, y, methods=methods)
    assert second.report.is_present_cross_fitted
    np.testing.assert_allclose(predicted(first, x), predicted(second, x), atol=1e-6)


def test_a_head_that_reads_a_computed_feature_stays_below_the_new_one():
    head = field_bias()
    model = model_with(head, keras.layers.Lambda(lambda ids: SITES - 1 - ids, output_shape=()))
    head.set_weights([np.asarray(w) + 0.2 for w in head.get_weights()])
    x, y = world(3000)
    loss = mean_loss(y, predicted(model, x))
    chosen = calibrated(model, x, y, methods=["platt", "field_bias"])
    assert chosen.report.before.log_loss == pytest.approx(loss, abs=2e-6)
    assert chosen.report.present is None
    assert mean_loss(y, predicted(chosen, x)) < loss


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("num_rows", [300, 3000])
def test_without_evidence_nothing_changes(num_rows):
    """A model that is right: changed in few of twelve samples, and never without evidence."""
    changed = 0
    for seed in range(12):
        generator = np.random.default_rng(seed)
        logits = generator.normal(-1, 1, num_rows)
        labels = generator.random(num_rows) < expit(logits)
        report = kc.calibrate_scores(logits, labels, from_logits=True, verbose=0).report
        if report.chosen != "identity":
            assert report.after.log_loss_change < 0
            changed += 1
    assert changed <= 2
