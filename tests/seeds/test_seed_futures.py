from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import pytest

from keras_calibration.seeds.seed_futures import train_by_futures


def place(started, errors):
    """A place where each seed ends at once, with the next of its errors."""

    def submit(seed):
        started.append(seed)
        future = Future()
        error = errors[seed].pop(0) if errors.get(seed) else None
        future.set_result(None) if error is None else future.set_exception(error)
        return future

    return submit


def test_a_failed_seed_waits_again_behind_the_others():
    started, ended = [], []
    errors = {3: [MemoryError("out of memory")]}
    train_by_futures([place(started, errors)], [3, 1, 2], lambda seed: ended.append(seed))
    assert started == [3, 1, 2, 3]
    assert ended == [1, 2, 3]


def test_too_many_failures_of_one_seed_are_raised_with_the_last_error():
    started, ended = [], []
    errors = {1: [OSError("first")], 2: [OSError("first"), OSError("second")]}
    with pytest.raises(RuntimeError, match=r"Seed 2 failed:\nsecond\n.*in the ledger"):
        train_by_futures([place(started, errors)], [1, 2], lambda seed: ended.append(seed))
    assert ended == [1]


def test_a_process_that_dies_is_told_from_an_error():
    errors = {1: [BrokenProcessPool("terminated abruptly")] * 2}
    with pytest.raises(RuntimeError, match=r"Its process died.*memory ran out"):
        train_by_futures([place([], errors)], [1], lambda seed: False)


def test_no_more_seeds_once_it_is_decided():
    started = []
    train_by_futures([place(started, {})], [1, 2, 3], lambda seed: seed == 2)
    assert started == [1, 2]


def test_each_place_has_one_seed_at_a_time():
    futures = {}

    def submit(seed):
        futures[seed] = Future()
        if len(futures) == 2:  # both places are busy
            futures[2].set_result(None)
        elif len(futures) > 2:
            futures[seed].set_result(None)
        return futures[seed]

    def on_end(seed):
        if seed == 3:
            futures[1].set_result(None)

    train_by_futures([submit] * 2, [1, 2, 3], on_end)
    assert list(futures) == [1, 2, 3]
