"""Each mutant finds its line in `src`, and its test files: mutants follow the code."""

import pytest

from mutants.mutants import MUTANTS, ROOT, files_of, place_of


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.line[:40])
def test_applies(mutant):
    assert place_of(mutant, ROOT / "src").is_file()
    assert files_of(mutant.tests)
