"""The default network head on fresh rows, beside the curve alone and `FieldBias`.

Log loss above that of the true probabilities, in 1e-4 nats per row, on 100,000 fresh rows: of the
base, of an ILPS, of `FieldBias`, and of `NeuralCalibration(ILPS(), FieldNetwork(...))` with one and
three members. One fit gives both, because a single member is the first of the three. A cell misses
if the head is worse than the curve by more than two standard errors of the paired difference.

    python benchmarks/network_head.py [--rows 500 1500 5000 15000 50000] [--seeds 1]
"""

import argparse
from typing import TypeAlias

import keras
import numpy as np
from scipy import special

from keras_calibration.layers import ILPS, FieldBias, FieldNetwork, NeuralCalibration

_NUM_FRESH = 100_000
_NUM_SITES = 500

Draw: TypeAlias = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]

_KINDS = ("4 strong", "500 strong", "500 without effect", "two crossed", "numeric, heavy tail")


def draw(kind: str, num_rows: int, seed: int) -> Draw:
    """Logits of the base, true logits, and features."""
    rng, site_rng = np.random.default_rng(seed), np.random.default_rng(99)
    logits = rng.normal(-1, 1, num_rows)
    few, many = rng.integers(0, 4, num_rows), rng.integers(0, _NUM_SITES, num_rows)
    rank = np.minimum(rng.zipf(1.5, num_rows), _NUM_SITES) - 1
    price = rng.lognormal(size=num_rows)
    strong = site_rng.normal(0, 0.8, _NUM_SITES)
    curve = 0.8 * logits - 0.2
    if kind == "4 strong":
        return logits, curve + np.array([-1, -0.3, 0.3, 1])[few], {"site": few}
    if kind == "500 strong":
        return logits, curve + strong[many], {"site": many}
    if kind == "500 without effect":
        return logits, curve, {"site": many}
    if kind == "two crossed":
        other = rng.integers(0, 4, num_rows)
        return logits, curve + np.where((few + other) % 2, 0.7, -0.7), {"site": few, "slot": other}
    return logits, curve + strong[rank] + 0.6 * np.sin(2 * price), {"site": rank, "price": price}


def main() -> None:
    """Prints the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[500, 1500, 5000, 15000, 50000])
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    print("| fields | rows | base | curve | FieldBias | 1 member | 3 members | kept | misses |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for num_rows in arguments.rows:
        for kind in _KINDS:
            results = [_cell(kind, num_rows, seed) for seed in range(arguments.seeds)]
            means = np.mean([means for means, _, _ in results], axis=0)
            kept = sum(result[1] for result in results)
            misses = [miss for result in results for miss in result[2]]
            columns = " | ".join(f"{1e4 * mean:.0f}" for mean in means)
            missed = ", ".join(misses) or "-"
            print(f"| {kind} | {num_rows:,} | {columns} | {kept} | {missed} |", flush=True)


def _cell(kind: str, num_rows: int, seed: int) -> tuple[list[float], bool, list[str]]:
    """Losses beyond the truth's of the five columns, whether g was kept, and what misses."""
    keras.utils.set_random_seed(seed)
    logits, truth, features = draw(kind, num_rows, 2 * seed)
    labels = (np.random.default_rng(seed).random(num_rows) < special.expit(truth)).astype(float)
    sizes = {"site": 4 if kind in ("4 strong", "two crossed") else _NUM_SITES}
    sizes |= {"slot": 4} if "slot" in features else {}
    network = FieldNetwork(sizes, ["price"] if "price" in features else [])
    head, curve, bias = NeuralCalibration(ILPS(), network, num_members=3), ILPS(), FieldBias(sizes)
    summary = head.fit(logits, labels, features)
    curve.fit(logits, labels)
    bias.fit(logits, labels, features)

    fresh, truth, features = draw(kind, _NUM_FRESH, 2 * seed + 1)
    p = special.expit(truth)
    eta, corrections = (
        np.ravel(head.calibrator(fresh)),
        [np.ravel(each(features)) for each in head.members],
    )
    columns = [fresh, curve(fresh), bias(fresh, features)]
    columns += [eta + corrections[0], eta + np.mean(corrections, axis=0)]
    columns = [np.ravel(np.asarray(column)).astype(float) for column in columns]
    losses = [np.logaddexp(0, each) - p * each for each in columns]
    entropy = np.logaddexp(0, truth) - p * truth
    misses = []
    for members, loss in zip((1, 3), losses[3:], strict=True):
        change = loss - losses[1]
        if change.mean() > 2 * change.std() / np.sqrt(_NUM_FRESH):
            misses.append(f"{members} of seed {seed}: {1e4 * change.mean():+.1f}")
    return [float((loss - entropy).mean()) for loss in losses], summary.network_kept, misses


if __name__ == "__main__":
    main()
