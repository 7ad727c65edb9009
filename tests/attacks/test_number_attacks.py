"""Hostile rows for every metric: right to a few digits, or NaN with its warning.

Each form of a metric sees rows drawn from the tables of kinds below: at once, in batches of a
compiled step, and in three shards that are merged. The references (`metric_references.py`) get the
same values in float64.
"""

import functools
import inspect
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
import pytest
from scipy import special

import metric_references as references
from backends import FLOATS, HAS_FLOAT64, ON_TENSORFLOW, update_step
from keras_calibration import metrics
from metric_references import Rows
from tiers import attack_size, slow_except

pytestmark = pytest.mark.slow

# On JAX, every operation would be compiled for every number of rows: there, one compiled step runs.
NUM_SHARDS, SHARD = 3, 20
# What sums of 60 rows keep: rounding errors of 1e-16 or 6e-8 each, and a fit's between them.
DIGITS = 1e-9 if HAS_FLOAT64 else 2e-5


def log_odds(mean, spread):
    return lambda rng, n: rng.normal(mean, spread, n)


def one_of(*values):
    return lambda rng, n: rng.choice(np.array(values), n)


LOGITS = {
    "usual": log_odds(-1, 1.5),
    "rates of 1e-6": log_odds(-13.8, 1),
    "rates of 1 - 1e-6": log_odds(13.8, 1),
    "far": one_of(-80.0, -17.0, 0.0, 17.0, 80.0),
    "beyond all bins": one_of(-1000.0, -100.0, 0.0, 100.0, 1000.0),
    "infinite": one_of(-np.inf, 0.0, np.inf),
    "ties": one_of(-2.0, -0.5, 0.0, 1.25),
    "constant": one_of(0.5),
}
REAL = {
    "usual": log_odds(0, 1),
    "large offset": log_odds(1e3, 1),
    "tiny": log_odds(0, 1e-6),
    "huge": log_odds(0, 1e6),
    "constant": one_of(0.5),
}
CLASS_LOGITS = {
    "usual": lambda rng, shape: rng.normal(0, 1.5, shape),
    "sure": lambda rng, shape: rng.normal(0, 8, shape),
    "far": lambda rng, shape: rng.choice([-80.0, 0.0, 30.0, 80.0], shape),
    "ties": lambda rng, shape: np.round(rng.normal(0, 1.5, shape)),
    "equal rows": lambda rng, shape: np.tile(rng.normal(0, 1, shape[1]), (shape[0], 1)),
    "equal": lambda rng, shape: np.full(shape, 0.3),
}
LABELS = {
    "drawn": lambda rng, p: rng.random(len(p)) < special.expit(0.7 * special.logit(p) + 0.3),
    "soft": lambda rng, p: rng.random(len(p)),
    "halves": lambda rng, p: np.full(len(p), 0.5),
    "all 0": lambda rng, p: np.zeros(len(p)),
    "all 1": lambda rng, p: np.ones(len(p)),
    "one positive": lambda rng, p: np.arange(len(p)) == len(p) // 2,
    "separable": lambda rng, p: p > np.median(p) if len(p) else p > 0,
}
CLASS_LABELS = {
    "drawn": lambda rng, p: np.eye(p.shape[1])[
        np.argmax(np.log(p + 1e-9) + rng.gumbel(size=p.shape), 1)
    ],
    "one class": lambda rng, p: np.eye(p.shape[1])[np.zeros(len(p), int)],
    "largest": lambda rng, p: np.eye(p.shape[1])[np.argmax(p, 1)],
    "soft": lambda rng, p: rng.dirichlet(np.ones(p.shape[1]), len(p)),
}
WEIGHTS = {
    "none": lambda rng, n: None,
    "one number": lambda rng, n: 2.5,
    "exponential": lambda rng, n: rng.exponential(size=n),
    "zeros": lambda rng, n: rng.integers(0, 2, n),
    "all 0": lambda rng, n: np.zeros(n),
    "1e-30": lambda rng, n: np.full(n, 1e-30),
    "1e30": lambda rng, n: np.full(n, 1e30),
    "mixed": one_of(1e-30, 1.0, 1e30),
}
# What makes one row invalid, and with it the result NaN.
SPOILT = {
    "no": None,
    "negative weight": ("weights", -1.0),
    "NaN weight": ("weights", np.nan),
    "NaN label": ("labels", np.nan),
    "NaN prediction": ("predictions", np.nan),
    "label 1.1": ("labels", 1.1),
    "probability -0.1": ("predictions", -0.1),
}
DTYPES = ("float32", *FLOATS, "float16", "bfloat16")


