from concurrent.futures import Future

import pytest

from keras_calibration.seeds.seed_futures import train_by_futures


def submit_to(started, errors):
    """Each seed ends at once, with the next of its errors."""

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
    train_by_futures(submit_to(started, errors), [3, 1, 2], 1, lambda: ended.append(started[-1]))
    assert started == [3, 1, 2, 3]
    assert ended == [1, 2, 3]


def test_too_many_failures_of_one_seed_are_raised_with_the_last_error():
    started, ended = [], []
    errors = {1: [OSError("first")], 2: [OSError("first"), OSError("second")]}
    with pytest.raises(RuntimeError, match=r"Seed 2 failed:\nsecond\n.*in the ledger"):
        train_by_futures(submit_to(started, errors), [1, 2], 1, lambda: ended.append(started[-1]))
    assert ended == [1]


def test_no_more_seeds_than_asked_for_run_at_once():
    futures = {}

    def submit(seed):
        assert sum(not future.done() for future in futures.values()) < 2
        futures[seed] = Future()
        if len(futures) > 1:  # both places are busy
            futures[seed].set_result(None)
        return futures[seed]

    ended = iter((2, 3))
    train_by_futures(submit, [1, 2, 3], 2, lambda: next(ended, 0) == 3 and futures[1].set_result(0))
    assert list(futures) == [1, 2, 3]
