"""Draws the chart of the page of benchmarks, from the tables of this page.

    ./dev run python benchmarks/chart.py

It writes `benchmarks/chart.png`.
"""

import re
from pathlib import Path

import matplotlib

PAGE = Path(__file__).with_name("README.md")
PICTURE = PAGE.with_name("chart.png")
COLORS = {"calibrate": "#1f5fa8", "MCGrad": "#d9730d", "best rival": "#8a8f98"}


def main() -> None:
    """Draws the log losses of all tables with all columns, and the seconds of a fit."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.6), width_ratios=(3, 2), layout="constrained"
    )
    losses = table_below("| table | raw | logit alone |")[::-1]
    for name, column, size in (("MCGrad", 8, 36), ("best rival", 7, 36), ("calibrate", 6, 60)):
        gains = [100 * (1 - number(line[column]) / number(line[1])) for line in losses]
        left.scatter(gains, range(len(losses)), size, COLORS[name], label=name, zorder=size)
    left.set_yticks(range(len(losses)), [line[0].removesuffix(" t") for line in losses])
    left.set_xscale("symlog", linthresh=5)
    left.set_xticks([-2, 0, 2, 5, 10, 20, 50], ["-2", "0", "2", "5", "10", "20", "50"])
    left.axvline(0, color="0.7", lw=1)
    left.grid(axis="y", color="0.9")
    left.set(xlabel="log loss removed, % (all columns; right is better)")
    left.legend(loc="upper left")
    left.set_xlim(-4, 62)
    seconds = {line[0]: line for line in table_below("| table | rows × columns |")}
    timed = [seconds[line[0].removesuffix(" t")] for line in losses]
    for name, column, size in (("MCGrad", 4, 36), ("calibrate", 3, 60)):
        values = [number(line[column]) for line in timed]
        right.scatter(values, range(len(timed)), size, COLORS[name], zorder=size)
    right.set_yticks(range(len(timed)), [line[1].split(" × ")[0] + " rows" for line in timed])
    right.set_xscale("log")
    right.set_xticks([0.2, 1, 5, 20, 50], ["0.2", "1", "5", "20", "50"])
    right.grid(axis="y", color="0.9")
    right.set(xlabel="CPU seconds of a fit (left is better)")
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, dpi=110)
    print(PICTURE)


def table_below(head: str) -> list[list[str]]:
    """The cells of the table of the page whose head starts so."""
    text = PAGE.read_text("utf-8")
    lines = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def number(cell: str) -> float:
    """The number of a cell, in bold or not."""
    return float(re.sub(r"[*,]", "", cell))


if __name__ == "__main__":
    main()