@dataclass(frozen=True)
class Form:
    """A metric, its reference, and the rows that it takes.

    Args:
        make: Makes the metric.
        reference: From `Rows` to the result, or to the result and its tolerance.
        takes: "probabilities", "logits", "real", "classes" or "class logits".
        field: The field values to draw, or None.
        sparse: Whether labels are class numbers.
        scale: From `Rows` to what errors are relative to, beside the result.
        digits: The relative tolerance.
        may_be_nan: From `Rows` to whether the documentation allows NaN for a known result.
    """

    make: Callable
    reference: Callable
    takes: str = "probabilities"
    field: tuple | None = None
    sparse: bool = False
    scale: Callable = lambda rows: 0.0
    digits: float = DIGITS
    may_be_nan: Callable = lambda rows: False

    @property
    def has_classes(self):
        return self.takes in ("classes", "class logits")

    @property
    def from_logits(self):
        return self.takes in ("logits", "class logits")


def both(make, reference, **settings):
    """The forms for probabilities and for logits."""
    return {
        "": Form(make, reference, **settings),
        ", logits": Form(
            functools.partial(make, from_logits=True), reference, "logits", **settings
        ),
    }


def mean_of_sums(rows):
    """What residuals are differences of."""
    total = rows.weights.sum()
    return (rows.weights * (rows.labels + rows.probabilities)).sum() / total if total else 0.0


def mean_squares(rows):
    """What squared errors are differences of: never less than a few of the residuals themselves."""
    return np.square(rows.labels).max(initial=0) + np.square(rows.predictions).max(initial=0)


def squares_overflow(rows):
    """Float32 holds no weighted squares above 3e38."""
    return not HAS_FLOAT64 and bool(rows.weights.sum() * mean_squares(rows) > 1e38)


def is_nearly_constant(rows):
    """In float32, no slope can be fitted to predictions that differ by less than rounding."""
    if HAS_FLOAT64:
        return False
    return not np.ptp(rows.predictions) > 0.01 * np.abs(rows.predictions).max(initial=0)


def width_error(rows):
    dtype = rows.dtype if not rows.from_logits else "float64" if HAS_FLOAT64 else "float32"
    edges = (np.arange(16) / 15).astype(np.dtype(dtype)).astype(float)
    return references.equal_width_error(rows, 15, edges)


def smooth_error(rows):
    error = references.smooth_error(rows)
    return error, 0.02 * error + 0.004  # two of its 512 points


def area(rows):
    expected, in_one_bin = references.auc(rows)
    beyond = references.share_of_pairs_beyond(rows)
    if rows.from_logits and beyond > 1e-3:
        expected = np.nan
    # A float32 probability, of which the logit is taken in float32, may be in the next bin.
    return expected, in_one_bin + (1e-3 if not rows.from_logits else DIGITS)


def is_far(rows):
    """The documentation promises no result beyond ±88, nor where all predictions are 0 or 1."""
    return bool((np.abs(rows.logits) >= 80).any())


def is_steep(correction, **folds):
    """Nor where a scale is above half of 4.5, nor in float32 where a scale cannot be found."""

    def check(rows):
        if is_far(rows) or (correction != "bias" and not HAS_FLOAT64):
            return True
        return references.largest_scale(rows, correction, **folds) > 2.2

    return check


# Relative errors as documented: 1e-6 for logits up to ±88, and for a logit taken in float32.
OF_BINS = {"digits": 3e-6 if HAS_FLOAT64 else 5e-5}
# And 2e-8 nats for the loss between two temperatures, in float32 2e-6.
OF_TEMPERATURES = {"digits": 1e-6 if HAS_FLOAT64 else 1e-4, "scale": lambda rows: 0.02}
SETTINGS = ({}, {"num_folds": 1}, {"num_folds": 5}, {"bias_fraction": 0.3})


def calibrated_forms():
    """Each correction with each way to divide the rows; in the short form, a third of them."""
    every = [
        {"correction": correction, **settings}
        for correction in ("bias", "temperature", "platt")
        for settings in SETTINGS
    ]
    forms = {}
    for named in attack_size([every[place] for place in (0, 3, 6, 9)], every):
        for ending, form in both(
            functools.partial(metrics.CalibratedLogLoss, **named),
            functools.partial(references.calibrated_log_loss, **named),
            may_be_nan=is_steep(**named),
            **OF_BINS,
        ).items():
            forms[f"CalibratedLogLoss {named}{ending}"] = form
    return forms


