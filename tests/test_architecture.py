"""The rooms of both packages: who may import whom, and no circle between modules."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import keras_calibration

SRC = Path(keras_calibration.__file__).parents[1]
PACKAGES = ("keras_calibration", "calibration_records")

# Modules that every room may import: they import nothing but each other.
EVERYWHERE = {
    *("_check", "_columns", "_display", "_figures", "_files", "_limits", "_logit_bins"),
    *("_logit_moments", "_predictions", "_progress", "_seeds", "_text", "_times", "_typing"),
    "_warn",
}
# Each room with the other rooms of its package that its modules may import, when they are loaded
# or later. Rooms of `keras_calibration` may import all of `calibration_records`, which imports
# nothing of `keras_calibration`.
UNDER_THE_FLOOR = {"_keras", "_ops", "_rows", "_solvers"}
KERAS_CALIBRATION = {
    "_keras": set(),
    "_ops": {"_keras"},
    "_rows": {"_ops"},
    "_solvers": {"_ops", "_rows"},
    "layers": UNDER_THE_FLOOR,
    "metrics": UNDER_THE_FLOOR,
    "_graph": {*UNDER_THE_FLOOR, "layers"},
    "models": {*UNDER_THE_FLOOR, "layers", "metrics", "_graph"},
    "scoring": {*UNDER_THE_FLOOR, "metrics"},
    "calibration": {*UNDER_THE_FLOOR, "layers", "metrics", "_graph", "models", "plots", "scoring"},
    "export": {*UNDER_THE_FLOOR, "layers", "_graph"},
    "plots": {*UNDER_THE_FLOOR, "layers"},
    "callbacks": {*UNDER_THE_FLOOR, "metrics"},
    "seeds": {*UNDER_THE_FLOOR, "_graph", "callbacks"},
    "sklearn": {"calibration"},
    "testing": {*UNDER_THE_FLOOR, "layers", "models", "export"},
    "datasets": set(),
    "logs": set(),
    "statistics": set(),
}
CALIBRATION_RECORDS = {
    "runs": set(),
    "statistics": set(),
    "comparison": {"runs", "statistics"},
    "logs": set(),
    "monitoring": {"logs", "statistics"},
    "monitor_command": {"logs", "monitoring"},
    "cli": {"runs", "statistics", "comparison", "monitor_command"},
}
ALLOWED = dict(zip(PACKAGES, (KERAS_CALIBRATION, CALIBRATION_RECORDS), strict=True))
# What nothing of `calibration_records` may import when it is loaded.
HEAVY = ("keras", "tensorflow", "tensorflow_probability", "tf_keras", "jax", "torch")


def statements(tree):
    """All statements of a module, also those inside of functions, but for what types alone need."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from statements(node)


def imported_names(text):
    """Full dotted names of what a module imports."""
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_name(path):
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): path
    for package in PACKAGES
    for path in sorted((SRC / package).rglob("*.py"))
}


