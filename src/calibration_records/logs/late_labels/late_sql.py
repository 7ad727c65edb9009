"""Labels that come late, in SQL: labels so far, ages, and what rows weigh by their ages."""

from __future__ import annotations

from collections.abc import Mapping

from calibration_records._limits import LARGEST_PROBABILITY
from calibration_records.logs.columns import LARGEST_TIME, column_of, field_value, kind_of, time_of
from calibration_records.logs.late_labels.delay_curves import DelayCurves
from calibration_records.logs.scored_log import ScoredLog

_DAY = 86_400_000_000.0  # microseconds


def label_columns(log: ScoredLog, types: Mapping[str, str]) -> dict[str, str]:
    """Ages of rows and delays of their labels, in days, and whether the label times are valid."""
    column = str(log.label_time)
    given, predicted = column_of(column), time_of(log.timestamp, types)
    is_missing = f"{given} IS NULL"
    if kind_of(column, types) in ("FLOAT", "DOUBLE"):
        is_missing += f" OR isnan({given})"
    labelled = "NULL::TIMESTAMP" if types[column] == '"NULL"' else time_of(column, types)
    order = f"isfinite({labelled}) AND {labelled} >= {predicted}"
    columns = {
        "age": f"({log.observed_microseconds} - {_microseconds(predicted)}) / {_DAY}",
        "delay": f"({_microseconds(labelled)} - {_microseconds(predicted)}) / {_DAY}",
        "given_label": given,
        "given_time": column_of(str(log.timestamp)),
        "valid_label": f"({is_missing} OR ({order})) IS TRUE",
        "valid_time": is_time(predicted),
        "delay_value": "NULL::VARCHAR",
    }
    if log.delay_field is not None:
        columns["delay_value"] = _value_text(log.delay_field, types)
    return columns


def is_time(time: str) -> str:
    """Whether a time can be read, and is one of this age of the world."""
    return f"(isfinite({time}) AND abs(epoch({time})) <= {LARGEST_TIME}) IS TRUE"


def observed_condition(log: ScoredLog, types: Mapping[str, str]) -> str:
    """Leaves out the rows that are predicted after the labels end."""
    time = time_of(log.timestamp, types)
    return f"({time} <= make_timestamp({log.observed_microseconds}::BIGINT) OR {time} IS NULL)"


def labels_so_far(rows: str, curves: DelayCurves | None) -> str:
    """Rows with `y`, 1 if the label has come; and with the `share` of positives that have theirs.

    Without curves, a label of any delay is one.
    """
    horizon = "age" if curves is None else f"least(age, {curves.horizon!r})"
    rows = f"SELECT *, coalesce(delay <= {horizon}, false)::INT::DOUBLE AS y FROM ({rows})"
    if curves is None:
        return rows
    return curves.with_share(curves.with_curve(rows), "age", "share", "share_earlier")


def observed_rows(rows: str, curves: DelayCurves, is_logit: bool) -> str:
    """Rows old enough to tell, whose prediction is that of the label so far.

    They also have the prediction of the label in the end, `final`, below 1; and for
    positives the shares at the age of their label, `share_then`, and just before, `share_before`.
    """
    final = "CASE WHEN isfinite(given) THEN 1 / (1 + exp(-given)) END" if is_logit else "given"
    rows = f"SELECT *, {final} AS final, CASE WHEN y > 0 THEN delay END AS age_then FROM ({rows})"
    rows = curves.with_share(rows, "age_then", "share_then", "share_before")
    columns = f"final * share AS given, least({LARGEST_PROBABILITY!r}, final) AS final"
    return (
        f"SELECT * REPLACE ({columns}) FROM ({rows}) "
        f"WHERE share >= {curves.min_share!r} OR NOT valid_label OR NOT valid_time"
    )


def hazard_sums(tolerance: float) -> dict[str, str]:
    """Sums of `observed_rows`: the cumulated hazards of labels, which `shifts.log_ratios` uses.

    A row of the probability p has the cumulated hazard `-log(1 - p F)` until its label comes, or so
    far. Where the share F jumps at the age of the label, the hazard h of the jump counts as h / 2,
    or as `-log(1 - h) / 2`, on the side that keeps the likelihood ratio's mean at or below 1.

    Args:
        tolerance: The relative error of p that does not matter, for either side.
    """

    def hazard(rate: float, is_up: bool) -> str:
        p = f"least({LARGEST_PROBABILITY!r}, {rate!r} * final)"
        jump = f"{p} * (share_then - share_before) / (1 - {p} * share_before)"
        jump = f"-ln(1 - {jump}) / 2" if is_up else f"{jump} / 2"
        return (
            f"CASE WHEN y > 0 THEN -ln(1 - {p} * share_before) + {jump} "
            f"ELSE -ln(1 - {p} * share) END"
        )

    return {
        "hazard_up": hazard(1 + tolerance, True),
        "hazard_down": hazard(1 / (1 + tolerance), False),
    }


def weighted_rows(rows: str, curves: DelayCurves, purpose: str) -> str:
    """Rows whose weight `w` is multiplied by that of `LabelDelay.weigh`, with p as probability."""
    negative = "CASE WHEN p * share < 1 THEN (1 - p) / (1 - p * share) ELSE 1.0 END"
    factor = f"CASE WHEN y > 0 THEN 1 / share ELSE {negative} END"
    if purpose == "fit":
        factor = f"CASE WHEN y > 0 THEN 1.0 ELSE share * {negative} END"
    known = f"share >= {curves.min_share!r}"
    return f"SELECT * REPLACE (CASE WHEN {known} THEN w * {factor} ELSE 0.0 END AS w) FROM ({rows})"


def _microseconds(time: str) -> str:
    return f"epoch_us(CASE WHEN isfinite({time}) THEN {time} END)"


def _value_text(column: str, types: Mapping[str, str]) -> str:
    """A field value as text; of the numbers 5 and 5.0, it is 5."""
    value = field_value(column, types)
    if kind_of(column, types) in ("FLOAT", "DOUBLE"):
        is_whole = f"{value} = floor({value}) AND abs({value}) < 9e18"
        return f"CASE WHEN {is_whole} THEN ({value})::BIGINT::VARCHAR ELSE ({value})::VARCHAR END"
    if kind_of(column, types) == "BOOLEAN":
        return f"({value})::INT::VARCHAR"
    return f"({value})::VARCHAR"
