"""Which of a test's parameters `./dev test` runs, and which only `./dev test --all`."""

import pytest


def slow_except(quick, values):
    """The values of a parametrized test, marked `slow` but for the quick ones."""
    return [
        value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]
