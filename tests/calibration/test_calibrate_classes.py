"""calibrate and calibrate_scores for models of several classes."""

import numpy as np
import pytest
import scipy.special

import keras_calibration as kc
from calibration.test_calibrate import weight_of
from class_worlds import base_model, class_rows, log_loss


@pytest.mark.parametrize(
    ("world", "fields", "able"),
    [({"scale": 1.0}, [], {"identity"}), ({"scale": 0.6}, ["site"], {"temperature", "vector"})],
    ids=["nothing", "too sure"],
)
def test_what_can_express_the_truth_gets_the_weight(world, fields, able):
    x, labels = class_rows(**world)
    model = kc.calibrate(base_model(), x, labels, fields=fields, verbose=0)
    report = model.report
    assert weight_of(report, able) > 0.8
    new_x, new_labels = class_rows(20_000, **world, seed=1)
    seen = log_loss(new_labels, model.predict(new_x, verbose=0, batch_size=4096))
    assert seen == pytest.approx(report.after.log_loss, abs=0.03)
    if able != {"identity"}:
        assert seen < log_loss(new_labels, base_model()(new_x)) - 0.05
    assert all(name in str(report) for name in ("identity", "temperature", "vector"))


def test_scores_without_a_model():
    x, labels = class_rows(1500, scale=0.4)
    sites = np.array(["news", "games", "mail"])[x["site"]]
    probabilities = scipy.special.softmax(x["scores"], axis=1)
    model = kc.calibrate_scores(
        probabilities, labels, {"site": sites}, from_logits=False, fields=["site"], verbose=0
    )
    assert weight_of(model.report, ["temperature", "vector"]) > 0.8
    received = model.predict({"score": probabilities, "site": sites}, verbose=0)
    assert log_loss(labels, received) < log_loss(labels, probabilities) - 0.1
    np.testing.assert_allclose(received.sum(axis=1), 1, atol=1e-6)


def test_folds_of_one_class_and_methods_of_two_classes_are_refused():
    x, labels = class_rows(300)
    order = np.argsort(labels)
    x = {name: column[order] for name, column in x.items()}
    with pytest.raises(ValueError, match=r"`folds`.*one class"):
        kc.calibrate(base_model(), x, labels[order], time="order", verbose=0)
    with pytest.raises(ValueError, match="'temperature', 'vector'"):
        kc.calibrate(base_model(), x, labels, methods="platt", verbose=0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_class_probabilities_must_add_up_to_1_up_to_rounding(dtype):
    generator = np.random.default_rng(0)
    p = generator.dirichlet(np.ones(20), 400)
    labels = [generator.choice(20, p=row) for row in p]
    kc.layers.TemperatureScaling().fit(p.astype(dtype), labels, from_logits=False)
    for share in (0.9, 1.1):
        wrong = np.where(np.arange(400)[:, None] == 7, share * p, p).astype(dtype)
        with pytest.raises(
            ValueError, match=r"(?s)`scores` must .*Received: 1 of 400.* in row 7\."
        ):
            kc.calibrate_scores(wrong, labels, verbose=0)
        with pytest.raises(
            ValueError, match=r"(?s)`logits` must .*Received: 1 of 400.* in row 7\."
        ):
            kc.layers.TemperatureScaling().fit(wrong, labels, from_logits=False)
