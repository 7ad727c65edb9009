"""`CalibratedModel.fit` against the head's own `fit`, over development sets, bases and training.

For each cell of the grid: the log loss on 100,000 fresh rows of the fitted model, less that of the
head's own `fit` to the same rows, with the standard error of this paired difference. No cell should
be above 0 by more than its standard error.

    python benchmarks/exact_fit.py [--rows 500 2000 10000 50000] [--heads ilps network]
"""

import argparse

import keras
import numpy as np

from keras_calibration.layers import ILPS, FieldNetwork, NeuralCalibration
from keras_calibration.layers.head_logits import head_log_losses, head_logits
from keras_calibration.models import CalibratedModel

_NUM_FRESH = 100_000
_SITE_BIAS = np.array([-1.0, -0.5, 0.0, 0.3, 0.6, 0.9])
_NUM_SITES = len(_SITE_BIAS)
# The base's logit as a function of the true one without the sites.
_BASES = {
    "too high": lambda logit: logit + 2.2,  # as after 1:9 down-sampling of negatives
    "too steep": lambda logit: 2 * logit,
    "fine": lambda logit: logit,
}
_TRAINING = ((None, None), (1, 32), (1, 512), (5, 32), (5, 512))


def draw(num_rows: int, base: str, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs, whose "l" is the base's logit, and labels."""
    rng = np.random.default_rng(seed)
    logit = rng.normal(-1, 1, num_rows)
    site = rng.integers(0, _NUM_SITES, num_rows).astype("int32")
    labels = rng.random(num_rows) < 1 / (1 + np.exp(-logit - _SITE_BIAS[site]))
    return {"l": _BASES[base](logit).astype("float32")[:, None], "site": site}, labels


def make_head(kind: str) -> NeuralCalibration:
    """An ILPS head, alone or with a network of the site."""
    keras.utils.set_random_seed(0)
    network = FieldNetwork({"site": _NUM_SITES}, seed=0) if kind == "network" else None
    return NeuralCalibration(ILPS(), network)


def make_model(kind: str) -> CalibratedModel:
    """A calibrated model of a base that returns its input as the logit."""
    inputs = {
        "l": keras.Input((1,), name="l"),
        "site": keras.Input((), dtype="int32", name="site"),
    }
    base = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs["l"]))
    model = CalibratedModel(base, make_head(kind))
    model.compile("adam")
    return model


def losses(head: NeuralCalibration, x: dict[str, np.ndarray], y: np.ndarray) -> np.ndarray:
    """The log loss of each row."""
    logits = head_logits(head, x["l"][:, 0].astype("float64"), {"site": x["site"]})
    return head_log_losses(y.astype("float64"), logits)


def main() -> None:
    """Prints the grid and its worst cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[500, 2_000, 10_000, 50_000])
    parser.add_argument("--heads", nargs="+", default=["ilps", "network"])
    arguments = parser.parse_args()
    print("| rows | base | head | head.fit | epochs | batch | kept | difference | error |")
    print("| ---: | --- | --- | ---: | ---: | ---: | --- | ---: | ---: |")
    cells = []
    for kind in arguments.heads:
        for num_rows in arguments.rows:
            for base in _BASES:
                x, y = draw(num_rows, base, seed=0)
                fresh = draw(_NUM_FRESH, base, seed=1)
                head = make_head(kind)
                head.fit(x["l"], y, {"site": x["site"]})
                expected = losses(head, *fresh)
                for epochs, batch_size in _TRAINING:
                    model = make_model(kind)
                    model.fit(x, y, batch_size=batch_size, epochs=epochs, verbose=0)
                    change = losses(model.head, *fresh) - expected
                    mean, error = change.mean(), change.std() / np.sqrt(_NUM_FRESH)
                    kept = "yes" if model.head.fit_summary.training_kept else "no"
                    row = (
                        f"{num_rows} | {base} | {kind} | {expected.mean():.5f} | {epochs or '-'} | "
                        f"{batch_size or '-'} | {kept} | {mean:+.6f} | {error:.6f}"
                    )
                    print(f"| {row} |", flush=True)
                    cells.append((mean - error, row))
    print(f"\nWorst cell: {max(cells)[1]}")


if __name__ == "__main__":
    main()
