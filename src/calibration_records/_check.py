"""Checks of arguments. All errors tell what was expected, what was received and what to do.

Each kind of check that several functions need is one function, named by what it demands.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import math
import numbers
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any


def refused(name: str, expected: str, value: object, remedy: str = "") -> ValueError:
    """The error of an argument.

    Example:
        >>> print(refused("rate", "in (0, 1]", 50, "For percent, divide by 100."))
        Argument `rate` must be in (0, 1]. Received: rate=50. For percent, divide by 100.
    """
    return ValueError(
        f"Argument `{name}` must be {expected}. Received: {name}={value!r}. {remedy}".rstrip()
    )


def integer(name: str, value: Any, least: int, remedy: str = "") -> int:
    """A whole number of at least `least`, as an int.

    Example:
        >>> integer("num_knots", 3, 2)
        3
    """
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise refused(name, f"an integer of at least {least}", value, remedy)
    return int(value)


def truth(name: str, value: Any) -> bool:
    """True or False, as a bool.

    Example:
        >>> truth("from_logits", 1)
        True
    """
    one_of(name, value, (True, False))
    return bool(value)


def at_least(name: str, value: Any, least: float, remedy: str = "") -> None:
    """Refuses numbers below `least`, NaN, and values that are not numbers."""
    _require(lambda: value >= least, name, f"at least {least:g}", value, remedy)


def positive(name: str, value: Any, *, also: str = "", below: float = math.inf) -> None:
    """Refuses all but numbers above 0 and `below` a limit; `also` is what else may be passed."""
    _require(
        lambda: 0 < value < below,
        name,
        f"a positive number below {'infinity' if below == math.inf else f'{below:.4g}'}{also}",
        value,
    )


def not_negative(name: str, value: Any, *, also: str = "") -> None:
    """Refuses all but finite numbers of at least 0; `also` is what else the caller allows."""
    _require(lambda: 0 <= value < math.inf, name, f"a finite number of at least 0{also}", value)


def share(name: str, value: Any, remedy: str = "", *, also: str = "", ends: str = "") -> None:
    """Refuses all but numbers between 0 and 1; `ends` are the allowed ends, of "01".

    Example:
        >>> share("forget", 2, ends="01", also=": the share of the old weight to drop")
        Traceback (most recent call last):
        ...
        ValueError: Argument `forget` must be in [0, 1]: the share of the old weight to drop.
        Received: forget=2.
    """
    _require(
        lambda: 0 < value < 1 or any(value == int(end) for end in ends),
        name,
        f"in {'(['['0' in ends]}0, 1{')]'['1' in ends]}{also}",
        value,
        remedy,
    )


def confidence_level(name: str, value: Any) -> None:
    """Refuses all but numbers between 0 and 1 that leave an interval with a tail."""
    # If rounding leaves no tail, the intervals would be infinite.
    _require(
        lambda: 0 < value < 1 and (1 + value) / 2 < 1,
        name,
        "between 0 and 1, for example 0.95",
        value,
    )


def _require(
    holds: Callable[[], Any], name: str, expected: str, value: Any, remedy: str = ""
) -> None:
    """Refuses a value for which a condition does not hold, or that is not a number, as True."""
    with contextlib.suppress(TypeError, ValueError):  # of an array, whose truth is ambiguous
        if not isinstance(value, bool) and holds():
            return
    raise refused(name, expected, value, remedy)


def one_of(name: str, value: Any, allowed: Collection[Any], *, also: str = "") -> None:
    """Refuses all but the values of a tuple or list; `also` is what else the caller allows.

    Example:
        >>> one_of("engine", "lop", ("ray", "loop"))
        Traceback (most recent call last):
        ...
        ValueError: Argument `engine` must be one of ('ray', 'loop'). Received: engine='lop'. Did
        you mean 'loop'?
    """
    if value not in allowed:
        raise refused(name, f"one of {allowed}{also}", value, _suggest_names([value], allowed))


def instance(
    name: str, value: Any, kind: type | tuple[type, ...], expected: str, remedy: str = ""
) -> None:
    """Refuses all but instances of a class; `expected` names it for the user.

    Example:
        >>> instance("head", 3, dict, "a head of this package", "Pass ILPS(), for example.")
        Traceback (most recent call last):
        ...
        ValueError: Argument `head` must be a head of this package. Received: head=3. Pass ILPS(),
        for example.
    """
    if not isinstance(value, kind):
        raise refused(name, expected, value, remedy)


def known(
    what: str,
    names: Iterable[Any],
    available: Collection[Any],
    remedy: str = "",
    *,
    missing: bool = False,
) -> None:
    """Refuses names that are not available; `missing` if each is one that is needed.

    Example:
        >>> known("Argument `numeric` must name columns", ["prise"], ["price", "site"])
        Traceback (most recent call last):
        ...
        ValueError: Argument `numeric` must name columns. Received: 'prise'. Did you mean 'price'?
        Available: 'price', 'site'.
    """
    if unknown := [name for name in names if name not in available]:
        # A table has left out columns of the same name.
        if repeated := {*unknown} & getattr(available, "repeated", frozenset()):
            raise ValueError(
                f"{what}. Received: several columns {_list_names(sorted(repeated))}. Keep one of "
                "each name, or rename the others."
            )
        received = (
            f"{'no ' if missing else ''}{_list_names(unknown)}. "
            f"{_suggest_names(unknown, available)}"
        )
        raise ValueError(
            f"{what}. Received: {received.rstrip()} Available: {_list_names(available)}. "
            f"{remedy}".rstrip()
        )


def _suggest_names(unknown: Iterable[Any], available: Iterable[Any]) -> str:
    """A suggestion of similar names, in upper or lower case; empty if there is none.

    Example:
        >>> _suggest_names(["sites"], ["hour", "SITE"])
        "Did you mean 'SITE'?"
    """
    names = {str(name).casefold(): name for name in available}
    near = [difflib.get_close_matches(str(name).casefold(), names, 2) for name in unknown]
    unique = list(dict.fromkeys(names[match] for matches in near for match in matches))
    return f"Did you mean {' or '.join(map(repr, unique))}?" if unique else ""


def _list_names(names: Collection[Any]) -> str:
    """The first twenty names, and how many more there are.

    Example:
        >>> _list_names(range(22))
        '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, … and 2 more'
    """
    first = ", ".join(map(repr, itertools.islice(names, 20))) or "none"
    return first if len(names) <= 20 else f"{first}, … and {len(names) - 20} more"


def one_column(name: str, shape: tuple[int | None, ...]) -> None:
    """Refuses a shape other than (n,) or (n, 1)."""
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] not in (1, None)):
        raise ValueError(
            f"Argument `{name}` must have shape (n,) or (n, 1). Received: shape {shape}."
        )


def same_rows(name: str, num_rows: int | None, expected: int | None, noun: str) -> None:
    """Refuses another number of rows than expected; `noun` is what there is one row for.

    Example:
        >>> same_rows("period", 3, 5, "label")
        Traceback (most recent call last):
        ...
        ValueError: Argument `period` must have one entry for each label. Received: 3 entries for 5
        labels.
    """
    if None not in (num_rows, expected) and num_rows != expected:
        raise ValueError(
            f"Argument `{name}` must have one entry for each {noun}. Received: {num_rows} entries "
            f"for {expected} {noun}s."
        )


@contextlib.contextmanager
def installed(extra: str, needs: str) -> Iterator[None]:
    """Raises an error that tells how to install a package that the block cannot import."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f'{needs} Install it with `pip install "keras-calibration[{extra}]"`.'
        ) from error
