"""The head that the docstring of `Head` writes: fit, save, load, export, refresh."""

import ast
import inspect

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration.layers import Head
from served import outputs_of
from symbols import symbols

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(-1, 1, (600, 1)).astype("float32")
MOBILE = RNG.integers(0, 2, 600).astype("int32")
LABELS = RNG.random(600) < 1 / (1 + np.exp(-LOGITS[:, 0] - 2 * MOBILE))
X = {"score": LOGITS, "is_mobile": MOBILE}


@pytest.fixture(scope="module")
def own_head():
    """The class of the docstring."""
    lines = inspect.getdoc(Head).split("Example:")[1].splitlines()
    code = [line.strip()[4:] for line in lines if line.strip().startswith((">>>", "..."))]
    program = "\n".join(code)
    classes = [node for node in ast.parse(program).body if isinstance(node, ast.ClassDef)]
    names = {"keras": keras, "Head": Head, "BiasCorrection": kc.layers.BiasCorrection}
    exec(compile(ast.Module(classes, []), "docstring", "exec"), names)
    assert classes[0].end_lineno - classes[0].lineno < 25
    return names["MobileOffset"]


def make_model(head):
    inputs = symbols(score=(1,), is_mobile="int32")
    base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["score"]))
    return kc.models.CalibratedModel(base, head)


@pytest.mark.tensorflow
def test_fit_save_load_export_refresh(own_head, tmp_path):
    model = make_model(own_head())
    summary = kc.fit_head(model, X, LABELS, verbose=0)
    assert summary.log_loss_in_sample < summary.log_loss_before - 0.05
    assert float(model.head.offset) == pytest.approx(2, abs=0.6)
    predicted = model.predict(X, verbose=0)

    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), predicted)

    kc.export_savedmodel(model, tmp_path / "served" / "1", X)
    new = 1 - LABELS  # of a world upside down
    with pytest.warns(UserWarning, match="mean prediction"):  # which the offset alone cannot follow
        refreshed = kc.refresh_savedmodel(
            tmp_path / "served", LOGITS, new, {"is_mobile": MOBILE}, from_logits=True
        )
    again = own_head()
    again.fit(LOGITS, new, {"is_mobile": MOBILE})
    served = outputs_of(refreshed, X)
    expected = 1 / (1 + np.exp(-keras.ops.convert_to_numpy(again(LOGITS, X))))
    np.testing.assert_allclose(served["probability"], expected, atol=1e-6)
