"""Systems of the effects, against NumPy's general solvers."""

import numpy as np
import pytest

from keras_calibration._solvers.effects import _invert, solve_blocks


def positive_definite(num_blocks, size, scale):
    """Matrices whose rows and columns may differ by many orders of magnitude."""
    generator = np.random.default_rng(size)
    rows = generator.normal(size=(num_blocks, 3 * size, size))
    units = scale ** generator.uniform(-1, 1, size)
    return np.einsum("bni,bnj->bij", rows, rows) * units[:, None] * units


@pytest.mark.parametrize(("num_blocks", "size"), [(1, 1), (5, 1), (1, 40), (6, 4)])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_solutions_are_those_of_the_general_solver(num_blocks, size, scale):
    matrices = positive_definite(num_blocks, size, scale)
    kept = matrices.copy()
    truth = np.random.default_rng(0).normal(size=(num_blocks, size, 3))
    solution = solve_blocks(matrices, matrices @ truth)
    np.testing.assert_allclose(solution, truth, rtol=1e-7, atol=1e-7)
    np.testing.assert_array_equal(matrices, kept)  # the caller keeps its Hessians


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_an_inverse_is_symmetric_and_leaves_its_matrix(scale):
    (matrix,) = positive_definite(1, 40, scale)
    kept, inverse = matrix.copy(), _invert(matrix)
    units = np.sqrt(np.diag(matrix))
    np.testing.assert_allclose(
        inverse * units * units[:, None], np.linalg.inv(matrix) * units * units[:, None], atol=1e-9
    )
    np.testing.assert_array_equal(inverse, inverse.T)
    np.testing.assert_array_equal(matrix, kept)


def test_a_matrix_that_rounding_makes_indefinite_is_solved_too():
    matrix = np.array([[1.0, 2.0], [2.0, 1.0]])
    np.testing.assert_allclose(_invert(matrix), np.linalg.inv(matrix))
    right = np.array([[1.0], [0.0]])
    np.testing.assert_allclose(
        solve_blocks(matrix[None], right[None])[0], np.linalg.solve(matrix, right)
    )
    np.testing.assert_array_equal(matrix, [[1.0, 2.0], [2.0, 1.0]])
