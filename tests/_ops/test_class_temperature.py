import numpy as np
import pytest
from keras import ops
from scipy.optimize import brentq
from scipy.special import logsumexp, softmax

from backends import ON_TENSORFLOW
from keras_calibration._ops.class_temperature import (
    best_inverse_temperature,
    log_partition_sum,
    temperature_summary,
)
from keras_calibration._ops.compiled import compiled


@pytest.fixture(scope="module")
def summaries():
    """Sums, label sums and weights of many sets of rows, and the root β of each in NumPy."""
    cases = []
    summary = compiled(lambda *rows: temperature_summary(*rows, 1))
    for seed in range(120 if ON_TENSORFLOW else 30):
        generator = np.random.default_rng(seed)
        num_rows = int(generator.integers(20, 700))
        logits = generator.normal(0, 1.5, (num_rows, 4))
        classes = np.argmax(logits + generator.gumbel(size=logits.shape), axis=1)
        labels, logits = np.eye(4)[classes], logits * np.exp(generator.normal())
        offset = logits - logits.max(axis=1, keepdims=True)

        def slope(beta, offset=offset, labels=labels):
            return np.sum((softmax(beta * offset, axis=1) - labels) * offset)

        # Filled up with rows of weight 0, as a function is compiled anew for every number of rows.
        rows = (labels, logits, np.ones(num_rows), np.zeros(num_rows, "int32"))
        rows = [
            np.pad(array, [(0, 700 - num_rows)] + [(0, 0)] * (array.ndim - 1)) for array in rows
        ]
        sums, label_sums = summary(*map(ops.convert_to_tensor, rows))
        root = np.clip(brentq(slope, 1e-3, 1e3, xtol=1e-13), 1 / 16, 16)
        cases.append([ops.convert_to_numpy(sums)[0], *ops.convert_to_numpy(label_sums)[0], root])
    return [np.array(column) for column in zip(*cases, strict=True)]


@pytest.mark.parametrize("wrap", [lambda function: function, compiled], ids=["plain", "compiled"])
def test_newton_steps_end_at_the_root(summaries, wrap):
    """Also where a step of zero is rounded to either side: the bracket's end is then the root."""
    sums, weights, label_logits, roots = summaries
    received = wrap(best_inverse_temperature)(
        *(ops.convert_to_tensor(values) for values in (sums, label_logits, weights))
    )
    rtol = 1e-6 if ON_TENSORFLOW else 1e-3
    np.testing.assert_allclose(ops.convert_to_numpy(received), roots, rtol)


def test_labels_that_do_not_add_up_to_1_count_by_their_sum():
    """As in Keras' own categorical cross-entropy."""
    generator = np.random.default_rng(0)
    logits, weights = generator.normal(size=(50, 3)), generator.uniform(0.5, 2, 50)
    labels = generator.dirichlet(np.ones(3), 50) * generator.uniform(0.9, 1.1, (50, 1))
    expected = np.sum(weights * (labels.sum(axis=1) * logsumexp(logits, axis=1)))
    expected -= np.sum(weights[:, None] * labels * logits)
    rows = (labels, logits, weights, np.zeros(50, "int32"))
    sums, label_sums = temperature_summary(*map(ops.convert_to_tensor, rows), 1)
    received = log_partition_sum(sums, ops.ones_like(sums[:, 0, 0])) - label_sums[:, 1]
    np.testing.assert_allclose(ops.convert_to_numpy(received), [expected], rtol=1e-6)
