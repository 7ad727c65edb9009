"""Queries: sums of rows, as SQL."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibration_records._limits import BINS_PER_OCTAVE, INNER_LIMIT, NUM_OCTAVES
from calibration_records._logit_bins import FINE_END, LARGEST_LOGIT, MOMENT_BINS
from calibration_records._logit_moments import COLUMNS, NUM_BINS, NUM_COLUMNS

_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Query:
    """Sums of the rows of each group, over columns that `logs.rows` defines.

    These columns are y (label), p (probability), l (logit), w (weight), loss (log loss), t (start
    of the period), k (row key), and `field_column` of each column of a field.

    Args:
        keys: Name → expression of the group of a row.
        sums: Name → expression to sum over the rows of a group.
        steps: Columns to compute first, name → expression; a step may use the columns of earlier
            steps.

    Example:
        >>> Query({"site": '"site"'}, {"weight": "w"}).sql("SELECT site, w FROM log")
        'SELECT "site" AS "key_site", coalesce(sum(w), 0)::DOUBLE AS "weight"
        FROM (SELECT site, w FROM log) GROUP BY ALL'
    """

    keys: Mapping[str, str]
    sums: Mapping[str, str]
    steps: Sequence[Mapping[str, str]] = ()

    @property
    def uses_row_key(self) -> bool:
        """Whether rows are grouped by their key, as for folds.

        Example:
            >>> logit_moments(num_folds=2).uses_row_key, field_sums(["k"]).uses_row_key
            (True, False)
        """
        # Names of the user's columns are quoted, so that a bare k is the row key.
        steps = [expression for step in self.steps for expression in step.values()]
        expressions = " , ".join([*self.keys.values(), *self.sums.values(), *steps])
        return re.search(r"\bk\b", re.sub(r'"[^"]*"', "", expressions)) is not None

    def by_period(self) -> Query:
        """The same sums for each period."""
        return replace(self, keys={"period": "t", **self.keys})

    def sql(self, rows: str) -> str:
        """The SQL of this query over the rows that another SELECT gives."""
        # Standard SQL cannot use a column in the SELECT that defines it, so each step wraps the
        # last.
        for step in self.steps:
            rows = f"SELECT *, {write_columns(step)} FROM ({rows})"
        keys = {quoted(f"key_{name}"): expression for name, expression in self.keys.items()}
        sums = {quoted(name): f"{_write_sum(term)}::DOUBLE" for name, term in self.sums.items()}
        return f"SELECT {write_columns(keys | sums)} FROM ({rows}) GROUP BY ALL"


def write_columns(columns: Mapping[str, str]) -> str:
    """Columns of a SELECT, from name → expression."""
    return ", ".join(f"{expression} AS {name}" for name, expression in columns.items())


def _write_sum(expression: str) -> str:
    """A sum over rows; 0 without rows."""
    return "count(*)" if expression == "1" else f"coalesce(sum({expression}), 0)"


def quoted(name: str) -> str:
    """A name as an identifier of SQL.

    Example:
        >>> quoted('a"b')
        '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """A string as a literal of SQL.

    Example:
        >>> text("it's")
        "'it''s'"
    """
    return "'" + value.replace("'", "''") + "'"


def field_column(name: str) -> str:
    """The column of a field in the rows that a query sums; no column of `Query` has its name.

    Example:
        >>> field_column("y")
        '"field y"'
    """
    return quoted(f"field {name}")


# `logs.rows` has a column `valid_…` for each kind that may be invalid, and a column `odd_…` for
# each kind that is probably misread.
_CHECKED, _DOUBTED = ("label", "prediction", "weight", "time"), ("time", "id", "logit")


def total_sums() -> Query:
    """The number of rows, and by kind the numbers of invalid rows and of odd rows."""
    return Query(
        {},
        {
            "rows": "1",
            **{f"invalid_{kind}": f"(NOT valid_{kind})::INT" for kind in _CHECKED},
            **{f"odd_{kind}": f"(odd_{kind} IS TRUE)::INT" for kind in _DOUBTED},
        },
    )


def label_sums(names: Sequence[str], weighted: bool = True) -> Query:
    """The sums with these names, of weights, labels, predictions or log loss."""
    factor = "w * " if weighted else ""
    sums = {
        "weight": "w" if weighted else "1",
        "positives": f"{factor}y",
        "negatives": f"{factor}(1 - y)",
        "predicted": f"{factor}p",
        "loss": f"{factor}loss",
    }
    return Query({}, {name: sums[name] for name in names})


def field_sums(columns: Sequence[str], weighted: bool = True) -> Query:
    """What `_ops.field_sums` computes, for each value of a field or cross."""
    factor = "w * " if weighted else ""
    return Query(
        field_keys(columns),
        {
            "residual": f"{factor}(y - p)",
            "positives": f"{factor}y",
            "weight": "w" if weighted else "1",
            "squares": "w * w" if weighted else "1",
            "variance": f"{factor}{factor}p * (1 - p)",
            "predicted": "CASE WHEN w > 0 THEN p ELSE 0 END" if weighted else "p",
            "predicted_squares": "CASE WHEN w > 0 THEN p * p ELSE 0 END" if weighted else "p * p",
        },
    )


def field_keys(columns: Sequence[str]) -> dict[str, str]:
    """Keys of the values of a field, or of a cross of several columns."""
    return {f"value_{place}": field_column(column) for place, column in enumerate(columns)}


# Prefix of the name of a field's table, and the columns of `_ops.field_sums`.
FIELD = "field/"
FIELD_SUMS = tuple(field_sums([]).sums)


def logit_moments(num_folds: int = 1, bias_fraction: float | None = None, seed: int = 0) -> Query:
    """What `_ops.logit_moments` computes for each group of `_ops.folds.row_groups`."""
    # Number of the bin: fine steps up to the end of the fine bins, coarse ones beyond. `u` is the
    # offset from the centre, in half widths; beyond the last bin, the distance from its end.
    is_fine = f"inside >= -{FINE_END} AND inside < {FINE_END}"
    fine_width, width, num_bins = MOMENT_BINS.fine_width, MOMENT_BINS.width, MOMENT_BINS.num_bins
    fine_end = FINE_END / fine_width
    end = FINE_END / width
    steps = [
        {"inside": f"greatest(least(l, {LARGEST_LOGIT}), {-LARGEST_LOGIT - width})"},
        {"fine": f"floor(inside / {fine_width})", "coarse": f"floor(inside / {width})"},
        {
            "bin": f"greatest(0, least({num_bins - 1}, (greatest(-{fine_end}, least({fine_end}, "
            f"fine)) + coarse - greatest(-{end}, least({end}, coarse)))::INT + {num_bins // 2}))",
            "u": f"CASE WHEN l < -{LARGEST_LOGIT} OR l >= {LARGEST_LOGIT} "
            f"THEN l - sign(l) * {LARGEST_LOGIT} "
            f"WHEN {is_fine} THEN (l - (fine + 0.5) * {fine_width}) * {2 / fine_width} "
            f"ELSE (l - (coarse + 0.5) * {width}) * {2 / width} END",
        },
        {"v": "greatest(-1.0, least(1.0, u))"},
        {"t2": "2 * v * v - 1"},
        {"t3": "v * (2 * t2 - 1)", "t4": "2 * t2 * t2 - 1"},
    ]
    keys = {"bin": "bin"}
    if num_folds > 1 or bias_fraction is not None:
        steps += _write_hash_steps(seed)
        # The upper 24 bits, which float32 holds exactly, as in the metric on the device.
        uniform = "(h >> 8)::FLOAT * (2.0 ** -24)::FLOAT"
        keys["group"] = (
            f"floor(({uniform}) * {num_folds}::FLOAT)::INT"
            if bias_fraction is None
            else f"(({uniform}) >= {bias_fraction!r}::FLOAT)::INT"
        )
    # Weights and first moments by label, then Chebyshev polynomials T₂ to T₅ of the offset over
    # both labels.
    columns = ["1 - y", "y", "(1 - y) * u", "y * u", "t2", "t3", "t4", "2 * v * t4 - t3"]
    sums = {name: f"w * ({column})" for name, column in zip(COLUMNS, columns, strict=True)}
    return Query(keys, sums, steps)


def moments_of(table: Mapping[str, np.ndarray], group: np.ndarray | int, count: int) -> np.ndarray:
    """The moments of each of `count` groups (count, 418, 8), from a table of a log."""
    moments = np.zeros((count, NUM_BINS, NUM_COLUMNS))
    moments[group, table["key_bin"]] = np.stack([table[name] for name in COLUMNS], axis=1)
    return moments


def logit_bins(bins_per_unit: int, columns: Sequence[str] = ()) -> Query:
    """Weights and two moments of the logits of either label, in each bin of the logit.

    The edges of the bins are `_solvers.logit_histogram.bin_edges`. Bins have the numbers 0, 1 … to
    the right and -1, -2 … to the left; the end bins also hold all logits farther out. With
    `columns`, the query also groups by the values of fields.
    """
    # `bin_edges` in SQL: inner bins of one width, and beyond them a fixed number to an octave; d is
    # the distance from the centre of the bin.
    limit, per_octave, octaves = INNER_LIMIT, BINS_PER_OCTAVE, NUM_OCTAVES
    edge = limit * bins_per_unit
    far = f"least(floor(log2(abs(c) / {limit}) * {per_octave}), {octaves * per_octave - 1})"
    steps = [
        {"c": f"greatest(-{limit * 2**octaves}.0, least({limit * 2**octaves}.0, l))"},
        {
            "bin": f"CASE WHEN c >= -{limit} AND c < {limit} THEN floor(c * {bins_per_unit}) "
            f"WHEN c > 0 THEN {edge} + {far} ELSE -{edge + 1} - {far} END"
        },
        {
            "d": f"c - CASE WHEN c >= -{limit} AND c < {limit} THEN (bin + 0.5) / {bins_per_unit} "
            f"ELSE sign(c) * {limit / 2} * (2.0 ** (({far}) / {per_octave}) + "
            f"2.0 ** (({far} + 1) / {per_octave})) END"
        },
    ]
    keys = {"bin": "bin::INT", **field_keys(columns)}
    sums = {
        f"{label}_{power}": f"w * ({share}){' * d' * power}"
        for label, share in (("negatives", "1 - y"), ("positives", "y"))
        for power in range(3)
    }
    return Query(keys, {"rows": "1", "squares": "w * w", **sums}, steps)


# `num_groups` counts one of this many groups.
SAMPLED = 256


def num_groups(query: Query) -> Query:
    """A sample of the groups of a query: the groups whose hash is divisible by `SAMPLED`."""
    return Query(
        {"hash": f"CASE WHEN key % {SAMPLED} = 0 THEN key END"},
        {"rows": "1"},
        [*query.steps, {"key": f"hash({', '.join(query.keys.values())})"}],
    )


def _write_hash_steps(seed: int) -> list[dict[str, str]]:
    """`_ops.folds.hashed_uniform` of the row key, up to the last shift, as h."""
    # The finalizer of MurmurHash3, in 64 bits and cut to 32 after each product.
    return [
        {"h0": f"xor(xor(k, k >> 32) & {_MASK}, {seed * 0x9E3779B9 & _MASK}::UBIGINT)"},
        {"h1": f"(xor(h0, h0 >> 16) * {0x85EBCA6B}) & {_MASK}"},
        {"h2": f"(xor(h1, h1 >> 13) * {0xC2B2AE35}) & {_MASK}"},
        {"h": "xor(h2, h2 >> 16)"},
    ]
