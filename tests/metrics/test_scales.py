"""Predictions on the other scale than `from_logits` says: noticed by every metric and function."""

import warnings

import keras
import numpy as np
import pandas as pd
import pytest

from backends import update_step
from keras_calibration import metrics, plots, scoring
from keras_calibration.logs import ScoredLog
from metrics.test_contract import ARGUMENTS, LABELS, NUM_ROWS, PROBABILITIES, RULES, WEIGHTS

OF_LOGITS = {n: case for n, case in RULES.items() if "from_logits" in ARGUMENTS[n.split(",")[0]]}
MODES = {"eager": None, "graph": False, "XLA": True}
# What is the same for all metrics is quick in each mode for one of them.
every_metric_and_mode = pytest.mark.parametrize(
    ("case", "mode"),
    [
        pytest.param(
            case, mode, id=f"{name}, {mode}",
            marks=[] if mode == "eager" or name == "LogLoss" else pytest.mark.slow,
        )
        for name, case in OF_LOGITS.items()
        for mode in MODES
    ],
)  # fmt: skip


def updater(case, mode):
    """A function that gives a metric, always the same, after one update in a mode."""
    metric = case.make(from_logits=True)
    step = metric.update_state if MODES[mode] is None else update_step(metric, MODES[mode])

    def updated(predictions, labels=None, weights=WEIGHTS):
        metric.reset_state()
        rows = [case.labels if labels is None else labels, predictions, weights]
        rows += (case.more or {}).values()
        rows = [v.astype("int32" if v.dtype.kind == "i" else "float32") for v in rows]
        step(*(rows if mode == "eager" else map(keras.ops.convert_to_tensor, rows)))
        return metric

    return updated


@every_metric_and_mode
def test_probabilities_are_no_logits(case, mode):
    updated = updater(case, mode)
    metric = updated(case.predictions)
    with pytest.warns(UserWarning, match=f" {metric.name} .*from_logits=True"):
        metric.result()
    merged = case.make(from_logits=True)
    merged.merge_state([metric, metric])
    with pytest.warns(UserWarning, match="from_logits=True"):
        merged.result()
    # One logit shows that they are logits, unless its weight is 0.
    predictions, weights = np.array(case.predictions), np.where(np.arange(NUM_ROWS) == 7, 0, 1.0)
    predictions[7] += 3
    updated(predictions).result()
    metric = updated(predictions, weights=weights)
    with pytest.warns(UserWarning, match="from_logits=True"):
        metric.result()
    metric.reset_state()
    case.update(metric, slice(0, 0))
    case.update(metric, slice(0, 90))  # too few rows to tell
    metric.result()


@every_metric_and_mode
def test_logits_that_happen_to_be_in_0_1_are_no_probabilities(case, mode):
    """Those of a weak model of balanced classes: they are closer to the labels as logits."""
    predictions = np.resize(np.linspace(0.1, 0.6, 37), np.shape(case.predictions))
    labels = (np.arange(NUM_ROWS) % 50 < 29).astype("float32")
    updater(case, mode)(predictions, None if predictions.ndim == 2 else labels).result()


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    "how",
    [{}, {"run_eagerly": True}, {"jit_compile": True}],
    ids=["graph", "eager", "XLA"],
)
@pytest.mark.parametrize("from_logits", [False, True])
def test_the_wrong_scale_in_compile_is_noticed_at_the_end_of_evaluate(how, from_logits):
    x = np.random.default_rng(0).normal(size=(NUM_ROWS, 1)).astype("float32")
    dense = keras.layers.Dense(1, "sigmoid" if from_logits else None, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((1,)), dense])
    kinds = [metrics.CalibratedLogLoss, metrics.LogLoss, metrics.CalibrationRatio]
    model.compile(loss="mse", metrics=[kind(from_logits=from_logits) for kind in kinds], **how)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.evaluate(x, (x[:, 0] > 1).astype("float32"), batch_size=60, verbose=0)
    found = {str(w.message) for w in caught if issubclass(w.category, UserWarning)}
    texts = ["from_logits=True"] if from_logits else ["is NaN", "from_logits=True"]
    told = [text for text in found if all(part in text for part in texts)]
    assert len(told) == len(kinds)
    assert all(any(kind().name in text for text in told) for kind in kinds)


def by_log(y, p, from_logits=False):
    names = {"logit" if from_logits else "probability": "p"}
    log = ScoredLog(pd.DataFrame({"label": y, "p": p}), **names)
    return scoring.score(log, metrics.LogLoss(), verbose=0)["log_loss"]


def of_display(display):
    return display.curves["predicted"].predicted.tolist()


FUNCTIONS = {
    "calibrated_log_loss": scoring.calibrated_log_loss,
    "score": lambda y, p, **how: scoring.score((y, p), [metrics.LogLoss(**how)], verbose=0),
    "field_ece": lambda y, p, **how: scoring.field_ece(y, p, LABELS, **how),
    "field_rce": lambda y, p, **how: scoring.field_rce(y, p, LABELS, **how),
    "multicalibration_error": lambda *rows, **how: (
        scoring.multicalibration_error(*rows, {}, **how).error
    ),
    "ReliabilityDisplay": lambda *rows, **how: of_display(
        plots.ReliabilityDisplay.from_predictions(*rows, **how)
    ),
    "FieldDisplay": lambda *rows, **how: of_display(
        plots.FieldDisplay.from_predictions(*rows, LABELS, **how)
    ),
    "ScoredLog": by_log,
}


@pytest.mark.filterwarnings("error:The .* is NaN:UserWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_logits_are_said_to_be_logits_and_give_the_same(name):
    call, logits = FUNCTIONS[name], np.log(PROBABILITIES / (1 - PROBABILITIES))
    received = call(LABELS, logits, from_logits=True)
    assert received == pytest.approx(call(LABELS, PROBABILITIES), rel=1e-5)
    with pytest.warns(UserWarning, match=r"from_logits=True|`probability`"):
        call(LABELS, PROBABILITIES, from_logits=True)
    with pytest.raises((ValueError, UserWarning), match=r"from_logits=True|not logits"):
        call(LABELS, logits)
    if name == "multicalibration_error":  # few different logits between 0 and 1 do not warn
        call(LABELS, np.where(logits > 0, 0.5, 0.0), from_logits=True)