def module_of(name):
    """The module that an imported name is in; `None` outside of both packages."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


GRAPH = {
    module: {
        target for name in imported_names(path.read_text("utf-8")) if (target := module_of(name))
    }
    for module, path in MODULES.items()
}


def room_of(module):
    """The package and the room of a module."""
    package, *rooms = module.split(".")
    return package, rooms[0] if rooms else ""


def may_import(room, other):
    """Whether a room may import another; both are pairs of a package and a room."""
    (package, name), (other_package, other_name) = room, other
    if room == other or other_name in EVERYWHERE:
        return other_package in (package, "calibration_records")
    if other_package == package:
        return other_name in ALLOWED[package][name]
    # The package itself has the version, and the names for users.
    return other_package == "calibration_records"


def test_the_graph_is_not_empty():
    assert "calibration_records.runs.run_record" in GRAPH["calibration_records.runs.ledger"]
    assert "calibration_records._warn" in GRAPH["keras_calibration._rows.checks"]
    assert sum(map(len, GRAPH.values())) > 300


def test_imports_inside_of_functions_count():
    text = "import ast\nif TYPE_CHECKING:\n    import csv\ndef f():\n    from json import load\n"
    assert list(imported_names(text)) == ["ast", "json.load"]


def test_no_circle_between_modules():
    # A package itself imports its rooms, and none of its modules imports it back.
    assert [module for module in GRAPH if room_of(module)[0] in GRAPH[module]] == []
    graphlib.TopologicalSorter(GRAPH).prepare()


ROOMS = sorted({room_of(module) for module in MODULES if module not in PACKAGES})


@pytest.mark.parametrize("room", ROOMS, ids=".".join)
def test_a_room_imports_only_rooms_below_it(room):
    package, name = room
    assert name in EVERYWHERE | set(ALLOWED[package]), "list the new room with what it may import"
    wrong = {
        f"{module} imports {other}"
        for module, imported in GRAPH.items()
        if room_of(module) == room
        for other in imported
        if not may_import(room, room_of(other))
    }
    assert wrong == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_the_allowed_order_has_no_circle_and_names_no_room_that_is_gone(package):
    graphlib.TopologicalSorter(ALLOWED[package]).prepare()
    assert set(ALLOWED[package]) <= {name for owner, name in ROOMS if owner == package}


def test_the_records_ask_for_nothing_heavy():
    imports = {
        (module, name.partition(".")[0])
        for module, path in MODULES.items()
        if module.startswith("calibration_records")
        for name in imported_names(path.read_text("utf-8"))
        if name.partition(".")[0] in HEAVY
    }
    # Of a prior, whose density takes an integral; `test_without_tfp.py` holds that it comes late.
    assert imports == {("calibration_records.statistics.posterior", "tensorflow_probability")}


WITHOUT_KERAS = f"""
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {("keras_calibration", *HEAVY)}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
import calibration_records as records
names = [module.name for module in pkgutil.walk_packages(records.__path__, "calibration_records.")]
for name in names:
    importlib.import_module(name)
for name in records.__all__:
    assert getattr(records, name).__name__ == name
