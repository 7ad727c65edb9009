"""ScoredLog: where the rows of a scored log are, and what their columns mean."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from calibration_records._check import instance, integer, refused

# One column, or several for a cross.
Field: TypeAlias = str | tuple[str, ...]


@dataclass(frozen=True)
class ScoredLog:
    """A log of scored rows of any size: where it is, and what its columns mean.

    Nothing is read when it is created. `scoring.score`, `calibration.fit_calibrator` and `monitor`
    compute sums where the rows are, and get back a table whose size does not depend on the number
    of rows. The kind of `source` decides who computes the sums:

    - DuckDB, inside this process, on all cores: a path or glob of Parquet or CSV files, or a list
      of them, also on object stores; an Arrow table or data set; a pandas or Polars data frame; a
      DuckDB relation. A folder stands for all such files in it and its subfolders. Requires
      `pip install "keras-calibration[duckdb]"`.
    - Ray, on a cluster: a `ray.data.Dataset`. Requires `keras-calibration[duckdb,ray]`, also on the
      workers.

    Field values are numbers or texts, the same for every kind of source; dates and times become
    texts. A missing value (also NaN) is a separate field value. A field may have any number of
    values: sums that do not fit into `memory_limit` are written to a temporary folder. A column of
    a CSV file holds truth values or numbers if DuckDB can read all its texts so; times must be ISO
    8601.

    For K classes, use K logs, each of one class against the others, for example
    `duckdb.sql("SELECT *, label = 'cat' AS is_cat, p[1] AS p_cat FROM 'log.parquet'")`.

    A row with a missing, NaN or out-of-range label, prediction or weight makes every call raise a
    `ValueError` that counts such rows. Leave them out with `where`.

    Args:
        source: The rows. None for a description to which `of` adds sources later.
        label: Column of the labels, in [0, 1].
        probability: Column of the predicted probabilities.
        logit: Column of the predicted logits, if the log has these instead of probabilities.
        sample_weight: Column of the weights, finite and not negative, or None.
        fields: Columns of the fields, each a name, or a tuple of names for a cross.
        timestamp: Column of the times: timestamps (without a time zone: UTC), dates, ISO 8601
            texts, or seconds since 1970 (other numbers, such as 20260307, and placeholders, such
            as 1900-01-01 or 2099-12-31, are refused or give a warning). Days and other periods are
            in UTC.
        row_key: Column that identifies a row, whole numbers or strings. Metrics divide the rows
            into folds by a hash of this column. The default is the number of the row in the source,
            before `where`, as in Keras, but rows of weight 0 have numbers too: with such rows, the
            folds of a log are not those of arrays. Sources without an order, such as Ray's, require
            a column.
        where: A condition in SQL, for example `"country = 'de' and p_click is not null"`.
        memory_limit: Memory for the sums of one process, for example `"512MB"`.
        num_threads: Number of threads of one process; all cores by default.

    Raises:
        ValueError: If an argument is not of the described form.

    Example:
        >>> import pandas as pd
        >>> from keras_calibration.metrics import LogLoss
        >>> from keras_calibration.scoring import score
        >>> columns = {"y": [1, 0, 1, 0], "p": [0.9, 0.5, 0.6, 0.2], "site": list("abba")}
        >>> log = ScoredLog(pd.DataFrame(columns), label="y", probability="p", fields=["site"])
        >>> {name: round(value, 3) for name, value in score(log, LogLoss(), verbose=0).items()}
        {'log_loss': 0.383, 'site_field_ece': 0.05, 'site_field_rce': 0.098}
    """

    source: Any = None
    label: str = "label"
    probability: str = "probability"
    logit: str | None = None
    sample_weight: str | None = None
    fields: Sequence[Field] = ()
    timestamp: str | None = None
    row_key: str | None = None
    where: str | None = None
    memory_limit: str = "512MB"
    num_threads: int | None = None

    def __post_init__(self) -> None:
        """Refuses arguments of another form."""
        if self.num_threads is not None:
            integer("num_threads", self.num_threads, 1, "Pass None for all cores.")
        if not re.fullmatch(r"\d+(\.\d*)? *[KMGT]i?B", str(self.memory_limit), re.IGNORECASE):
            raise refused(
                "memory_limit",
                "a positive number with a unit",
                self.memory_limit,
                "Pass, for example, '512MB'.",
            )
        for name in ("label", "probability", "logit", "sample_weight", "timestamp", "row_key"):
            instance(name, getattr(self, name), (str, type(None)), "the name of a column")
        if self.where is not None and not (isinstance(self.where, str) and self.where.strip()):
            raise refused("where", "a condition in SQL", self.where, "Or leave it out.")
        # One form for all fields, so that a cross of one column is that column.
        columns = [tuple(f) if isinstance(f, tuple | list) else (f,) for f in self.fields]
        are_names = all(isinstance(name, str) for names in columns for name in names)
        if isinstance(self.fields, str) or not are_names:
            raise refused(
                "fields",
                "a list of names of columns, or of tuples of names",
                self.fields,
                "Pass, for example, fields=['site'], and '0' for a column 0 of a data frame.",
            )
        fields = tuple(names if len(names) > 1 else names[0] for names in columns)
        if len({*map(field_name, fields)}) < len(fields):
            raise refused("fields", "fields of different names", self.fields)
        if self.logit is not None and self.probability != "probability":
            raise refused("probability", "left out with `logit`", self.probability)
        # The class is frozen, and a list could change later.
        object.__setattr__(self, "fields", fields)

    def of(self, source: Any) -> ScoredLog:
        """The same columns of another source, for example of one shard.

        Example:
            >>> ScoredLog(label="click").of("part-0.parquet").source
            'part-0.parquet'
        """
        return dataclasses.replace(self, source=source)


def field_name(field: Field) -> str:
    """The name of a field in results.

    Example:
        >>> field_name("site"), field_name(("site", "device"))
        ('site', 'site_x_device')
    """
    return field if isinstance(field, str) else "_x_".join(field)
