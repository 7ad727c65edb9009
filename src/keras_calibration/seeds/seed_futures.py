"""Seeds that are trained elsewhere, each as a future; a seed that fails is tried again."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool

# How often a seed that fails, or whose process dies, is tried again.
_NUM_RETRIES = 1


@contextlib.contextmanager
def sent_to_processes(engine: str) -> Iterator[None]:
    """Says what cannot be sent to other processes, if the block fails to send it."""
    try:
        yield
    except Exception as error:  # Whatever an object of the user raises.
        raise ValueError(
            "Arguments `build_model` and `callbacks` must be functions that can be sent to other "
            f"processes with engine={engine!r}. Received: {error}. Create what cannot be sent, "
            "such as a lock or an open file, inside of the function."
        ) from error


def train_by_futures(
    places: Sequence[Callable[[int], Future[None]]],
    seeds: Sequence[int],
    on_end: Callable[[int], bool],
) -> None:
    """Trains seeds at several places, one after the other at each.

    Args:
        places: Functions that start to train a seed.
        seeds: The seeds.
        on_end: Called with each seed that has ended; returns whether to start no more seeds.

    Raises:
        RuntimeError: A seed failed too often.
    """
    waiting, idle = collections.deque(seeds), list(places)
    running: dict[Future[None], tuple[int, Callable[[int], Future[None]]]] = {}
    num_failures: collections.Counter[int] = collections.Counter()
    while waiting or running:
        while waiting and idle:
            seed, place = waiting.popleft(), idle.pop()
            running[place(seed)] = seed, place
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            seed, place = running.pop(future)
            idle.append(place)
            error = future.exception()
            if error is None:
                if on_end(seed):
                    waiting.clear()
                continue
            num_failures[seed] += 1
            if num_failures[seed] > _NUM_RETRIES:
                raise RuntimeError(
                    f"Seed {seed} failed:\n{_message(error)}\nThe seeds that have ended are in the "
                    "ledger. Call seeds.train again to train the others."
                ) from error
            waiting.append(seed)


def _message(error: BaseException) -> str:
    if isinstance(error, BrokenProcessPool):
        return (
            "Its process died: it was killed, for example because memory ran out, or it crashed; "
            "an error of its own is above."
        )
    return str(error)
