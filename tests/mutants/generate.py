"""Faults made from the syntax tree: each is one small change of one place in `src`.

`mutants_of` lists those of a file, `sample_of` draws some of all. Nothing is run here.
"""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Fault(NamedTuple):
    """A change of one place.

    Args:
        path: The file, below `src`.
        place: The name of the function that is changed, as its code object has it; "" outside of
            functions.
        kind: What was changed.
        before: The source of the place.
        after: What stands there instead.
        start: Its first byte in the file.
        repeat: How many places before it, in the same function, have the same source.
    """

    path: str
    place: str
    kind: str
    before: str
    after: str
    start: int
    repeat: int = 0

    @property
    def name(self) -> str:
        """What the fault is, which stays when other lines of the file change."""
        number = f" #{self.repeat + 1}" if self.repeat else ""
        before, after = " ".join(self.before.split()), " ".join(self.after.split())
        return f"{self.path} {self.place}: {before} → {after}{number}"

    def apply(self, source: bytes) -> bytes:
        """The source of the file with the fault."""
        end = self.start + len(self.before.encode())
        return source[: self.start] + self.after.encode() + source[end:]


_COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add}
# The order of their arguments changes nothing, or is an error of types that no test is needed for.
_SYMMETRIC = {
    *("maximum", "minimum", "max", "min", "hypot", "logical_and", "logical_or", "isclose"),
    *("isinstance", "issubclass", "getattr", "hasattr", "setattr", "array_equal", "TypeVar"),
}


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _changed(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The kind and the new source of each fault of a node."""
    match node:
        case ast.Constant(value=bool()):
            yield "constant", str(not node.value)
        case ast.Constant(value=int()):
            yield "constant", str(node.value + 1)
        case ast.Constant(value=float()):
            yield "constant", repr(2 * node.value or 1.0)
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            other = _COMPARISONS[type(operator)]()
            yield "comparison", ast.unparse(ast.Compare(node.left, [other], node.comparators))
        case ast.BinOp(left, operator, right) if not (_is_text(left) or _is_text(right)):
            if type(operator) in _SIGNS:
                yield "sign", ast.unparse(ast.BinOp(left, _SIGNS[type(operator)](), right))
            if isinstance(operator, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.Pow):
                yield "dropped term", ast.unparse(left)
            if isinstance(operator, ast.Add | ast.Mult):
                yield "dropped term", ast.unparse(right)
        case ast.UnaryOp(ast.USub(), operand):
            yield "sign", ast.unparse(operand)
        case ast.UnaryOp(ast.Not(), operand):
            yield "dropped not", ast.unparse(operand)
        case ast.BoolOp(operator, values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "and/or", ast.unparse(ast.BoolOp(other, values))
        case ast.Call(function, [first, second], keywords):
            called = getattr(function, "attr", getattr(function, "id", ""))
            sides = ast.dump(first), ast.dump(second)
            is_starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
            if called not in _SYMMETRIC and sides[0] != sides[1] and not is_starred:
                swapped = ast.Call(function, [second, first], keywords)
                yield "swapped arguments", ast.unparse(swapped)


def _is_dropped(node: ast.stmt) -> bool:
    """Whether the lack of a statement is a fault to try."""
    match node:
        case ast.Raise() | ast.AugAssign() | ast.Assign(targets=[ast.Attribute()]):
            return True
        case ast.Expr(value):  # a docstring is a constant
            return not isinstance(value, ast.Constant)
    return False


def _faults(
    node: ast.AST, place: tuple[str, ...], at_import: tuple[str, ...]
) -> Iterator[tuple[ast.AST, tuple[str, ...], str, str]]:
    """The node, the function around it, the kind and the new source of each fault below a node."""
    if isinstance(node, ast.stmt) and _is_dropped(node):
        yield node, place, "dropped statement", "pass"
    if isinstance(node, ast.Raise | ast.JoinedStr):  # messages; nodes in f-strings have no places
        return
    for kind, after in _changed(node):
        yield node, place, kind, after if isinstance(node, ast.Constant) else f"({after})"
    if isinstance(node, ast.FunctionDef):
        inner = (*at_import, node.name)
        for statement in node.body:
            yield from _faults(statement, inner, (*inner, "<locals>"))
        outer = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
    elif isinstance(node, ast.ClassDef):
        for statement in node.body:
            yield from _faults(statement, place, (*at_import, node.name))
        outer = node.decorator_list
    elif isinstance(node, ast.AnnAssign):
        outer = [node.value] if node.value else []
    else:
        outer = list(ast.iter_child_nodes(node))
    for child in outer:
        yield from _faults(child, place, at_import)


def faults_of(path: Path, source: Path) -> list[Fault]:
    """The faults of a file below the folder `source`."""
    content = path.read_bytes()
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    faults: list[Fault] = []
    seen: dict[tuple[str, str, str], int] = {}
    for node, place, kind, after in _faults(ast.parse(content), (), ()):
        start = starts[node.lineno - 1] + node.col_offset
        before = content[start : starts[node.end_lineno - 1] + node.end_col_offset].decode()
        key = ".".join(place), before, after
        seen[key] = seen.get(key, -1) + 1
        relative = path.relative_to(source).as_posix()
        faults.append(Fault(relative, key[0], kind, before, after, start, seen[key]))
    return faults


def sample_of(source: Path, number: int, seed: int, folder: str = "") -> list[Fault]:
    """A random sample of the faults below a folder of `source`; most of it outlasts changes of it.

    Each fault has a number by chance, which depends on its name alone. The smallest are drawn.
    """
    faults = [
        fault
        for path in sorted(source.rglob("*.py"))
        if path.relative_to(source).as_posix().startswith(folder)
        for fault in faults_of(path, source)
    ]
    return sorted(faults, key=lambda fault: _drawn(fault, seed))[:number]


def _drawn(fault: Fault, seed: int) -> str:
    return hashlib.sha256(f"{seed} {fault.name}".encode()).hexdigest()
