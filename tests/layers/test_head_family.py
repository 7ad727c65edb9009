"""One family of heads: what a head takes is told by its features and by the logits' columns."""

import inspect

import keras
import numpy as np
import pytest

from every_head import HEADS
from keras_calibration import layers
from keras_calibration.layers import (
    ILPS,
    BiasCorrection,
    BlendedHead,
    FieldBias,
    Head,
    IsotonicRegression,
    PlattScaling,
    Reads,
    SamplingCorrection,
    TemperatureScaling,
)

GENERATOR = np.random.default_rng(0)
LOGITS = GENERATOR.normal(-0.5, 1.5, 400)
LABELS = (GENERATOR.random(400) < 1 / (1 + np.exp(-0.6 * LOGITS))).astype("float32")
SITE = {"site": GENERATOR.integers(0, 3, 400)}
BOTH = {**SITE, "price": LOGITS}
CLASS_LOGITS = GENERATOR.normal(0, 1.5, (400, 3))
CLASSES = np.argmax(0.6 * CLASS_LOGITS + GENERATOR.gumbel(size=CLASS_LOGITS.shape), axis=1)
CLASSES_OF_HEADS = [
    member for _, member in inspect.getmembers(layers, inspect.isclass) if issubclass(member, Head)
]
OF_ONE_LOGIT = {
    **{name: make for name, (make, _) in HEADS.items() if name.isidentifier()},
    "SamplingCorrection": lambda: SamplingCorrection(0.1),
}
for name in ("TemperatureScaling", "VectorScaling", "BlendedHead"):  # the last takes what parts do
    del OF_ONE_LOGIT[name]


def numpy_of(tensor):
    return keras.ops.convert_to_numpy(tensor)


@pytest.mark.parametrize("method", ["fit", "adapt", "update"])
def test_one_order_of_arguments(method):
    order = ["logits", "labels", "features", "sample_weight"]
    for head in CLASSES_OF_HEADS:
        if hasattr(head, method):
            parameters = inspect.signature(getattr(head, method)).parameters
            assert list(parameters)[1:5] == order, head
            others = list(parameters.values())[5:]
            assert all(argument.kind is argument.KEYWORD_ONLY for argument in others), head


@pytest.mark.parametrize("name", OF_ONE_LOGIT)
def test_a_head_of_one_logit_says_so(name):
    head = OF_ONE_LOGIT[name]()
    message = rf"logits of {name} .*for K classes"
    with pytest.raises(ValueError, match=message):
        head(CLASS_LOGITS, BOTH)
    with pytest.raises(ValueError, match=message):
        head.fit(CLASS_LOGITS, CLASSES, BOTH)
    symbols = {"site": keras.Input((), dtype="int32"), "price": keras.Input(())}
    with pytest.raises(ValueError, match=message):
        head(keras.Input((3,)), symbols)
    assert not head.built or name == "SamplingCorrection"


def test_temperature_serves_both_and_forgets_the_rows_of_the_other():
    layer, binary, classes = TemperatureScaling(), TemperatureScaling(), TemperatureScaling()
    binary.fit(LOGITS, LABELS)
    classes.fit(CLASS_LOGITS, CLASSES)
    layer.fit(LOGITS, LABELS)
    layer.interval(LOGITS)
    layer.fit(CLASS_LOGITS, CLASSES)
    assert layer.temperature == classes.temperature != binary.temperature
    with pytest.raises(ValueError, match=r"`update`.*TemperatureScaling.*`fit`"):
        layer.update(LOGITS, LABELS)
    with pytest.raises(ValueError, match=r"`interval`.*not from a fit"):
        layer.interval(LOGITS)
    with pytest.raises(ValueError, match=r"^TemperatureScaling .*interval.*\(400, 3\)"):
        layer.interval(CLASS_LOGITS)
    with pytest.raises(ValueError, match=r"`update` of TemperatureScaling.*\(batch, 1\)"):
        layer.update(CLASS_LOGITS, CLASSES)
    layer.fit(LOGITS, LABELS)
    assert layer.temperature == binary.temperature
    assert layer.update(LOGITS, LABELS).num_rows == 800


