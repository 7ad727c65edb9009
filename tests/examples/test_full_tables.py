"""F1′, F3 and S1: the errors of fields against the package, and the means over tables."""

import full_tables
import numpy as np
import pytest
from tables_markdown import Group

from keras_calibration.scoring import field_ece, field_rce


def test_errors_of_fields_are_those_of_the_package():
    rng = np.random.default_rng(0)
    values = rng.choice([2, 5, 9], 3000).astype(np.int32)
    probabilities = rng.uniform(0.1, 0.4, 3000)
    labels = (rng.random(3000) < probabilities + 0.05 * (values == 5)).astype(np.float32)
    errors = full_tables.field_errors(labels, probabilities, {"site": values})
    by_field = (labels, probabilities, values)
    assert errors["field_ece of site"] == pytest.approx(field_ece(*by_field), abs=1e-7)
    assert errors["field_rce of site"] == pytest.approx(
        field_rce(*by_field, epsilon=0.01), abs=1e-6
    )
    assert 0 < errors["floor of field_ece of site"] < errors["field_ece of site"]


def test_the_square_is_unbiased():
    rng = np.random.default_rng(1)
    values = rng.integers(0, 20, 2000).astype(np.int32)
    probabilities = rng.uniform(0.1, 0.4, 2000)
    truth = probabilities + np.where(values < 10, 0.05, -0.02)
    squares = [
        full_tables.field_errors(
            (rng.random(2000) < truth).astype(np.float32), probabilities, {"site": values}
        )["square of site"]
        for _ in range(300)
    ]
    expected = np.mean((truth - probabilities) ** 2)
    error = np.std(squares, ddof=1) / np.sqrt(len(squares))
    # The noise is that of the probabilities, not of the truth: a small bias remains.
    noise = np.mean(truth * (1 - truth) - probabilities * (1 - probabilities)) / 100
    assert np.mean(squares) == pytest.approx(expected + noise, abs=4 * error)


def test_fields_at_the_floor_are_left_out():
    def runs(**errors):
        names = {"a": errors["a"], "b": errors["b"]}
        field_errors = {f"field_ece of {name}": value for name, value in names.items()}
        return {0: field_errors | {f"floor of field_ece of {name}": 0.1 for name in names}}

    group = Group({}, {"fields": ["a", "b"]}, {"N": runs(a=0.3, b=0.05), "M": runs(a=0.5, b=0.4)})
    errors = full_tables.ERRORS
    (ratio,) = full_tables.log_ratios(
        {"t": group}, "N", "M", errors["Field-ECE less the floor"]
    ).values()
    assert ratio == pytest.approx(np.log(0.2 / 0.4))
    (ratio,) = full_tables.log_ratios({"t": group}, "N", "M", errors["Field-ECE"]).values()
    assert ratio == pytest.approx(np.log(0.3 / 0.5) / 2 + np.log(0.05 / 0.4) / 2)
