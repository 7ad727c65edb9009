"""What Keras and this package ask of every metric, held for each public class.

A new metric is covered once `RULES` has it; `test_every_metric_is_listed` asks for that.
"""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import keras
import numpy as np
import pytest

from backends import FLOATS, HAS_FLOAT64, compiled, digits, repeated, update_step
from keras_calibration import metrics
from metric_cases import public_metrics

NUM_ROWS = 240
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(-0.5, 1.0, NUM_ROWS)
PROBABILITIES = 1 / (1 + np.exp(-LOGITS))
LABELS = (RNG.random(NUM_ROWS) < PROBABILITIES).astype("float32")
WEIGHTS = RNG.exponential(size=NUM_ROWS).astype("float32")
CLASS_PROBABILITIES = RNG.dirichlet([2.0, 1.0, 1.0], NUM_ROWS)
CLASSES = np.array([RNG.choice(3, p=probabilities) for probabilities in CLASS_PROBABILITIES])
IDS = RNG.integers(0, 5, NUM_ROWS)


@dataclass(frozen=True)
class Case:
    """How a metric is made, and the rows that it is shown."""

    make: Callable
    labels: np.ndarray = field(default_factory=lambda: LABELS)
    predictions: np.ndarray = field(default_factory=lambda: PROBABILITIES)
    more: dict | None = None  # what else `update_state` takes, n rows each
    depends_on_order: bool = False  # rows go to folds by their number

    def update(self, metric, rows=slice(None), weights=WEIGHTS):
        more = {name: values[rows] for name, values in (self.more or {}).items()}
        metric.update_state(self.labels[rows], self.predictions[rows], weights[rows], **more)


def _class_case(make, **kwargs):
    return Case(make, predictions=CLASS_PROBABILITIES, depends_on_order=True, **kwargs)


ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
RULES = {
    "CalibratedLogLoss": Case(metrics.CalibratedLogLoss, depends_on_order=True),
    "LogLoss": Case(metrics.LogLoss),
    "CalibratedCategoricalLogLoss": _class_case(
        metrics.CalibratedCategoricalLogLoss, labels=ONE_HOT
    ),
    "CalibratedCategoricalLogLoss, class numbers": _class_case(
        metrics.CalibratedCategoricalLogLoss, labels=CLASSES
    ),
    "CalibratedQuadraticLoss": Case(
        metrics.CalibratedQuadraticLoss, predictions=LOGITS, depends_on_order=True
    ),
    "FieldECE": Case(lambda **kwargs: metrics.FieldECE(5, **kwargs), more={"field": IDS}),
    "FieldRCE": Case(lambda **kwargs: metrics.FieldRCE(5, **kwargs), more={"field": IDS}),
    "ExpectedCalibrationError": Case(metrics.ExpectedCalibrationError),
    "CalibrationRatio": Case(metrics.CalibrationRatio),
    "NormalizedEntropy": Case(metrics.NormalizedEntropy),
    "LogitAUC": Case(metrics.LogitAUC),
}
# For each class, a value other than the default of every argument but `name` and `dtype`.
LOGITS_TOO = {"from_logits": True}
FOLDS = {"num_folds": 2, "bias_fraction": 0.2, "seed": 5}
ARGUMENTS = {
    "CalibratedLogLoss": {**FOLDS, **LOGITS_TOO},
    "LogLoss": LOGITS_TOO,
    "CalibratedCategoricalLogLoss": {**FOLDS, **LOGITS_TOO},
    "CalibratedQuadraticLoss": FOLDS,
    "FieldECE": {"num_values": 6, **LOGITS_TOO},
    "FieldRCE": {"num_values": 7, "epsilon": 0.5, **LOGITS_TOO},
    "ExpectedCalibrationError": {"num_bins": 20, **LOGITS_TOO},
    "CalibrationRatio": LOGITS_TOO,
    "NormalizedEntropy": LOGITS_TOO,
    "LogitAUC": LOGITS_TOO,
}
every_metric = pytest.mark.parametrize("case", RULES.values(), ids=RULES)


def seen(case, rows=slice(None), weights=WEIGHTS, **arguments):
    """A metric that has been shown some rows."""
    metric = case.make(**arguments)
    case.update(metric, rows, weights)
    return metric


