"""Draws the picture of the front page: right on average, wrong by segment, then right.

    ./dev run python examples/story.py         writes docs/story.png

On the generated click log. The curve alone (ILPS) makes the model right at every level of its
predictions; its sites are still off. An offset for each site (`FieldBias`) mends them.
"""

from pathlib import Path

import keras
import matplotlib
import numpy as np
from numpy.typing import NDArray

import keras_calibration as kc

PICTURE = Path(__file__).parents[1] / "docs" / "story.png"
NUM_SITES_SHOWN = 30
BLUE, ORANGE, GREY = "#1f5fa8", "#d9730d", "#8a8f98"


def main() -> None:
    """Trains, calibrates twice, and draws the test rows."""
    keras.utils.set_random_seed(0)
    log = kc.datasets.generate_click_log(200_000)
    inputs = {name: keras.Input((), dtype="int32", name=name) for name in log.num_values}
    ids = [keras.layers.Embedding(n, 8)(inputs[name]) for name, n in log.num_values.items()]
    hidden = keras.layers.Dense(64, "relu")(keras.layers.Concatenate()(ids))
    base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    base.compile("adam", "binary_crossentropy")
    base.fit(*log.part("train", inputs), batch_size=256, verbose=0)
    test, labels = log.part("test", inputs)
    probabilities = {"the model": base.predict(test, verbose=0)[:, 0]}
    for name, head in {
        "with a curve": kc.layers.ILPS(),
        "with a curve and sites": kc.layers.FieldBias(
            {"site_id": log.num_values["site_id"]}, kc.layers.ILPS()
        ),
    }.items():
        model = kc.models.CalibratedModel(base, head)
        kc.fit_head(model, *log.part("development", inputs), verbose=0)
        probabilities[name] = model.predict(test, verbose=0)[:, 0]
    draw(probabilities, labels, test["site_id"].astype("int64"))


def draw(
    probabilities: dict[str, NDArray[np.float32]],
    labels: NDArray[np.float32],
    sites: NDArray[np.int64],
) -> None:
    """Saves three panels: reliability of all three, then the sites without and with offsets."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
    model, curve, with_sites = probabilities.values()
    for predicted, color, name in ((model, ORANGE, "the model"), (curve, BLUE, "with a curve")):
        panels[0].plot(*reliability(labels, predicted), "o-", color=color, label=name, ms=4)
    panels[0].plot([0, 0.4], [0, 0.4], color=GREY, lw=1, zorder=0)
    panels[0].set(xlim=(0, 0.4), ylim=(0, 0.4), title="1  Right on average …")
    panels[0].legend(frameon=False, loc="upper left")
    for panel, predicted, title in (
        (panels[1], curve, "2  … wrong by segment …"),
        (panels[2], with_sites, "3  … right by segment"),
    ):
        rates, observed, num_rows = by_site(labels, predicted, sites)
        error = 2 * np.sqrt(rates * (1 - rates) / num_rows)
        panel.errorbar(rates, observed, error, fmt="none", ecolor=GREY, lw=0.8, zorder=1)
        panel.scatter(rates, observed, s=num_rows / num_rows.max() * 70 + 8, color=BLUE, zorder=2)
        panel.plot([0, 0.4], [0, 0.4], color=GREY, lw=1, zorder=0)
        panel.set(xlim=(0, 0.4), ylim=(0, 0.4), title=title)
    for panel in panels:
        panel.set(xlabel="predicted click rate", ylabel="observed click rate", aspect="equal")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].text(0.39, 0.02, "a point: a tenth of the rows", ha="right", color=GREY, size=9)
    for panel in panels[1:]:
        panel.text(0.39, 0.02, "a point: a site, ± 2 σ", ha="right", color=GREY, size=9)
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)
    print(PICTURE)


def reliability(
    labels: NDArray[np.float32], predicted: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean prediction and mean label of each tenth of the rows, by prediction."""
    tenths = np.array_split(np.argsort(predicted), 10)
    return (
        np.array([predicted[rows].mean() for rows in tenths]),
        np.array([labels[rows].mean() for rows in tenths]),
    )


def by_site(
    labels: NDArray[np.float32], predicted: NDArray[np.float32], sites: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Mean prediction, mean label and number of rows of the most frequent sites."""
    num_rows = np.bincount(sites)
    shown = np.argsort(-num_rows)[:NUM_SITES_SHOWN]
    means = [np.bincount(sites, values)[shown] / num_rows[shown] for values in (predicted, labels)]
    return means[0], means[1], num_rows[shown]


if __name__ == "__main__":
    main()
