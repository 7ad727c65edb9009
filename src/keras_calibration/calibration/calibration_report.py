"""CalibrationReport: the candidates that `calibrate` compared, its choice and the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration_records._check import known
from calibration_records._display import Display
from calibration_records._figures import decimals_of, significant, to_error, with_error
from calibration_records._text import ShownAsText, counted, grid, shorten, wrap
from keras_calibration._solvers.level import Level
from keras_calibration.calibration.cross_fitted_rows import CrossFittedRows
from keras_calibration.layers.fit_summary import utc_now
from keras_calibration.scoring.multicalibration_error import SegmentErrors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEADER = ("method", "log loss", "change ± se", "Brier", "AUC", "F-ECE", "pred/obs ± se", "s")
# How many fields are printed after the worst, and how much of their names.
_NUM_FIELDS, _NAME_WIDTH = 5, 36
_NO_ROWS = CrossFittedRows(*(np.zeros(0),) * 4, logits={})


@dataclass(frozen=True)
class CandidateScore:
    """The cross-fitted figures of one candidate: every row is scored by a fit that did not see it.

    A "blend" scores each fold with the weights of the other folds, so they did not see the row
    either. The report computes field errors within each fold, where one fit predicts all rows, and
    averages them. So they estimate the errors on as many new rows as a fold has.

    Args:
        name: Name of the candidate.
        log_loss: Mean log loss, in nats per row.
        log_loss_change: Log loss minus the log loss of the identity.
        log_loss_change_error: Standard error of the change. It treats rows as independent; with
            blocks, it treats blocks as independent if that gives a larger error.
        brier: Mean squared error of the probabilities; for classes, summed over them.
        auc: Area under the ROC curve; for classes, the mean of each class against the others.
        field_ece: Field name → Field-ECE; for classes, the mean over them.
        field_rce: Field name → Field-RCE; for classes, the mean over them.
        calibration_ratio: Predicted positives divided by observed positives; for classes, the ratio
            farthest from 1.
        calibration_ratio_error: Standard error of the ratio. A fit with a bias reproduces the total
            of its own rows, so the ratio is about 1 on these; the ratio on new rows has this error.
        seconds: Time of all fits, in seconds.
    """

    name: str
    log_loss: float
    log_loss_change: float
    log_loss_change_error: float
    brier: float
    auc: float
    field_ece: dict[str, float]
    field_rce: dict[str, float]
    calibration_ratio: float
    calibration_ratio_error: float
    seconds: float


@dataclass(frozen=True)
class FieldChance:
    """The field errors that chance alone gives a model, each with its standard deviation.

    Args:
        field_ece: Mean Field-ECE if the probabilities were correct; for classes, their mean.
        field_ece_deviation: Its standard deviation; for classes, an upper bound.
        field_rce: Mean Field-RCE if the probabilities were correct; for classes, their mean.
        field_rce_deviation: Its standard deviation; for classes, an upper bound.
        error: Standard error of the Field-ECE of the model, whose probabilities may be wrong.
    """

    field_ece: float
    field_ece_deviation: float
    field_rce: float
    field_rce_deviation: float
    error: float


@dataclass(frozen=True)
class CalibrationReport(ShownAsText):
    """The cross-fitted figures of all candidates, the choice and the reason for it.

    `print(report)` shows the figures that help to choose: log loss, Brier score and AUC; Field-ECE
    (F-ECE), the mean absolute difference between predicted and observed means of the values of a
    field, for the field that is farthest off beyond chance; and the mean prediction over the mean
    label (pred/obs). Below are the fields that come next (`worst_fields` has all). Field-RCE, which
    is relative and therefore dominated by rare values, is in `scores`. `report.to_dict()` returns
    plain values for a file. Even a perfectly calibrated model has field errors above 0, by chance:
    `beyond_chance` subtracts what chance alone gives from the Field-ECE.

    The model changes if the evidence for a change reaches `evidence_needed`, and the gain is above
    its standard error. The best of several candidates looks better than it is, so the model uses
    only a `share` of the change if the evidence is weak, and `expected_change` leaves out the part
    of the gain that may be chance.

    Args:
        num_rows: Number of rows of the development set.
        num_folds: Number of folds.
        is_forward: Whether each fold was scored by a fit on the earlier folds only, and weighted by
            that fit's share of the rows.
        scores: The figures of each candidate, simplest first.
        chosen: Name of the chosen candidate, or "blend" for a weighted mean of several.
        reason: Why it was chosen, in one sentence.
        chance_before: Field name → the field errors of the identity by chance alone.
        chance_after: Field name → the field errors of the chosen calibration by chance alone.
        weights: Name of each candidate that is used → its weight in the mean of the logits.
        bias: The bias that the model adds to this mean, so that it predicts the observed total: one
            number, or one for each class.
        share: The share of the change that the model uses, in (0, 1]. The rest may be chance.
        evidence: The evidence for a change, in standard errors; NaN if a candidate was requested.
        evidence_needed: The evidence from which the model changes.
        expected_change: The change of the log loss that is expected on new rows, and its standard
            error, in nats per row; NaN if a candidate was requested.
        left_out: Name of each candidate that could not be fitted, or gained nothing → why, and the
            time of its fits.
        still_off: Segments in which the chosen calibration is off beyond chance, the most
            significant first: values of the fields, ranges of the numeric columns, and their pairs
            (`scoring.multicalibration_error`). `print(report.still_off)` shows a table. Empty
            without fields and numeric columns, and for classes.
        level: With times, the level over time of the chosen calibration, if it follows one.
        time_unit: `"day"` if the times are dates, else empty.
        present: Name of the head that the model had when it was passed, if any. `"identity"` is
            the model with this head.
        is_present_cross_fitted: Whether that head was fitted to these rows. `"identity"` is then
            scored by fits of it to the other folds, like all candidates.
        smallest_gain: If the model stays as it is: the gain, in nats per row, that these rows could
            have shown; else 0.
        displays: Pictures of the cross-fitted predictions before and after, for `plot`: the
            `plots.FieldDisplay` of each field by its name, and a `plots.ReliabilityDisplay` by the
            name "reliability". Empty for classes and soft labels. `to_dict` leaves them out.
        cross_fitted: The cross-fitted predictions of every candidate, row by row, with the numbers
            of the rows (`CrossFittedRows`): for other metrics, or to recompute a line of the table.
            `to_dict` leaves them out.
        fitted_at: Time of the fit in UTC; by default now.

    Example:
        >>> score = CandidateScore(
        ...     "identity", 0.3, 0.0, 0.0, 0.09, 0.7, {"site": 0.01}, {"site": 0.2}, 1.1, 0.1, 0.0
        ... )
        >>> reason = "Nothing is better."
        >>> report = CalibrationReport(100, 5, (score,), "identity", reason, {}, {})
        >>> report.before.log_loss == report.after.log_loss
        True
        >>> print(report)  # doctest: +NORMALIZE_WHITESPACE
        The model stays as it is. Nothing is better.
        <BLANKLINE>
        method      log loss  change ± se    Brier     AUC   F-ECE  pred/obs ± se    s
        * identity   0.30000        0 ± 0  0.09000  0.7000  0.0100    1.10 ± 0.10  0.0
        Cross-fitted on 100 rows in 5 folds; F-ECE by 'site'; s: seconds of all fits of a candidate.
    """

    num_rows: int
    num_folds: int
    scores: tuple[CandidateScore, ...]
    chosen: str
    reason: str
    chance_before: dict[str, FieldChance]
    chance_after: dict[str, FieldChance]
    weights: dict[str, float] = field(default_factory=dict)
    bias: tuple[float, ...] = (0.0,)
    share: float = 1.0
    evidence: float = float("nan")
    evidence_needed: float = float("nan")
    expected_change: tuple[float, float] = (float("nan"), float("nan"))
    left_out: dict[str, str] = field(default_factory=dict)
    still_off: SegmentErrors = field(default_factory=SegmentErrors)
    is_forward: bool = False
    level: Level | None = None
    time_unit: str = ""
    present: str | None = None
    is_present_cross_fitted: bool = False
    smallest_gain: float = 0.0
    displays: Mapping[str, Display] = field(default_factory=dict, compare=False, repr=False)
    cross_fitted: CrossFittedRows = field(default=_NO_ROWS, compare=False, repr=False)
    fitted_at: str = field(default_factory=utc_now, compare=False)

    @property
    def before(self) -> CandidateScore:
        """The figures of the model as it was passed."""
        return self.scores[0]

    @property
    def after(self) -> CandidateScore:
        """The figures of the chosen calibration."""
        return next(score for score in self.scores if score.name == self.chosen)

    def beyond_chance(self, field: str) -> list[tuple[float, float]]:
        """Field-ECE minus its mean by chance alone, with its standard error, before and after.

        Both are within folds. For a model that is right, the difference is 0 on average.

        Args:
            field: Name of a field.

        Raises:
            ValueError: If the report has no field of this name.
        """
        known("Argument `field` must be one of the fields", [field], self.chance_after)
        # Chance depends on the probabilities, so each side subtracts its own.
        pairs = ((self.before, self.chance_before), (self.after, self.chance_after))
        return [
            (score.field_ece[field] - chance[field].field_ece, chance[field].error)
            for score, chance in pairs
        ]

    def worst_fields(self) -> dict[str, list[tuple[float, float]]]:
        """Name of each field → its `beyond_chance`, the field that is farthest off first.

        It is sorted by the larger error of before and after, so that neither is hidden.
        """
        errors = ((name, self.beyond_chance(name)) for name in self.chance_after)
        return dict(sorted(errors, key=lambda field: -max(field[1])[0]))

    def plot(self, name: str | None = None, ax: Axes | None = None) -> Display:
        """Draws the errors of a field's values, before and after calibration.

        It shows the rows of the last fold, predicted by a fit that did not see them.

        Args:
            name: A field, or "reliability" for the reliability diagram. By default the first
                field; without fields, the diagram.
            ax: Matplotlib axes to draw on; None for a new figure.

        Returns:
            The display, with `ax_` and `figure_` set.

        Raises:
            ValueError: If the report has no picture of this name. It has none for classes and for
                soft labels.
            ImportError: If Matplotlib is not installed.
        """
        name = next(iter(self.displays), "reliability") if name is None else name
        remedy = "There are none of classes and of soft labels." if not self.displays else ""
        known("Argument `name` must be one of the pictures", [name], self.displays, remedy)
        return self.displays[name].plot(ax)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain Python values."""
        # `asdict` copies deeply, so leave out first what is large.
        values = asdict(
            replace(self, displays={}, still_off=SegmentErrors(), cross_fitted=_NO_ROWS)
        )
        del values["displays"], values["cross_fitted"]
        return {
            **values,
            "still_off": tuple(map(asdict, self.still_off)),
            "level": self.level and self.level.to_dict(),
        }

    def __str__(self) -> str:
        shown = next(iter([*self.worst_fields(), *self.before.field_ece]), None)
        # The widest line of the table sets the width of the sentences around it.
        places = _count_decimals(self.scores, shown)
        table = grid(
            [_HEADER, *(self._format_cells(score, shown, places) for score in self.scores)]
        )
        width = len(table[0])
        verdict = [line for sentence in self._describe_verdict() for line in wrap(sentence, width)]
        notes = [line for note in self._write_notes(shown) for line in wrap(note, width)]
        return "\n".join([*verdict, "", *table, *notes])

    @property
    def _stays(self) -> bool:
        """Whether the model is left as it was passed."""
        return self.chosen == self.before.name

    def _describe_verdict(self) -> list[str]:
        """Whether the model changes, to what, and the figures that decided it."""
        parts = sorted(self.weights.items(), key=lambda part: -part[1])
        shares = ", ".join(f"{name} {weight:.2f}" for name, weight in parts)
        chosen = f"{self.chosen} ({shares})" if len(parts) > 1 else self.chosen
        verdict = "The model stays as it is." if self._stays else f"The model changes: {chosen}."
        verdict = f"{verdict} {self.reason}"
        # A requested candidate needs no evidence: the user has decided.
        if np.isnan(self.evidence):
            return [verdict]
        needed = f"{self.evidence_needed:.1f} are needed"
        figures = f"Evidence for a change: {self.evidence:.1f} standard errors; {needed}"
        if self._stays:
            but = ", but the gain is within its error" * (self.evidence >= self.evidence_needed)
            gain = significant(self.smallest_gain, 3)
            enough = f"A gain of {gain} nats per row would have been enough."
            return [verdict, f"{figures}{but}. {enough}"]
        change = to_error(*self.expected_change, "+")
        expected = f"On new rows, expect the log loss to change by {change}"
        if self.share < 1:
            percent = f"{100 * self.share:.0f} %"
            expected += f": {percent} of the change is used, since the rest may be chance"
        return [verdict, f"{figures}. {expected}."]

    def _format_cells(
        self, score: CandidateScore, field_name: str | None, places: Sequence[int]
    ) -> list[str]:
        """A row of the table; `places` are the decimals of log losses, Brier score and F-ECE."""
        mark = "* " if score.name == self.chosen else "  "
        nats = places[0]
        change = f"{score.log_loss_change:+z.{nats}f} ± {score.log_loss_change_error:.{nats}f}"
        field_ece = "-" if field_name is None else f"{score.field_ece[field_name]:.{places[2]}f}"
        return [
            f"{mark}{score.name}",
            f"{score.log_loss:.{nats}f}",
            change if score.log_loss_change else "0 ± 0",
            f"{score.brier:.{places[1]}f}",
            f"{score.auc:.4f}",
            field_ece,
            with_error(score.calibration_ratio, score.calibration_ratio_error),
            f"{score.seconds:.1f}",
        ]

    def _list_other_fields(self) -> list[str]:
        """A table of the fields that come after the worst, and a line for the rest."""
        sides = ["beyond chance"] if self._stays else ["beyond chance before", "after"]
        # A column for each side, the first field left out: its figures are in a sentence.
        others = [(name, pair[: len(sides)]) for name, pair in self.worst_fields().items()][1:]
        rows = [
            [shorten(name, _NAME_WIDTH), *(with_error(*error) for error in pair)]
            for name, pair in others[:_NUM_FIELDS]
        ]
        lines = grid([["F-ECE of the next fields", *sides], *rows]) if rows else []
        if rest := [pair for _, pair in others[_NUM_FIELDS:]]:
            columns = zip(sides, zip(*rest, strict=True), strict=True)
            most = " and ".join(f"{to_error(*max(errors))} {side}" for side, errors in columns)
            lines.append(
                f"{counted(len(rest), 'more field')}: at most {most}; "
                "`report.worst_fields()` has all."
            )
        return lines

    def _write_notes(self, field_name: str | None) -> list[str]:
        """The sentences below the table."""
        by_field = "" if field_name is None else f"; F-ECE by {field_name!r}"
        if len(self.chance_after) > 1:
            by_field += f", which is farthest off of {len(self.chance_after)} fields"
        method = f"Cross-fitted on {self.num_rows:,} rows in {self.num_folds} folds"
        if self.is_forward:
            method = (
                f"{self.num_rows:,} rows in {self.num_folds} chronological blocks; each block "
                "after the first is scored by a fit on all earlier blocks and weighted by that "
                "fit's number of rows"
            )
        notes = [f"{method}{by_field}; s: seconds of all fits of a candidate."]
        if self.present is not None:
            seen = (
                ", which was fitted to these rows: it is scored by fits of it to the other folds"
                if self.is_present_cross_fitted
                else ""
            )
            notes.append(f"'identity' is the model with its head {self.present!r}{seen}.")
        # The figure and the chance figure stand side by side, so that a reader can judge the F-ECE.
        if field_name in self.chance_after:
            chance = self.chance_after[field_name]
            before, after = (
                with_error(ece, error) for ece, error in self.beyond_chance(field_name)
            )
            beyond = before if self._stays else f"{before} before, {after} after"
            notes.append(
                "F-ECE is the mean of the folds. Chance alone would give "
                f"{with_error(chance.field_ece, chance.field_ece_deviation)} if the chosen "
                f"probabilities were correct. Beyond chance: {beyond}."
            )
        notes += self._list_other_fields()
        if self.level is not None:
            (slope, error), unit = self.level.drift, self.time_unit or "unit of time"
            notes.append(
                f"The level drifted by {with_error(slope, error, '+')} logits a {unit}. What "
                f"persists changes by {significant(self.level.walk, 2)} in a {unit} (standard "
                f"deviation), and {significant(self.level.noise, 2)} does not persist. The model "
                f"serves {self.level.last:+.3f}."
            )
        notes += [f"Left out: {name}. {why}" for name, why in self.left_out.items()]
        if self.still_off:
            most, *others = self.still_off
            more = f"; and {len(others)} more, see `still_off`." if others else ""
            notes.append(f"Still off beyond chance, most of all: {most}{more}")
        return notes


def _count_decimals(
    scores: Sequence[CandidateScore], field_name: str | None
) -> tuple[int, int, int]:
    """The decimals of log losses, Brier score and F-ECE, the same for all candidates.

    Small rates need more: the smallest log loss gets five digits, the smallest Brier score four,
    and the smallest F-ECE and the smallest error of a change, above 0, two.
    """
    field_errors = [] if field_name is None else [score.field_ece[field_name] for score in scores]
    errors = filter(None, (score.log_loss_change_error for score in scores))
    smallest = min(score.log_loss for score in scores)
    return (
        max(5, decimals_of(smallest, 5), decimals_of(min(errors, default=1.0))),
        max(5, decimals_of(min(score.brier for score in scores), 4)),
        max(4, decimals_of(min(filter(None, field_errors), default=0.0), 2)),
    )
