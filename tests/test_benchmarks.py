"""The programs in benchmarks/ import what is there; they are not run by the tests."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.tensorflow
def test_the_names_that_benchmarks_import_are_there():
    imports = [
        (path.name, node.module, name.name)
        for path in PROGRAMS
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(("keras_calibration", "calibration_records"))
        for name in node.names
    ]
    assert len(imports) > 40
    missing = [
        imported
        for imported in imports
        if not hasattr(importlib.import_module(imported[1]), imported[2])
        and importlib.util.find_spec(f"{imported[1]}.{imported[2]}") is None
    ]
    assert missing == []
