"""NeuralFitSummary: the figures of the direct fit of a Neural Calibration head."""

from dataclasses import dataclass, field

import numpy as np

from keras_calibration.layers.fit_summary import FitSummary


@dataclass(frozen=True)
class NeuralFitSummary(FitSummary):
    """The figures of a Neural Calibration `fit`: a `FitSummary` and the cross-fitted results.

    `num_iterations` counts the epochs of all folds. The cross-fitted log losses are computed on
    rows to which neither η nor the network was fitted: that of one network, of which the head keeps
    one per member. It is slightly optimistic, because each fold chose its own best epoch. Both are
    NaN if no network was tried.

    Args:
        cross_fitted_curve: Cross-fitted log loss of η alone.
        cross_fitted_both: Cross-fitted log loss of η + g.
        standard_error: Standard error of the difference between the two.
        epochs: The best epoch of each fold.
        network_kept: Whether g was kept; otherwise it is 0.
        cross_fitted_logits: Cross-fitted `η + g` of each row, (n,) or (n, K); empty if no network
            was tried.

    Example:
        >>> print(NeuralFitSummary(900, 0.31, 0.28, 9, True, 0.3, 0.29, 0.002, (2, 3, 4), True))
        900 rows: log loss 0.310000 before, 0.280000 after (-0.030000); converged in 9 steps;
        cross-fitted log loss 0.300000 without and 0.290000 with the network (-0.010000 ± 0.002000):
        kept
    """

    cross_fitted_curve: float = float("nan")
    cross_fitted_both: float = float("nan")
    standard_error: float = float("nan")
    epochs: tuple[int, ...] = ()
    network_kept: bool = False
    cross_fitted_logits: np.ndarray = field(
        default_factory=lambda: np.empty(0), repr=False, compare=False
    )

    def __str__(self) -> str:
        if not self.epochs:
            return super().__str__()
        gain = self.cross_fitted_both - self.cross_fitted_curve
        return (
            f"{super().__str__()}; cross-fitted log loss {self.cross_fitted_curve:.6f} without and "
            f"{self.cross_fitted_both:.6f} with the network ({gain:+.6f} ± "
            f"{self.standard_error:.6f}): {'kept' if self.network_kept else 'left out'}"
        )
