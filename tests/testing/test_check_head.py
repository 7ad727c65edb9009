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


class NotRegistered(Line):
    pass


@registered
class StartsElsewhere(Line):
    def call(self, logits, features=None):
        return super().call(logits) + 1


@registered
class OfTheBatch(Line):
    def call(self, logits, features=None):
        mean = ops.mean(logits)
        return super().call(logits - mean) + mean


@registered
class OfTheOrder(Line):
    def call(self, logits, features=None):
        place = ops.reshape(ops.arange(logits.shape[0], dtype="float32"), (-1, 1))
        return super().call(logits) + self.shift * place


@registered
class TwoColumns(Line):
    def call(self, logits, features=None):
        return ops.tile(super().call(logits), (1, 2))


@registered
class WithBound(Line):
    def __init__(self, bound=1.0, **kwargs):
        super().__init__(**kwargs)
        self.bound = bound

    def fitted(self, rows, settings, start=None):
        return self.fit_of(rows, {**self.found(rows), "shift": self.bound})


@registered
class LosesArgument(WithBound):
    def get_config(self):
        return Head.get_config(self)


@registered
class ForgetsArgument(WithBound):
    def get_config(self):
        return {**Head.get_config(self), "bound": 1.0}


@registered
class ConfigOfObjects(WithBound):
    def get_config(self):
        return {**Head.get_config(self), "bound": object()}


@registered
class NeedsWeights(Line):
    def fitted(self, rows, settings, start=None):
        return self.fit_of(rows, {"scale": np.array(self.scale), "shift": 1.0})


@registered
class StartsAtItsWeights(Line):
    def fitted(self, rows, settings, start=None):
        self.ensure_built()
        return self.fit_of(rows, {"scale": 1.0, "shift": 0.5 + 0.5 * np.array(self.shift)})


@registered
class AnotherName(Line):
    def fitted(self, rows, settings, start=None):
        return self.fit_of(rows, {"bias": 1.0})


@registered
class ReturnsSummary(Line):
    def fitted(self, rows, settings, start=None):
        return FitSummary.of(rows, rows.logits)


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
class OfTheCall(Line):
    number = 0

    def fitted(self, rows, settings, start=None):
        self.number += 1
        return self.fit_of(rows, {"scale": 1.0, "shift": 1 / self.number})


@registered
class OfChance(Line):
    def fitted(self, rows, settings, start=None):
        return self.fit_of(rows, {"scale": 1.0, "shift": np.random.default_rng().normal()})


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
class LosesWeight(Line):
    def fitted(self, rows, settings, start=None):
        return self.fit_of(rows, {"scale": self.found(rows)["scale"]})


@registered
class LosesRecord(Line):
    def assign(self, fit):
        self.ensure_built()
        for name, value in fit.weights.items():
            getattr(self, name).assign(value)


@registered
class Unweighted(Line):
    def fitted(self, rows, settings, start=None):
        return self.fit_of(rows, {"scale": 1.0, "shift": rows.labels.mean()})


@registered
class OfTheFirstRow(Line):
    def fitted(self, rows, settings, start=None):
        return self.fit_of(rows, {"scale": 1.0, "shift": rows.logits[0]})


@registered
class OfTheUnit(Line):
    def fitted(self, rows, settings, start=None):
        return self.fit_of(rows, {"scale": 1.0, "shift": rows.unit})


@registered
class InNumPy(Line):
    def call(self, logits, features=None):
        return np.array(self.scale) * np.reshape(logits, (-1, 1)) + np.array(self.shift)


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


@registered
class SavesNoRecord(Line):
    def save_own_variables(self, store):
        keras.layers.Layer.save_own_variables(self, store)


@registered
class WithoutFit(Line):
    """A right head that is trained by gradient alone."""

    fitted = Head.fitted


RIGHT = {
    "Line": (Line, {}),
    "Clipped": (Clipped, SITES),
    "WithoutFit": (WithoutFit, {}),
    "SamplingCorrection": (lambda: layers.SamplingCorrection(1), {}),
    "time": (lambda: FieldBias({"site": 5}, follows_time=True), SITES),
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


WRONG = {
    NotRegistered: r"NotRegistered.*register_keras_serializable",
    StartsElsewhere: r"identity",
    OfTheBatch: r"other rows",
    OfTheOrder: r"other rows",
    TwoColumns: r"as many logits.*\(400, 2\)",
    LosesArgument: r"`get_config`.*lacks \['bound'\]",
    ForgetsArgument: r"`get_config` differs",
    ConfigOfObjects: r"`get_config`.*TypeError",
    NeedsWeights: r"`fitted`.*new head.*AttributeError.*scale",
    AnotherName: r"name of the attribute.*AttributeError.*bias",
    ReturnsSummary: r"`fitted`.*`Fit`.*FitSummary",
    Assigns: r"`fitted`.*leave.*\['shift'\]",
    KeepsNumber: r"`fitted`.*leave.*the call",
    KeepsSummary: r"`fitted`.*leave.*fit_summary",
    OfTheCall: r"`fitted`.*second call",
    OfChance: r"`fitted`.*each time",
    StartsAtItsWeights: r"whatever the weights",
    TwoVersions: r"`fit\.logits\(rows\)`.*-10000",
    Twice: r"`fit\.logits\(rows\)`",
    LosesWeight: r"has not changed \['shift'\].*`Fit.weights`",
    LosesRecord: r"`fit_summary`.*`fit\.summary`",
    Unweighted: r"counts.*`rows\.row_weights`",
    OfTheFirstRow: r"order of rows",
    OfTheUnit: r"common factor",
    StateOutsideOfWeights: r"file.*computes",
    SavesNoRecord: r"file.*`fit_summary`",
}
MAKE = {
    ForgetsArgument: lambda: ForgetsArgument(2.0),
    ConfigOfObjects: lambda: ConfigOfObjects(2.0),
}


@pytest.mark.parametrize(
    ("head", "message"), WRONG.items(), ids=lambda v: getattr(v, "__name__", "")
)
def test_wrong_heads(head, message):
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        check_head(MAKE.get(head, head), export=False)


@pytest.mark.tensorflow  # others take NumPy in a graph, or ids beyond a table
@pytest.mark.parametrize(
    ("head", "features", "message"),
    [
        (SiteOffsets, SITES, r"Clip ids"),
        (InNumPy, {}, r"graph.*`keras\.ops`"),
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
