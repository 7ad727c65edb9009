"""The covariance of fitted parameters in the Laplace approximation, as a factor."""

import numpy as np

# Parameters with less information than this get the standard deviation 1e12. For an interval, this
# is as good as infinite; its square is within the range of float32.
_SMALLEST_INFORMATION = 1e-24
# Smallest eigenvalue of a Hessian scaled to a unit diagonal. Smaller ones are rounding errors.
_SMALLEST_EIGENVALUE = 1e-14


def covariance_factor(hessian: np.ndarray, free: np.ndarray | None = None) -> np.ndarray:
    """F with `F Fᵀ = H⁻¹` for the free parameters, and rows of zeros for the others; (p, p).

    In the Laplace approximation, the posterior of the parameters is normal with mean at the optimum
    and the inverse Hessian H⁻¹ of the penalised log loss as covariance, where H is in units of
    summed log likelihood: a sample weight of 2 counts as two rows. A linear function `xᵀθ` has the
    standard deviation `|xᵀF|`, which cannot be negative by rounding. F also needs fewer digits than
    `F Fᵀ`: float32 is enough.

    Example:
        >>> factor = covariance_factor(np.array([[4.0, 0.0], [0.0, 25.0]]))
        >>> bool((factor >= 0).all())
        True
        >>> factor @ factor.T
        array([[0.25, 0.  ],
               [0.  , 0.04]])

    Reference:
        MacKay (1992), *A Practical Bayesian Framework for Backpropagation Networks*, section 2.
    """
    places = np.arange(len(hessian)) if free is None else np.flatnonzero(free)
    factor = np.zeros_like(hessian)
    if len(places):
        matrix = hessian[np.ix_(places, places)]
        # Scaling to a unit diagonal keeps the digits of parameters that differ by orders of
        # magnitude. With `D H D = V Λ Vᵀ` for the scale D, the factor is `F = D V Λ^(-½)`.
        scale = 1 / np.sqrt(np.maximum(np.diag(matrix), _SMALLEST_INFORMATION))
        eigenvalues, directions = np.linalg.eigh(matrix * scale[:, None] * scale)
        # Rounding decides the sign of a direction. The first of its large entries is made positive,
        # so that equal fits have equal weights.
        large = np.abs(directions) > np.abs(directions).max(axis=0) / 2
        directions *= np.sign(np.take_along_axis(directions, large.argmax(axis=0)[None], axis=0))
        root = np.sqrt(np.maximum(eigenvalues, _SMALLEST_EIGENVALUE))
        factor[np.ix_(places, places)] = scale[:, None] * directions / root
    return factor
