"""The labels of a log, counted by age, delay and field value: what `LabelDelay.fit_log` needs."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from calibration_records.logs import LogSums, Query, ScoredLog, log_sums
from calibration_records.logs.late_labels.delays import delay_grid
from calibration_records.logs.query import Lookup
from calibration_records.logs.rows import Selection

_DELAYS = Selection(purpose="delays")
# Delays are first counted in equal steps, hours or days if these are few enough, and from a second
# on in steps of so many an octave where these are shorter.
_PER_OCTAVE, _MOST_EQUAL = 16, 750
_HOURS_A_DAY, _SECOND = 24, 1.0 / 86400


class CountedLabels(NamedTuple):
    """Labels in groups of the same value, the same step of the delay and of the age.

    Args:
        ages: Mean ages (groups,) in days.
        delays: Delays (groups,), rounded up to the grid.
        weights: Sums of the weights, for delays that drift.
        counts: Numbers of labels.
        num_old: Number of labels whose rows are as old as the window.
        square_weight: Sum of the squares of the weights of all labels.
        values: Field values, whole numbers or texts; None where it is missing.
        grid: Steps of the delay.
        has_all_delays: Whether the grid has all delays.
    """

    ages: np.ndarray
    delays: np.ndarray
    weights: np.ndarray
    counts: np.ndarray
    num_old: int
    square_weight: float
    values: np.ndarray
    grid: np.ndarray
    has_all_delays: bool


def count_labels(
    log: ScoredLog, window: float, half_life: float | None, most_steps: int, verbose: int
) -> CountedLabels:
    """Counts the labels of a log in two passes: for the grid, and by its steps.

    Raises:
        ValueError: As `logs.log_sums`; or there are no labels.
    """
    seen = f"delay <= least(age, {window!r})"
    unit = next((n for n in (_HOURS_A_DAY, 1) if window * n <= _MOST_EQUAL), None)
    counted = _by_delay(log, window, unit, seen, verbose)
    delays, numbers = counted["delay"], counted["rows"]
    if not len(delays):
        raise ValueError(
            f"The log must have labels within {window:g} days of their prediction, by "
            f"{log.observed_until}. Received: none. Check the columns of the times."
        )
    grid = delay_grid(delays, most_steps, numbers)
    lookups = [Lookup("first", grid, "delay", "left"), Lookup("after", grid, "age")]
    keys = {"value": "delay_value", "first": "first", "after": "after"}
    keys = {name: f"CASE WHEN {seen} THEN {key} END" for name, key in keys.items()}
    weight = "1.0" if half_life is None else f"pow(2.0, -age / {half_life!r})"
    sums = {"rows": "1", "age": "age", "weight": weight, "squares": f"{weight} * {weight}"}
    query = Query(keys, sums, lookups=lookups)
    table = _labels(log_sums(log, {"labels": query}, _DELAYS, verbose, check=False))
    first, after = (table[name].astype(np.int64) for name in ("key_first", "key_after"))
    # Rounding must not move a mean into another step.
    edges = np.append(grid, np.inf)
    ages = table["age"] / table["rows"]
    return CountedLabels(
        ages=np.clip(ages, edges[after - 1], np.nextafter(edges[after], 0.0)),
        delays=grid[first],
        weights=table["weight"],
        counts=table["rows"],
        num_old=int(counted["old"].sum()),
        square_weight=float(table["squares"].sum()),
        values=_numbers_or_texts(table["key_value"]),
        grid=grid,
        has_all_delays=unit is not None and not counted["odd"].sum() and len(delays) <= most_steps,
    )


def _by_delay(
    log: ScoredLog, window: float, unit: int | None, seen: str, verbose: int
) -> dict[str, np.ndarray]:
    """Numbers of labels by fine steps of the delay, and of those that are no multiple of a unit."""
    steps = _fine_steps(window, unit)
    odd = "true" if unit is None else f"delay != round(delay * {unit}) / {unit}.0"
    sums = {"rows": "1", "odd": f"({odd})::INT", "old": f"(age >= {window!r})::INT"}
    keys = {"first": f"CASE WHEN {seen} THEN first END"}
    query = Query(keys, sums, lookups=[Lookup("first", steps, "delay", "left")])
    table = _labels(log_sums(log, {"labels": query}, _DELAYS, verbose))
    return {**table, "delay": steps[table["key_first"].astype(np.int64)]}


def _labels(sums: LogSums) -> dict[str, np.ndarray]:
    """The groups of rows that have a label: of others, the delay has no step."""
    table = sums.table("labels")
    is_label = ~np.isnan(table["key_first"].astype(np.float64))
    return {name: column[is_label] for name, column in table.items()}


def _numbers_or_texts(texts: np.ndarray) -> np.ndarray:
    """Field values as whole numbers if all their texts are such, as in the columns of a frame."""
    known = [text for text in texts if text is not None]
    if not all(re.fullmatch(r"0|-?[1-9]\d{0,17}", text) for text in known):
        return texts
    return np.array([None if text is None else int(text) for text in texts], object)


def _fine_steps(window: float, unit: int | None) -> np.ndarray:
    per_day = _MOST_EQUAL / window if unit is None else unit
    equal = np.arange(np.floor(window * per_day) + 1) / per_day
    num_short = np.ceil(_PER_OCTAVE * np.log2(1.5 * _PER_OCTAVE / per_day / _SECOND))
    short = _SECOND * 2.0 ** (np.arange(max(num_short, 0)) / _PER_OCTAVE)
    return np.unique([*equal[equal <= window], *short[short < window], window])
