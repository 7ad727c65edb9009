"""progressive: scores each period by fits to the periods before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import integer, refused, share
from calibration_records._text import ShownAsText
from keras_calibration._rows.checks import read_rows
from keras_calibration._rows.rows import Rows
from keras_calibration._rows.times import with_times
from keras_calibration._solvers.standard_errors import mean_and_error
from keras_calibration.layers.head import Head
from keras_calibration.layers.head_logits import head_log_losses, head_logits

_RAW, _UPDATE, _ALL = "raw", "update", "all"
_FORGET = "forget="


@dataclass(frozen=True)
class ProgressiveScores(ShownAsText):
    """Log losses of periods, each scored before it was learnt.

    Args:
        periods: The periods that were scored, whole numbers of the unit of time.
        weights: The weight of the rows of each.
        log_losses: Name of a way → mean log loss of each period (periods,), in nats.
        forget: Of several shares to forget, that with the lowest log loss of all periods: to be
            passed to the next update. None without updates.
    """

    periods: np.ndarray
    weights: np.ndarray
    log_losses: Mapping[str, np.ndarray]
    forget: float | None = None

    @property
    def mean(self) -> dict[str, float]:
        """Name of a way → log loss of the rows of all periods."""
        return {
            name: float(np.average(values, weights=self.weights))
            for name, values in self.log_losses.items()
        }

    def difference(self, one: str, other: str) -> tuple[float, float]:
        """Log loss of one way minus that of another, and its standard error over the periods."""
        change = self.log_losses[one] - self.log_losses[other]
        return mean_and_error(change, self.weights, np.arange(len(change)))

    def __str__(self) -> str:
        means = self.mean
        best = min(means, key=lambda name: means[name])
        lines = [f"{len(self.periods)} periods: log loss, and above that of {best!r}"]
        width = max(map(len, means))
        for name, mean in means.items():
            change, error = self.difference(name, best)
            beside = "" if name == best else f"  {change:+.6f} ± {error:.6f}"
            lines.append(f"{name:<{width}}  {mean:.6f}{beside}")
        if self.forget:
            lines.append(
                f"Of each update, a share of {self.forget:g} of earlier rows is forgotten."
            )
        return "\n".join(lines)


def progressive(
    head: Head,
    logits: ArrayLike,
    labels: ArrayLike,
    features: Mapping[str, ArrayLike] | None = None,
    sample_weight: ArrayLike | None = None,
    *,
    time: ArrayLike | str,
    first: int = 7,
    ways: Sequence[str | int] = (_UPDATE, _ALL, 1, 7, 28),
    forget: float | Sequence[float] = 0.0,
) -> ProgressiveScores:
    """Scores each period by fits to the rows before it: what refreshing every day would give.

    The first periods are learnt. Then each is scored by every way, and by the uncalibrated logits,
    before it is learnt.

    Args:
        head: The head, whose arguments count; it is not changed.
        logits: Uncalibrated logits (n,) or (n, 1).
        labels: Labels in [0, 1] (n,) or (n, 1).
        features: A mapping of feature names to arrays with n rows, or a data frame.
        sample_weight: Sample weights (n,), importances; ones by default.
        time: The time of each row, as for `Head.fit`. Rows with the same whole part of it are one
            period: a day in UTC, of dates. Divide numbers to have other periods.
        first: Number of periods to learn before the first one that is scored.
        ways: `"update"` updates the head of the period before, `"all"` fits to all rows so far, and
            a whole number fits to as many last periods. A fit that is not possible, because its
            rows are of one class, is left out: the one before stays.
        forget: For `"update"`, see `Head.update`. Of several shares, each is a way too, such as
            `"forget=0.1"`, and `"update"` takes in each period the one that was best in those
            before: what it is worth to estimate it. `forget` of the result is the best of all.

    Returns:
        The log loss of each period by way, and in all (`mean`).

    Raises:
        ValueError: As for `fit`; if there are not more than `first` periods; or if `ways` holds
            anything else, or `"update"` for a head that has none.

    Example:
        >>> from keras_calibration.layers import PlattScaling
        >>> rng = np.random.default_rng(0)
        >>> logits, day = rng.normal(size=5000), np.arange(5000) // 250
        >>> labels = rng.random(5000) < 1 / (1 + np.exp(-logits - 0.05 * day))
        >>> scores = progressive(PlattScaling(), logits, labels, time=day, ways=["update", 7])
        >>> print(scores)
        13 periods: log loss, and above that of 'last 7'
        raw     0.604975  +0.034707 ± 0.006749
        update  0.575006  +0.004737 ± 0.001679
        last 7  0.570268
    """
    head.check_direct_fit()
    shares = [forget] if isinstance(forget, int | float) else list(forget)
    for each in shares:
        share("forget", each, of=": it is the share of the old weight to drop", ends="01")
    if not shares:
        raise refused("forget", "a share, or several", forget)
    named: dict[str, tuple[str | int, float]] = {}
    for way in ways:
        own = [_FORGET + f"{each:g}" for each in shares] if way == _UPDATE else [_name_of(way)]
        named |= {name: (way, each) for name, each in zip(own, shares, strict=False)}
    heads = {name: type(head).from_config(head.get_config()) for name in named}
    for name, (way, _) in named.items():
        if way == _UPDATE:
            heads[name].check_update()
    rows = with_times(read_rows(logits, labels, sample_weight), time, features)
    rows = head.with_features(rows, features)
    number = np.floor(np.asarray(rows.times))
    periods = np.unique(number)
    if integer("first", first, 1) >= len(periods):
        raise refused("first", f"less than the number of periods, {len(periods)}", first)
    losses: dict[str, list[float]] = {name: [] for name in (_RAW, *named)}
    weights = []
    for place in range(first, len(periods)):
        scored = rows.take(number == periods[place])
        weights.append(scored.row_weights.sum())
        losses[_RAW].append(_loss(scored, scored.logits))
        for name, (way, drop) in named.items():
            if way == _UPDATE and place > first:
                heads[name].update_checked(rows.take(number == periods[place - 1]), drop)
            else:
                start = 0 if isinstance(way, str) else max(place - way, 0)
                part = rows.take((number >= periods[start]) & (number < periods[place]))
                if place == first or (part.labels.min() < 1 and part.labels.max() > 0):
                    heads[name].fit_checked(part)
            losses[name].append(
                _loss(scored, head_logits(heads[name], scored.logits, scored.features))
            )
    found = {name: np.array(values) for name, values in losses.items()}
    if _UPDATE not in ways:
        return ProgressiveScores(periods[first:], np.array(weights), found)
    return _with_best_share(shares, periods[first:], np.array(weights), found)


def _with_best_share(
    shares: Sequence[float], periods: np.ndarray, weights: np.ndarray, found: dict[str, np.ndarray]
) -> ProgressiveScores:
    """The scores, of updates with the share to forget that was best in the periods before each."""
    names = [_FORGET + f"{each:g}" for each in shares]
    losses = np.stack([found[name] for name in names])
    so_far = np.cumsum(weights * losses, axis=1)
    # In the first period, all are the same fit.
    best = np.append(0, so_far.argmin(axis=0))
    updates = losses[best[:-1], np.arange(len(periods))]
    others = {name: values for name, values in found.items() if name not in names}
    each = {name: found[name] for name in names} if len(names) > 1 else {}
    raw = {_RAW: others.pop(_RAW)}
    log_losses = {**raw, _UPDATE: updates, **each, **others}
    return ProgressiveScores(periods, weights, log_losses, float(shares[best[-1]]))


def _name_of(way: Any) -> str:
    """The name of a way; raises if there is no such way."""
    if isinstance(way, str) and way not in (_UPDATE, _ALL):
        raise refused("ways", f"{_UPDATE!r}, {_ALL!r} or numbers of periods", way)
    return way if isinstance(way, str) else f"last {integer('ways', way, 1)}"


def _loss(rows: Rows, logits: np.ndarray) -> float:
    """Mean log loss."""
    return float(np.average(head_log_losses(rows.labels, logits), weights=rows.weights))
