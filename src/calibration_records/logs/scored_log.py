"""ScoredLog: where the rows of a scored log are, and what their columns mean."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from calibration_records._check import at_least, listed, named_once
from calibration_records.logs.late_labels.delay_curves import DelayCurves
from calibration_records.logs.periods import microseconds_since_1970

_OF_LATE_LABELS = ("observed_until", "label_delay", "delay_field")
# One column, or several for a cross.
Field: TypeAlias = str | tuple[str, ...]


@dataclass(frozen=True)
class ScoredLog:
    """A log of scored rows of any size: where it is, and what its columns mean.

    Nothing is read when it is created. `scoring.score`, `calibration.fit_calibrator` and `monitor`
    send sums to where the rows are, and get back a table whose size does not depend on the number
    of rows. The kind of `source` decides who computes the sums:

    - DuckDB, inside this process, on all cores: a Parquet or CSV file, a folder, a glob or a list
      of them, also on object stores; an Arrow table or data set; a pandas or Polars data frame; a
      DuckDB relation. Requires `pip install "keras-calibration[duckdb]"`.

      A path that exists is read as it is, whatever characters it holds; any other is a glob. A
      folder is all `.parquet`, or all `.csv`, `.csv.gz` and `.csv.zst` files in it and below, but
      not those whose name, or folder, begins with `.` or `_`. With `verbose`, the number of files
      is printed.
    - Ray, on a cluster: a `ray.data.Dataset`. Requires `keras-calibration[duckdb,ray]`.

    Values of fields are numbers or texts, the same for every kind of source; dates and times become
    texts. A missing value (also NaN) is a value of its own. There may be any number of them: sums
    that do not fit into `memory_limit` are written to a temporary folder.

    A CSV file holds texts, which become numbers and times where these are needed, for the columns
    of labels, predictions, weights and times: a text that is none, such as `1,5`, is refused with
    its file and row. A field keeps its text, so that `5`, `05` and `5.0` are three values, of which
    `5` is also that of the whole number 5 in Parquet; for layers and metrics of ids, all three are
    the id 5. In `where`, a column is a number or time if all its texts are. An empty cell is a
    missing value; the first line holds the names; the delimiter is a comma, semicolon, tab or `|`.

    A row with a missing, NaN or out-of-range label, prediction or weight makes every call raise a
    `ValueError` that counts such rows. Leave them out with `where`.

    Args:
        source: The rows. None for a description to which sources are added later, with `of`.
        label: Column of the labels, in [0, 1]; for K classes, class numbers or names.
        probability: Column of the predicted probabilities. For K classes, a list of K columns, or
            one column of lists of length K.
        logit: Column of the predicted logits, if the log has these instead of probabilities.
        sample_weight: Column of the weights, finite and not negative, or None.
        fields: Columns of the fields, each a name, or a tuple of names for a cross.
        timestamp: Column of the times: timestamps (without a time zone: UTC), dates, ISO 8601
            texts, or seconds since 1970. Days and other periods are those of UTC.
        row_key: Column that identifies a row, whole numbers or strings. Metrics that divide the
            rows into folds do it by a hash of this column. By default, it is the number of the row
            in the source, before `where`, as in Keras; sources without an order, such as those of
            Ray, require it.
        where: A condition in SQL, for example `"country = 'de' and p_click is not null"`.
        label_time: Column of the times of the positive labels, of the kinds of `timestamp`, for
            labels that come late; missing where there is none yet. `label` is then not read.
        observed_until: The time until which labels are in the log, a date or ISO 8601: a row's age
            is the time from its `timestamp` to there. Later rows are left out, and later labels
            count as missing.
        label_delay: What says how late labels come; see `with_delay`.
        delay_field: Column of the field whose values differ in their delay, or None.
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
    probability: str | Sequence[str] = "probability"
    logit: str | None = None
    sample_weight: str | None = None
    fields: Sequence[Field] = ()
    timestamp: str | None = None
    row_key: str | None = None
    where: str | None = None
    label_time: str | None = None
    observed_until: str | datetime.date | None = None
    label_delay: DelayCurves | None = None
    delay_field: str | None = None
    memory_limit: str = "512MB"
    num_threads: int | None = None

    def __post_init__(self) -> None:
        """Refuses arguments of another form."""
        listed("fields", self.fields, "columns")
        object.__setattr__(
            self, "fields", tuple(f if isinstance(f, str) else tuple(f) for f in self.fields)
        )
        if not isinstance(self.probability, str):
            object.__setattr__(self, "probability", tuple(self.probability))
        if self.num_threads is not None:
            at_least("num_threads", self.num_threads, 1, "Pass None for all cores.")
        named = [
            name
            for field in self.fields
            for name in ((field,) if isinstance(field, str) else field)
        ]
        if not all(isinstance(name, str) for name in named):
            raise ValueError(
                "Argument `fields` must hold names of columns, or tuples of names. Received: "
                f"fields={list(self.fields)!r}."
            )
        named_once("field", map(field_name, self.fields))
        self._check_label_time()

    def _check_label_time(self) -> None:
        late = {name: getattr(self, name) for name in _OF_LATE_LABELS}
        if self.label_time is None:
            if given := {name: value for name, value in late.items() if value is not None}:
                raise ValueError(
                    f"Arguments {[*given]} are for labels that come late. Received: "
                    "label_time=None. Pass label_time=, the column of their times."
                )
            return
        if self.label != "label":
            raise ValueError(
                "Argument `label` must be left out if `label_time` is given: a row with a label "
                f"time is a positive. Received: label={self.label!r}."
            )
        for name in ("timestamp", "observed_until"):
            if getattr(self, name) is None:
                raise ValueError(
                    f"Argument `{name}` must be given with `label_time`: a label is late by the "
                    f"time since its prediction. Received: {name}=None."
                )
        _ = self.observed_microseconds
        if self.label_delay is not None and not isinstance(self.label_delay, DelayCurves):
            raise ValueError(
                "Argument `label_delay` must be the curves of a fitted LabelDelay. Received: "
                f"{type(self.label_delay).__name__}. Call `log.with_delay(label_delay)`."
            )

    @property
    def observed_microseconds(self) -> int:
        """`observed_until` in microseconds since 1970."""
        return microseconds_since_1970(self.observed_until or "")

    @property
    def is_weighted(self) -> bool:
        """Whether rows have weights: their own, or those of labels that come late."""
        return self.sample_weight is not None or self.label_time is not None

    def with_delay(self, label_delay: Any) -> ScoredLog:
        """The same log, with what a `LabelDelay` says of labels still to come.

        `score`, `fit_calibrator` and `monitor` then read rows of any age. Argument `label_delay` is
        the fitted object, for example `LabelDelay(window=30).fit_log(log)`.

        Raises:
            ValueError: If the object is not fitted, or to times that are no dates; or the log names
                a `delay_field`, and the delay was fitted without a field.

        Example:
            >>> import numpy as np
            >>> from keras_calibration.calibration import LabelDelay
            >>> days = np.datetime64("2026-03-01") + np.arange(60)
            >>> sold = days + np.timedelta64(2, "D")
            >>> delay = LabelDelay(window=2).fit(days, sold, "2026-05-01")
            >>> log = ScoredLog(
            ...     timestamp="at", label_time="bought_at", observed_until="2026-05-01"
            ... )
            >>> log.with_delay(delay).label_delay.horizon
            2.0
        """
        curves = label_delay.curves(has_field=self.delay_field is not None)
        return dataclasses.replace(self, label_delay=curves)

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
