"""Variance components of the loss: seeds, rows, and their interaction."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_calibration.statistics.estimate import Estimate, check_confidence, t_estimate


class VarianceComponents(NamedTuple):
    """The variance of the loss of one row under one seed, by source.

    l_si = μ + a_s + b_i + e_si, with effects of seeds a, rows b, and their interaction e.

    Args:
        seeds: Variance of a_s, which a larger held-out set does not reduce.
        interaction: Variance of e_si.
        rows: Variance of b_i.
        num_rows: Number of held-out rows, n.

    Example:
        >>> parts = VarianceComponents(seeds=1e-8, interaction=3e-3, rows=0.4, num_rows=100_000)
        >>> parts.interaction / parts.num_rows  # contribution to the loss of a run
        3e-08
    """

    seeds: float
    interaction: float
    rows: float
    num_rows: int

    @property
    def of_a_run(self) -> float:
        """Variance over seeds of the mean loss on this held-out set: s_a² + s_e²/n."""
        return self.seeds + self.interaction / self.num_rows


def variance_components(losses: NDArray[np.floating]) -> VarianceComponents:
    """Splits row losses into the variances of seeds, rows and their interaction.

    Two-way analysis of variance: s_e² = MS_residual, s_a² = max(0, (MS_seeds − MS_residual)/n),
    s_b² = max(0, (MS_rows − MS_residual)/m).

    Args:
        losses: Loss of each row under each seed, `(num_seeds, num_rows)`, at least 2 by 2, with
            the same rows for all seeds.

    Raises:
        ValueError: Another shape, or losses that are not finite.

    Example:
        >>> seeds = np.array([[0.0], [0.2], [0.1]])
        >>> parts = variance_components(seeds + np.array([1.0, 3.0, 2.0, 6.0]))
        >>> round(parts.seeds, 4), abs(round(parts.interaction, 4))
        (0.01, 0.0)

    Reference:
        Searle, Casella, McCulloch, *Variance Components*, section 4.3; Jordan (2023), arXiv
        2304.01910, for accuracy.
    """
    losses = _check_losses("losses", losses)
    num_seeds, num_rows = losses.shape
    by_row = losses.mean(axis=0, dtype=np.float64)
    mean = by_row.mean()
    row_effects = by_row - mean
    seed_effects = np.empty(num_seeds)
    residual = 0.0
    for seed, row_losses in enumerate(losses):
        deviation = row_losses - by_row
        seed_effects[seed] = deviation.mean()
        residual += float(np.sum((deviation - seed_effects[seed]) ** 2))
    interaction = residual / ((num_seeds - 1) * (num_rows - 1))
    of_seeds = float(num_rows * np.sum(seed_effects**2)) / (num_seeds - 1)
    of_rows = float(num_seeds * np.sum(row_effects**2)) / (num_rows - 1)
    return VarianceComponents(
        seeds=max(0.0, (of_seeds - interaction) / num_rows),
        interaction=interaction,
        rows=max(0.0, (of_rows - interaction) / num_seeds),
        num_rows=num_rows,
    )


def difference_on_new_rows(
    losses_a: NDArray[np.floating], losses_b: NDArray[np.floating], *, confidence: float = 0.95
) -> Estimate:
    """The mean loss of B minus that of A, with an interval for new seeds and new rows.

    SE² = s_aA²/m_A + s_aB²/m_B + var_i(d̄_i)/n, where d̄_i is the difference of the mean losses of
    row i. Differences are taken row by row, which removes most of the variance between rows.

    Args:
        losses_a: Loss of each row under each seed of A, `(num_seeds_a, num_rows)`, at least 2
            seeds.
        losses_b: Loss of the same rows under each seed of B, `(num_seeds_b, num_rows)`.
        confidence: Coverage of the interval, in (0, 1).

    Raises:
        ValueError: Different numbers of rows, another shape, or losses that are not finite.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> rows = rng.exponential(1.0, 500)
        >>> estimate = difference_on_new_rows(
        ...     rows + rng.normal(0, 0.1, (4, 500)), rows - 0.5 + rng.normal(0, 0.1, (4, 500)))
        >>> estimate.excludes(0.0)
        True

    Reference:
        Owen (2007), *The pigeonhole bootstrap*, on two random factors; arXiv 2512.21326.
    """
    check_confidence(confidence)
    losses_a, losses_b = _check_losses("losses_a", losses_a), _check_losses("losses_b", losses_b)
    if losses_a.shape[1] != losses_b.shape[1]:
        raise ValueError(
            "Arguments `losses_a` and `losses_b` must have the same rows in the same order. "
            f"Received: {losses_a.shape[1]} and {losses_b.shape[1]} rows."
        )
    by_row = losses_b.mean(axis=0, dtype=np.float64) - losses_a.mean(axis=0, dtype=np.float64)
    sizes = np.array([len(losses_a), len(losses_b), by_row.size])
    parts = np.array(
        [variance_components(losses).seeds for losses in (losses_a, losses_b)]
        + [by_row.var(ddof=1)]
    )
    parts = parts / sizes
    total = float(parts.sum())
    degrees = total**2 / float(np.sum(parts**2 / (sizes - 1))) if total > 0 else np.inf
    num_runs = int(sizes[:2].min())
    return t_estimate(float(by_row.mean()), np.sqrt(total), degrees, confidence, num_runs)


def _check_losses(name: str, losses: NDArray[np.floating]) -> NDArray[np.floating]:
    losses = np.asarray(losses)
    if losses.ndim != 2 or min(losses.shape) < 2:
        raise ValueError(
            f"Argument `{name}` must have shape (num_seeds, num_rows), with at least two of each. "
            f"Received: {name}.shape={losses.shape}."
        )
    if not np.isfinite(losses).all():
        raise ValueError(
            f"Argument `{name}` must be finite. Received: {np.sum(~np.isfinite(losses))} losses "
            "that are not. Leave out diverged seeds, and clip probabilities of 0 and 1."
        )
    return losses
