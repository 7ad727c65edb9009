"""The candidates of `calibrate`, simplest first, and the vocabularies of fields."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from calibration_records._check import known, one_column, refused
from calibration_records._columns import ids_of, names_of, text_of
from keras_calibration._typing import Features
from keras_calibration.layers.beta_calibration import BetaCalibration
from keras_calibration.layers.bias_correction import BiasCorrection
from keras_calibration.layers.boosted_trees import BoostedTrees
from keras_calibration.layers.field_bias import FieldBias
from keras_calibration.layers.field_ids import Fields, Vocabulary
from keras_calibration.layers.field_ilps import FieldILPS
from keras_calibration.layers.field_network import FieldNetwork
from keras_calibration.layers.head import Head
from keras_calibration.layers.ilps import ILPS
from keras_calibration.layers.neural_calibration import NeuralCalibration
from keras_calibration.layers.platt_scaling import PlattScaling
from keras_calibration.layers.temperature_scaling import TemperatureScaling
from keras_calibration.layers.vector_scaling import VectorScaling

IDENTITY, NEURAL = "identity", "neural"
LEVEL = "+level"
QUICK, DEFAULT, THOROUGH = "quick", "default", "thorough"

# With many fields, each curve may differ only a little from the shared slope; the fit is slow.
_MOST_FIELDS_WITH_CURVES = 8
# Ids get a lookup layer if the largest is at least this many times their number, and the table
# would have more rows than this.
_DENSE_SHARE, _SMALL_TABLE = 4, 10_000


@dataclass(frozen=True)
class Candidate:
    """A calibration method.

    Args:
        name: Its name in `calibrate(methods=…)` and in the report.
        make_head: Creates a new, unfitted head. With bases, it takes a new head of one base as
            argument.
        bases: Names of earlier candidates. `Race` fits this candidate on top of the best one.
    """

    name: str
    make_head: Callable[..., Head]
    bases: tuple[str, ...] = ()


def candidates(
    fields: Fields,
    numeric: Sequence[str],
    num_folds: int,
    num_classes: int | None = None,
    effort: str = THOROUGH,
    follows_time: bool = False,
) -> list[Candidate]:
    """The candidates for these features, ordered by their flexibility.

    Always `identity`, `bias`, `temperature`, `platt`, `beta`, `ilps`; with fields `field_bias`;
    with one to eight fields `field_ilps`; with numeric columns `additive`; with either `trees` and
    `neural`. With `follows_time`, each of `ilps`, `field_bias` and `additive` has a second form
    with a level over time, such as `ilps+level`. For K classes `identity`, `temperature`, `vector`.

    Example:
        >>> [candidate.name for candidate in candidates({"site": 3}, (), 3)]
        ['identity', 'bias', 'temperature', 'platt', 'beta', 'ilps', 'field_bias', 'field_ilps',
        'trees', 'neural']
        >>> [candidate.name for candidate in candidates({"site": 3}, (), 3, num_classes=4)]
        ['identity', 'temperature', 'vector']
    """
    if num_classes is not None:
        # An unfitted temperature is 1, which makes it the identity.
        return [
            Candidate(IDENTITY, TemperatureScaling),
            Candidate("temperature", TemperatureScaling),
            Candidate("vector", lambda: VectorScaling(num_classes)),
        ]

    curve = functools.partial(ILPS, smoothness="auto", monotonic="strict")

    def with_level(name: str, **columns: Any) -> dict[str, Callable[..., Head]]:
        """A curve with the effects of columns; if rows have times, also one with a level."""
        made: dict[str, Callable[..., Head]] = {
            name: lambda: FieldBias(calibrator=curve(), **columns) if columns else curve()
        }
        if follows_time:
            # A level needs `FieldBias`, even without fields.
            options: dict[str, Any] = {"fields": {}, **columns, "follows_time": True}
            made[name + LEVEL] = lambda: FieldBias(calibrator=curve(), **options)
        return made

    heads: dict[str, Callable[..., Head]] = {
        IDENTITY: BiasCorrection,  # an unfitted bias is 0
        "bias": BiasCorrection,
        "temperature": TemperatureScaling,
        "platt": PlattScaling,
        "beta": BetaCalibration,
        **with_level("ilps"),
    }
    # The order of `heads` is the order of the report and of the race: bases before trees.
    base = "field_bias" if fields else "ilps"
    if fields:
        heads |= with_level(base, fields=fields)
    # Trees may stand on the candidate with a level or without one, whichever is better.
    bases = tuple(name for name in (base, base + LEVEL) if name in heads)
    if 0 < len(fields) <= _MOST_FIELDS_WITH_CURVES:
        heads["field_ilps"] = lambda: FieldILPS(fields, curve())
    if numeric:
        heads |= with_level("additive", fields=fields, numeric=numeric)
    if (fields or numeric) and effort != QUICK:
        heads["trees"] = functools.partial(BoostedTrees, fields, numeric)
    if (fields or numeric) and effort == THOROUGH:
        heads[NEURAL] = lambda: NeuralCalibration(
            curve(), FieldNetwork(fields, numeric, seed=0), num_members=num_folds
        )
    return [Candidate(name, make, bases if name == "trees" else ()) for name, make in heads.items()]


def vocabularies(fields: Fields | Sequence[str], columns: Features) -> dict[str, Vocabulary]:
    """The number of ids or the lookup layer of each field, inferred if only names are given.

    Example:
        >>> vocabularies(["site"], {"site": np.array([0, 4, 2])})
        {'site': 5}
    """
    names = names_of(fields)
    remedy = "For columns that it does not read, pass its scores to `calibrate_scores`."
    known("Argument `fields` must name inputs of the model", names, sorted(columns), remedy)
    for name in names:
        one_column(name, tuple(columns[name].shape))
    if isinstance(fields, Mapping):
        return dict(fields)
    return {name: _build_vocabulary(name, columns[name].reshape(-1)) for name in names}


def check_numeric(names: Sequence[str], columns: Features) -> None:
    """Raises if a numeric column is missing or does not hold numbers."""
    known("Argument `numeric` must name inputs of the model", names, sorted(columns))
    for name in names:
        if columns[name].dtype.kind not in "iubf":
            raise refused("numeric", "columns of numbers", name, "Name others in `fields`.")
        one_column(name, tuple(columns[name].shape))


def _build_vocabulary(name: str, column: np.ndarray) -> Vocabulary:
    if column.dtype.kind in "OSU":
        return keras.layers.StringLookup(
            vocabulary=sorted({text_of(value, repr(name)) for value in column.tolist()})
        )
    # `ids_of` takes floats too if they are whole numbers, as data frames with gaps hold them.
    distinct = np.unique(ids_of(column, repr(name), "strings or whole numbers, to be a field"))
    smallest = int(distinct[0])
    largest = int(distinct[-1])
    # A table has a row for each id up to the largest. A few account numbers would fill the memory,
    # so sparse and negative ids get a lookup layer.
    if smallest < 0 or largest >= max(_DENSE_SHARE * len(distinct), _SMALL_TABLE):
        return keras.layers.IntegerLookup(
            vocabulary=distinct.astype("int64"), oov_token=min(smallest, 0) - 1
        )
    return largest + 1
