"""Gain in accuracy against how far apart two pipelines are: one picture, and its table."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from click_study import Pipeline
from primary_clicks import PLANS, study_of
from primary_page import TableResult
from primary_verdicts import PairGain
from share_page import MIN_SHARE, table_pairs
from synthetic import predicted_gain

from markdown_table import markdown_table
from verdicts import published_accuracies

# Bounds of the classes of distance, in percent; pairs beyond the last one do not count.
ENDS = (50, 55, 60, 70, 80, 98.5)
# Ratios of standard deviations: the one measured for V1, and the published one.
RATIOS = (0.48, 0.74)
TEXT = """
### How does the gain depend on how far apart two pipelines are?

The distance of two pipelines is how often a single run is right by the log loss, in the folds that
decide which one is better. The gain is that in the fold that is judged. The law is that of normal
losses: Φ(Φ⁻¹(a) / r) − a, for an accuracy a and a ratio r of standard deviations. A cell has the
accuracies by both losses, in percent, and the number of pairs. All of this was computed after the
verdicts on A1 and A2. Single runs are right less often in the fold that is judged than in those
that decide: the nearest pairs are partly chance.
"""
NORMALIZATION_TEXT = """
### Batch normalization: which side wins, and is it seen?

xDeepFM with and without batch normalization (momentum 0.9); tables where the other folds tell which
one is better. Accuracies of a single run. In batches of 512 the calibrated
loss favours the network with batch normalization, whichever one has the lower log loss.
"""


def groups_of(results: Sequence[TableResult], folders: Iterable[Path]) -> dict[str, list[PairGain]]:
    """The pairs that count: those of A1, of A2 and the further tables, and of the runs of D1."""
    groups = {"A1, batches of 8 and 31": [pair for result in results for pair in result.gains]}
    conditions = [("A2, batches of 32", "second", 32, MIN_SHARE)]
    conditions.append(("further tables, batches of 32", "further", 32, MIN_SHARE))
    for size in filter(None, PLANS["share"].batch_sizes):
        conditions.append((f"D1, batches of {size}", "share", size, 0.5))
    for folder in folders:
        for title, name, size, min_share in conditions:
            tables = table_pairs(folder / name, PLANS[name], size, min_share)
            groups[title] = [gain for gains in tables.values() for gain in gains]
    return {title: pairs for title, pairs in groups.items() if pairs}


def _classes(pairs: Sequence[PairGain]) -> list[list[PairGain]]:
    """The pairs of each class of distance."""
    places = np.digitize([100 * pair.distance for pair in pairs], ENDS) - 1
    return [
        [pair for pair, place in zip(pairs, places, strict=True) if place == k]
        for k in range(len(ENDS) - 1)
    ]


def _means(pairs: Sequence[PairGain]) -> tuple[float, ...]:
    """Mean distance and accuracies by both losses, in percent."""
    values = [(pair.distance, pair.plain, pair.calibrated) for pair in pairs]
    return tuple(100 * np.mean(values, axis=0))


def markdown(groups: Mapping[str, Sequence[PairGain]]) -> str:
    """The accuracies of each class, a line for each batch size."""
    lines = []
    for title, pairs in groups.items():
        means = [(_means(group)[1:], len(group)) if group else None for group in _classes(pairs)]
        cells = ["" if m is None else "{:.1f} → {:.1f} ({})".format(*m[0], m[1]) for m in means]
        lines.append([title, *cells])
    classes = [f"{low:g} to {high:g} %" for low, high in itertools.pairwise(ENDS)]
    return markdown_table(["runs", *classes], lines)


def normalization_table(groups: Mapping[str, Sequence[PairGain]]) -> str:
    """The accuracies of the pairs with and without batch normalization, by which one is better."""
    lines = []
    for title, pairs in groups.items():
        of_kind = [pair for pair in pairs if pair.pair.kind == "batch_normalization"]
        for better, side in (("normalized", "with it"), ("xdeepfm", "without it")):
            chosen = [pair for pair in of_kind if pair.better == better]
            if chosen:
                _, plain, calibrated = _means(chosen)
                lines.append([title, side, str(len(chosen)), f"{plain:.1f}", f"{calibrated:.1f}"])
    return markdown_table(["runs", "better", "tables", "log loss, %", "calibrated loss, %"], lines)


def draw(groups: Mapping[str, Sequence[PairGain]], path: Path) -> None:
    """Draws the gains of the classes by batch size, the published pairs, and the law."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.8), layout="constrained")
    accuracies = np.linspace(50.1, 98.5, 200)
    for ratio, style in zip(RATIOS, ("-", "--"), strict=True):
        gains = predicted_gain(accuracies, ratio)
        axes.plot(accuracies, gains, style, color="0.6", lw=1, label=f"law, ratio {ratio}")
    for title, pairs in groups.items():
        means = np.array([_means(group) for group in _classes(pairs) if group])
        axes.plot(means[:, 0], means[:, 2] - means[:, 1], "o-", ms=5, label=title)
    published = published_accuracies(study_of(PLANS["primary"], Pipeline()).published.values())
    plain, calibrated = np.transpose(published)
    axes.plot(plain, calibrated - plain, "kx", ms=6, label="published")
    axes.axhline(0, color="0.8", lw=1)
    axes.set_xlabel("how far apart: accuracy of a single run by the log loss, %")
    axes.set_ylabel("gain by the calibrated loss, points")
    figure.legend(fontsize=8, loc="outside right upper")
    figure.savefig(path, dpi=110)
    plt.close(figure)
