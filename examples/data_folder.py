"""read_data_folder: a table of real data, described by a `meta.json`."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from keras_calibration.datasets.table import Table, split_parts

if TYPE_CHECKING:
    import pandas as pd

OPERATORS = ("equals", "not_equals", "in", "startswith", "gt", "ge", "lt", "le", "notna")
COMPARISONS = {"gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal}
READING = {"keep_default_na": False, "na_values": ["", "NA"]}
MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
# Time columns of the tables whose `meta.json` names none.
TIME_COLUMNS = {"diabetes_readmit_102k": "encounter_id"}
MISSING = "(missing)"
OTHER = "(other)"


def data_root() -> pathlib.Path:
    """The folder of the data folders: $KERAS_CALIBRATION_DATA, or else ../shared/data."""
    beside = pathlib.Path(__file__).parents[2] / "shared" / "data"
    return pathlib.Path(os.environ.get("KERAS_CALIBRATION_DATA", beside))


def read_data_folder(
    path: str | os.PathLike[str],
    field: str | None = None,
    order_by: str | Sequence[str] | None = None,
    min_count: int = 5,
    max_rows: int | None = None,
) -> Table:
    r"""Reads and splits a table of real data, as the `meta.json` of its folder says.

    Keys of `meta.json`:

    - `files`: names of the text tables in the folder, compressed or not. Tables whose header is
      `columns` are concatenated. Another table is joined on the columns that both have, if it has a
      needed column that they lack. `sep` and `read_csv` are options for reading.
    - `label`: `{"column": ..., RULE: value}`. The label is 1 where the rule holds. RULE is
      `equals`, `not_equals`, `in`, `startswith`, or for numbers `gt`, `ge`, `lt`, `le`.
    - `row_filter`: a rule as above, or `notna`. Only rows where it holds are used.
    - `numeric`, `categorical`: the feature columns.
    - `fields`: the columns whose field errors matter, the most important first. A column that only
      a joined table has is also a feature.
    - `split`: `random` (the permutation of NumPy's `default_rng(0)`), `order` (as in the file) or
      `time` (sorted by time, ties as in the file). The first 60 % are train, the next 20 %
      development, the last 20 % test. The time is `order_by`; else the key `time`; else, with
      `time_ordered_file`, the order of the file; else a column `timestamp`; else the columns whose
      names contain the words year, month and day.

    Ids of a categorical column are sorted by frequency in the training part, the most frequent
    first. Missing values share an id. Values with fewer than `min_count` training rows share the
    last id.

    Args:
        path: The folder.
        field: Main field, a column of `fields` or `categorical`; None for the first of `fields`. If
            it is not a categorical feature, it is added as one, and named `FIELD_value` if it is
            numeric too.
        order_by: Column or columns of the time (numbers, month names or ISO 8601 dates), the most
            significant first. Implies a split by time.
        min_count: Number of training rows from which a value has its own id, at least 1.
        max_rows: Number of rows to use, the last ones in the order of the split; None for all. They
            are then split.

    Returns:
        The `Table`. Its `rows` are row numbers in the concatenated files, before the filter.

    Raises:
        ValueError: If `meta.json` or a file is absent, `meta.json` lacks a key or names an unknown
            column or rule, labels are missing or of one class only, or no column gives the time.
        ImportError: If pandas is not installed.

    Example:
        >>> import json, pathlib, tempfile
        >>> temporary = tempfile.TemporaryDirectory()
        >>> folder = pathlib.Path(temporary.name)
        >>> lines = ["clicked,site"] + [f"{i % 3},{'ab'[i % 2]}" for i in range(50)]
        >>> _ = (folder / "log.csv").write_text("\n".join(lines))
        >>> meta = {
        ...     "files": ["log.csv"], "columns": ["clicked", "site"], "categorical": ["site"],
        ...     "label": {"column": "clicked", "ge": 1}, "fields": ["site"], "split": "order",
        ... }
        >>> _ = (folder / "meta.json").write_text(json.dumps(meta))
        >>> table = read_data_folder(folder)
        >>> table.part("test")[1]
        array([1., 1., 0., 1., 1., 0., 1., 1., 0., 1.], dtype=float32)
        >>> table.vocabularies["site"]
        ('a', 'b', '(other)')
        >>> temporary.cleanup()
    """
    folder = pathlib.Path(path)
    if min_count < 1:
        raise ValueError(
            f"Argument `min_count` must be at least 1. Received: min_count={min_count}."
        )
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"Argument `max_rows` must be at least 1. Received: max_rows={max_rows}.")
    meta = _read_meta(folder)
    fields = tuple(meta["fields"])
    numeric = tuple(meta.get("numeric") or ())
    categorical = list(meta.get("categorical") or ())
    main_field = fields[0] if field is None else field
    if main_field not in (*fields, *categorical):
        raise ValueError(
            f"{folder} has no field {main_field!r}: expected one of {[*fields, *categorical]}. "
            'Name one of these, or add it to "fields" in meta.json.'
        )

    frame, joined = _read_frame(folder, meta, (*fields, *numeric, *categorical))
    if meta.get("row_filter"):
        frame = frame[_apply_rule(frame, meta["row_filter"], "row_filter", folder)]
    labels = _apply_rule(frame, meta["label"], "label", folder).astype(np.float32)
    _check_labels(labels, frame, meta["label"], folder)
    order = _split_order(frame, meta, order_by, folder)[-(max_rows or len(frame)) :]
    parts = split_parts(len(order))
    frame = frame.iloc[order]

    sources = {column: column for column in [*categorical, *(f for f in fields if f in joined)]}
    if main_field not in sources:
        sources[f"{main_field}_value" if main_field in numeric else main_field] = main_field
    num_train = parts["train"].stop
    features: dict[str, NDArray[np.generic]] = {}
    vocabularies: dict[str, tuple[str, ...]] = {}
    for name, column in sources.items():
        features[name], vocabularies[name] = _encode(frame[column], num_train, min_count)
    for column in numeric:
        features[column] = _to_numbers(frame[column], folder).to_numpy(np.float32)
    main_name = next(name for name, column in sources.items() if column == main_field)
    return Table(
        name=meta.get("name", folder.name),
        features=features,
        labels=labels[order],
        num_values={name: len(vocabulary) for name, vocabulary in vocabularies.items()},
        numeric=numeric,
        fields=(main_name, *(f for f in fields if f in sources and f != main_name)),
        parts=parts,
        rows=frame.index.to_numpy(np.int64),
        vocabularies=vocabularies,
    )


def _read_meta(folder: pathlib.Path) -> dict[str, Any]:
    """The parsed `meta.json`, its keys checked."""
    file = folder / "meta.json"
    if not file.is_file():
        raise ValueError(
            f"{folder} holds no meta.json: expected a folder with a meta.json that names its "
            "files, label, columns, fields and split. Check the path, or write one."
        )
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is not valid JSON ({error}). Correct the file.") from error
    if not isinstance(meta, dict):
        raise ValueError(f"{file} holds a {type(meta).__name__}: expected a JSON object.")
    if "label" not in meta:
        task = f" (its task: {meta['task']})" if "task" in meta else ""
        raise ValueError(
            f'{file} has no "label" rule{task}: only tables with a binary label can be read. '
            'Add one, e.g. "label": {"column": "clicked", "equals": "1"}, if the table has it.'
        )
    missing = [key for key in ("files", "fields", "split") if not meta.get(key)]
    if missing:
        raise ValueError(
            f"{file} lacks {missing}: expected the keys files, label, fields and split, each "
            "filled. Add them."
        )
    if meta["split"] not in ("random", "order", "time"):
        raise ValueError(
            f'{file} has the split {meta["split"]!r}: expected "random", "order" or "time".'
        )
    return meta


def _read_frame(
    folder: pathlib.Path, meta: Mapping[str, Any], needed: Sequence[str]
) -> tuple[pd.DataFrame, list[str]]:
    """All rows as text, indexed by row number, and the names of the columns joined."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            "Reading a data folder requires pandas. Install it with `pip install "
            '"keras-calibration[examples]"`.'
        ) from error

    reading = {**READING, **meta.get("read_csv", {}), "dtype": str, "sep": meta.get("sep", ",")}
    headers = {}
    for name in meta["files"]:
        if not (folder / name).is_file():
            raise ValueError(
                f'{folder} lacks {name!r}, which meta.json lists in "files". Add the file, or '
                "remove it from the list."
            )
        headers[name] = list(pd.read_csv(folder / name, **{**reading, "nrows": 0}).columns)
    label_column = meta["label"].get("column") if isinstance(meta["label"], dict) else None
    columns = meta.get("columns") or next(
        (header for header in headers.values() if label_column in header), None
    )
    main = [name for name, header in headers.items() if header == columns]
    if not main:
        raise ValueError(
            f'No file of {folder} has the header that meta.json gives in "columns", {columns}: '
            f'the headers are {headers}. Correct "columns", or "sep" and "read_csv".'
        )
    frame = pd.concat([pd.read_csv(folder / name, **reading) for name in main], ignore_index=True)

    joined: list[str] = []
    for name, header in headers.items():
        # Typed headers such as "user_id:token" carry the type after a colon.
        plain = [column.split(":")[0] for column in header]
        new = [column for column in plain if column in needed and column not in frame]
        if not new:
            continue
        keys = [column for column in plain if column in frame]
        other = pd.read_csv(folder / name, **reading).set_axis(plain, axis="columns")
        if not keys or other.duplicated(keys).any():
            raise ValueError(
                f"{folder / name} cannot be joined to {main}: it holds {new}, and the columns "
                f"they share, {keys}, must name each of its rows once. Correct the file."
            )
        frame = frame.merge(other[[*keys, *new]], on=keys, how="left")
        joined += new
    unknown = [column for column in needed if column not in frame]
    if unknown:
        raise ValueError(
            f"meta.json of {folder} names the columns {unknown}, which no file holds: the "
            f"columns are {list(frame.columns)}. Correct the names."
        )
    return frame, joined