def quadratic_forms():
    return {
        f"CalibratedQuadraticLoss {named}": Form(
            functools.partial(metrics.CalibratedQuadraticLoss, **named),
            functools.partial(references.calibrated_quadratic_loss, **named),
            "real",
            scale=mean_squares,
            # A slope is a quotient of differences.
            digits=1e-9 if HAS_FLOAT64 else 1e-4,
            may_be_nan=lambda rows: squares_overflow(rows) or is_nearly_constant(rows),
        )
        for settings in SETTINGS[:3]
        for named in ({"correction": "bias", **settings}, {"correction": "linear", **settings})
    }


def class_forms():
    metric, forms = metrics.CalibratedCategoricalLogLoss, {}
    # In the short form every second one is left out, but neither kind of labels.
    for sparse in (False, True):
        for takes in ("classes", "class logits"):
            for settings in SETTINGS[:2]:
                named = {"from_logits": takes == "class logits", **settings}
                labels = "of numbers" if sparse else "of shares"
                forms[f"{metric.__name__} {labels} {named}"] = Form(
                    functools.partial(metric, **named),
                    functools.partial(references.calibrated_class_loss, **settings),
                    takes,
                    sparse=sparse,
                    **OF_TEMPERATURES,
                )
    return forms


def field_forms():
    ids = (-1, 0, 1, 2)  # others are refused
    id_form = {"field": ids, "scale": mean_of_sums}
    by_rate = {**id_form, "scale": lambda rows: 100 * mean_of_sums(rows)}
    relative = functools.partial(references.field_error, num_values=3, epsilon=0.01)
    return {
        "FieldECE": Form(
            lambda: metrics.FieldECE(3),
            functools.partial(references.field_error, num_values=3),
            **id_form,
        ),
        "FieldRCE": Form(lambda: metrics.FieldRCE(3), relative, **by_rate),
        "FieldRCE, skipping": Form(
            lambda: metrics.FieldRCE(3, skip_without_positives=True),
            functools.partial(relative, skip=True),
            **by_rate,
        ),
    }


def plain_forms():
    named = {
        "LogLoss": both(metrics.LogLoss, references.log_loss),
        "NormalizedEntropy": both(metrics.NormalizedEntropy, references.normalized_entropy),
        "CalibrationRatio": both(metrics.CalibrationRatio, references.calibration_ratio),
        "LogitAUC": both(metrics.LogitAUC, area),
        "SmoothECE": both(metrics.SmoothECE, smooth_error),
        "ExpectedCalibrationError": both(
            metrics.ExpectedCalibrationError, width_error, scale=mean_of_sums
        ),
        "ExpectedCalibrationError, equal mass": both(
            functools.partial(metrics.ExpectedCalibrationError, binning="equal_mass"),
            functools.partial(references.equal_mass_error, num_bins=15),
            scale=mean_of_sums,
        ),
        "CalibrationGain": both(
            metrics.CalibrationGain,
            references.calibration_gain,
            scale=references.log_loss,
            may_be_nan=is_far,
            **OF_BINS,
        ),
    }
    return {f"{name}{end}": form for name, forms in named.items() for end, form in forms.items()}


FORMS = {
    **plain_forms(),
    **calibrated_forms(),
    **quadratic_forms(),
    **class_forms(),
    **field_forms(),
}
ABSTRACT = {"AdditiveMetric", "CrossFittedMetric", "FieldError"}


def class_of(name):
    """The class of the metric of a form."""
    return name.split(",")[0].split(" ")[0]


# In the short form, every second one, and without slow tests the first of each class.
SHORT = list(FORMS)[::2]
FIRST = {class_of(name): name for name in reversed(SHORT)}.values()
every_form = pytest.mark.parametrize("name", attack_size(slow_except(FIRST, SHORT), list(FORMS)))


def test_no_metric_is_forgotten():
    public = {
        name
        for name, member in inspect.getmembers(metrics, inspect.isclass)
        if issubclass(member, keras.metrics.Metric)
    }
    for forms in (FORMS, SHORT):
        assert public - ABSTRACT == set(map(class_of, forms))