WITHOUT_FEATURES = [ILPS, PlattScaling, IsotonicRegression, lambda: SamplingCorrection(0.1)]


@pytest.mark.parametrize("make", WITHOUT_FEATURES)
def test_a_head_without_features_keeps_the_shape_and_ignores_them(make):
    head = make()
    head.fit(LOGITS, LABELS, SITE)
    expected = numpy_of(head(LOGITS))
    assert expected.shape == (400,)
    np.testing.assert_array_equal(numpy_of(head(LOGITS, SITE)), expected)
    np.testing.assert_array_equal(numpy_of(head(LOGITS[:, None], SITE))[:, 0], expected)
    logit, site = keras.Input((1,)), keras.Input((), dtype="int32", name="site")
    output = head(logit, {"site": site})
    assert output.shape == (None, 1)
    keras.Model(logit, output)  # the features are no part of the graph


class Shift(Head):
    """A head that reads no features, written by a user."""

    def build(self, logits_shape=None, features_shape=None):
        self.shift = self.add_weight(shape=(), initializer="zeros")

    def call(self, logits, features=None):
        return keras.ops.reshape(logits, (-1, 1)) + self.shift

    def fitted(self, rows, settings, start=None):
        fit = BiasCorrection().fitted(rows, settings)
        return self.fit_of(rows, {"shift": fit.weights["_bias"]})


class Doubled(layers.Head):
    """A head of a user around another one, which says nothing but what it computes."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner
        self.finalized = False

    def parts(self):
        return [self.inner]

    def build(self, logits_shape=None, features_shape=None):
        if not self.inner.built:
            shapes = () if self.inner.feature_names == () else (features_shape,)
            self.inner.build((None, 1), *shapes)
        self.built = True

    def call(self, logits, features=None):
        return 2 * self.inner(logits, features)


@pytest.mark.parametrize("calibrator", [Shift, lambda: BlendedHead([PlattScaling(), ILPS()])])
def test_any_head_without_features_is_a_calibrator_of_others(calibrator):
    alone, by_site = calibrator(), FieldBias({"site": 3}, calibrator())
    alone.fit(LOGITS, LABELS)
    curve = numpy_of(alone(LOGITS)).reshape(-1)
    summary = by_site.fit(LOGITS, LABELS, SITE)
    expected = FieldBias({"site": 3}).fit(curve, LABELS, SITE).log_loss_in_sample
    assert summary.log_loss_in_sample == pytest.approx(expected, abs=1e-6)


def test_a_head_asks_its_parts():
    inner = layers.FieldILPS({"site": 3})
    head = Doubled(inner)
    assert head.feature_names == ("site",)
    assert head.reads() == inner.reads() == Reads({"site": 3})
    with pytest.raises(ValueError, match="no direct fit"):  # it has no `fit_rows`
        head.fit([0.0], [1])
    with pytest.raises(ValueError, match="one"):
        head.check_logits((None, 3))
    Doubled(layers.VectorScaling(3)).check_logits((None, 3))
    rng = np.random.default_rng(0)
    logits, site = rng.normal(size=200), rng.integers(0, 3, 200)
    inner.fit(logits, rng.random(200) < 0.3, {"site": site})
    knots, values = head.curve()
    np.testing.assert_array_equal(knots, inner.get_knots())
    np.testing.assert_array_equal(values, inner.get_values())
    assert layers.PlattScaling().curve() is None
    inner.set_weights([-weight for weight in inner.get_weights()])
    head.finalize()
    assert (np.diff(inner.get_values()) >= 0).all()
    numbers = Doubled(layers.FieldBias({}, numeric=["price"]))
    numbers.adapt(logits, None, {"price": rng.normal(size=200)})