def _apply_rule(
    frame: pd.DataFrame, rule: Any, role: str, folder: pathlib.Path
) -> NDArray[np.bool_]:
    """Where a rule `{"column": name, operator: value}` holds."""
    operators = [key for key in rule if key != "column"] if isinstance(rule, dict) else []
    if len(operators) != 1 or operators[0] not in OPERATORS or "column" not in rule:
        raise ValueError(
            f'The "{role}" of {folder}/meta.json is {rule!r}: expected '
            f'{{"column": name, RULE: value}} with one RULE of {list(OPERATORS)}.'
        )
    column, operator, value = rule["column"], operators[0], rule[operators[0]]
    if column not in frame:
        raise ValueError(
            f'The "{role}" of {folder}/meta.json reads the column {column!r}: expected one of '
            f"{list(frame.columns)}. Correct its name."
        )
    values = frame[column]
    if operator == "notna":
        return (values.notna() == value).to_numpy(bool)
    compared = _to_numbers(values, folder) if operator in COMPARISONS else values
    if role == "label" and compared.isna().any():
        kind = "number" if operator in COMPARISONS else "value"
        raise ValueError(
            f"{int(compared.isna().sum())} rows of {folder} have no {kind} in the label column "
            f"{column!r}: expected one in every row. Leave rows without a label out with "
            f'"row_filter": {{"column": "{column}", "notna": true}}.'
        )
    if operator in COMPARISONS:
        return COMPARISONS[operator](compared.to_numpy(), float(value))
    if operator == "startswith":
        return values.str.startswith(value, na=False).to_numpy(bool)
    holds = values.isin([str(v) for v in (value if operator == "in" else [value])])
    return (~holds if operator == "not_equals" else holds).to_numpy(bool)


