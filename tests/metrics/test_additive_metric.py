import keras
import numpy as np
import pytest

from backends import FLOATS, JIT_COMPILE, update_step
from keras_calibration._ops.compensated import two_sum
from keras_calibration.metrics import CalibratedLogLoss, FieldECE, LogLoss
from keras_calibration.metrics.additive_metric import AdditiveMetric


class Count(AdditiveMetric):
    """Counts rows, in the dtype it is given."""

    def __init__(self, name="count", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self._count = self.add_sum((), name="count")

    def update_state(self, y_true, y_pred=None, sample_weight=None):
        self._count.add(keras.ops.cast(keras.ops.size(y_true), self.dtype))

    def result(self):
        return self._count.value()

    def get_config(self):
        return {"name": self.name, "dtype": self.dtype}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("jit_compile", JIT_COMPILE)
def test_a_count_goes_on_past_what_one_float32_holds(dtype, jit_compile):
    metric = Count(dtype=dtype)
    metric._count._total.assign(2.0**24)
    update = update_step(metric, jit_compile)
    for _ in range(1000):
        update(keras.ops.zeros(1))
    # A plain float32 would have stayed where it was.
    assert float(metric.result()) == 2**24 + 1000
    metric.reset_state()
    assert float(metric.result()) == 0


def test_two_sum_loses_nothing():
    generator = np.random.default_rng(0)
    total = (generator.normal(size=1000) * 10.0 ** generator.integers(-6, 7, 1000)).astype(
        "float32"
    )
    term = (generator.normal(size=1000) * 10.0 ** generator.integers(-6, 7, 1000)).astype("float32")
    rounded, error = (keras.ops.convert_to_numpy(part) for part in two_sum(total, term))
    exact = total.astype("float64") + term.astype("float64")
    np.testing.assert_array_equal(rounded.astype("float64") + error.astype("float64"), exact)
    assert (error != 0).any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_infinite_sum_stays_infinite(dtype):
    metric = LogLoss(from_logits=True, dtype=dtype)
    for _ in range(2):
        metric.update_state([0.5, 1.0], [np.inf, 1.0])
    assert float(metric.result()) == np.inf


def test_merging_adds_up_and_refuses_others():
    parts = [Count() for _ in range(3)]
    for number, part in enumerate(parts):
        part.update_state(np.zeros(number + 1))
    parts[0].merge_state(iter(parts[1:]))
    assert float(parts[0].result()) == 6
    assert float(parts[1].result()) == 2
    with pytest.raises(ValueError, match="same class and configuration"):
        parts[0].merge_state([Count(), LogLoss()])
    assert float(parts[0].result()) == 6
    for metric, other in (
        (FieldECE(3), FieldECE(4)),
        (CalibratedLogLoss(), CalibratedLogLoss(seed=1)),
        (CalibratedLogLoss(), keras.metrics.AUC()),
    ):
        with pytest.raises(ValueError, match="same class and configuration"):
            metric.merge_state([other])
    CalibratedLogLoss().merge_state([CalibratedLogLoss(name="another name")])


def test_a_value_comes_without_a_warning(recwarn):
    metric = LogLoss()
    metric.update_state([0, 1], [0.25, 0.5])
    assert float(metric.result()) > 0
    assert not [warning for warning in recwarn if "is NaN" in str(warning.message)]
