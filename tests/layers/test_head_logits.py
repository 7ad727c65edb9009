"""`head_logits` computes some heads in NumPy: as their call does, to the precision of float32."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_calibration.layers import ILPS, FieldBias, FieldNetwork, FitSettings, NeuralCalibration
from keras_calibration.layers.head_logits import head_logits


def rows(num_rows=3_000):
    generator = np.random.default_rng(0)
    logits = generator.normal(-1, 2, num_rows)
    features = {
        "site": generator.integers(0, 9, num_rows),  # the head knows five
        "city": generator.integers(0, 3, num_rows),
        "age": np.where(
            generator.random(num_rows) < 0.1, np.nan, generator.normal(40, 12, num_rows)
        ),
    }
    labels = generator.random(num_rows) < 1 / (1 + np.exp(0.5 - logits - 0.3 * features["city"]))
    return logits, labels.astype(float), features


HEADS = {
    "strict": lambda: ILPS(20),
    "penalty": lambda: ILPS(20, monotonic="penalty"),
    "constant": lambda: ILPS.from_paper(),
    "offsets": lambda: FieldBias({"site": 5, "city": 3}),
    "curve": lambda: FieldBias({"site": 5}, ILPS(), numeric=["age"]),
    "numbers": lambda: FieldBias({}, numeric=["age"]),
    "network": lambda: NeuralCalibration(ILPS(), FieldNetwork({"site": 5, "city": 3}, seed=0)),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("is_fitted", [True, False])
def test_numpy_and_the_call_agree(name, is_fitted):
    logits, labels, features = rows()
    head = HEADS[name]()
    features = {n: features[n] for n in head.feature_names or ()}
    if is_fitted:
        settings = FitSettings(max_epochs=2) if name == "network" else None
        head.fit(logits, labels, features, settings=settings)
    # Also far outside of the rows of the fit, and on knots.
    logits = np.concatenate([logits[:-40], np.linspace(-60, 60, 40)])
    if "age" in features:
        features["age"][:2] = [-1e30, 1e30]
    called = ops.convert_to_numpy(head(logits.astype("float32"), features)).reshape(-1)
    computed = head_logits(head, logits.astype("float32").astype(float), features)
    np.testing.assert_allclose(computed, called, rtol=2e-5, atol=2e-5)


@keras.saving.register_keras_serializable(package="tests")
class Twice(ILPS):
    """A subclass, which may compute anything."""

    def calibrate(self, logits):
        return 2 * super().calibrate(logits)


def test_a_subclass_is_called():
    logits = np.linspace(-3, 3, 7)
    np.testing.assert_allclose(head_logits(Twice(), logits, {}), 2 * logits, rtol=1e-6)
    np.testing.assert_allclose(
        head_logits(FieldBias({}, Twice(), numeric=["x"]), logits, {"x": logits}),
        2 * logits,
        rtol=1e-6,
    )
