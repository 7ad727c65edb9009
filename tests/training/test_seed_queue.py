import pytest

from keras_calibration.training.seed_queue import SeedQueue


def test_a_failed_seed_waits_again_behind_the_others():
    ended = []
    queue = SeedQueue([3, 1, 2], lambda seed: ended.append(seed))
    assert queue.take() == 3
    queue.ended(3, "out of memory")
    assert [queue.take() for _ in range(len(queue))] == [1, 2, 3]
    queue.ended(3, None)
    assert ended == [3]
    assert not queue


def test_too_many_failures_of_one_seed_are_raised_with_the_last_error():
    queue = SeedQueue([1, 2], lambda seed: False)
    for seed in (queue.take(), queue.take()):
        queue.ended(seed, "first")
    assert len(queue) == 2
    with pytest.raises(RuntimeError, match=r"Seed 2 failed:\nsecond\n.*in the ledger"):
        queue.ended(2, "second")


def test_no_more_seeds_once_it_is_decided():
    queue = SeedQueue([1, 2, 3], lambda seed: seed == 2)
    queue.ended(queue.take(), None)
    assert len(queue) == 2
    queue.ended(queue.take(), None)
    assert len(queue) == 0
