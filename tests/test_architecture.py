"""The rooms of the package: who may import whom, and no circle between modules."""

import ast
import graphlib
from pathlib import Path

import pytest

import keras_calibration

ROOT = Path(keras_calibration.__file__).parent
PACKAGE = "keras_calibration"

# What every room may import.
EVERYWHERE = {
    "_files",
    "_limits",
    "_logit_bins",
    "_predictions",
    "_seeds",
    "_text",
    "_typing",
    "_warn",
}
# Each room with the other rooms that its modules may import, when they are loaded or later.
CALIBRATION = {
    "_columns": set(),
    "_rows": {"_columns", "_keras", "_ops"},
    "_keras": set(),
    "_files": set(),
    "_limits": set(),
    "_logit_bins": set(),
    "_predictions": set(),
    "_seeds": set(),
    "_text": set(),
    "_typing": set(),
    "_warn": set(),
    "_ops": {"_keras"},
    "_solvers": {"_columns", "_rows", "_keras", "_ops"},
    "layers": {"_columns", "_rows", "_keras", "_ops", "_solvers"},
    "metrics": {"_columns", "_rows", "_keras", "_ops", "_solvers"},
    "_graph": {"_columns", "_rows", "_keras", "_ops", "layers"},
    "models": {"_graph", "_columns", "_rows", "_keras", "_ops", "_solvers", "layers", "metrics"},
    "logs": {"_columns"},
    "scoring": {"_columns", "_rows", "_keras", "_ops", "_solvers", "metrics", "logs"},
    "datasets": {"_ops"},
    "calibration": {
        *(
            "_columns",
            "_rows",
            "_keras",
            "_ops",
            "_solvers",
            "layers",
            "metrics",
            "_graph",
            "models",
            "scoring",
        ),
        "logs",
    },
    "export": {
        *(
            "_columns",
            "_rows",
            "_keras",
            "_ops",
            "_solvers",
            "layers",
            "metrics",
            "_graph",
            "models",
            "scoring",
        ),
        *("calibration",),
    },
    "plots": {
        "_columns",
        "_rows",
        "_keras",
        "_ops",
        "_solvers",
        "layers",
        "metrics",
        "_graph",
        "models",
        "scoring",
    },
    "sklearn": {"_columns", "_rows", "calibration"},
}
EVIDENCE = {
    "ledger": {"_keras"},
    "statistics": set(),
    "comparison": {"ledger", "statistics"},
    "callbacks": {"ledger", "statistics", "metrics", "_ops", "_keras"},
    "monitoring": {"_solvers", "logs"},
    "training": {"_keras", "_ops", "ledger", "statistics", "comparison", "callbacks"},
}
TOP = {
    "rendering": {"ledger", "statistics", "comparison", "monitoring"},
    "seeds": {"ledger", "statistics", "comparison", "rendering", "training"},
    "monitor_command": {"logs", "monitoring", "rendering"},
    "cli": {
        *("ledger", "statistics", "comparison", "monitoring", "rendering"),
        "monitor_command",
    },
}
ALLOWED = CALIBRATION | EVIDENCE | TOP
# Imports inside of functions that are against the order, with the reason why they are needed.
LATE = {
    ("export.provenance", ""): "the version, which is written in the package itself",
}
# What these say is read, compared and printed by the command line, which does not wait for Keras.
WITHOUT_KERAS = (
    *(
        "_keras",
        "_files",
        "_text",
        "_typing",
        "_warn",
        "ledger",
        "statistics",
        "comparison",
        "rendering",
        "cli",
    ),
)


def statements(tree, late):
    """All statements that run when a module is loaded; if `late`, those of its functions too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not late:
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from statements(node, late)


def imported_names(text, late=True):
    """Full dotted names of what a module imports; those inside of functions only if `late`."""
    for node in statements(ast.parse(text), late):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_name(path):
    parts = [PACKAGE, *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def module_of(name):
    """The module that an imported name is in; `None` outside of the package."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


TEXTS = {module: path.read_text(encoding="utf-8") for module, path in MODULES.items()}
EXCEPTIONS = {tuple(f"{PACKAGE}.{name}".rstrip(".") for name in pair) for pair in LATE}
IMPORTS = {
    module: {found for name in imported_names(text) if (found := module_of(name))}
    for module, text in TEXTS.items()
}
GRAPH = {
    module: {other for other in imported if (module, other) not in EXCEPTIONS}
    for module, imported in IMPORTS.items()
}


def room_of(module):
    return module.split(".")[1] if "." in module else ""


def test_the_graph_is_not_empty():
    assert f"{PACKAGE}.ledger.run_record" in GRAPH[f"{PACKAGE}.ledger.ledger"]
    assert sum(map(len, GRAPH.values())) > 300


def test_imports_inside_of_functions_count():
    text = "import ast\nif TYPE_CHECKING:\n    import csv\ndef f():\n    from json import load\n"
    assert list(imported_names(text)) == ["ast", "json.load"]
    assert list(imported_names(text, late=False)) == ["ast"]


def test_every_exception_is_needed():
    assert {(module, other) for module in IMPORTS for other in IMPORTS[module]} >= EXCEPTIONS


def test_no_circle_between_modules():
    # The package itself imports the rooms, and no module imports it back.
    assert [module for module, imported in GRAPH.items() if PACKAGE in imported] == []
    graphlib.TopologicalSorter(GRAPH).prepare()


@pytest.mark.parametrize("room", sorted({room_of(module) for module in MODULES} - {""}))
def test_a_room_imports_only_rooms_below_it(room):
    assert room in ALLOWED, "list the new room with what it may import"
    wrong = {
        f"{module} imports {other}"
        for module, imported in GRAPH.items()
        if room_of(module) == room
        for other in imported
        if room_of(other) not in {room, *EVERYWHERE, *ALLOWED[room]}
    }
    assert wrong == set()


def test_the_allowed_order_has_no_circle():
    graphlib.TopologicalSorter(ALLOWED).prepare()


def test_evidence_without_keras():
    heavy = ("keras", "tensorflow", "tensorflow_probability", "jax")
    wrong = {
        f"{module} imports {name}"
        for module, text in TEXTS.items()
        if room_of(module) in WITHOUT_KERAS
        for name in imported_names(text, late=False)
        if name.split(".")[0] in heavy
    }
    assert wrong == set()
