"""calibrate_scores: the scores of any model, without a Keras model."""

import keras
import numpy as np
import pandas
import pytest
from scipy.special import expit as probability

import keras_calibration as kc
from served import outputs_of
from symbols import symbols

NUM_ROWS = 3000
SITES = np.array(["news", "games", "mail"])


def make_rows(seed=0):
    """Logits, labels and columns: the sites differ from what the logits say."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1, 1.2, NUM_ROWS)
    number = generator.integers(0, 3, NUM_ROWS)
    offset = np.array([-1.0, 0.0, 1.2])[number]
    labels = generator.random(NUM_ROWS) < 1 / (1 + np.exp(-logits - offset))
    columns = {"site": SITES[number], "number": number, "price": generator.random(NUM_ROWS)}
    return logits, labels.astype(float), columns


def fitted(*arguments, method="field_bias", **kwargs):
    return kc.calibrate_scores(
        *arguments, **{"from_logits": True, "methods": method, "verbose": 0, **kwargs}
    )


def test_it_is_calibrate_of_a_model_that_returns_the_scores():
    logits, labels, columns = make_rows()
    inputs = symbols(logit=(1,), number="int32")
    base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["logit"]))
    x = {"logit": logits[:, None], "number": columns["number"].astype("int32")}
    expected = kc.calibrate(base, x, labels, fields=["number"], methods="field_bias", verbose=0)
    model = fitted(logits, labels, columns, fields=["number"])
    served = {"score": logits, "number": columns["number"]}
    np.testing.assert_allclose(
        model.predict(served, verbose=0), expected.predict(x, verbose=0), rtol=1e-5
    )
    received, report = model.report.after, expected.report.after
    assert received.log_loss == pytest.approx(report.log_loss, rel=1e-6)
    assert [score.name for score in model.report.scores] == ["identity", "field_bias"]


def test_probabilities_strings_and_data_frames():
    logits, labels, columns = make_rows()
    expected = fitted(logits, labels, columns, fields=["site"])
    frame = pandas.DataFrame({**columns, "unused": labels})
    model = fitted(probability(logits), labels, frame, fields=["site"], from_logits=False)
    frame["score"] = probability(logits)
    received = model.predict(frame, verbose=0)
    served = {"score": logits, "site": columns["site"]}
    np.testing.assert_allclose(received, expected.predict(served, verbose=0), rtol=1e-4)
    by_site = [received[columns["site"] == site, 0].mean() for site in SITES]
    true = [labels[columns["site"] == site].mean() for site in SITES]
    np.testing.assert_allclose(by_site, true, atol=0.02)


@pytest.mark.slow
def test_votes_and_labels_turned_round_are_served_as_the_mirror_image(tmp_path):
    """Of some rows all trees vote for the label, of some none; a few are wrong."""
    logits, labels, _ = make_rows()
    votes = np.round(8 * probability(3 * logits)) / 8
    num_wrong = np.sum((votes == 0) & (labels == 1)) + np.sum((votes == 1) & (labels == 0))
    answers = []
    for turned in (False, True):
        scores, truth = (1 - votes, 1 - labels) if turned else (votes, labels)
        with pytest.warns(UserWarning, match=f"{num_wrong} of 3,000 rows.*exactly 0 or 1.*Smooth"):
            model = fitted(scores, truth, method="temperature", from_logits=False)
        path = kc.export_savedmodel(model, tmp_path / str(turned))
        answers.append(outputs_of(path, {"score": scores}))
    probabilities, mirrored = (np.ravel(answer["probability"]) for answer in answers)
    np.testing.assert_allclose(mirrored, 1 - probabilities, atol=1e-6)
    logit = np.ravel(answers[0]["logit"])
    assert logit[votes == 1].min() > 5
    np.testing.assert_allclose(logit[votes == 1].mean(), -logit[votes == 0].mean(), rtol=1e-6)


LOGITS, LABELS, COLUMNS = make_rows()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((LOGITS, LABELS), {"from_logits": False}, "`scores` .*pass from_logits=True"),
        ((np.c_[1 - LABELS, LABELS], LABELS), {"from_logits": False}, r"predict_proba\(x\)\[:, 1"),
        ((np.zeros((9, 3, 1)), np.zeros(9)), {}, "`scores`"),
        ((LOGITS, LABELS, COLUMNS), {"fields": None}, "`fields`"),
        ((LOGITS, LABELS, COLUMNS), {}, "`fields` or `numeric`"),
        (
            (LOGITS, LABELS, COLUMNS),
            {"fields": ["sites"]},
            r"`features`.*no 'sites'\. Did you mean 'site'\?",
        ),
        ((LOGITS, LABELS, LABELS), {"fields": ["site"]}, "`features`.*mapping"),
        ((LOGITS, LABELS[:-1]), {}, "'labels': 2999"),
        ((LOGITS, 0 * LABELS), {}, "both classes"),
        ((np.append(LOGITS[1:], np.nan), LABELS), {}, "finite"),
    ],
)
def test_bad_input_is_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        kc.calibrate_scores(*arguments, **{"from_logits": True, "verbose": 0, **options})


@pytest.mark.parametrize("methods", ["quick", "bias"])
def test_two_rows_of_each_class_are_needed_and_enough(methods):
    with pytest.raises(ValueError, match="Received: 1 of class 0 and 2 of class 1") as told:
        fitted(np.arange(3.0), [1, 0, 1], method=methods)
    assert "folds" not in str(told.value)
    if methods == "bias":
        return
    with pytest.warns(UserWarning, match="'platt': PlattScaling"):
        model = fitted(np.array([-1.0, 0.5, 0.4, 2.0]), [0, 0, 1, 1], method="thorough")
    assert model.report.num_folds == 4