def as_dtype(values, dtype):
    """Values in a dtype that NumPy may not know, and what they then are in float64."""
    wide = "float64" if HAS_FLOAT64 else "float32"
    own = wide if dtype == "float64" else "float32"
    tensor = keras.ops.cast(keras.ops.convert_to_tensor(values.astype(own)), dtype)
    exact = keras.ops.convert_to_numpy(keras.ops.cast(tensor, wide))
    return tensor, np.array(exact, "float64")


def choose(table, rng, number):
    """A kind of a table: each in turn, so that a few rounds of all forms see every kind."""
    names = list(table)
    return names[(number + rng.integers(len(names))) % len(names)]


def draw(form, start, number, num_rows):
    """The kinds drawn, arrays for `update_state`, and the same rows in float64."""
    rng = np.random.default_rng([start, number, num_rows])
    # In the short form one dtype a form: each is compiled anew.
    dtype = DTYPES[(start + attack_size(0, number)) % len(DTYPES)]
    kinds = {"weights": choose(WEIGHTS, rng, number), "dtype": dtype}
    if form.has_classes:
        kinds["predictions"] = choose(CLASS_LOGITS, rng, number)
        logits = CLASS_LOGITS[kinds["predictions"]](rng, (num_rows, 3))
        probabilities = special.softmax(logits, axis=1)
        kinds["labels"] = choose(CLASS_LABELS, rng, number)
        if form.sparse and kinds["labels"] == "soft":
            kinds["labels"] = "drawn"
        labels = CLASS_LABELS[kinds["labels"]](rng, probabilities)
    else:
        table = REAL if form.takes == "real" else LOGITS
        kinds["predictions"] = choose(table, rng, number)
        logits = table[kinds["predictions"]](rng, num_rows)
        probabilities = special.expit(logits)
        kinds["labels"] = choose(LABELS, rng, number)
        labels = LABELS[kinds["labels"]](rng, probabilities)
    if form.takes == "real":
        kinds["labels"] = "real"
        labels = logits * rng.choice([0.0, 0.5, 1.0]) + rng.normal(rng.choice([0, 3]), 1, num_rows)
    given = logits if form.from_logits or form.takes == "real" else probabilities
    weights = WEIGHTS[kinds["weights"]](rng, num_rows)
    kinds["spoilt"] = choose(SPOILT, rng, number) if rng.random() < 0.3 else "no"
    columns = {"labels": labels.astype("float32"), "predictions": given, "weights": weights}
    spoil(form, columns, kinds, rng)
    if form.takes == "real" or form.from_logits:
        if kinds["dtype"] == "float16":
            columns["predictions"] = np.clip(columns["predictions"], -6e4, 6e4)
    columns["predictions"], exact = as_dtype(np.asarray(columns["predictions"]), kinds["dtype"])
    if weights is not None and np.ndim(weights):
        columns["weights"] = np.asarray(columns["weights"], "float32")
    if form.field:
        columns["field"] = rng.choice(np.array(form.field, "int32"), num_rows)
    full = np.ones(num_rows) if weights is None else np.broadcast_to(columns["weights"], num_rows)
    rows = Rows(
        np.asarray(columns["labels"], "float64"),
        exact,
        np.array(full, "float64"),
        np.arange(num_rows),
        columns.get("field", np.zeros(num_rows)),
        form.from_logits,
        kinds["dtype"],
    )
    if form.sparse:
        columns["labels"] = np.argmax(columns["labels"], axis=1).astype("int32")
    return kinds, columns, rows


def spoil(form, columns, kinds, rng):
    """Makes one row invalid."""
    change = SPOILT[kinds["spoilt"]]
    allowed = {"real": ("no", "negative weight", "NaN weight", "NaN label", "NaN prediction")}
    logit_faults = (
        "no",
        "negative weight",
        "NaN weight",
        "NaN label",
        "NaN prediction",
        "label 1.1",
    )
    if kinds["spoilt"] not in allowed.get(form.takes, logit_faults if form.from_logits else SPOILT):
        kinds["spoilt"], change = "no", None
    if form.sparse and change is not None and change[0] == "labels":
        kinds["spoilt"], change = "no", None
    if change is None or not len(columns["labels"]):
        kinds["spoilt"] = "no"
        return
    name, value = change
    if name == "weights" and np.ndim(columns[name]) == 0:
        columns[name] = np.ones(len(columns["labels"]))
    columns[name] = np.array(columns[name], "float64")
    columns[name][rng.integers(len(columns[name]))] = value


