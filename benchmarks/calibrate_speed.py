"""CPU seconds of `calibrate`: `./dev run python benchmarks/calibrate_speed.py`.

Generated rows: logits ~ N(-1, 1.3), and categorical columns whose values shift them. Beside it, in
the same process and in turn, what a user would try first: logistic regression on the logit and the
hashed one-hot columns, its penalty tuned by cross-validation; and MCGrad where it is installed. For
each, the CPU seconds of all threads for the first call in the process and for later ones (medians),
and the log loss on new rows.

`--rows 6500 --fields 9` runs one size.
"""

import argparse
import functools
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse
from rivals import hashed, tuned_regression
from scipy.special import expit

from keras_calibration import calibrate_scores

SIZES = [(6_500, 9), (100_000, 10), (1_000_000, 3)]
NUM_VALUES = [5, 1500, 12, 40, 300, 2, 100, 7, 20, 3000]


class Rows(NamedTuple):
    """Logits, labels and columns of rows."""

    logits: np.ndarray
    labels: np.ndarray
    columns: dict[str, np.ndarray]


def make_rows(num_rows: int, num_fields: int) -> tuple[Rows, Rows]:
    """Rows to calibrate on, and as many new ones."""
    generator = np.random.default_rng(0)
    logits = generator.normal(-1, 1.3, 2 * num_rows)
    true, columns = logits.copy(), {}
    for number, num_values in enumerate(NUM_VALUES[:num_fields]):
        # Few values are frequent and many rare.
        ids = np.minimum(generator.zipf(1.5, 2 * num_rows), num_values) - 1
        columns[f"field_{number}"] = ids
        true += generator.normal(0, 0.3, num_values)[ids]
    labels = (generator.random(2 * num_rows) < expit(true)).astype(float)
    first, second = (
        Rows(logits[part], labels[part], {name: ids[part] for name, ids in columns.items()})
        for part in (slice(num_rows), slice(num_rows, None))
    )
    return first, second


def ours(rows: Rows, methods: str) -> Callable[[Rows], np.ndarray]:
    """`calibrate_scores` with all columns."""
    fields = list(rows.columns)
    model = calibrate_scores(
        rows.logits,
        rows.labels,
        rows.columns,
        from_logits=True,
        fields=fields,
        methods=methods,
        verbose=0,
    )
    return lambda new: model.predict(
        {"score": new.logits, **new.columns}, batch_size=8192, verbose=0
    )[:, 0]


def logistic_regression(rows: Rows) -> Callable[[Rows], np.ndarray]:
    """Logistic regression on the logit and hashed one-hot columns, tuned."""

    def design(part: Rows) -> scipy.sparse.csr_matrix:
        return scipy.sparse.hstack([part.logits[:, None], hashed(part.columns)]).tocsr()

    model = tuned_regression().fit(design(rows), rows.labels)
    return lambda new: model.predict_proba(design(new))[:, 1]


def mcgrad(rows: Rows) -> Callable[[Rows], np.ndarray]:
    """MCGrad with all columns."""
    import pandas as pd
    from mcgrad import methods

    def frame(part: Rows) -> pd.DataFrame:
        return pd.DataFrame({**part.columns, "label": part.labels, "p": expit(part.logits)})

    names = {"categorical_feature_column_names": list(rows.columns)}
    model = methods.MCGrad()
    model.fit(frame(rows), "p", "label", **names)
    return lambda new: model.predict(frame(new), "p", **names)


METHODS = {
    **{
        f'calibrate, "{methods}"': functools.partial(ours, methods=methods)
        for methods in ("quick", "default", "thorough")
    },
    "logistic regression, tuned": logistic_regression,
}
if importlib.util.find_spec("mcgrad"):
    METHODS["MCGrad"] = mcgrad


def log_loss(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean log loss in nats."""
    p = np.clip(np.asarray(probabilities, np.float64), 1e-12, 1 - 1e-12)
    return float(-np.mean(labels * np.log(p) + (1 - labels) * np.log1p(-p)))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--fields", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sizes = [(options.rows, options.fields)] if options.rows else SIZES
    print(f"{'rows':>9}{'fields':>8}  {'method':<28}{'first':>8}{'later':>8}{'log loss':>10}")
    for num_rows, num_fields in sizes:
        rows, new = make_rows(num_rows, num_fields)
        seconds, losses = {name: [] for name in METHODS}, {}
        for _ in range(options.rounds + 1):
            for name, fit in METHODS.items():
                start = time.process_time()
                predict = fit(rows)
                seconds[name].append(time.process_time() - start)
                losses[name] = log_loss(new.labels, predict(new))
        for name, (first, *later) in seconds.items():
            print(
                f"{num_rows:>9,}{num_fields:>8}  {name:<28}{first:>8.2f}"
                f"{statistics.median(later):>8.2f}{losses[name]:>10.5f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
