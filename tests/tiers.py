"""Which of a test's parameters `./dev test` runs, and which only `./dev test --all`."""

import os

import pytest

# `./dev attack` runs the tests of `tests/attacks` at full length.
FULL_ATTACK = os.environ.get("KERAS_CALIBRATION_ATTACK") == "full"
only_in_full_attack = pytest.mark.skipif(not FULL_ATTACK, reason="Takes long: ./dev attack.")


def attack_size(short, full):
    """Tries, or rows, of an attack: few in `./dev test --all`, many in `./dev attack`."""
    return full if FULL_ATTACK else short


def slow_except(quick, values):
    """The values of a parametrized test, marked `slow` but for the quick ones."""
    return [
        value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]