def _check_labels(
    labels: NDArray[np.float32], frame: pd.DataFrame, rule: Mapping[str, Any], folder: pathlib.Path
) -> None:
    """Raises if all labels are equal."""
    if labels.size == 0 or labels.min() == labels.max():
        examples = frame[rule["column"]].unique()[:5].tolist()
        raise ValueError(
            f"The label rule {dict(rule)} of {folder}/meta.json gives one class for all "
            f"{labels.size} rows: expected both. The column starts with {examples}. Correct the "
            "rule, which compares the text of the file."
        )


def _to_numbers(values: pd.Series, folder: pathlib.Path) -> pd.Series:
    """Numbers as float64; text that is not a number counts as missing."""
    import pandas as pd

    numbers = pd.to_numeric(values, errors="coerce").astype(np.float64)
    if values.notna().any() and not numbers.notna().any():
        raise ValueError(
            f"The column {values.name!r} of {folder} holds no number: expected numbers, got "
            f'for example {values.dropna().iloc[0]!r}. Move it from "numeric" to "categorical".'
        )
    return numbers


def _encode(
    values: pd.Series, num_train: int, min_count: int
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Ids by training frequency, the last one for rare values, and the text of each id."""
    import pandas as pd

    codes, texts = pd.factorize(values.fillna(MISSING))
    counts = np.bincount(codes[:num_train], minlength=len(texts))
    kept = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts >= min_count)]
    ids = np.full(len(texts), len(kept), np.int32)
    ids[kept] = np.arange(len(kept))
    return ids[codes], (*(str(texts[i]) for i in kept), OTHER)


def _split_order(
    frame: pd.DataFrame,
    meta: Mapping[str, Any],
    order_by: str | Sequence[str] | None,
    folder: pathlib.Path,
) -> NDArray[np.intp]:
    """Positions of the rows in the order of the split."""
    in_file_order = np.arange(len(frame))
    if order_by is None:
        if meta["split"] == "random":
            return np.random.default_rng(0).permutation(len(frame))
        if meta["split"] == "order":
            return in_file_order
        order_by = meta.get("time")
        if order_by is None and meta.get("time_ordered_file"):
            return in_file_order
    columns = [order_by] if isinstance(order_by, str) else list(order_by or _time_columns(frame))
    if not columns or any(column not in frame for column in columns):
        received = f"order_by is {columns}" if columns else "no column is known to give the time"
        raise ValueError(
            f"{folder} is to be split by time, but {received}: expected columns of "
            f"{list(frame.columns)}. Pass one or more as order_by."
        )
    # np.lexsort takes the most significant key last; ties keep the order of the file.
    return np.lexsort([_time_key(frame[column], folder) for column in reversed(columns)])


def _time_columns(frame: pd.DataFrame) -> list[str]:
    """`timestamp`, or the year, month and day columns; nothing if that is ambiguous."""
    if "timestamp" in frame:
        return ["timestamp"]
    by_unit: dict[str, list[str]] = {"year": [], "month": [], "day": []}
    for column in frame.columns:
        words = column.lower().replace("-", "_").replace(" ", "_").split("_")
        # The finest unit names the column: "day_of_month" is a day.
        unit = next((unit for unit in ("day", "month", "year") if unit in words), None)
        if unit:
            by_unit[unit].append(column)
    # Months alone do not order rows, and of two candidates either could be meant.
    if len(by_unit["year"]) != 1 or any(len(columns) > 1 for columns in by_unit.values()):
        return []
    return [column for columns in by_unit.values() for column in columns]


def _time_key(values: pd.Series, folder: pathlib.Path) -> NDArray[np.generic]:
    """Sortable numbers for a column of numbers, month names or ISO 8601 dates."""
    import pandas as pd

    numbers = pd.to_numeric(values, errors="coerce")
    months = {name[:length]: i for i, name in enumerate(MONTHS) for length in (3, len(name))}
    candidates = (numbers, values.str.lower().map(months))
    for candidate in candidates:
        if candidate.notna().all():
            return candidate.to_numpy()
    dates = pd.to_datetime(values, format="ISO8601", errors="coerce", utc=True)
    if dates.notna().all():
        return dates.astype("int64").to_numpy()
    raise ValueError(
        f"The column {values.name!r} of {folder} cannot be put in time order: expected numbers, "
        f"month names or ISO 8601 dates in every row, got for example "
        f"{values[dates.isna()].iloc[0]!r}. Pass another column as order_by."
    )
