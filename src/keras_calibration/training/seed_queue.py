"""The seeds of a sweep that wait, and how often each has failed."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence


class SeedQueue:
    """Hands out seeds to processes, and those that failed again.

    Args:
        seeds: The seeds.
        num_retries: How often a seed that fails, or whose process dies, is tried again.
        on_end: Called with each seed that has ended; returns whether to start no more seeds.
    """

    def __init__(
        self, seeds: Sequence[int], num_retries: int, on_end: Callable[[int], bool]
    ) -> None:
        self._waiting = collections.deque(seeds)
        self._num_retries, self._on_end = num_retries, on_end
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
        if self._num_failures[seed] > self._num_retries:
            raise RuntimeError(
                f"Seed {seed} failed:\n{error}\nThe seeds that have ended are in the ledger. Call "
                "seeds.train again to train the others."
            )
        self._waiting.append(seed)
