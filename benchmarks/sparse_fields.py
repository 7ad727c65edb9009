"""Many fields of rare values: `./dev run python benchmarks/sparse_fields.py`.

Log loss on new rows of the offsets of `FieldBias` as they are, with the spread of each field as the
coordinate-wise fit leaves it ("separate"), and with one spread for all fields, the best of ten for
the *new* rows ("shared, best"); beside it logistic regression on the logit and one-hot columns, its
penalty the best of five for the new rows, which no user can know. Generated rows: each of several
fields has thousands of values with effects of one spread, drawn with probabilities that fall as a
power of their rank. "rows" is the median number of rows of a value, over rows. The last world has
fields of very different sizes and spreads, three of which do nothing.
"""

import argparse
from collections.abc import Callable

import numpy as np
import scipy.sparse
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from keras_calibration._solvers import field_offsets
from keras_calibration._solvers.field_spreads import half_cauchy

# (rows, fields, values of each, power, spread)
WORLDS = [
    (6_500, 9, 3_000, 0.8, 0.3),
    (6_500, 9, 3_000, 1.2, 0.5),
    (20_000, 5, 5_000, 0.8, 0.5),
    (6_500, 4, 2_000, 0.5, 0.7),
    (6_500, 2, 2_000, 0.5, 0.7),
    (6_500, 5, 1_000, 0.8, 0.0),
]
MIXED_VALUES = [5, 1_500, 12, 40, 300, 2, 100, 7, 20]
MIXED_SPREADS = [0.5, 0.3, 0.0, 0.3, 0.5, 0.2, 0.0, 0.3, 0.0]
SHARED = np.geomspace(0.05, 1.5, 10)
Part = tuple[np.ndarray, np.ndarray, list[np.ndarray]]


def make_world(
    num_rows: int, num_values: list[int], power: float, spreads: list[float], seed: int
) -> tuple[Part, Part]:
    """Logits, labels and ids of rows to fit and of new ones."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1, 1, 2 * num_rows)
    true, ids = logits.copy(), []
    for number, spread in zip(num_values, spreads, strict=True):
        share = np.arange(1, number + 1.0) ** -power
        ids.append(generator.choice(number, 2 * num_rows, p=share / share.sum()))
        true += generator.normal(0, spread, number)[ids[-1]]
    labels = (generator.random(2 * num_rows) < expit(true)).astype(float)
    halves = slice(num_rows), slice(num_rows, None)
    first, second = ((logits[h], labels[h], [each[h] for each in ids]) for h in halves)
    return first, second


def mean_log_loss(labels: np.ndarray, logits: np.ndarray) -> float:
    return float(np.mean(np.logaddexp(0, logits) - labels * logits))


def offsets_log_loss(first: Part, new: Part, num_values: list[int], improve: Callable) -> float:
    """Log loss on the new rows, with `improve` in place of `improve_spreads`."""
    kept, field_offsets.improve_spreads = field_offsets.improve_spreads, improve
    try:
        rows = field_offsets.OffsetRows(first[0], first[1], None, first[2])
        fit = field_offsets.fit_field_offsets([rows], num_values, half_cauchy(1.0))
    finally:
        field_offsets.improve_spreads = kept
    offsets = sum(u[each] for u, each in zip(fit.offsets, new[2], strict=True))
    return mean_log_loss(new[1], fit.slope * new[0] + fit.bias + offsets)


def set_all(spread: float) -> Callable:
    def improve(fit, *_) -> float:
        for effect in fit.effects:
            effect.deviations = np.full(len(effect.deviations), spread)
        return 1.0

    return improve


def regression_log_loss(first: Part, new: Part, num_values: list[int]) -> float:
    """The lowest log loss on the new rows over five penalties."""

    def design(part: Part) -> scipy.sparse.csr_matrix:
        rows = np.arange(len(part[0]))
        columns = [
            scipy.sparse.csr_matrix((np.ones(len(rows)), (rows, ids)), (len(rows), number))
            for ids, number in zip(part[2], num_values, strict=True)
        ]
        return scipy.sparse.hstack([part[0][:, None], *columns]).tocsr()

    models = [LogisticRegression(C=c, max_iter=300) for c in (0.01, 0.03, 0.1, 0.3, 1.0)]
    new_design = design(new)
    return min(
        mean_log_loss(new[1], model.fit(design(first), first[1]).decision_function(new_design))
        for model in models
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    worlds = [(rows, [n] * f, power, [s] * f) for rows, f, n, power, s in WORLDS]
    worlds.append((8_000, MIXED_VALUES, 1.5, MIXED_SPREADS))
    print(
        "| rows × fields × values, power, spread | rows | `FieldBias` | separate | shared, best | "
        "logistic regression |\n| --- | ---: | ---: | ---: | ---: | ---: |"
    )
    for num_rows, num_values, power, spreads in worlds:
        figures = []
        for seed in range(options.seeds):
            first, new = make_world(num_rows, num_values, power, spreads, seed)
            counts = [np.median(np.bincount(ids)[ids]) for ids in first[2]]
            arguments = first, new, num_values
            figures.append(
                (
                    np.median(counts),
                    offsets_log_loss(*arguments, field_offsets.improve_spreads),
                    offsets_log_loss(*arguments, lambda *_: False),
                    min(offsets_log_loss(*arguments, set_all(spread)) for spread in SHARED),
                    regression_log_loss(*arguments),
                )
            )
        rows, *losses = np.mean(figures, axis=0)
        values = str(num_values[0]) if len(set(num_values)) == 1 else "2 … 1,500"
        spread = str(spreads[0]) if len(set(spreads)) == 1 else "0 … 0.5"
        print(
            f"| {num_rows:,} × {len(num_values)} × {values}, {power}, {spread} | {rows:.0f} | "
            + " | ".join(f"{loss:.5f}" for loss in losses)
            + " |",
            flush=True,
        )


if __name__ == "__main__":
    main()