def expected_of(form, rows, kinds):
    """The result and its tolerance."""
    if kinds["spoilt"] != "no":
        return np.nan, 0.0
    with np.errstate(all="ignore"):
        found = form.reference(rows)
        if found is None:
            return None, 0.0
        expected, tolerance = found if isinstance(found, tuple) else (found, None)
        if tolerance is None and expected is not None:
            tolerance = form.digits * (abs(expected) + form.scale(rows)) + 1e-12
    return expected, tolerance


def told(metric):
    """The result; checks that NaN, and nothing else, is told."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = float(metric.result())
    messages = [str(each.message) for each in caught]
    assert all("is NaN" in message for message in messages)
    assert bool(messages) == np.isnan(value), (messages, value)
    return value


def compare(form, value, rows, kinds, how):
    expected, tolerance = expected_of(form, rows, kinds)
    if expected is None:
        return
    if np.isnan(value) and not np.isnan(expected):
        assert form.may_be_nan(rows), f"{how}: NaN for {expected}: {kinds}"
        return
    assert value == pytest.approx(expected, rel=0, abs=tolerance, nan_ok=True), f"{how}: {kinds}"


def update(metric, columns, rows=slice(None)):
    parts = {
        name: values if values is None or not np.ndim(values) else values[rows]
        for name, values in columns.items()
    }
    metric.update_state(
        parts["labels"],
        parts["predictions"],
        parts["weights"],
        **({"field": parts["field"]} if "field" in parts else {}),
    )


@functools.cache
def compiled_step(name):
    """A metric and its compiled update."""
    metric = FORMS[name].make()
    return metric, update_step(metric, jit_compile=True)


def compiled_shard(name, columns, rows):
    """A metric that has seen one shard in a compiled step."""
    metric, step = compiled_step(name)
    metric.reset_state()
    step(*tensors(columns, rows))
    shard = FORMS[name].make()
    for own, variable in zip(shard.variables, metric.variables, strict=True):
        own.assign(variable)
    return shard


def tensors(columns, rows):
    """The columns as tensors, weights as one for each row."""
    weights = columns["weights"]
    num_rows = len(columns["labels"])
    full = np.ones(num_rows) if weights is None else np.broadcast_to(weights, num_rows)
    parts = [columns["labels"], columns["predictions"], full.astype("float32")]
    if "field" in columns:
        parts.append(columns["field"])
    return [keras.ops.convert_to_tensor(values[rows]) for values in parts]


@every_form
def test_right_or_nan(name):
    form = FORMS[name]
    shards = [slice(SHARD * k, SHARD * (k + 1)) for k in range(NUM_SHARDS)]
    start = zlib.crc32(name.encode())
    for number in range(attack_size(1, 24)):
        kinds, columns, rows = draw(form, start, number, NUM_SHARDS * SHARD)
        if ON_TENSORFLOW:
            whole = form.make()
            update(whole, columns)
            compare(form, told(whole), rows, kinds, "at once")
            parts = [form.make() for _ in shards]
            for part, own in zip(parts, shards, strict=True):
                update(part, columns, own)
        else:
            parts = [compiled_shard(name, columns, own) for own in shards]
        merged = form.make()
        merged.merge_state(parts)
        anew = Rows(**{**vars(rows), "numbers": rows.numbers % SHARD})
        compare(form, told(merged), anew, kinds, "merged")
        if not ON_TENSORFLOW or attack_size(start % 6 == 0, full=True):
            metric, step = compiled_step(name)
            metric.reset_state()
            for own in shards:
                step(*tensors(columns, own))
            compare(form, told(metric), rows, kinds, "compiled")


@pytest.mark.skipif(not ON_TENSORFLOW, reason="Every number of rows would be compiled.")
@every_form
@pytest.mark.parametrize("num_rows", slow_except([1], [0, 1, 3]))
def test_few_rows(name, num_rows):
    form = FORMS[name]
    start = zlib.crc32(name.encode())
    for number in range(attack_size(1, 10)):
        kinds, columns, rows = draw(form, start, number, num_rows)
        metric = form.make()
        update(metric, columns)
        update(metric, columns, slice(0, 0))
        compare(form, told(metric), rows, kinds, f"{num_rows} rows")
