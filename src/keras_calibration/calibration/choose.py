"""choose: cross-fits the candidates of `calibrate`, weighs them, and fits what is used."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibration_records._check import known
from calibration_records._columns import names_of
from calibration_records._progress import ProgressBar
from calibration_records._warn import warn
from keras_calibration._keras import throwaway_layers
from keras_calibration._rows.inputs import free_name
from keras_calibration._rows.rows import Rows, describe_logits
from keras_calibration._rows.times import duration
from keras_calibration._solvers.row_folds import Folds, folds_of, refuse_divided_groups
from keras_calibration._solvers.row_order import rows_apart
from keras_calibration.calibration.calibration_report import CalibrationReport
from keras_calibration.calibration.candidate_fits import CandidateFit, Race
from keras_calibration.calibration.candidates import (
    DEFAULT,
    IDENTITY,
    NEURAL,
    QUICK,
    THOROUGH,
    Candidate,
    candidates,
    check_numeric,
    vocabularies,
)
from keras_calibration.calibration.cross_fitted_scores import (
    Choice,
    codes_in_folds,
    combined,
    field_chance,
    scores_of,
    segments_off,
)
from keras_calibration.calibration.report_displays import displays_of
from keras_calibration.calibration.splits import Splits, default_folds, splits_of
from keras_calibration.layers.blended_head import BlendedHead
from keras_calibration.layers.cross_fitting import cross_fitted
from keras_calibration.layers.field_ids import Fields
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.fits import draws_by_chance, remember_fit
from keras_calibration.layers.head import Head
from keras_calibration.layers.head_logits import head_logits
from keras_calibration.layers.network_trainer import copy_of
from keras_calibration.layers.refit import is_fitted_to
from keras_calibration.layers.totals import warn_of_calibrated_scores
from keras_calibration.layers.unknown_values import warn_of_unknown

BLEND = "blend"
# Five folds choose no better than three, but the members of a network learn from more rows.
_NUM_FOLDS = {QUICK: 3, DEFAULT: 3, THOROUGH: 5}
# The candidates that use numeric columns.
_WITH_NUMERIC = ("additive", "trees", NEURAL)
# Members of a network that makes its own folds.
_NUM_MEMBERS = 3


@dataclass(frozen=True)
class Asked:
    """The arguments of `calibrate` except the rows, under the same names."""

    methods: str | Sequence[str]
    fields: Fields | Sequence[str]
    numeric: Sequence[str]
    folds: Folds | None
    verbose: int | str

    @property
    def names(self) -> list[str]:
        """The names of candidates in `methods`; empty for all that are possible."""
        if isinstance(self.methods, str) and self.methods in _NUM_FOLDS:
            return []
        named = names_of(self.methods) if np.iterable(self.methods) else []
        return named or [str(self.methods)]


def choose(
    rows: Rows, asked: Asked, gap: Any = 0.0, present: Head | None = None
) -> tuple[Head, CalibrationReport]:
    """Cross-fits the candidates, weighs them, and fits those with a weight to all rows.

    Args:
        rows: The rows, in the order in which they were given.
        asked: What is asked for.
        gap: The time between the rows of a fit and those that it predicts.
        present: The head of the model, if it has one. The model with it is then `"identity"`.
    """
    names, effort = asked.names, THOROUGH if asked.names else str(asked.methods)
    refuse_divided_groups(asked.folds, rows)
    fields, numeric = vocabularies(asked.fields, rows.features), asked.numeric
    check_numeric(numeric, rows.features)
    head_reads = () if present is None else present.feature_names
    used = rows.features if head_reads is None else dict.fromkeys([*fields, *numeric, *head_reads])
    rows, passed = _single(rows, used, asked.folds), rows
    is_in_sample = present is not None and any(
        is_fitted_to(present, form.only(head_reads)) for form in (passed, rows)
    )
    folds = folds_of(asked.folds, rows)
    if folds is None and rows.times is None:
        folds = default_folds(rows, _NUM_FOLDS[DEFAULT if names else effort])
    splits = splits_of(folds, rows, duration(gap, rows.time_unit))
    identity = _logits_of_present(present, rows, splits, is_in_sample)
    last_fit = getattr(present, "fit_summary", None)
    warn_of_calibrated_scores(rows, identity, getattr(last_fit, "logits", None))
    read, rows = rows, rows.only([*fields, *numeric])
    # On blocks of time, the network makes its own folds of the earlier rows.
    num_members = _NUM_MEMBERS if splits.is_forward else splits.num_folds
    num_classes = rows.logits.shape[1] if rows.logits.ndim == 2 else None
    possible = candidates(fields, numeric, num_members, num_classes, effort, splits.is_forward)
    tried, forced = requested(possible, names), names[0] if len(names) == 1 else None
    if numeric and not any(candidate.name.startswith(_WITH_NUMERIC) for candidate in tried):
        warn(f"No candidate of methods={asked.methods!r} uses `numeric`: only the report does.")
    with throwaway_layers():
        # The report and the last fit to all rows count as one step.
        progress = ProgressBar(1 + len(tried), "candidates", asked.verbose)
        race = Race(rows, splits, progress, identity)
        race.run(tried, forced)
    report = _report(race.fits, rows, fields, splits, forced)
    change, error = report.after.log_loss_change, report.after.log_loss_change_error
    if change > error:  # only a requested one can: otherwise the model stays as it is
        warn(
            f"The calibration {forced!r} makes the cross-fitted log loss worse: {change:+.6f} ± "
            f'{error:.6f} nats per row. Use methods="default": it mostly leaves a model unchanged '
            "that is right already."
        )
    heads = {name: race.head_of(name) for name in race.fits if name in report.weights}
    seconds = {name: fit.seconds for name, fit in race.fits.items()}  # with the last fits
    scores = [replace(s, seconds=seconds.get(s.name, s.seconds)) for s in report.scores]
    if present is not None and IDENTITY in heads:
        heads[IDENTITY] = present
    elif len(heads) > 1:
        heads.pop(IDENTITY, None)  # the logit gets the rest of the weights
    (head, *_) = heads.values()
    if len(report.weights) > 1:
        head = BlendedHead(list(heads.values()), [report.weights[name] for name in heads])
        head.build((None, *rows.logits.shape[1:]))
        head.set_bias(np.array(report.bias))
        remember_fit(head, head.summary_of(read))
    warn_of_unknown(head, read, fields)
    progress.add()
    if head is not present:
        # It becomes a layer of a model with inputs of these names.
        head.name = free_name(head.name, passed.features)
        head.fit_summary = head.fit_summary and _compared(head.fit_summary, report, read)
    return head, replace(
        report,
        scores=tuple(scores),
        time_unit=rows.time_unit,
        level=head.level(),
        present=present and present.name,
        is_present_cross_fitted=is_in_sample,
    )


def _compared(summary: FitSummary, report: CalibrationReport, rows: Rows) -> FitSummary:
    """The summary of a fit with the figures before and after of the report."""
    return replace(
        summary,
        log_loss_before=report.before.log_loss,
        change=report.after.log_loss_change,
        change_error=report.after.log_loss_change_error,
        # A refresh of the exported model compares its rows with these.
        logits=describe_logits(rows.logits, "fit", rows.weights),
    )


def _single(rows: Rows, used: Collection[str], folds: Folds | None) -> Rows:
    """The rows in canonical order, or by time; a row with a count of 2 is there twice."""
    rows, *_ = rows_apart(rows.only(used), folds)
    return rows if rows.times is None else rows.take(np.argsort(rows.times, kind="stable"))


def _logits_of_present(
    present: Head | None, rows: Rows, splits: Splits, is_in_sample: bool
) -> np.ndarray:
    """The logits of the model as it was passed (n,) or (n, K).

    If its head was fitted to these rows, each fold is scored by a fit to the other folds.
    """
    if present is None:
        return rows.logits
    rows = rows.only(present.feature_names)
    if is_in_sample:
        head = copy_of(present)
        if draws_by_chance(head) and not splits.is_forward:  # its fit is cross-fitted
            logits = head.fit_checked(rows, FitSettings(folds=splits.fold)).cross_fitted_logits
            if len(logits):
                return logits
        return cross_fitted(head, rows, splits.parts)[0]
    return head_logits(present, rows.logits, rows.features)


def _report(
    fits: Mapping[str, CandidateFit],
    rows: Rows,
    fields: Collection[str],
    splits: Splits,
    forced: str | None,
) -> CalibrationReport:
    num_rows, rows = rows.num_meant, splits.weighted(rows)
    _, fold = np.unique(splits.fold[splits.scored], return_inverse=True)
    columns = {name: codes_in_folds(rows.features[name], fold) for name in fields}
    fitted = {name: fit.logits for name, fit in fits.items() if fit.logits is not None}
    if forced is None:
        bare = replace(rows, features={})
        choice = combined(fitted, bare, fold, splits.clusters, splits.is_forward)
    else:
        reason = "It was requested by `methods`."
        choice = Choice({forced: 1.0}, reason, fitted[forced], np.zeros(1))
    chosen = BLEND if len(choice.weights) > 1 else next(iter(choice.weights))
    fitted[chosen] = choice.logits
    seconds = {name: fit.seconds for name, fit in fits.items()}
    return CalibrationReport(
        num_rows=num_rows,
        num_folds=splits.num_folds,
        is_forward=splits.is_forward,
        scores=tuple(scores_of(rows, fitted, columns, seconds, splits.clusters)),
        chosen=chosen,
        reason=choice.reason,
        weights=choice.weights,
        bias=tuple(choice.bias.tolist()),
        share=choice.share,
        evidence=choice.evidence,
        evidence_needed=choice.evidence_needed,
        expected_change=choice.expected_change,
        chance_before=field_chance(rows, fitted[IDENTITY], columns),
        chance_after=field_chance(rows, choice.logits, columns),
        left_out={n: f"{f.failure} ({f.seconds:.1f} s)" for n, f in fits.items() if f.failure},
        smallest_gain=choice.smallest_gain,
        still_off=segments_off(rows, choice.logits, fields, fold),
        displays=displays_of(rows, fitted[IDENTITY], choice.logits, fields, fold),
    )


def requested(possible: list[Candidate], names: list[str]) -> list[Candidate]:
    """The named candidates, their bases and the identity; without names, all candidates."""
    if not names:
        return possible
    by_name = {candidate.name: candidate for candidate in possible}
    what = 'Argument `methods` must be "quick", "default", "thorough" or candidates by name'
    known(what, names, [*_NUM_FOLDS, *by_name])
    known(what, names, by_name)  # "quick" and the like stand alone
    compared = {IDENTITY, *names, *(base for name in names for base in by_name[name].bases)}
    return [candidate for candidate in possible if candidate.name in compared]
