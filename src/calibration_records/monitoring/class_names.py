"""The classes of a log of K classes."""

from __future__ import annotations

from collections.abc import Sequence

from calibration_records._check import listed, refused

_FEWEST = 3


def class_names(
    probability: str | Sequence[str], classes: Sequence[str] | None
) -> list[str] | None:
    """The names of the classes; None where there is one column and no names are given.

    Example:
        >>> class_names(["cat", "dog", "bird"], None), class_names("probability", None)
        (['cat', 'dog', 'bird'], None)
    """
    listed("classes", classes, "names")
    columns = None if isinstance(probability, str) else [*probability]
    names = columns if classes is None else [*map(str, classes)]
    if names is None:
        return None
    if len(names) < _FEWEST:
        raise ValueError(
            f"Arguments `probability` and `classes` must name at least {_FEWEST} classes. "
            f"Received: {names}. For two classes, pass the column of one and labels 0 and 1."
        )
    if columns is not None and len(columns) != len(names):
        raise ValueError(
            "Argument `classes` must name the class of each column of `probability`. Received: "
            f"{len(names)} classes for {len(columns)} columns."
        )
    if len(set(names)) < len(names):
        raise refused("classes", "a list of different names", names)
    return names
