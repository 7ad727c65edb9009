"""Which fields divide the rows alike, against a comparison of all pairs of rows."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_calibration._solvers.coinciding_fields import shared_effects


def divides_alike(one, other, num_values, num_others):
    """Whether the same rows have the same value, and the same rows are "other"."""
    return all(
        (one[i] == one[j]) == (other[i] == other[j])
        for i, j in itertools.product(range(len(one)), repeat=2)
    ) and np.array_equal(one == num_values, other == num_others)


@settings(max_examples=60)
@given(st.data())
def test_against_all_pairs_of_rows(data):
    num_rows = data.draw(st.integers(1, 8))
    num_values = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    places = [
        np.array(data.draw(st.lists(st.integers(0, n), min_size=num_rows, max_size=num_rows)))
        for n in num_values
    ]
    weights = np.array(
        data.draw(st.lists(st.sampled_from([0.0, 2.0]), min_size=num_rows, max_size=num_rows))
    )
    end = data.draw(st.integers(0, num_rows))
    slices = [slice(end), slice(end, None)]
    blocks, parts = [[each[s] for each in places] for s in slices], [weights[s] for s in slices]
    used = [each[weights > 0] for each in places]
    for field, shared in enumerate(shared_effects(blocks, num_values, parts)):
        alike = [
            other
            for other in range(len(places))
            if divides_alike(used[field], used[other], num_values[field], num_values[other])
        ]
        assert (shared.leader, shared.size) == (alike[0], len(alike))
        renamed = dict(zip(shared.kept, shared.places, strict=True))
        leader = used[shared.leader]
        for value, own in zip(leader, used[field], strict=True):
            assert value == num_values[shared.leader] or renamed[value] == own


def test_fields_that_differ_late_are_told_apart():
    site = np.arange(5000) % 7
    page = (site + 3) % 7
    assert [each.leader for each in shared_effects([[site, page]], [7, 7], [None])] == [0, 0]
    page[-1] = (page[-1] + 1) % 7
    assert [each.leader for each in shared_effects([[site, page]], [7, 7], [None])] == [0, 1]