print(len(names), sorted(set(sys.modules) & {set(HEAVY)}))
"""


def test_the_records_are_imported_where_keras_cannot_be():
    command = [sys.executable, "-c", WITHOUT_KERAS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    num_modules = sum(module.startswith("calibration_records.") for module in MODULES)
    assert done.stdout.split() == [str(num_modules), "[]"], done.stderr


# Bases that other rooms may ask for, what a user's own class is a subclass of; and plain records.
BASES = {"Head", "HistogramHead", "LogitMoments", "Fit"}
# Rooms whose classes answer for themselves.
ROOMS_OF_CLASSES = ("layers", "metrics", "models", "_graph", "callbacks")


def classes_of_rooms():
    """Each class of the rooms with its room."""
    room_of_class = {}
    for module, path in MODULES.items():
        package, room = room_of(module)
        if package == "keras_calibration" and room in ROOMS_OF_CLASSES:
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    room_of_class[node.name] = room
    return room_of_class


def asked_for(tree):
    """Names of the classes that `isinstance` or a comparison of `type(…)` asks for."""

    def names(node):
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("isinstance", "issubclass") and len(node.args) > 1:
                yield from names(node.args[1])
        elif isinstance(node, ast.Compare):
            called = [n for n in ast.walk(node.left) if isinstance(n, ast.Call)]
            if any(isinstance(n.func, ast.Name) and n.func.id == "type" for n in called):
                for comparator in node.comparators:
                    yield from names(comparator)


def test_no_room_asks_for_a_concrete_class_of_another():
    classes = classes_of_rooms()
    assert classes["ILPS"] == "layers"
    asked = set()
    for module, path in MODULES.items():
        room = room_of(module)[1]
        for name in asked_for(ast.parse(path.read_text("utf-8"))):
            if name in classes and classes[name] != room and name not in BASES:
                asked.add(f"{module}: {name}")
    assert not asked
    example = "isinstance(a, (B, C)) or type(d) is E or type(f) in (G,)"
    assert set(asked_for(ast.parse(example))) == {"B", "C", "E", "G"}


# What a public head may stand on within the package, from the nearest base up.
FLOORS_OF_HEADS = {("Head",), ("HistogramHead", "Head")}


def floors_above(head):
    """Names of the classes of the package that a head inherits from, the nearest first."""
    return tuple(
        base.__name__
        for base in head.__mro__[1:]
        if base.__module__.partition(".")[0] == "keras_calibration"
    )


def test_heads_stand_on_two_floors():
    members = map(keras_calibration.layers.__dict__.get, keras_calibration.layers.__all__)
    heads = {member for member in members if issubclass(member, keras_calibration.layers.Head)}
    floors = {head.__name__: floors_above(head) for head in heads}
    others = {name: floor for name, floor in floors.items() if floor not in FLOORS_OF_HEADS}
    # `FieldHead` is what the two heads with an effect of every field value share.
    of_fields = ("FieldHead", "Head")
    assert others == {"Head": (), "FieldBias": of_fields, "FieldILPS": of_fields}
    assert {floors["ILPS"], floors["BoostedTrees"]} == FLOORS_OF_HEADS


# Statements of both packages, at most: what there is, and room for a calibrator. It may only fall:
# what does not fit replaces something.
ALL_STATEMENTS = 12_021
FILE_LINES, FUNCTION_LINES = 400, 69
NUM_ARGUMENTS = 9
# Of the front doors.
ARGUMENTS = dict.fromkeys(("calibrate", "calibrate_scores", "refresh_savedmodel"), 13)
ARGUMENTS |= {"multicalibration_error": 11, "fit_head": 10, "train": 12}
METHODS_OF_A_HEAD = 17  # that Keras' layers do not have
Function = ast.FunctionDef | ast.AsyncFunctionDef


def docstring_of(node):
    """The docstring of a module, a class or a function as a node, or None."""
    first = node.body[0] if node.body else None
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return first if is_text and isinstance(first.value.value, str) else None


def lines_of(node):
    return set(range(node.lineno, node.end_lineno + 1))


# An expression that does something, where a name or a number does not.
WORK = (ast.Call, ast.BinOp, ast.IfExp, ast.Subscript, ast.ListComp, ast.DictComp)


def num_packed(node):
    """How many more statements an assignment of a tuple to a tuple holds: `a, b = f(x), g(x)`."""
    is_packed = (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and any(isinstance(target, ast.Tuple) for target in node.targets)
    )
    if not is_packed:
        return 0
    parts = [any(isinstance(n, WORK) for n in ast.walk(part)) for part in node.value.elts]
    return max(sum(parts) - 1, 0)


def num_statements(text):
    """Statements, without imports and docstrings; packed ones count one by one."""
    tree, number = ast.parse(text), 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            number -= docstring_of(node) is not None
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom):
            number += 1 + num_packed(node)
    return number


FUNCTIONS = [
    (path, node)
    for path in MODULES.values()
    for node in ast.walk(ast.parse(path.read_text("utf-8")))
    if isinstance(node, Function)
]


def test_statements_are_counted_as_meant():
    text = """
'A docstring.'
import ast

def f(x):
    'Another.'
    a, b = g(x), h(x)  # two
    return a, b
"""
    assert num_statements(text) == 4


def test_statements_stay_under_their_ceiling():
    assert sum(num_statements(path.read_text("utf-8")) for path in MODULES.values()) <= (
        ALL_STATEMENTS
    )


def test_files_and_functions_can_be_read_at_once():
    sizes = {path: len(path.read_text("utf-8").splitlines()) for path in MODULES.values()}
    assert [path for path, size in sizes.items() if size > FILE_LINES] == []
    bodies = [
        (path, node.name, len(lines_of(node) - (lines_of(docstring) if docstring else set())))
        for path, node in FUNCTIONS
        for docstring in [docstring_of(node)]
    ]
    assert [body for body in bodies if body[-1] > FUNCTION_LINES] == []


def test_functions_have_few_arguments():
    above = []
    for path, node in FUNCTIONS:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        number = sum(argument.arg not in ("self", "cls") for argument in arguments)
        most = ARGUMENTS.get(node.name, NUM_ARGUMENTS)
        above += [(path, node.name, number)] if number > most else []
    assert above == []


def test_a_head_has_few_public_methods():
    tree = ast.parse(MODULES["keras_calibration.layers.head"].read_text("utf-8"))
    (head,) = (node for node in tree.body if getattr(node, "name", "") == "Head")
    names = {node.name for node in head.body if isinstance(node, Function)}
    public = {name for name in names if not name.startswith("_")} - {*dir(keras.layers.Layer)}
    assert len(public) <= METHODS_OF_A_HEAD, sorted(public)
