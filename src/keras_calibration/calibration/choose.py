"""choose: cross-fits the candidates of `calibrate`, weighs them, and fits what is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from calibration_records._check import known
from calibration_records._columns import names_of
from calibration_records._figures import with_error
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
from keras_calibration.calibration.cross_fitted_rows import CrossFittedRows
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
from keras_calibration.layers.field_ids import Fields, Vocabulary
from keras_calibration.layers.fit import Fit
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.fits import as_fit, draws_by_chance, fit_to
from keras_calibration.layers.head import Head
from keras_calibration.layers.head_logits import head_logits
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


@dataclass(frozen=True)
class Plan:
    """The candidates to try, and the rows to try them on.

    Args:
        rows: The rows of the fits, in canonical order or by time; a row with a count of 2 occurs
            twice. Their features are the fields and the numeric columns.
        read: The same rows with all features that candidates or the head of the model read.
        fields: The vocabularies of the fields.
        splits: The folds.
        identity: The logits of the model as it is (n,) or (n, K).
        is_in_sample: Whether the head of the model was fitted to these rows. `identity` then comes
            from fits of the head to the other folds.
        candidates: The candidates, simplest first.
        forced: The only candidate that the user named, used whatever its score; None otherwise.
    """

    rows: Rows
    read: Rows
    fields: Mapping[str, Vocabulary]
    splits: Splits
    identity: np.ndarray
    is_in_sample: bool
    candidates: list[Candidate]
    forced: str | None


def choose(
    rows: Rows, asked: Asked, gap: Any = 0.0, present: Head | None = None
) -> tuple[Head, CalibrationReport]:
    """Cross-fits the candidates, weighs them, and fits those with a weight to all rows.

    Args:
        rows: The rows, in the order in which the user passed them.
        asked: The arguments of `calibrate`.
        gap: The time between the rows of a fit and the rows that it predicts.
        present: The head of the model, if it has one. The model with it is then `"identity"`.
    """
    plan = planned(rows, asked, gap, present)
    with throwaway_layers():
        # The report and the head count as one step.
        progress = ProgressBar(1 + len(plan.candidates), "candidates", asked.verbose)
        race = Race(plan.rows, plan.splits, progress, plan.identity)
        race.run(plan.candidates, plan.forced)
    # Score and weigh first; only then assemble the candidates with a weight into one head.
    report = _build_report(race.fits, plan)
    change, error = report.after.log_loss_change, report.after.log_loss_change_error
    if change > error:  # only a requested one can: otherwise the model stays as it is
        worse = with_error(change, error, "+")
        warn(
            f"The calibration {plan.forced!r} makes the cross-fitted log loss worse: {worse} nats "
            'per row. Use methods="default": it mostly leaves a model unchanged that is right '
            "already."
        )
    head, fit = _assemble(plan, race.fits, report, present)
    warn_of_unknown(head, plan.read, fit, plan.fields)
    progress.add()
    # The head of the model is left as it was, with the summary of its own fit.
    if head is not present:
        # Keras needs different names: the head becomes a layer of a model with these inputs.
        head.name = free_name(head.name, rows.features)
        head.assign(fit)
        head.fit_summary = head.fit_summary and _add_report_figures(
            head.fit_summary, report, plan.read
        )
    return head, replace(
        report,
        time_unit=rows.time_unit,
        level=head.level(),
        present=present and present.name,
        is_present_cross_fitted=plan.is_in_sample,
    )


def planned(rows: Rows, asked: Asked, gap: Any, present: Head | None) -> Plan:
    """The plan for the rows as they were given, see `choose`."""
    names = asked.names
    # Named candidates may be any, so all of them have to be possible.
    effort = THOROUGH if names else str(asked.methods)
    refuse_divided_groups(asked.folds, rows)
    fields, numeric = vocabularies(asked.fields, rows.features), asked.numeric
    check_numeric(numeric, rows.features)
    # Keep only columns that some candidate reads: others would tell equal rows apart, and cost
    # time.
    head_reads = () if present is None else present.feature_names
    used = rows.features if head_reads is None else dict.fromkeys([*fields, *numeric, *head_reads])
    read, *_ = rows_apart(rows.only(used), asked.folds)
    # In canonical order, or by time; a row with a count of 2 occurs twice.
    read = read if read.times is None else read.take(np.argsort(read.times, kind="stable"))
    # A head that saw these rows would look too good. It may have been fitted to them as they were
    # passed, or in the order and form that they have here.
    is_in_sample = present is not None and any(
        is_fitted_to(present, form.only(head_reads)) for form in (rows, read)
    )
    # Without a wish, take the default number, or fewer if a class has few rows.
    folds = folds_of(asked.folds, read)
    if folds is None and read.times is None:
        folds = default_folds(read, _NUM_FOLDS[DEFAULT if names else effort])
    # All candidates, and the head of the model, use the same splits: differences are paired.
    splits = splits_of(folds, read, duration(gap, read.time_unit))
    identity = _predict_present(present, read, splits, is_in_sample)
    last_fit = getattr(present, "fit_summary", None)
    warn_of_calibrated_scores(read, identity, getattr(last_fit, "logits", None))
    # On blocks of time, the network makes its own folds of the earlier rows.
    num_members = _NUM_MEMBERS if splits.is_forward else splits.num_folds
    num_classes = rows.logits.shape[1] if rows.logits.ndim == 2 else None
    possible = candidates(fields, numeric, num_members, num_classes, effort, splits.is_forward)
    tried = requested(possible, names)
    if numeric and not any(candidate.name.startswith(_WITH_NUMERIC) for candidate in tried):
        warn(f"No candidate of methods={asked.methods!r} uses `numeric`: only the report does.")
    return Plan(
        rows=read.only([*fields, *numeric]),
        read=read,
        fields=fields,
        splits=splits,
        identity=identity,
        is_in_sample=is_in_sample,
        candidates=tried,
        forced=names[0] if len(names) == 1 else None,
    )


def _assemble(
    plan: Plan, fits: Mapping[str, CandidateFit], report: CalibrationReport, present: Head | None
) -> tuple[Head, Fit]:
    """A new head of the candidates with a weight, and its fit; or the head of the model."""
    chosen: dict[str, tuple[Head, Fit]] = {}
    for name in (name for name in fits if name in report.weights):
        head = cast(Any, fits[name].make_head)()
        fit = fits[name].fit
        if name == IDENTITY:
            fit = as_fit(present or head, plan.read)
            if present is None:  # the new head has a record, which says that no fit is used
                fit = replace(fit, weights={}, summary=replace(fit.summary, is_used=False))
            head = present or head
        else:
            # Cross-fitting does not build layers; a head of a blend needs its variables.
            shapes = {name: column.shape for name, column in plan.rows.features.items()}
            head.ensure_built(features_shape=shapes)
        chosen[name] = head, cast(Fit, fit)
    # One candidate alone needs no blend, so its head stands by itself.
    if len(report.weights) == 1:
        return chosen[report.chosen]
    if present is None:
        chosen.pop(IDENTITY, None)  # a blend gives the plain logit the rest of the weights
    heads, parts = zip(*chosen.values(), strict=True)
    blend = BlendedHead(list(heads), [report.weights[name] for name in chosen])
    blend.ensure_built((None, *plan.read.logits.shape[1:]))
    return blend, blend.blend_of(plan.read, parts, np.array(report.bias))


def _add_report_figures(summary: FitSummary, report: CalibrationReport, rows: Rows) -> FitSummary:
    """The summary of a fit with the figures before and after of the report."""
    return replace(
        summary,
        log_loss_before=report.before.log_loss,
        change=report.after.log_loss_change,
        change_error=report.after.log_loss_change_error,
        # The report has them, with the numbers of the rows: `choose` may have repeated some.
        cross_fitted_logits=np.empty(0),
        # A refresh of the exported model compares its new rows with this description.
        logits=describe_logits(rows.logits, "fit", rows.weights),
    )


def _predict_present(
    present: Head | None, rows: Rows, splits: Splits, is_in_sample: bool
) -> np.ndarray:
    """The logits of the model as it was passed (n,) or (n, K).

    If its head was fitted to these rows, each fold is scored by a fit to the other folds.
    """
    if present is None:
        return rows.logits
    rows = rows.only(present.feature_names)
    # A head that was fitted to other rows predicts these as new ones: no fit is needed.
    if not is_in_sample:
        return head_logits(present, rows.logits, rows.features)
    # A network cross-fits itself within its fit, with the folds that it gets.
    if draws_by_chance(present) and not splits.is_forward:  # its fit is cross-fitted
        logits = fit_to(present, rows, FitSettings(folds=splits.fold)).summary.cross_fitted_logits
        if len(logits):
            return logits
    return cross_fitted(present, rows, splits.parts).logits


def _build_report(fits: Mapping[str, CandidateFit], plan: Plan) -> CalibrationReport:
    splits, fields, forced = plan.splits, plan.fields, plan.forced
    rows = splits.weighted(plan.rows)
    # Blocks of time without a fit are not scored; the others are numbered from 0 again.
    _, fold = np.unique(splits.fold[splits.scored], return_inverse=True)
    columns = {name: codes_in_folds(rows.features[name], fold) for name in fields}
    fitted = {name: fit.logits for name, fit in fits.items() if fit.logits is not None}
    if forced is None:
        # Weighing takes many parts of the rows; without features, these are cheap.
        bare = replace(rows, features={})
        choice = combined(fitted, bare, fold, splits.clusters, splits.is_forward)
    else:
        choice = Choice(
            {forced: 1.0}, "It was requested by `methods`.", fitted[forced], np.zeros(1)
        )
    chosen = BLEND if len(choice.weights) > 1 else next(iter(choice.weights))
    # The chosen row of the table shows what the model does: blend, bias and share together.
    fitted[chosen] = choice.logits
    return CalibrationReport(
        num_rows=plan.rows.num_meant,
        num_folds=splits.num_folds,
        is_forward=splits.is_forward,
        scores=tuple(
            scores_of(
                rows,
                fitted,
                columns,
                {name: fit.seconds for name, fit in fits.items()},
                splits.clusters,
            )
        ),
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
        cross_fitted=CrossFittedRows.of(rows, fold, fitted),
    )


def requested(possible: list[Candidate], names: list[str]) -> list[Candidate]:
    """The named candidates, their bases and the identity; without names, all candidates."""
    if not names:
        return possible
    by_name = {candidate.name: candidate for candidate in possible}
    what = 'Argument `methods` must be "quick", "default", "thorough" or candidates by name'
    # First with the words for efforts, so that the message of a typing error lists all that exist.
    known(what, names, [*_NUM_FOLDS, *by_name])
    known(what, names, by_name)  # "quick" and the like stand alone
    # The identity is the yardstick, and trees need their bases.
    compared = {IDENTITY, *names, *(base for name in names for base in by_name[name].bases)}
    return [candidate for candidate in possible if candidate.name in compared]
