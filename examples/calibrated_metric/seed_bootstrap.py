"""Accuracies of single runs, and how they vary when the seeds are drawn again."""

import numpy as np
from numpy.typing import NDArray

NUM_DRAWS = 4000


def bootstrap_draws(num_seeds: int) -> NDArray[np.int64]:
    """How often each seed is drawn, `(num_draws, num_seeds)`; the first row is the sample."""
    generator = np.random.default_rng(0)
    draws = generator.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), NUM_DRAWS)
    # One seed alone has no other to be compared with.
    draws = draws[(draws > 0).sum(axis=1) > 1]
    return np.concatenate([np.ones((1, num_seeds), np.int64), draws])


def pairwise_wins(better: NDArray[np.float64], worse: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 where run i of `better` is below run j of `worse`, ties ½: `(num_seeds, num_seeds)`."""
    gap = worse[None, :] - better[:, None]
    return (gap > 0) + 0.5 * (gap == 0)


def accuracies(
    wins: NDArray[np.float64], draws: NDArray[np.int64], same: bool = False
) -> NDArray[np.float64]:
    """Share of the pairs of runs that are won, for each row of `draws`.

    Args:
        wins: Result of `pairwise_wins`, or a mean of several.
        draws: How often each seed is drawn, `(num_draws, num_seeds)`.
        same: Whether only runs of one seed, which share their order, are compared; otherwise they
            never are, not even a seed that is drawn twice.
    """
    own = np.diag(wins)
    if same:
        return (draws @ own) / draws.sum(axis=1)
    total = np.einsum("ti,ij,tj->t", draws, wins, draws, optimize=True) - (draws**2) @ own
    return total / (draws.sum(axis=1) ** 2 - (draws**2).sum(axis=1))
