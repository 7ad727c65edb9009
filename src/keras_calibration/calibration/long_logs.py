"""read_log: the rows of a log for `choose`, of a long one a sample beside fits to all others."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from keras import ops

from calibration_records._progress import ProgressBar
from calibration_records.logs import ScoredLog, log_sums
from calibration_records.logs.query import Query, field_keys
from keras_calibration._ops.folds import hashed_uniform
from keras_calibration._rows.array_store import temporary_store
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.stored_rows import StoredRows, joined
from keras_calibration._solvers.row_folds import Folds
from keras_calibration.calibration.candidates import IDENTITY, Candidate, candidates, vocabularies
from keras_calibration.calibration.choose import NOTHING, Asked, FittedElsewhere, requested
from keras_calibration.calibration.log_rows import LogRows, field_values
from keras_calibration.calibration.repeated_rows import refuse_repeated
from keras_calibration.layers.field_ids import Fields, Vocabulary
from keras_calibration.layers.head import Head

# Of a log of more rows, a sample of about so many is read. It is larger, up to four times, until it
# has so many rows of either class, and at most half of all rows.
MOST_ROWS, _LARGEST, _LEAST_OF_CLASS, _LARGEST_SHARE = 500_000, 4, 5_000, 0.5
_FEWEST = 100


@dataclass(frozen=True)
class Development:
    """The rows of a log to choose with, and heads that were fitted to all others.

    Args:
        rows: The rows, whose logits are those of the scores.
        fields: The number of ids, or the lookup layer, of each field: of all rows.
        elsewhere: The heads.
    """

    rows: Rows
    fields: dict[str, Vocabulary]
    elsewhere: FittedElsewhere = NOTHING


@contextlib.contextmanager
def read_log(
    log: ScoredLog,
    asked: Asked,
    folds: Folds | None,
    follows_time: bool,
    weights_are: str,
) -> Iterator[Development]:
    """Reads a log for `choose`: all rows, or a sample beside fits to many rows.

    The rows of the sample are drawn by a hash of the row key. All candidates that can be fitted in
    passes are fitted to the other rows: the curves, and the fit with all columns. The rows of the
    sample are then new to them. With times, fits are scored by later rows: all candidates are
    fitted to the sample, and those that are chosen to all rows.

    Args:
        log: The log.
        asked: What is asked for.
        folds: How to split the rows: of a long log, a number or None.
        follows_time: Whether rows have times.
        weights_are: What its weights are.
    """
    given = LogRows(log, dict.fromkeys(asked.fields, 1), asked.numeric, follows_time, weights_are)
    total = given.totals()
    fields = _fields_of(log, asked.fields)
    given = dataclasses.replace(given, fields=fields)
    if total["rows"] <= MOST_ROWS:
        rows = joined([part for part, _ in given.batches(total, asked.verbose)])
        yield Development(rows, fields)
        return
    if not (folds is None or isinstance(folds, int)):
        raise ValueError(
            f"Argument `folds` must be None or a number for a log of more than {MOST_ROWS:,} rows, "
            f"because those of a sample are scored by fits to all others. Received: {folds!r}."
        )
    possible = candidates(
        fields, asked.numeric, 3, asked.seed, effort=asked.effort, follows_time=follows_time
    )
    heads = _able(requested(possible, asked.names))
    widest = max(heads, key=lambda name: len(heads[name].feature_names or ()), default="")
    share = _share_of_sample(total)
    sample: list[Rows] = []

    def encoded(rows: Rows) -> Rows:
        return heads[widest].encoded(heads[widest].with_features(rows))

    def others() -> Iterator[Rows]:
        for rows, keys in given.batches(total, asked.verbose):
            folded = (keys ^ (keys >> np.uint64(32))).astype("uint32")
            is_sampled = ops.convert_to_numpy(hashed_uniform(folded, asked.seed)) < share
            sample.append(rows.take(is_sampled).as_given())
            rest = rows if follows_time else rows.take(~is_sampled).as_given()
            if widest:
                yield encoded(rest)

    with temporary_store() as store:
        stored = StoredRows.of(others(), store)
        if min(sum(map(len, sample)), len(stored) if widest else _FEWEST) < _FEWEST:
            raise ValueError(
                "Argument `row_key` of the ScoredLog must tell the rows apart, because a sample is "
                f"drawn by it. Received: row_key={log.row_key!r}, by which "
                f"{sum(map(len, sample)):,} of {total['rows']:,.0f} rows are in the sample."
            )
        seen = joined(sample)
        fits = {name: functools.partial(_fitted, head, stored) for name, head in heads.items()}
        if follows_time:
            elsewhere = FittedElsewhere({}, len(stored), fits)
        else:
            if widest:
                refuse_repeated(encoded(seen), stored.blocks)
            progress = ProgressBar(0, "steps", asked.verbose, tells_time_left=False)
            found = {
                name: fits[name](progress)
                for name, head in heads.items()
                if head.needs_histogram_alone or name == widest
            }
            progress.end()
            elsewhere = FittedElsewhere(found, len(stored))
        yield Development(seen, fields, elsewhere)


def _fields_of(log: ScoredLog, fields: Fields | Sequence[str]) -> dict[str, Vocabulary]:
    """The number of ids or the lookup layer of each field, inferred from all rows."""
    if isinstance(fields, Mapping):
        return dict(fields)
    distinct = {}
    for name in fields:
        query = Query(field_keys([name]), {"rows": "1"})
        named = dataclasses.replace(log, fields=(name,))
        table = log_sums(named, {name: query}, check=False).table(name)
        distinct[name] = field_values(table["key_value_0"], name, None)
    return vocabularies(list(fields), distinct)


def _share_of_sample(total: Mapping[str, float]) -> float:
    """The share of the rows to sample, larger where one of the classes is rare."""
    share = total["positives"] / total["weight"]
    rare = min(share, 1 - share) * total["rows"]
    size = max(MOST_ROWS, min(_LEAST_OF_CLASS / rare * total["rows"], _LARGEST * MOST_ROWS))
    return min(size / total["rows"], _LARGEST_SHARE)


def _able(tried: Sequence[Candidate]) -> dict[str, Head]:
    """New heads of the candidates that can be fitted to rows in files."""
    heads = {c.name: c.make_head() for c in tried if not c.bases and c.name != IDENTITY}
    able = {name: head for name, head in heads.items() if head.fits_stored_rows}
    for head in able.values():
        head.ensure_built()
    return able


def _fitted(head: Head, rows: StoredRows, progress: ProgressBar | None = None) -> Head:
    head.fit_stored(rows, progress)
    return head