def test_every_metric_is_listed():
    assert public_metrics() == {name.split(",")[0] for name in RULES}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_config_holds_every_argument(name):
    kind, arguments = getattr(metrics, name), {"name": "own", "dtype": "float32", **ARGUMENTS[name]}
    assert set(arguments) == set(inspect.signature(kind).parameters)
    metric = kind(**arguments)
    assert metric.get_config() == arguments
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(metric)))
    copy = keras.saving.deserialize_keras_object(config)
    assert copy.get_config() == arguments
    for argument in arguments:
        assert getattr(copy, argument) == getattr(metric, argument)


def bad_values(case):
    """Which of labels, predictions and weights, and values that are none."""
    yield from (("labels", np.nan), ("predictions", np.nan))
    yield from (("weights", np.nan), ("weights", -1.0), ("weights", np.inf))
    # A regression may have any number.
    if case.predictions is not LOGITS:
        yield from (("labels", 7.0), ("labels", -0.5), ("predictions", 1.5), ("predictions", -0.5))
    else:
        yield from (("labels", np.inf), ("predictions", np.inf))


@every_metric
def test_one_bad_row_gives_nan(case):
    metric = case.make()
    for part, value in bad_values(case):
        metric.reset_state()
        rows = {"labels": case.labels, "predictions": case.predictions, "weights": WEIGHTS}
        rows[part] = rows[part].astype("float64")
        rows[part][100] = value
        more = case.more or {}
        metric.update_state(rows["labels"], rows["predictions"], rows["weights"], **more)
        case.update(metric)
        with pytest.warns(UserWarning, match=f"{metric.name} is NaN"):
            assert np.isnan(float(metric.result())), (part, value)
    metric.reset_state()
    case.update(metric)
    assert np.isfinite(float(metric.result()))


@every_metric
def test_no_rows_and_no_weights_give_nan(case):
    metric = case.make()
    with pytest.warns(UserWarning, match=f"{metric.name} is NaN"):
        assert np.isnan(float(metric.result()))
    case.update(metric, weights=np.zeros(NUM_ROWS))
    assert np.isnan(float(metric.result()))


@every_metric
def test_columns_other_dtypes_and_one_weight_for_all_rows(case):
    ones = np.ones(NUM_ROWS)
    expected = float(seen(case, weights=ones).result())

    def as_column(values):
        return values if values.ndim == 2 else values[:, None]

    more = {name: as_column(values).astype("int8") for name, values in (case.more or {}).items()}
    rows = as_column(case.labels), as_column(case.predictions)
    # Those of a regression are no whole numbers.
    whole = "int64" if case.predictions is not LOGITS else "float64"
    for dtype, weights in ((whole, None), ("float64", ones[:, None]), ("float32", 1.0)):
        metric = case.make()
        metric.update_state(rows[0].astype(dtype), rows[1], weights, **more)
        assert float(metric.result()) == pytest.approx(expected, rel=digits(1e-9))


@pytest.mark.quick_cases(13)
@every_metric
@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16"])
def test_weights_of_small_dtypes(case, dtype):
    """A mask of rows is as the rows where it is true, as arrays and as tensors of a graph."""
    weights = np.arange(NUM_ROWS) % 3 != 1
    expected = float(seen(case, weights=weights.astype("float64")).result())
    assert expected != pytest.approx(float(seen(case, weights=np.ones(NUM_ROWS)).result()))
    for form in (np.asarray, keras.ops.convert_to_tensor):
        result = seen(case, weights=form(weights.astype(dtype))).result()
        assert float(result) == pytest.approx(expected, rel=digits(1e-9))


@every_metric
def test_a_reset_metric_is_a_fresh_one(case):
    metric = seen(case, weights=2 * WEIGHTS)
    metric.reset_state()
    assert not any(np.any(keras.ops.convert_to_numpy(v)) for v in metric.variables)
    case.update(metric)
    assert float(metric.result()) == repeated(float(seen(case).result()))


