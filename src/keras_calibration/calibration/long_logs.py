"""calibrate_log: calibrates the scores of a log, of which a sample is in memory."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from keras import ops
from scipy import special

from calibration_records._progress import ProgressBar
from calibration_records.logs import ScoredLog, log_sums
from calibration_records.logs.query import Query, field_keys
from keras_calibration._ops.folds import hashed_uniform
from keras_calibration._rows.array_store import FolderStore
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.stored_rows import StoredRows, joined
from keras_calibration.calibration.candidates import IDENTITY, Candidate, candidates, vocabularies
from keras_calibration.calibration.choose import NOTHING, Asked, FittedElsewhere, requested
from keras_calibration.calibration.log_rows import LogRows, field_values
from keras_calibration.layers.field_ids import Fields, Vocabulary
from keras_calibration.layers.head import Head

# Of a log of more rows, a sample of about so many is read. It is larger, up to four times, until it
# has so many rows of either class, and at most half of all rows.
MOST_ROWS, _LARGEST, _LEAST_OF_CLASS, _LARGEST_SHARE = 500_000, 4, 5_000, 0.5


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


def read_log(
    log: ScoredLog,
    asked: Asked,
    follows_time: bool,
    weights_are: str,
) -> Development:
    """Reads a log for `choose`: all rows, or a sample, with heads fitted to all other rows.

    The rows of the sample are drawn by a hash of the row key. All candidates that can be fitted in
    passes are fitted to the other rows: the curves, and the fit with all columns. The rows of the
    sample are then new to them.

    Args:
        log: The log.
        asked: What is asked for.
        follows_time: Whether rows have times; then the log must fit into memory.
        weights_are: What its weights are.
    """
    given = LogRows(log, dict.fromkeys(asked.fields, 1), asked.numeric, follows_time, weights_are)
    total = given.totals()
    fields = _fields_of(log, asked.fields)
    given = dataclasses.replace(given, fields=fields)
    if total["rows"] <= MOST_ROWS:
        rows = joined([part for part, _ in given.batches(total, asked.verbose)])
        return Development(rows, fields)
    if follows_time:
        raise ValueError(
            f"A log with `time` must have at most {MOST_ROWS:,} rows, because each fit is scored "
            f"by later rows. Received: {total['rows']:,.0f} rows. Leave earlier ones out with "
            "`where`, or call fit_calibrator with a FieldBias that follows time, of any number of "
            "rows."
        )
    possible = candidates(fields, asked.numeric, 3, asked.seed, effort=asked.effort)
    tried = [each for each in requested(possible, asked.names) if each.name != IDENTITY]
    heads = _fitted_in_passes(tried)
    share = _share_of_sample(total)
    sample: list[Rows] = []

    def others() -> Iterator[Rows]:
        for rows, keys in given.batches(total, asked.verbose):
            folded = (keys ^ (keys >> np.uint64(32))).astype("uint32")
            is_sampled = ops.convert_to_numpy(hashed_uniform(folded, asked.seed)) < share
            sample.append(rows.take(is_sampled).as_given())
            # As the head with most columns reads them.
            for head in list(heads.values())[-1:]:
                yield head.encoded(head.with_features(rows.take(~is_sampled).as_given()))

    with tempfile.TemporaryDirectory(prefix="keras-calibration-") as folder:
        stored = StoredRows.of(others(), FolderStore(folder))
        progress = ProgressBar(0, "steps", asked.verbose, tells_time_left=False)
        for head in heads.values():
            head.fit_stored(stored, progress)
        progress.show(progress.done, is_end=True)
    return Development(joined(sample), fields, FittedElsewhere(heads, len(stored)))


def scores_of(rows: Rows, from_logits: bool) -> np.ndarray:
    """The scores of rows, as a model of scores takes them."""
    return rows.logits if from_logits else special.expit(rows.logits)


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


def _fitted_in_passes(tried: Sequence[Candidate]) -> dict[str, Head]:
    """New heads of the candidates to fit to rows in files; that with most columns is the last."""
    heads = {each.name: each.make_head() for each in tried if not each.bases}
    able = {name: head for name, head in heads.items() if head.fits_stored_rows}
    curves = {name: head for name, head in able.items() if head.needs_histogram_alone}
    widest = max(able, key=lambda name: len(able[name].feature_names or ()), default=None)
    found = {**curves, **({} if widest is None else {widest: able[widest]})}
    for head in found.values():
        head.ensure_built()
    return found
