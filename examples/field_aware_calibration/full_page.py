"""F4, F5, F6 and S2 of HYPOTHESES.md on the page of results, and the rows of the full tables."""

from collections.abc import Callable, Mapping
from functools import partial

import full_tables
import numpy as np
from full_tables import DATA_SETS, ERRORS, ILPS, IN_TIME, METHODS, MODEL_2, NEURAL, Errors
from tables_markdown import PLATT, Group, published

from keras_calibration.seeds import Ledger
from markdown_table import markdown_table
from verdicts import (
    NOT_RUN,
    Effect,
    estimate_line,
    interval_text,
    mean_over_tables,
    p_text,
    power_text,
    ratio_text,
    verdict,
)

# In points: an AUC is comparable if it is not lower by more.
AREA_MARGIN = 0.2
points_text = partial(interval_text, decimals=2)
TEXT = """
### F4, F5, F6 and S2: curves, AUC, and shift in the paper's own measure

All rows of the paper's tables 1 to 5 on the nine tables of F1′, with new seeds. Field errors are
raw here, as in the paper. Lines without a name are estimates.
"""


def published_ratio(row: str) -> float:
    """The mean log ratio of the Field-RCE of a row and Platt scaling in table 6 of the paper."""
    rows = published()["tables"]["6"]["rows"]
    ratios = [
        np.log(rows[row][name]["field_rce"] / platt["field_rce"])
        for name, platt in rows["Platt Scaling"].items()
    ]
    return float(np.mean(ratios))


def published_area_gain() -> float:
    """The mean AUC of Neural Calibration minus that of Platt scaling in tables 2 to 5, in points.

    Table 1 is left out: it has columns that are known only after the loan.
    """
    tables = published()["tables"]
    rows = [tables[str(number)]["rows"] for number in range(2, 6)]
    return float(np.mean([100 * (r[NEURAL]["auc"] - r["Platt Scaling"]["auc"]) for r in rows]))


def hypotheses(ledger: Ledger) -> list[dict[str, str]]:
    """The four hypotheses with their verdicts, if the runs are complete, and estimates beside them.

    Args:
        ledger: The runs of `full_tables.py`.
    """
    own, mixed = (full_tables.groups_of(ledger, order) for order in ("own", "shuffled"))
    time, random = ({name: runs[name] for name in IN_TIME if name in runs} for runs in (own, mixed))
    curve, shift = published_ratio("ILPS"), published_ratio("Neural Cali. (train → dev)")
    area = published_area_gain()
    rce, margin = ERRORS["Field-RCE"], AREA_MARGIN
    less_margin = partial(points_text, less=margin)
    # Name, claim, published, effect, the size whose half is relevant, and how it is shown.
    tested: list[tuple[str, str, str, Effect | None, float, Callable[..., str]]] = [
        (
            *("F4", "ILPS has a lower Field-RCE than Platt scaling: ratio"),
            *(f"{np.exp(curve):.2f}", _ratio(own, ILPS, rce), -curve, ratio_text),
        ),
        (
            *("F5", "Neural Calibration has a higher AUC than Platt scaling: points"),
            *(f"{area:+.2f}", _area_gain(own, PLATT), area, points_text),
        ),
        (
            *("F6", f"and not {margin:g} points lower than Model-2's: difference, points"),
            *("comparable", _area_gain(own, MODEL_2, margin), 0.0, less_margin),
        ),
        (
            *("S2", "Field-RCE in the order of time: Neural Calibration : Platt scaling, ratio"),
            *(f"{np.exp(shift):.2f}", _ratio(time, NEURAL, rce), -shift, ratio_text),
        ),
    ]
    is_complete = full_tables.is_complete(own, DATA_SETS, list(METHODS))
    lines = []
    for name, claim, in_paper, effect, size, show in tested:
        line = {"hypothesis": name, "claim": claim, "published": in_paper, "here": show(effect)}
        line |= {"p": p_text(effect), "power": power_text(effect, size or margin)}
        lines.append(line | {"verdict": verdict(effect, size / 2) if is_complete else NOT_RUN})
    return lines + (_estimates(own, time, random) if own else [])


def _estimates(
    own: Mapping[str, Group], time: Mapping[str, Group], random: Mapping[str, Group]
) -> list[dict[str, str]]:
    """Lines without a verdict."""
    rce, less_floor = ERRORS["Field-RCE"], ERRORS["Field-RCE less the floor"]
    logs = [full_tables.log_ratios(groups, NEURAL, PLATT, rce) for groups in (time, random)]
    rises = [logs[0][name] - logs[1][name] for name in logs[0] if name in logs[1]]
    ratios = [
        ("F4 less the floor", _ratio(own, ILPS, less_floor)),
        ("F4 of ILPS at its optimum", _ratio(own, "ILPS at its optimum", rce)),
        ("F4 of isotonic regression", _ratio(own, "Isotonic regression", rce)),
        ("S2 in shuffled rows", _ratio(random, NEURAL, rce)),
        ("S2, order of time : shuffled", mean_over_tables([-rise for rise in rises])),
        ("S2 on all nine tables in their own order", _ratio(own, NEURAL, rce)),
    ]
    return [estimate_line(claim, effect, ratio_text) for claim, effect in ratios]


def _ratio(groups: Mapping[str, Group], row: str, errors: Errors) -> Effect | None:
    """Minus the mean over the tables of the log ratio of the errors of a row and Platt scaling."""
    ratios = full_tables.log_ratios(groups, row, PLATT, errors)
    return mean_over_tables([-value for value in ratios.values()])


def _area_gain(groups: Mapping[str, Group], base: str, margin: float = 0.0) -> Effect | None:
    """The mean AUC of Neural Calibration minus that of a base, plus a margin, in points."""
    gains = full_tables.area_gains(groups, base).values()
    return mean_over_tables([gain + margin for gain in gains])


def columns(ledger: Ledger) -> str:
    """All rows against Platt scaling in all columns, means over the nine tables."""
    own = full_tables.groups_of(ledger, "own")
    lines = []
    for row in (name for name in METHODS if name != PLATT and own):
        line = [row]
        for metric in ("log_loss", "brier"):
            logs = [np.log(g.mean(row, metric) / g.mean(PLATT, metric)) for g in own.values()]
            line.append(points_text(mean_over_tables([100 * value for value in logs])))
        line += [ratio_text(_ratio(own, row, ERRORS[name])) for name in ("Field-ECE", "Field-RCE")]
        areas = [100 * (g.mean(row, "auc") - g.mean(PLATT, "auc")) for g in own.values()]
        lines.append([*line, points_text(mean_over_tables(areas))])
    head = ["row, against Platt scaling", "log loss, %", "Brier, %", "Field-ECE", "Field-RCE"]
    return markdown_table([*head, "AUC, points"], lines) if lines else ""
