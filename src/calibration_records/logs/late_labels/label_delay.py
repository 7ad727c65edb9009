"""LabelDelay: how late labels come, and what rows weigh while labels are still to come."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import positive, refused, share
from calibration_records._columns import check_same_rows, ids_of, numbers_of, warn_of_other_order
from calibration_records._files import write_atomically
from calibration_records._predictions import check_probabilities
from calibration_records._text import ShownAsText
from calibration_records._warn import warn
from calibration_records.logs import ScoredLog
from calibration_records.logs.late_labels.delay_curves import FORMAT, DelayCurves, read_label_delay
from calibration_records.logs.late_labels.delay_fit import fit_curves, value_numbers
from calibration_records.logs.late_labels.delays import (
    delay_grid,
    log_share_variance,
)
from calibration_records.logs.late_labels.label_times import ages_and_delays
from calibration_records.logs.late_labels.log_delays import CountedLabels, count_labels

_MOST_STEPS = 250
# Positives that must be as old as the window: all that is said of long delays rests on them.
_FEWEST_OLD = 50


class LabelDelay(ShownAsText):
    """The delay of positive labels, and weights for rows whose labels may still come.

    A row without a label is a negative, or a positive whose label is late. `fit` estimates
    `F(t)`, the share of the positives that have their label by age t, from labels seen so far. A
    label is seen only if its delay is shorter than the age of its row (right truncation), so the
    mean delay of the labels seen is too short. The reverse-time product-limit estimator is right:

        F(t) = Π (1 - events at s / rows at risk at s), over delays s > t,

    where at risk at s are the rows with a delay of at most s and an age of at least s. Given a
    field, each value has a curve of its own, from its rows and some rows of all values; how many is
    estimated. Rows without a label are not used, so that negatives and their number do not matter.

    `weigh` gives each row a hard label and a weight that is not negative, for `calibrate`,
    `fit_head`, `score` and every metric. With age a and probability p of a row:

    | purpose | positive so far | no label yet |
    | --- | --- | --- |
    | `"fit"` | 1 | F(a) (1 - p) / (1 - p F(a)) |
    | `"score"` | 1 / F(a) | (1 - p) / (1 - p F(a)) |

    The weights of `"fit"` make the gradient of the log loss that of the likelihood of the labels
    seen so far: a young row counts for little. Those of `"score"` estimate the sums of the complete
    labels: the expected weight of a row is 1, of any age, and a positive of yesterday weighs much.

    Two things are assumed: within a field value, the delay depends neither on the features nor on
    the time of the prediction; and p, which matters where positives are not rare, is nearly right.

    Args:
        window: Labels that take longer are negatives (attribution window): in days, or in the unit
            of the times if these are numbers. By default, the largest age that 50 labelled rows
            have. Nothing can be known of longer delays.
        half_life: Age in the same unit at which a row counts half in `fit`, for delays that
            drift. By default, all rows count the same.
        min_share: Rows at whose age fewer of the positives, as a share, have their label get the
            weight 0.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> predicted = rng.uniform(0, 60, 50_000)  # days
        >>> converts = rng.random(50_000) < 0.1
        >>> label_time = np.where(converts, predicted + rng.exponential(5.0, 50_000), np.nan)
        >>> delay = LabelDelay(window=30).fit(predicted, label_time, observed_until=60)
        >>> print(delay)  # doctest: +ELLIPSIS
        4,664 labels within 30: half are there at the age 3.6, 90 % at 11.1. ...
        >>> recent = predicted > 46
        >>> labels, weights = delay.weigh(
        ...     predicted[recent], label_time[recent], 60, purpose="score"
        ... )
        >>> observed, estimated = labels.mean(), np.average(labels, weights=weights)
        >>> print(f"observed {observed:.3f}, estimated {estimated:.2f}, true .1")
        observed 0.068, estimated 0.10, true .1

    Reference:
        Lagakos, Barraj and De Gruttola (1988), *Nonparametric analysis of truncated survival data,
        with application to AIDS*; for the likelihood of the labels seen so far, Chapelle (2014),
        *Modeling delayed feedback in display advertising*.
    """

    def __init__(
        self,
        window: float | None = None,
        *,
        half_life: float | None = None,
        min_share: float = 0.05,
    ) -> None:
        for name, value in (("window", window), ("half_life", half_life)):
            if value is not None:
                positive(name, value, also=", in days or in the unit of the times, or None")
        share("min_share", min_share)
        self.window: float | None = None if window is None else float(window)
        self.half_life: float | None = None if half_life is None else float(half_life)
        self.min_share: float = float(min_share)
        self._fitted: dict[str, Any] = {}

    def fit(
        self,
        prediction_time: ArrayLike,
        label_time: ArrayLike,
        observed_until: Any,
        field: ArrayLike | None = None,
    ) -> LabelDelay:
        """Estimates the delays from the rows of a log; returns the object itself.

        Args:
            prediction_time: Times of the predictions (n,): numbers of one unit, or dates, of which
                those with a time zone are converted to UTC. Use all rows that the log has, or at
                least all with labels, and some time more than the window.
            label_time: Times of the positive labels (n,); NaN, NaT or None where there is none.
                Later times than `observed_until` count as missing.
            observed_until: The time until which labels are in the log; a row's age is the time
                from its prediction to there. A number, a date, or a string in ISO 8601.
            field: Values of a field (n,), strings or integers, for curves by value.

        Raises:
            ValueError: If a column is invalid, or too few labelled rows are as old as the window.

        Warns:
            UserWarning: If the delays of young rows differ from those of old ones.
        """
        warn_of_other_order(prediction_time=prediction_time, label_time=label_time, field=field)
        ages, delays, in_days = ages_and_delays(prediction_time, label_time, observed_until)
        values = None if field is None else _values(field, len(ages))
        seen = delays <= (np.inf if self.window is None else self.window)
        horizon = self._horizon(ages[seen])
        seen &= delays <= horizon
        ages, delays = ages[seen], delays[seen]
        weights = np.ones(len(ages))
        if self.half_life is not None:
            weights = np.exp2(-(ages - ages.min()) / self.half_life)
        grid = delay_grid(delays, _MOST_STEPS)
        self._fitted = fit_curves(
            CountedLabels(
                ages=ages,
                delays=delays,
                weights=weights,
                counts=np.ones(len(ages)),
                num_old=int(np.sum(ages >= horizon)),
                square_weight=float(weights @ weights),
                values=np.zeros(len(ages), np.int64) if values is None else values[seen],
                grid=grid,
                has_all_delays=len(np.unique(delays)) <= _MOST_STEPS,
            ),
            {"horizon": horizon, "in_days": in_days, "has_field": values is not None},
            self.half_life,
        )
        return self

    def fit_log(self, log: ScoredLog, verbose: int = 1) -> LabelDelay:
        """Estimates the delays from a log of any size; returns the object itself.

        DuckDB, or a cluster of Ray, counts the labels where the rows are, in two passes. Delays in
        whole hours (windows of up to 31 days) or days are counted as they are, and the curves are
        those of `fit`; others to 4 %, or 1/750 of the window if that is less.

        Args:
            log: The log, with its `timestamp`, `label_time` and `observed_until`, and with the
                `delay_field`, if there is one, for curves by value.
            verbose: 1 shows a progress bar for each pass, 0 does not.

        Raises:
            ValueError: As `fit`; or there is no `window`.

        Warns:
            UserWarning: If the delays of young rows differ from those of old ones.

        Example:
            >>> import pandas as pd
            >>> from keras_calibration.logs import ScoredLog
            >>> at = pd.Timestamp("2026-03-01") + pd.to_timedelta(np.arange(900) % 60, "D")
            >>> bought = (at + pd.Timedelta("2D")).where(np.arange(900) % 10 == 0)
            >>> rows = pd.DataFrame({"at": at, "bought_at": bought, "probability": 0.1})
            >>> log = ScoredLog(
            ...     rows, timestamp="at", label_time="bought_at", observed_until="2026-05-01"
            ... )
            >>> LabelDelay(window=30).fit_log(log, verbose=0).observed_share([1.0, 2.0])
            array([0., 1.])
        """
        if self.window is None:
            raise ValueError(
                "Argument `window`, the longest delay in days, must be given for a log. Received: "
                "window=None. Pass, for example, LabelDelay(window=30)."
            )
        if log.label_time is None:
            raise ValueError(
                "Argument `log` must name the times of its labels. Received: label_time=None. Pass "
                "ScoredLog(..., timestamp=…, label_time=…, observed_until=…)."
            )
        log = dataclasses.replace(log, label_delay=None, fields=())
        labels = count_labels(log, self.window, self.half_life, _MOST_STEPS, verbose)
        if labels.num_old < _FEWEST_OLD:
            raise ValueError(_too_few_old(labels.num_old, self.window))
        has_field = log.delay_field is not None
        known = {"horizon": self.window, "in_days": True, "has_field": has_field}
        self._fitted = fit_curves(labels, known, self.half_life)
        return self

    def curves(self, has_field: bool) -> DelayCurves:
        """The fitted curves as plain arrays, for logs.

        Args:
            has_field: Whether rows name a value of the field.

        Raises:
            ValueError: If the object is not fitted, or not to dates, or without a field.
        """
        self._check_fitted()
        return DelayCurves.of(self._fitted, self.min_share, has_field)

    def observed_share(self, age: ArrayLike, field: ArrayLike | None = None) -> np.ndarray:
        """The share F of the positives that have their label at an age: the rest is to come.

        Args:
            age: Ages (n,) or one age, in days or in the unit of the times.
            field: Values of the field of `fit` (n,), or None for the whole. Values without a curve
                of their own get that of the whole.

        Raises:
            ValueError: If an age is NaN or negative, or the object is not fitted.

        Example:
            >>> days = np.arange(1.0, 101.0)
            >>> delay = LabelDelay(window=2).fit(np.zeros(100), np.where(days < 90, 1, 2), 100)
            >>> delay.observed_share([0.5, 1.5, 2.5])
            array([0.  , 0.89, 1.  ])
        """
        ages = numbers_of(age, "Ages").astype(np.float64)
        if not (ages >= 0).all():
            raise ValueError(f"Argument `age` must not be NaN or negative. Received: age={age!r}.")
        flat = ages.reshape(-1)
        curve = self._curve_of(field, len(flat))
        return self._shares(flat, curve).reshape(ages.shape)

    def weigh(
        self,
        prediction_time: ArrayLike,
        label_time: ArrayLike,
        observed_until: Any,
        field: ArrayLike | None = None,
        *,
        probability: ArrayLike | None = None,
        purpose: str = "fit",
    ) -> tuple[np.ndarray, np.ndarray]:
        """Labels so far and sample weights of rows of any age, two float64 arrays (n,).

        The rows need not be those of `fit`. Rows too young to tell have the weight 0.

        Args:
            prediction_time: As for `fit`.
            label_time: As for `fit`.
            observed_until: As for `fit`; may be another time.
            field: Values of the field of `fit`, or None for the curve of the whole.
            probability: Predictions (n,) or (n, 1) of the complete label. By default, the rate of
                positives of these rows, estimated: enough where positives are rare. Otherwise pass
                the predictions to be calibrated; and once more the calibrated ones, if they differ
                much.
            purpose: `"fit"` for `calibrate`, `calibrate_scores`, `fit_head` and `Head.fit`;
                `"score"` for `score` and metrics.

        Raises:
            ValueError: If a column is invalid, all rows are too young, or the object is not fitted.

        Warns:
            UserWarning: If more than half of the rows are too young.
        """
        if purpose not in ("fit", "score"):
            raise refused("purpose", '"fit" or "score"', purpose)
        _, labels, shares = self._observed(prediction_time, label_time, observed_until, field)
        known = shares >= self.min_share
        self._say_how_many_are_young(known)
        shares = np.where(known, shares, 1.0)
        if probability is None:
            p = np.minimum(np.mean((labels / shares)[known]), 1.0)
        else:
            p = numbers_of(probability, "Probabilities").astype(np.float64).reshape(-1)
            check_same_rows(
                "Probabilities and times", {"probability": len(p), "prediction_time": len(labels)}
            )
            check_probabilities(p, "probability", "Of logits, pass 1 / (1 + np.exp(-logits)).")
        # Of those without a label, the share that is negative.
        negative = np.divide(
            1.0 - p, 1.0 - p * shares, out=np.ones(len(labels)), where=p * shares < 1.0
        )
        weights = np.where(labels > 0, 1.0 / shares, negative)
        if purpose == "fit":
            weights *= shares
        return labels, np.where(known, weights, 0.0)

    def expected_positives(
        self,
        prediction_time: ArrayLike,
        label_time: ArrayLike,
        observed_until: Any,
        field: ArrayLike | None = None,
    ) -> dict[str, np.ndarray]:
        """Positives that rows will have once all labels are there, for each value of the field.

        The standard error counts the chance of each label to be late and, given their number, the
        error of the curve. `expected` ± 1.96 of them covers the final number in some 95 % of cases
        if delays do not drift; in fewer for a value with few labels and delays unlike the others,
        whose curve is drawn to that of the whole.

        Args:
            prediction_time: As for `fit`.
            label_time: As for `fit`.
            observed_until: As for `fit`.
            field: Values of the field of `fit`; None for all rows together.

        Returns:
            Columns by name, one entry per value: `value`; `rows` that are old enough to tell;
            `observed`, their positives so far; `expected`, their positives in the end;
            `standard_error` of `expected`; `excluded`, the rows that are too young.

        Raises:
            ValueError: If a column is invalid, or the object is not fitted.

        Example:
            >>> days = np.arange(1.0, 101.0)
            >>> delay = LabelDelay(window=2).fit(np.zeros(100), np.where(days < 90, 1, 2), 100)
            >>> new = delay.expected_positives(np.full(100, 99.0), np.full(100, 100.0), 100)
            >>> print(*new["observed"], new["expected"].round(1), new["standard_error"].round(1))
            100.0 [112.4] [5.4]
        """
        ages, labels, shares = self._observed(prediction_time, label_time, observed_until, field)
        values = np.zeros(len(labels), np.int64) if field is None else _values(field, len(labels))
        distinct, group = np.unique(values, return_inverse=True)
        known = shares >= self.min_share
        shares = np.where(known, shares, 1.0)
        final = np.where(known, labels / shares, 0.0)

        def sums(column: np.ndarray) -> np.ndarray:
            return np.bincount(group, column, minlength=len(distinct))

        grid, log_variances = self._fitted["grid"], self._fitted["log_variances"]
        steps = np.maximum(np.searchsorted(grid, ages, side="right") - 1, 0)
        curves = self._curve_of(None if field is None else distinct, len(distinct))
        cells = group * len(grid) + steps
        by_step = np.bincount(cells, final, minlength=len(distinct) * len(grid))
        of_curve = log_share_variance(
            by_step.reshape(len(distinct), len(grid)), log_variances[curves]
        )
        # By the rate of positives, not by those seen: their number would be wrong in the same
        # direction as `expected`.
        rate = sums(labels * known) / np.maximum(sums(shares * known), 1e-300)
        late = rate * sums(known * (1.0 - shares) / shares)
        return {
            "value": np.array(["all"]) if field is None else distinct,
            "rows": sums(known * 1.0).astype(np.int64),
            "observed": sums(labels * known),
            "expected": sums(final),
            "standard_error": np.sqrt(late + of_curve),
            "excluded": sums(~known * 1.0).astype(np.int64),
        }

    @property
    def min_age(self) -> float:
        """The age below which rows get the weight 0, by the curve of the whole."""
        return self._age_of(self.min_share)

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {
            "window": self.window,
            "half_life": self.half_life,
            "min_share": self.min_share,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the arguments and the fitted curves to a JSON file, in one step."""
        plain = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in self._fitted.items()
        }
        content = {"format": FORMAT, "config": self.get_config(), "fitted": plain}
        write_atomically(Path(os.path.realpath(path)), json.dumps(content).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LabelDelay:
        """Reads what `save` wrote.

        Raises:
            ValueError: If the file is another one.
        """
        config, fitted = read_label_delay(path)
        delay = cls(**config)
        delay._fitted = fitted
        return delay

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"LabelDelay({arguments})"

    def __str__(self) -> str:
        if not self._fitted:
            return f"{self!r}, not fitted"
        fitted = self._fitted
        days = " days" if fitted["in_days"] else ""
        text = (
            f"{fitted['num_labels']:,} labels within {fitted['horizon']:.4g}{days}: half are there "
            f"at the age {self._age_of(0.5):.2g}{days}, 90 % at {self._age_of(0.9):.3g}{days}. "
            f"Rows younger than {self.min_age:.2g}{days} have the weight 0."
        )
        if fitted["has_field"]:
            text += (
                f" {len(fitted['values']):,} values have a curve of their own, drawn to that of "
                f"the others as by {fitted['strength']:,.0f} labels."
            )
        return text

    def _horizon(self, ages: np.ndarray) -> float:
        """The longest delay of which anything is known: the window, or the age of enough rows."""
        least = self.window or 0.0
        oldest = float(np.sort(ages)[-_FEWEST_OLD]) if len(ages) >= _FEWEST_OLD else 0.0
        if oldest < least or oldest <= 0:
            remedy = f" Use older rows too, or a window of at most {oldest:.4g}." if oldest else ""
            raise ValueError(_too_few_old(int(np.sum(ages >= least)), self.window) + remedy)
        return oldest if self.window is None else self.window

    def _age_of(self, share: float) -> float:
        """The lowest age at which the share of the whole has its label."""
        self._check_fitted()
        return float(self._fitted["grid"][np.argmax(self._fitted["shares"][-1] >= share)])

    def _check_fitted(self) -> None:
        if not self._fitted:
            raise ValueError("The delays are not fitted. Call `fit` first, or `LabelDelay.load`.")

    def _curve_of(self, field: ArrayLike | None, num_rows: int) -> np.ndarray:
        """The number of each row's curve; the last one is that of the whole."""
        self._check_fitted()
        own = self._fitted["values"]
        if field is None:
            return np.full(num_rows, len(own))
        if not self._fitted["has_field"]:
            raise ValueError(
                "Argument `field` must be None, because `fit` was called without a field. "
                "Received: field values."
            )
        values = _values(field, num_rows)
        if len(own) and own.dtype.kind != values.dtype.kind:
            raise ValueError(
                "Argument `field` must hold values of the same type as in `fit`, such as "
                f"{own[0]!r}. Received: values such as {values[0]!r}."
            )
        return value_numbers(values, own)

    def _shares(self, ages: np.ndarray, curve: np.ndarray) -> np.ndarray:
        grid, shares = self._fitted["grid"], self._fitted["shares"]
        step = np.searchsorted(grid, ages, side="right") - 1
        low, high = np.maximum(step, 0), np.minimum(step + 1, len(grid) - 1)
        found: np.ndarray = shares[curve, low]
        # A grid of all delays holds all steps; between quantiles, the curve rises.
        if not self._fitted["has_all_delays"]:
            width = np.where(high > low, grid[high] - grid[low], 1.0)
            found = found + (shares[curve, high] - found) * (ages - grid[low]) / width
        return np.where(step < 0, 0.0, found)

    def _observed(
        self,
        prediction_time: ArrayLike,
        label_time: ArrayLike,
        observed_until: Any,
        field: ArrayLike | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ages, labels so far, and the shares of the positives that have theirs at these ages."""
        warn_of_other_order(prediction_time=prediction_time, label_time=label_time, field=field)
        ages, delays, in_days = ages_and_delays(prediction_time, label_time, observed_until)
        curve = self._curve_of(field, len(ages))
        if in_days != self._fitted["in_days"]:
            kinds = ("dates", "numbers") if self._fitted["in_days"] else ("numbers", "dates")
            raise ValueError(
                "Argument `prediction_time` must hold {}, as in `fit`. Received: {}.".format(*kinds)
            )
        labels = (delays <= self._fitted["horizon"]).astype(np.float64)
        return ages, labels, self._shares(ages, curve)

    def _say_how_many_are_young(self, known: np.ndarray) -> None:
        if not known.any():
            raise ValueError(
                f"Argument `prediction_time` must hold rows of an age of at least {self.min_age:g}."
                f" Received: {len(known):,} rows, all younger."
            )
        if known.mean() < 0.5:
            warn(
                f"{np.sum(~known):,} of {len(known):,} rows are so young that fewer than "
                f"{self.min_share:.0%} of their positives have a label. They have the weight 0. "
                "Use older rows too."
            )


def _values(field: ArrayLike, num_rows: int) -> np.ndarray:
    values = np.asarray(ids_of(field, "'field'", "field values")).reshape(-1)
    check_same_rows("Field and times", {"field": len(values), "prediction_time": num_rows})
    return values.astype(np.int64 if values.dtype.kind in "iub" else np.str_)


def _too_few_old(num_old: int, window: float | None) -> str:
    aged = "" if window is None else f" and an age of at least {window:g}"
    return (
        f"Arguments `prediction_time` and `label_time` must hold {_FEWEST_OLD} rows with a "
        f"label{aged}. Received: {num_old} such rows."
    )
