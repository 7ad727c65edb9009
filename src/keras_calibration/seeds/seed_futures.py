"""Seeds that are trained elsewhere, each as a future; a seed that fails is tried again."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

# How often a seed that fails, or whose process dies, is tried again.
_NUM_RETRIES = 1


def train_by_futures(
    submit: Callable[[int], Future[None]],
    seeds: Sequence[int],
    num_parallel: int,
    on_end: Callable[[], None],
) -> None:
    """Trains seeds, so many at once; raises RuntimeError if one fails too often."""
    waiting = collections.deque(seeds)
    running: dict[Future[None], int] = {}
    num_failures: collections.Counter[int] = collections.Counter()
    while waiting or running:
        while waiting and len(running) < num_parallel:
            seed = waiting.popleft()
            running[submit(seed)] = seed
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            seed, error = running.pop(future), future.exception()
            if error is None:
                on_end()
                continue
            num_failures[seed] += 1
            if num_failures[seed] > _NUM_RETRIES:
                raise RuntimeError(
                    f"Seed {seed} failed:\n{error}\nThe seeds that have ended are in the ledger. "
                    "Call seeds.train again to train the others."
                ) from error
            waiting.append(seed)
