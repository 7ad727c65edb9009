"""What the tests of exports share."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    """Exports of unfitted heads are no mistake here, but for the tests that say so."""
    quiet = pytest.mark.filterwarnings("ignore:The head .* changes no probability:UserWarning")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(quiet, append=False)
