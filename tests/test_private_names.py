"""Private functions begin with a verb."""

import ast
from collections.abc import Iterator
from pathlib import Path

import calibration_records
import keras_calibration

# What a private function may begin with. A new verb is welcome; a noun or an adjective is not.
VERBS = frozenset(
    """
    add align answer apply arrange assemble assert assign average bracket build cast check choose
    clip collect compare compile compute connect convert correct count cross_fit describe detect
    differentiate divide draw drop end enter estimate evaluate expand explain extrapolate filter
    find fit fix flatten forget format gather group hash hide identify import interpolate invert
    iterate keep leave limit linearize list load locate loop map mark mask match measure merge move
    name narrow note number open pack pair parse pick place predict print publish rank read refit
    refresh refuse remove rename replace require reshape round run say score search select separate
    serialize set show skip solve sort split spread stack start suggest sum summarize tabulate take
    trace train translate try unpack warn weigh write
    are can differs ends has is make needs
    """.split()
)
# Called by name from outside: notebooks show an object by its `_repr_html_`.
EXTERNAL = {"_repr_html_"}


def begins_with_a_verb(name: str) -> bool:
    """Whether a name such as `_count_rows` begins with a verb; `_name_of` begins with a noun."""
    words = name.strip("_").split("_")
    is_noun = words[1:2] == ["of"] and words[0] not in ("is", "are", "warn")
    return not is_noun and (words[0] in VERBS or "_".join(words[:2]) in VERBS)


def private_functions(tree: ast.AST) -> Iterator[str]:
    """Names of the functions and methods of a module that begin with one underscore."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
            # A property is read as a value, so a noun names it.
            is_property = any("property" in d or d.endswith(".setter") for d in decorators)
            is_private = node.name.startswith("_") and not node.name.startswith("__")
            if is_private and not is_property and node.name not in EXTERNAL:
                yield node.name


def without_a_verb(package: Path) -> list[str]:
    """`FILE: NAME` of each private function whose name does not begin with a verb."""
    return [
        f"{path.relative_to(package.parent)}: {name}"
        for path in sorted(package.rglob("*.py"))
        for name in private_functions(ast.parse(path.read_text("utf-8")))
        if not begins_with_a_verb(name)
    ]


def test_private_functions_begin_with_a_verb():
    # Installed, the two packages lie among others.
    for package in (keras_calibration, calibration_records):
        assert without_a_verb(Path(package.__file__).parent) == []
    text = "def _rows(): ...\ndef _read(): ...\ndef _name_of(): ...\ndef __len__(): ..."
    names = list(private_functions(ast.parse(text)))
    assert [name for name in names if not begins_with_a_verb(name)] == ["_rows", "_name_of"]
