"""The bias of a blend: `./dev run python benchmarks/blend_bias.py`.

`calibrate` ends in a weighted mean of methods, and a bias with which the mean prediction is that of
the labels. What does the bias change on test rows, and where would it do harm? For each table with
a `base_logits.npz`: the test log loss with the bias, found on the rows of the fit, less that
without, in 1e-4 nats. Random splits: the mean over samples of the development rows, with its
standard error; tables in order of time: the last development rows, with `time="order"` and
`"blocks"`, for which `calibrate` itself adds no bias.

The data are looked for as by `calibrators.py`. `--tables NAME ...` runs some of them.
"""

import argparse
import pathlib
import sys
from typing import Any

import numpy as np

from keras_calibration import calibrate_scores
from keras_calibration._solvers.logistic_fit import bias_to_labels
from keras_calibration.layers import BlendedHead
from keras_calibration.layers.head_logits import head_logits

sys.path.append(str(pathlib.Path(__file__).parent))

from calibrators import Part, data_folder, read_peers, read_table

Array = np.ndarray[Any, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tables", nargs="*", help="names of the tables; all by default")
    parser.add_argument("--rows", type=int, default=2500, help="development rows of a sample")
    parser.add_argument("--samples", type=int, default=8, help="samples of a random split")
    arguments = parser.parse_args()
    peers = read_peers(data_folder() / "peers.csv")
    names = ("blends", "identity", "bias", "wanted", "change")
    print(f"{'table':<24}{'sees':>6}{'folds':>9}" + "".join(f"{name:>11}" for name in names))
    for name in arguments.tables or peers:
        raw = peers[name]["raw"]
        table, development, test = read_table(data_folder() / name, raw["of"])
        for sees in ("logit", "field"):
            field = table.fields[0]
            fields = {} if sees == "logit" else {field: table.num_values[field]}
            is_random = raw["split"] == "random"
            for folds in (3,) if is_random else ("time", "blocks"):
                found = []
                for seed in range(arguments.samples if is_random else 1):
                    rows = sample(development, arguments.rows, seed if is_random else None)
                    found.append(measure(rows, test, fields, folds))
                show(f"{name:<24}{sees:>6}{folds:>9}", [each for each in found if each])


def sample(part: Part, num_rows: int, seed: int | None) -> Part:
    """Rows at random, or the last ones."""
    numbers = np.arange(len(part.labels))[-num_rows:]
    if seed is not None:
        numbers = np.random.default_rng(seed).permutation(len(part.labels))[:num_rows]
    columns = {name: column[numbers] for name, column in part.features.items()}
    return Part(part.logits[numbers], part.labels[numbers], columns)


def measure(rows: Part, test: Part, fields: dict[str, int], folds: Any) -> tuple[float, ...]:
    """Weight of the identity, the bias, that of the test rows, and the change; () if no blend."""
    model = calibrate_scores(
        rows.logits,
        rows.labels,
        rows.features if fields else None,
        from_logits=True,
        fields=fields,
        verbose=0,
        **({"time": "order"} if folds == "time" else {"folds": folds}),
    )
    head = model.head
    if not isinstance(head, BlendedHead):
        return ()
    of_rows, of_test = (
        head_logits(head, part.logits, part.features) - head.bias for part in (rows, test)
    )
    bias, wanted = (
        bias_to_labels(part.labels, logits, np.ones(len(logits)))
        for part, logits in ((rows, of_rows), (test, of_test))
    )
    change = np.mean(losses(test.labels, of_test + bias) - losses(test.labels, of_test))
    return 1 - sum(head.head_weights), bias, wanted, 1e4 * float(change)


def losses(labels: Array, logits: Array) -> Array:
    """Log loss of each row."""
    found: Array = np.logaddexp(0, logits) - labels * logits
    return found


def show(first: str, found: list[tuple[float, ...]]) -> None:
    """One line: means over the samples that led to a blend."""
    if not found:
        print(f"{first}{0:>11}", flush=True)
        return
    rest, bias, wanted, change = np.transpose(found)
    error = f" ± {change.std(ddof=1) / np.sqrt(len(change)):.2f}" if len(change) > 1 else ""
    figures = "".join(f"{value:>11.3f}" for value in (rest.mean(), bias.mean(), wanted.mean()))
    print(f"{first}{len(found):>11}{figures}{change.mean():>+11.2f}{error}", flush=True)


if __name__ == "__main__":
    main()
