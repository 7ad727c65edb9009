"""generate_click_log: a synthetic click log whose true probabilities are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keras_calibration.datasets.table import Table, split_parts

NUM_VALUES = {"site_id": 500, "advertiser_id": 300, "country": 40, "device": 12, "hour": 24}
NUM_DAYS = 20
# Standard deviations of the effects of an id: constant, added at the redesign, and added gradually
# over the whole log.
EFFECTS = {
    "site_id": (0.5, 0.45, 0.15),
    "advertiser_id": (0.5, 0.35, 0.15),
    "country": (0.3, 0.25, 0.1),
    "device": (0.3, 0.3, 0.1),
}


def generate_click_log(num_rows: int = 200_000, seed: int = 0, drift: float = 1.0) -> Table:
    """Generates a click log with skewed fields, drift, and known true probabilities.

    Row i of n happens at time `t = (i + 0.5) / n`. Rows are in chronological order and split
    60/20/20 in that order. Near the end of the training part, at t = 0.6, the pages are redesigned:
    `r(t) = sigmoid((t - 0.6) / 0.01)` goes from 0 to 1. The probability of a click is
    `sigmoid(logit)` with::

        logit = -3.2 + drift * 0.6 r(t)
              + sum over fields f of  a_f[id] + drift * (b_f[id] r(t) + c_f[id] t)
              + 0.3 cos(2π (hour - 20) / 24)
              + u[site_id] · v[advertiser_id]
              - 0.5 tanh(log_bid - 1)² + g(days_since_visit)

    where `g(d) = 0.8 exp(-d / 7) - 0.2`, and 0 where d is missing (new visitors, 15 % of the rows).
    The effects a, b, c and the two-dimensional factors u, v (an interaction of standard deviation
    0.35) are normal, drawn once per id. A model trained before the redesign cannot know the bias b
    of an id; a calibration fitted on the development part can. The smaller effect c continues to
    change between development and test. About 5 % of the rows are clicks before the redesign, and
    10 % after it.

    The ids of a field follow a Zipf law, P(id) ∝ 1 / (id + 3). Before the redesign, every tenth id
    is absent: a row draws from the full law with probability r(t). `hour` runs through 20 days.
    `log_bid` is normal (mean 1, standard deviation 0.7), `days_since_visit` exponential (mean 10).

    Args:
        num_rows: Number of rows n, at least 5. With fewer than a few hundred, a part may have no
            clicks.
        seed: Seed of the generator. The same seed gives the same table. Use another seed for other
            draws: `numpy.random.default_rng(seed)` repeats the numbers that made the table.
        drift: Scale of everything in the logit that changes with time. 0 leaves only the new ids.

    Returns:
        A `Table` with the fields `site_id` (500 ids), `advertiser_id` (300), `country` (40),
        `device` (12), `hour` (24), the numeric columns `log_bid` and `days_since_visit`, and the
        true `probabilities`.

    Raises:
        ValueError: If there are fewer than 5 rows.

    Example:
        >>> table = generate_click_log(num_rows=20_000, seed=1)
        >>> train, development = table.part("train")[1], table.part("development")[1]
        >>> bool(train.mean() < development.mean())
        True
        >>> table.num_values["device"]
        12

    Reference:
        Made for this package, in the setting of Pan et al., *Field-aware Calibration*, WWW 2020: a
        model trained on the past has a bias by field on later rows.
    """
    parts = split_parts(num_rows)
    generator = np.random.default_rng(seed)
    time = (np.arange(num_rows) + 0.5) / num_rows
    redesigned = 1.0 / (1.0 + np.exp(-(time - 0.6) / 0.01))
    logit = -3.2 + drift * 0.6 * redesigned

    features: dict[str, NDArray[np.generic]] = {}
    for field, (lasting, sudden, gradual) in EFFECTS.items():
        num_values = NUM_VALUES[field]
        ids = _draw_ids(generator, num_values, redesigned)
        effects = generator.normal(size=(3, num_values)) * [[lasting], [sudden], [gradual]]
        logit += effects[0, ids]
        logit += drift * (effects[1, ids] * redesigned + effects[2, ids] * time)
        features[field] = ids
    hour = (NUM_DAYS * 24 * time).astype(np.int32) % 24
    features["hour"] = hour
    logit += 0.3 * np.cos(2.0 * np.pi * (hour - 20) / 24.0)
    logit += _draw_interaction(generator, features["site_id"], features["advertiser_id"])

    log_bid = generator.normal(1.0, 0.7, size=num_rows)
    days_since_visit = generator.exponential(10.0, size=num_rows)
    new_visitor = generator.random(num_rows) < 0.15
    logit -= 0.5 * np.tanh(log_bid - 1.0) ** 2
    logit += np.where(new_visitor, 0.0, 0.8 * np.exp(-days_since_visit / 7.0) - 0.2)
    features["log_bid"] = log_bid.astype(np.float32)
    features["days_since_visit"] = np.where(new_visitor, np.nan, days_since_visit).astype(
        np.float32
    )

    probabilities = 1.0 / (1.0 + np.exp(-logit))
    return Table(
        name="click_log",
        features=features,
        labels=(generator.random(num_rows) < probabilities).astype(np.float32),
        num_values=dict(NUM_VALUES),
        numeric=("log_bid", "days_since_visit"),
        fields=tuple(NUM_VALUES),
        parts=parts,
        rows=np.arange(num_rows, dtype=np.int64),
        vocabularies={},
        probabilities=probabilities,
    )


def _draw_ids(
    generator: np.random.Generator, num_values: int, redesigned: NDArray[np.float64]
) -> NDArray[np.int32]:
    """Zipf-distributed ids; every tenth one appears only in rows of the full law."""
    ids = np.arange(num_values)
    weights = 1.0 / (ids + 3.0)
    early = np.cumsum(np.where(ids % 10 == 9, 0.0, weights))
    late = np.cumsum(weights)
    uniform = generator.random(redesigned.size)
    is_late = generator.random(redesigned.size) < redesigned
    return np.where(
        is_late,
        np.searchsorted(late, uniform * late[-1], side="right"),
        np.searchsorted(early, uniform * early[-1], side="right"),
    ).astype(np.int32)


def _draw_interaction(
    generator: np.random.Generator, sites: NDArray[np.generic], advertisers: NDArray[np.generic]
) -> NDArray[np.float64]:
    """Inner products of two-dimensional normal factors, of standard deviation 0.35."""
    # The inner product of two such factors has variance 2 s⁴ for entries of variance s².
    scale = (0.35**2 / 2.0) ** 0.25
    return np.einsum(
        "nk,nk->n",
        generator.normal(scale=scale, size=(NUM_VALUES["site_id"], 2))[sites],
        generator.normal(scale=scale, size=(NUM_VALUES["advertiser_id"], 2))[advertisers],
    )
