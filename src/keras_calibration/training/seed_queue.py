"""The seeds of a sweep that wait, and how often each has failed."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence

# How often a seed that fails, or whose process dies, is tried again.
_NUM_RETRIES = 1


class SeedQueue:
    """Hands out seeds to processes, and those that failed again.

    Args:
        seeds: The seeds.
        on_end: Called with each seed that has ended; returns whether to start no more seeds.
    """

    def __init__(self, seeds: Sequence[int], on_end: Callable[[int], bool]) -> None:
        self._waiting = collections.deque(seeds)
        self._on_end = on_end
        self._num_failures: collections.Counter[int] = collections.Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self) -> int:
        """The next seed."""
        return self._waiting.popleft()

    def ended(self, seed: int, error: str | None) -> None:
        """Notes that a seed has ended or failed; raises a `RuntimeError` if it failed too often."""
        if error is None:
            if self._on_end(seed):
                self._waiting.clear()
            return
        self._num_failures[seed] += 1
        if self._num_failures[seed] > _NUM_RETRIES:
            raise RuntimeError(
                f"Seed {seed} failed:\n{error}\nThe seeds that have ended are in the ledger. Call "
                "seeds.train again to train the others."
            )
        self._waiting.append(seed)
