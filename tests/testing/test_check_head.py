"""`check_head` accepts right heads, and says of wrong ones what is wrong."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_calibration import layers
from keras_calibration.layers import BiasCorrection, FieldBias, Fit, Head, PlattScaling
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.testing import check_head

registered = keras.saving.register_keras_serializable(package="test_check_head")
SITES = {"site": range(5)}


@registered
class Line(Head):
    """A head as the guide shows it; those below are wrong in one point."""

    def build(self, logits_shape=None, features_shape=None):
        self.scale = self.add_weight(shape=(), initializer="ones")
        self.shift = self.add_weight(shape=(), initializer="zeros")

    def call(self, logits, features=None):
        return self.scale * ops.reshape(logits, (-1, 1)) + self.shift

    def found(self, rows):
        weights = PlattScaling().fitted(rows, layers.FitSettings()).weights
        return {"scale": np.exp(weights["_log_scale"]), "shift": weights["_bias"]}

    def fitted(self, rows, settings, start=None):
        return self.fit_of(rows, self.found(rows))


@registered
class SiteOffsets(Head):
    """A table whose ids are not clipped."""

    feature_names = ("site",)
    num_places = 5

    def build(self, logits_shape=None, features_shape=None):
        self.table = self.add_weight(shape=(self.num_places,), initializer="zeros")

    def call(self, logits, features=None):
        places = ops.reshape(self.places(features["site"]), (-1, 1))
        return ops.reshape(logits, (-1, 1)) + ops.take(self.table, places)

    def places(self, site):
        return site

    def fitted(self, rows, settings, start=None):
        bias = BiasCorrection()
        parts = [rows.take(rows.features["site"] == site) for site in range(5)]
        found = [bias.fitted(part, settings).weights["_bias"] for part in parts]
        return self.fit_of(rows, {"table": np.resize([*found, 0.0], self.num_places)})


@registered
class Clipped(SiteOffsets):
    """The same, right."""

    num_places = 6

    def places(self, site):
        return ops.where((site >= 0) & (site < 5), site, 5)


def of(name, base=Line, **members):
    """A registered class that differs from its base in some members."""
    return registered(type(name, (base,), members))


def of_call(name, call):
    """A line whose call is a function of the head and the logits."""
    return of(name, call=lambda self, logits, features=None: call(self, logits))


def of_fit(name, find):
    """A line whose fit has the weights that a function of the head and the rows gives."""

    def fitted(self, rows, settings, start=None):
        return self.fit_of(rows, find(self, rows))

    return of(name, fitted=fitted)


def shift(value):
    return {"scale": 1.0, "shift": value}


def less_their_mean(head, logits):
    mean = ops.mean(logits)
    return Line.call(head, logits - mean) + mean


def and_their_place(head, logits):
    place = ops.reshape(ops.arange(logits.shape[0], dtype="float32"), (-1, 1))
    return Line.call(head, logits) + head.shift * place


def in_numpy(head, logits):
    return np.array(head.scale) * np.reshape(logits, (-1, 1)) + np.array(head.shift)


def half_of_its_own(head, rows):
    head.ensure_built()
    return shift(0.5 + 0.5 * np.array(head.shift))


def of_the_call(head, rows):
    head.number = getattr(head, "number", 0) + 1
    return shift(1 / head.number)


@registered
class WithBound(Line):
    def __init__(self, bound=1.0, **kwargs):
        super().__init__(**kwargs)
        self.bound = bound

    def fitted(self, rows, settings, start=None):
        return self.fit_of(rows, {**self.found(rows), "shift": self.bound})


def of_config(name, config, *arguments):
    """Makes a head with an argument, whose config has this beside that of every head."""
    kind = of(name, WithBound, get_config=lambda self: {**Head.get_config(self), **config})
    return lambda: kind(*arguments)


@registered
class Assigns(Line):
    def fitted(self, rows, settings, start=None):
        self.ensure_built()
        self.shift.assign(1.0)
        return super().fitted(rows, settings)


@registered
class KeepsNumber(Line):
    offset = 0.0

    def call(self, logits, features=None):
        return super().call(logits) + self.offset

    def fitted(self, rows, settings, start=None):
        self.offset = 1.0
        return super().fitted(rows, settings)


@registered
class KeepsSummary(Line):
    def fitted(self, rows, settings, start=None):
        fit = super().fitted(rows, settings)
        self.fit_summary = fit.summary
        return fit


@registered
class TwoVersions(Line):
    def fitted(self, rows, settings, start=None):
        weights = self.found(rows)

        def logits(rows):
            return weights["scale"] * np.clip(rows.logits, -30, 30) + weights["shift"]

        return Fit(FitSummary.of(rows, logits(rows)), logits, weights)


@registered
class Twice(layers.ILPS):
    """Another curve than that of its base, whose fit it inherits."""

    def calibrate(self, logits):
        return logits + 2 * (super().calibrate(logits) - logits)


@registered
class LosesRecord(Line):
    def assign(self, fit):
        self.ensure_built()
        for name, value in fit.weights.items():
            getattr(self, name).assign(value)


@registered
class StateOutsideOfWeights(Line):
    offset = 0.0

    def call(self, logits, features=None):
        return super().call(logits) + self.offset

    def fitted(self, rows, settings, start=None):
        weights = self.found(rows)

        def logits(rows):
            return weights["scale"] * rows.logits + weights["shift"] + 1

        return Fit(FitSummary.of(rows, logits(rows)), logits, weights)

    def assign(self, fit):
        super().assign(fit)
        self.offset = 1.0


# A right head that is trained by gradient alone.
WithoutFit = of("WithoutFit", fitted=Head.fitted)
RIGHT = {
    "Line": (Line, {}),
    "Clipped": (Clipped, SITES),
    "WithoutFit": (WithoutFit, {}),
    "SamplingCorrection": (lambda: layers.SamplingCorrection(1), {}),
    "named score": (lambda: FieldBias({"score": 5}), {"score": np.arange(5, dtype="int8")}),
    "large ids": (
        lambda: FieldBias({"site": keras.layers.IntegerLookup(vocabulary=[10**10, 7])}),
        {"site": [10**10, 7, 8], "not_read": [True, False]},
    ),
    "strings": (
        lambda: FieldBias({"city": keras.layers.StringLookup(vocabulary=["a", "b"])}),
        {"city": ["a", "b", "c"]},
    ),
}


@pytest.mark.tensorflow  # Keras' lookups need it
@pytest.mark.parametrize("name", RIGHT)
def test_right_heads(name):
    make, features = RIGHT[name]
    check_head(make, features, export=False)


# What makes a head that is wrong in one point, and what is said of it.
WRONG = [
    (type("NotRegistered", (Line,), {}), r"NotRegistered.*register_keras_serializable"),
    (of_call("StartsElsewhere", lambda head, x: Line.call(head, x) + 1), r"identity"),
    (of_call("OfTheBatch", less_their_mean), r"other rows"),
    (of_call("OfTheOrder", and_their_place), r"other rows"),
    (
        of_call("TwoColumns", lambda head, x: ops.tile(Line.call(head, x), (1, 2))),
        r"as many logits.*\(400, 2\)",
    ),
    (of_config("LosesArgument", {}), r"`get_config`.*lacks \['bound'\]"),
    (of_config("ForgetsArgument", {"bound": 1.0}, 2.0), r"`get_config` differs"),
    (of_config("ConfigOfObjects", {"bound": object()}, 2.0), r"`get_config`.*TypeError"),
    (
        of_fit("NeedsWeights", lambda head, rows: {"scale": np.array(head.scale), "shift": 1.0}),
        r"`fitted`.*new head.*AttributeError.*scale",
    ),
    (
        of_fit("AnotherName", lambda head, rows: {"bias": 1.0}),
        r"name of the attribute.*AttributeError.*bias",
    ),
    (
        of("ReturnsSummary", fitted=lambda self, rows, *more: FitSummary.of(rows, rows.logits)),
        r"`fitted`.*`Fit`.*FitSummary",
    ),
    (Assigns, r"`fitted`.*leave.*\['shift'\]"),
    (KeepsNumber, r"`fitted`.*leave.*the call"),
    (KeepsSummary, r"`fitted`.*leave.*fit_summary"),
    (of_fit("OfTheCall", of_the_call), r"`fitted`.*second call"),
    (
        of_fit("OfChance", lambda head, rows: shift(np.random.default_rng().normal())),
        r"`fitted`.*each time",
    ),
    (of_fit("StartsAtItsWeights", half_of_its_own), r"whatever the weights"),
    (TwoVersions, r"`fit\.logits\(rows\)`.*-10000"),
    (Twice, r"`fit\.logits\(rows\)`"),
    (
        of_fit("LosesWeight", lambda head, rows: {"scale": head.found(rows)["scale"]}),
        r"has not changed \['shift'\].*`Fit.weights`",
    ),
    (LosesRecord, r"`fit_summary`.*`fit\.summary`"),
    (
        of_fit("Unweighted", lambda head, rows: shift(rows.labels.mean())),
        r"counts.*`rows\.row_weights`",
    ),
    (of_fit("OfTheFirstRow", lambda head, rows: shift(rows.logits[0])), r"order of rows"),
    (of_fit("OfTheUnit", lambda head, rows: shift(rows.unit)), r"common factor"),
    (StateOutsideOfWeights, r"file.*computes"),
    (
        of("SavesNoRecord", save_own_variables=keras.layers.Layer.save_own_variables),
        r"file.*`fit_summary`",
    ),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_heads(make, message):
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        check_head(make, export=False)


@pytest.mark.tensorflow  # others take NumPy in a graph, or ids beyond a table
@pytest.mark.parametrize(
    ("head", "features", "message"),
    [
        (SiteOffsets, SITES, r"Clip ids"),
        (of_call("InNumPy", in_numpy), {}, r"graph.*`keras\.ops`"),
    ],
)
def test_wrong_heads_of_tensorflow(head, features, message):
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        check_head(head, features, export=False)


@registered
class OfTheProcess(Line):
    """Its graph holds a function of Python, which no other process has."""

    def call(self, logits, features=None):
        import tensorflow as tf

        values = tf.numpy_function(lambda numbers: numbers, [logits], tf.float32)
        values.set_shape(logits.shape)
        return super().call(values)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_an_export_is_run_in_another_process(monkeypatch):
    from keras_calibration.export import verification

    monkeypatch.setattr(verification, "in_new_process", True)
    check_head(Clipped, SITES)
    with pytest.raises(AssertionError, match="`export_savedmodel`"):
        check_head(OfTheProcess)


def test_arguments():
    line = Line()
    for make in (line, 3, lambda: 3, lambda: line):
        with pytest.raises(ValueError, match="`make_head`"):
            check_head(make)
    with pytest.raises(ValueError, match="no 'site'"):
        check_head(Clipped)
    for values in ([], [[1]], 3):
        with pytest.raises(ValueError, match="`features`"):
            check_head(Clipped, {"site": values})
    with pytest.raises(ValueError, match="`num_classes`"):
        check_head(Line, num_classes=1)