def with_weightless_rows(case):
    """A third of the rows of weight 0, with any label, prediction and field value; which those are.

    Labels are missing (-1, NaN), field values are none.
    """
    weightless = np.arange(NUM_ROWS) % 3 == 1
    labels, predictions = (
        np.array(values, "float32") for values in (case.labels, case.predictions)
    )
    labels[weightless] = np.resize([np.nan, -1.0, 7.0], (weightless.sum(), *labels.shape[1:]))
    hostile = np.resize([np.nan, np.inf, -3.0, -np.inf], (weightless.sum(), *predictions.shape[1:]))
    predictions[weightless] = hostile
    more = {name: values.astype("float32") for name, values in (case.more or {}).items()}
    for values in more.values():
        values[weightless] = np.resize([np.nan, 99.0, -7.0, 0.5], weightless.sum())
    return (labels, predictions, np.where(weightless, 0, WEIGHTS)), more, weightless


@every_metric
def test_a_row_of_weight_zero_is_no_row_whatever_it_holds(case):
    rows, more, weightless = with_weightless_rows(case)
    metric = case.make()
    metric.update_state(*rows, **more)
    case.update(metric, slice(0, 0))
    expected = float(seen(case, ~weightless).result())
    assert float(metric.result()) == pytest.approx(expected, rel=digits(1e-6))


@every_metric
def test_a_common_factor_of_the_weights_changes_nothing(case):
    for dtype in FLOATS:
        expected = float(seen(case, dtype=dtype).result())
        for factor in (1e-30, 4.0, 1e30):
            weights = factor * WEIGHTS.astype("float64")
            result = float(seen(case, weights=weights, dtype=dtype).result())
            tolerance = digits(1e-9) if dtype == "float64" else 2e-5
            assert result == pytest.approx(expected, rel=tolerance)


@every_metric
def test_a_row_twice_is_a_row_of_weight_two(case):
    if case.depends_on_order:
        pytest.skip("Rows go to folds by their number, the two copies to different ones.")
    twice = np.arange(NUM_ROWS) % 4 == 0
    doubled = np.where(twice, 2 * WEIGHTS, WEIGHTS)
    metric = seen(case)
    case.update(metric, twice)
    expected = float(seen(case, weights=doubled).result())
    assert float(metric.result()) == pytest.approx(expected, rel=digits(1e-9))


@every_metric
def test_the_order_of_the_rows_changes_nothing(case):
    order = np.random.default_rng(1).permutation(NUM_ROWS)
    expected = float(seen(case).result())
    # Rows go to folds by their number.
    tolerance = {"abs": 0.05} if case.depends_on_order else {"rel": digits(1e-9)}
    assert float(seen(case, order).result()) == pytest.approx(expected, **tolerance)


# Powers of 2, of which the mirror image is exact.
@pytest.mark.parametrize(("dtype", "bits"), [("float32", [24, 20, 16]), ("float64", [50, 40, 30])])
@every_metric
def test_labels_and_predictions_turned_round_give_the_mirrored_result(case, dtype, bits):
    near = np.resize([0.0, *np.exp2(np.negative(bits, dtype=float))], 16)
    near = np.where(np.arange(16) < 8, near, 1 - near)
    predictions = np.array(case.predictions, dtype)
    if predictions.ndim == 1 and case.predictions is not LOGITS:
        predictions = np.round(predictions * 2.0**20) / np.array(2.0**20, dtype)
        predictions[:16] = near
    results = []
    for turned in (False, True):
        metric = case.make()
        labels, mirrored = case.labels, predictions
        if turned and predictions.ndim == 2:
            labels = 2 - labels if labels.ndim == 1 else labels[:, ::-1]
            mirrored = predictions[:, ::-1]
        elif turned and case.predictions is LOGITS:
            labels, mirrored = -labels, -predictions
        elif turned:
            labels, mirrored = 1 - labels, 1 - predictions
        metric.update_state(labels, mirrored, WEIGHTS, **(case.more or {}))
        results.append(float(metric.result()))
    if isinstance(metric, metrics.CalibrationRatio | metrics.FieldRCE):
        assert results[0] != results[1]  # relative to the positives, by definition
        return
    assert results[1] == pytest.approx(results[0], rel=digits(1e-6, 1e-4), abs=digits(1e-12, 2e-6))


