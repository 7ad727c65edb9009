"""Coverage of intervals of probabilities: `./dev run python benchmarks/interval_coverage.py`.

Labels are drawn from known probabilities, heads are fitted to them, and the 95 % intervals of new
rows are compared with the true probabilities. Three tables:

- `FieldBias` with one field, by the number of rows of the field value. Each sample has 300 values
  with 0, 1, 10, 100 and 1000 rows each, with offsets from a normal distribution; the base logits
  are N(m, 1), where m makes the rate of positives the one named.
- `FieldBias` with two fields, by how they occur together.
- Calibrators of the logit alone, with truths of their own form.

In brackets: the root mean square of the errors in standard deviations of the posterior, 1 if the
intervals are neither too wide nor too narrow, and above 1 if they are too narrow.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from keras import ops
from scipy.optimize import brentq
from scipy.special import expit

from keras_calibration import layers
from keras_calibration.layers import FieldBias, Head

SIZES = (0, 1, 10, 100, 1000)
NUM_VALUES = 300  # of each size
ONE_FIELD = (  # rate of positives, standard deviation of the offsets, calibrator
    (0.3, 0.3, None),
    (0.3, 1.0, None),
    (0.03, 0.5, None),
    (0.03, 1.0, None),
    (0.3, 0.5, layers.PlattScaling),
    (0.3, 0.5, lambda: layers.ILPS(smoothness="auto")),
)
Array = np.ndarray[Any, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=5, help="samples of each row")
    num_samples = parser.parse_args().samples
    one_field(num_samples)
    two_fields(num_samples)
    curves(100 * num_samples)


def one_field(num_samples: int) -> None:
    """By number of rows of the field value."""
    print("\nFieldBias, one field: coverage in % by number of rows of the value")
    title("rate, spread, calibrator", [f"{size:,} rows" for size in SIZES])
    for rate, spread, make in ONE_FIELD:
        cells: list[list[tuple[Array, Array]]] = [[] for _ in SIZES]
        for seed in range(num_samples):
            generator = np.random.default_rng(seed)
            offsets = generator.normal(0, spread, len(SIZES) * NUM_VALUES)
            centre = centre_of(rate, np.hypot(1, spread))
            counts = np.repeat(SIZES, NUM_VALUES)
            site = np.repeat(np.arange(len(counts)), counts)
            logits = generator.normal(centre, 1, len(site))
            labels = generator.random(len(site)) < expit(logits + offsets[site])
            head = FieldBias({"site": len(counts)}, make and make())
            head.fit(logits - 0.3, labels, {"site": site})
            new = np.arange(len(counts))
            logits = generator.normal(centre, 1, len(new))
            inside, ratio = covered(head, logits - 0.3, {"site": new}, logits + offsets)
            for place, cell in enumerate(cells):
                part = slice(place * NUM_VALUES, (place + 1) * NUM_VALUES)
                cell.append((inside[part], ratio[part]))
        name = "none" if make is None else type(make()).__name__
        line(f"{rate:g}, {spread:g}, {name}", cells)


def two_fields(num_samples: int, num_rows: int = 40_000, num_sites: int = 200) -> None:
    """By how values of the two fields occur together."""
    print("\nFieldBias, two fields of spread 0.7: coverage in % on rows like those of the fit")
    title("second field", ["all rows", "unseen site", "unseen page", "spreads found"])

    def crossed(generator: np.random.Generator, site: Array) -> tuple[Array, int]:
        return generator.integers(0, 50, len(site)), 50

    def nested(generator: np.random.Generator, site: Array) -> tuple[Array, int]:
        return 20 * site + generator.integers(0, 20, len(site)), 20 * num_sites

    def mostly_the_same(generator: np.random.Generator, site: Array) -> tuple[Array, int]:
        other = generator.integers(0, num_sites, len(site))
        return np.where(generator.random(len(site)) < 0.9, site, other), num_sites

    def the_same(generator: np.random.Generator, site: Array) -> tuple[Array, int]:
        return site, num_sites

    ways = {
        "crossed, 50 values": crossed,
        "nested, 20 values in each": nested,
        "the same in 90 % of the rows": mostly_the_same,
        "the same": the_same,
    }
    for name, way in ways.items():
        cells: list[list[tuple[Array, Array]]] = [[], [], []]
        spreads = []
        for seed in range(num_samples):
            generator = np.random.default_rng(seed)
            # Many rows for some sites, few for others.
            share = generator.dirichlet(np.full(num_sites, 0.3))
            site = generator.choice(num_sites, num_rows, p=share)
            page, num_pages = way(generator, site)
            site_effects = generator.normal(0, 0.7, num_sites + 1)
            page_effects = generator.normal(0, 0.7, num_pages + 1)
            logits = generator.normal(-1, 1, num_rows)
            labels = generator.random(num_rows) < expit(
                logits + site_effects[site] + page_effects[page]
            )
            head = FieldBias({"site": num_sites, "page": num_pages})
            head.fit(logits, labels, {"site": site, "page": page})
            spreads.append([*head.get_deviations().values()])
            rows = generator.permutation(num_rows)[:2000]
            for cell, unseen in zip(cells, (None, "site", "page"), strict=True):
                new = {"site": site[rows], "page": page[rows]}
                truth = logits[rows].copy()
                for field, offsets in (("site", site_effects), ("page", page_effects)):
                    if field == unseen:
                        new[field] = np.full(len(rows), len(offsets) - 1)
                        truth += generator.normal(0, 0.7, len(rows))
                    else:
                        truth += offsets[new[field]]
                cell.append(covered(head, logits[rows], new, truth))
        line(name, cells, "{:.2f}, {:.2f}".format(*np.mean(spreads, axis=0)))


def curves(num_samples: int, num_rows: int = 2000) -> None:
    """Calibrators of the logit alone."""
    print(f"\nCalibrators of the logit, {num_rows:,} rows: coverage in % by logit")
    title("calibrator, true logit", ["l = -3", "l = -1", "l = 1", "rows"])
    for name, (make, truth) in CURVES.items():
        cells: list[list[tuple[Array, Array]]] = [[] for _ in range(4)]
        for seed in range(num_samples):
            generator = np.random.default_rng(seed)
            logits = generator.normal(-1, 1.5, num_rows)
            labels = generator.random(num_rows) < expit(truth(logits))
            calibrator = make()
            calibrator.fit(logits, labels)
            new = np.concatenate([[-3.0, -1.0, 1.0], generator.normal(-1, 1.5, 100)])
            inside, ratio = covered(calibrator, new, None, truth(new))
            parts = [slice(0, 1), slice(1, 2), slice(2, 3), slice(3, None)]
            for cell, part in zip(cells, parts, strict=True):
                cell.append((inside[part], ratio[part]))
        line(name, cells)


CURVES: dict[str, tuple[Callable[[], Head], Callable[[Array], Array]]] = {
    "BiasCorrection, l - 0.5": (layers.BiasCorrection, lambda x: x - 0.5),
    "TemperatureScaling, 0.7 l": (layers.TemperatureScaling, lambda x: 0.7 * x),
    "PlattScaling, 0.7 l - 0.5": (layers.PlattScaling, lambda x: 0.7 * x - 0.5),
    "BetaCalibration, two slopes": (
        layers.BetaCalibration,
        lambda x: 0.6 * np.logaddexp(0, x) - 1.2 * np.logaddexp(0, -x) + 0.2,
    ),
    "ILPS, 0.7 l - 0.5": (layers.ILPS, lambda x: 0.7 * x - 0.5),
    "ILPS, one kink": (layers.ILPS, lambda x: np.where(x < -1, 1.4, 0.5) * (x + 1) - 1),
    "ILPS, waves": (layers.ILPS, lambda x: x + 0.35 * np.sin(2 * x)),
}


def covered(
    head: Any, logits: Array, features: dict[str, Array] | None, truth: Array
) -> tuple[Array, Array]:
    """Whether each interval holds the truth, and the error in standard deviations."""
    lower, upper = head.interval(logits, features)
    arguments = (logits,) if features is None else (logits, features)
    fitted = ops.convert_to_numpy(head(*arguments)).reshape(-1)
    deviation = ops.convert_to_numpy(head.logit_standard_deviation(*arguments)).reshape(-1)
    chance = expit(truth)
    inside = (lower.reshape(-1) <= chance) & (chance <= upper.reshape(-1))
    return inside, (truth - fitted) / deviation


def title(first: str, columns: Sequence[str]) -> None:
    print(f"{first:<34}" + "".join(f"{column:>14}" for column in columns))


def line(name: str, cells: Sequence[Sequence[tuple[Array, Array]]], last: str = "") -> None:
    """Coverage, and the error in standard deviations as a root mean square."""
    print(f"{name:<34}", end="")
    for cell in cells:
        inside, errors = (np.concatenate(parts) for parts in zip(*cell, strict=True))
        print(f"{f'{100 * inside.mean():.1f} ({np.sqrt(np.mean(errors**2)):.2f})':>14}", end="")
    print(f"{last:>15}" if last else "", flush=True)


def centre_of(rate: float, spread: float) -> float:
    """The mean of normal logits with this standard deviation whose mean probability is `rate`."""
    normal = np.random.default_rng(0).normal(0, spread, 100_000)
    return float(brentq(lambda centre: expit(centre + normal).mean() - rate, -15, 15))


if __name__ == "__main__":
    main()