def test_another_unit_of_the_logits_changes_no_order_or_is_noticed():
    def result(logits):
        metric = metrics.LogitAUC(from_logits=True)
        metric.update_state(LABELS, logits)
        return float(metric.result())

    expected = pytest.approx(result(LOGITS), rel=2e-3)
    for same in (LOGITS + 3, LOGITS - 40, 4 * LOGITS, 0.5 * LOGITS):
        assert result(same) == expected
    with pytest.warns(UserWarning, match="LogitAUC.*probabilities"):
        result(1e-6 * LOGITS)
    result(np.append(1e-6 * LOGITS[1:], 1.0))  # no warning: one logit is far from the others
    for far in (1e6 * LOGITS, LOGITS + 1000):
        with pytest.warns(UserWarning, match="is NaN"):
            assert np.isnan(result(far))


@every_metric
def test_frames_and_other_containers_of_the_same_rows(case):
    pandas = pytest.importorskip("pandas")
    expected = float(seen(case).result())

    def framed(values):
        return pandas.DataFrame(values) if values.ndim == 2 else pandas.Series(values)

    more = {name: framed(values) for name, values in (case.more or {}).items()}
    metric = case.make()
    metric.update_state(framed(case.labels), framed(case.predictions), framed(WEIGHTS), **more)
    assert float(metric.result()) == pytest.approx(expected, rel=digits(1e-9))
    metric = case.make()
    more = {name: values.tolist() for name, values in (case.more or {}).items()}
    metric.update_state(case.labels.tolist(), case.predictions.tolist(), WEIGHTS.tolist(), **more)
    assert float(metric.result()) == pytest.approx(expected, rel=digits(1e-6))
    other = framed(case.labels).sample(frac=1, random_state=0)
    with pytest.warns(UserWarning, match="`y_true` and `y_pred`.*reindex"):
        case.make().update_state(other, framed(case.predictions), **more)
    texts = np.where(np.arange(NUM_ROWS) % 2, "yes", "no")
    with pytest.raises(ValueError, match=r"(labels|y_true).*strings"):
        case.make().update_state(texts, case.predictions, **more)


@every_metric
def test_swapped_labels_and_predictions_are_noticed(case):
    if case.predictions is not PROBABILITIES:
        pytest.skip("A regression may predict any number, and the shape tells classes apart.")
    with pytest.warns(UserWarning, match="swapped"):
        case.make().update_state(case.predictions, case.labels, **(case.more or {}))


@every_metric
def test_shards_merge_to_the_whole(case):
    parts = [slice(0, 100), slice(100, 100), slice(100, NUM_ROWS)]
    merged = case.make()
    merged.merge_state(seen(case, part) for part in parts)
    # Row numbers start anew in every shard, and folds with them.
    tolerance = 0.05 if case.depends_on_order else digits(1e-9)
    assert float(merged.result()) == pytest.approx(float(seen(case).result()), abs=tolerance)
    in_batches = case.make()
    for part in parts:
        case.update(in_batches, part)
    whole = float(seen(case).result())
    assert float(in_batches.result()) == pytest.approx(whole, rel=digits(1e-9))


@every_metric
def test_stateless_calls_agree(case):
    metric = case.make()
    state = [variable.value for variable in metric.variables]
    more = case.more or {}
    state = metric.stateless_update_state(state, case.labels, case.predictions, WEIGHTS, **more)
    expected = float(seen(case).result())
    assert float(metric.stateless_result(state)) == pytest.approx(expected, rel=digits(1e-12))
    assert not any(np.any(keras.ops.convert_to_numpy(v)) for v in metric.variables)


@pytest.mark.tensorflow
@every_metric
def test_the_result_in_a_function_of_tensorflow(case):
    """AutoGraph converts the code of `result`, which looks whether there is a number to warn of."""
    import tensorflow as tf

    metric = seen(case)
    result = float(tf.function(metric.result)())
    assert result == pytest.approx(float(metric.result()), rel=1e-12)


@every_metric
def test_compiles_under_xla(case):
    """Also what rows of weight 0 hold is then ignored."""
    metric = case.make()
    step = update_step(metric, jit_compile=True)

    def tensors(rows, more):
        # Class numbers and field values are compiled as integers and as floats.
        return [
            keras.ops.convert_to_tensor(values, "int32" if values.dtype.kind == "i" else "float32")
            for values in (*rows, *more.values())
        ]

    rows = tensors((case.labels, case.predictions, WEIGHTS), case.more or {})
    step(*rows)
    eager = case.make()
    eager.update_state(*rows)
    result = float(compiled(eager.result)()) if HAS_FLOAT64 else float(eager.result())
    assert float(metric.result()) == pytest.approx(float(eager.result()), rel=digits(1e-9))
    assert result == pytest.approx(float(eager.result()), rel=digits(1e-9))
    hostile, more, weightless = with_weightless_rows(case)
    metric.reset_state()
    step(*tensors(hostile, more))
    expected = float(seen(case, ~weightless).result())
    assert float(metric.result()) == pytest.approx(expected, rel=digits(1e-6))


@every_metric
def test_float32_state_is_close(case):
    metric = seen(case, dtype="float32")
    dtypes = {keras.backend.standardize_dtype(v.dtype) for v in metric.variables}
    assert not dtypes & {"float64", "float16"}
    assert float(metric.result()) == pytest.approx(float(seen(case).result()), rel=1e-4)


@every_metric
def test_lower_is_better_or_the_class_says_otherwise(case):
    directions = {"calibration_ratio": None, "logit_auc": "up"}
    metric = case.make()
    assert getattr(metric, "_direction", None) == directions.get(metric.name, "down")


@pytest.mark.slow
def test_together_in_a_model_that_is_saved_and_loaded(tmp_path):
    """And with early stopping, which knows the direction of each."""
    cases = {
        name.replace(", ", "_").replace(" ", "_"): case
        for name, case in RULES.items()
        if case.predictions is PROBABILITIES and not case.more
    }
    dense = keras.layers.Dense(1, activation="sigmoid", kernel_initializer="ones")
    model = keras.Sequential([keras.Input((1,)), dense])
    every = [case.make(name=name) for name, case in cases.items()]
    model.compile("sgd", "binary_crossentropy", weighted_metrics=every)
    rows = {"x": LOGITS[:, None], "y": LABELS, "sample_weight": WEIGHTS, "batch_size": 60}
    stops = [keras.callbacks.EarlyStopping(name) for name in cases if name != "CalibrationRatio"]
    model.fit(**rows, verbose=0, callbacks=stops)
    scores = model.evaluate(**rows, verbose=0, return_dict=True)
    probabilities = model.predict(LOGITS[:, None], verbose=0)
    for name, case in cases.items():
        metric = case.make()
        metric.update_state(LABELS, probabilities, WEIGHTS)
        expected = pytest.approx(float(metric.result()), rel=digits(1e-5), abs=1e-6)
        assert scores[name] == expected, name
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.evaluate(**rows, verbose=0, return_dict=True) == pytest.approx(scores, rel=1e-6)


def _loss_of_classes():
    return -np.log(CLASS_PROBABILITIES[np.arange(NUM_ROWS), CLASSES])


@pytest.mark.parametrize("num_folds", [1, 2])
@pytest.mark.parametrize(
    ("name", "losses"),
    [
        ("CalibratedLogLoss", -np.log(np.where(LABELS > 0, PROBABILITIES, 1 - PROBABILITIES))),
        ("CalibratedCategoricalLogLoss", _loss_of_classes()),
        ("CalibratedCategoricalLogLoss, class numbers", _loss_of_classes()),
        ("CalibratedQuadraticLoss", (LABELS - LOGITS) ** 2),
    ],
)
def test_the_loss_of_the_same_rows_without_the_correction(name, losses, num_folds):
    case = RULES[name]
    metric = case.make(num_folds=num_folds)
    for rows in (slice(None, 100), slice(100, None)):
        case.update(metric, rows)
    expected = np.average(losses, weights=WEIGHTS)
    assert metric.uncalibrated_loss == pytest.approx(expected, rel=digits(1e-6))
    # On rows of which a part is left out to fit on, the loss is that of the others.
    held_out = case.make(bias_fraction=0.5)
    case.update(held_out)
    assert held_out.uncalibrated_loss != pytest.approx(expected, rel=1e-4)
    assert held_out.uncalibrated_loss == pytest.approx(expected, rel=0.3)
