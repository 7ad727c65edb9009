"""The runs of `tables.py` as Markdown: a table for each data set, and a summary."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_calibration.seeds import Ledger
from keras_calibration.statistics import mean_difference

sys.path.append(str(Path(__file__).parents[1]))
from markdown_table import markdown_table

PUBLISHED = Path(__file__).with_name("published.json")
BASE, PLATT, FLOOR = "Model-1", "Platt scaling", "Noise floor"


class Column(NamedTuple):
    """A column of the tables: its title, factor and number of decimals."""

    title: str
    factor: float
    decimals: int


COLUMNS = {
    "log_loss": Column("log loss", 1, 5),
    "brier": Column("Brier", 1, 5),
    "field_ece": Column("Field-ECE", 1, 5),
    "field_rce": Column("Field-RCE, %", 100, 2),
    "auc": Column("AUC", 1, 4),
}
LEGEND = (
    "Means over the seeds ± half of the 95 % interval (Student's t), on the test rows. Minus "
    "Model-1: the difference in log loss, seed by seed, with its 95 % interval. The intervals "
    "cover the noise of training, not that of the test rows. Seconds are those of the clock, on a "
    "machine that did other work at the same time."
)


class Group(NamedTuple):
    """The runs of one data set with the same settings.

    Args:
        settings: Data set, field, sizes and batch size.
        data: Numbers of rows, columns and field values.
        runs: Row of the table → seed → metrics.
    """

    settings: Mapping[str, Any]
    data: Mapping[str, Any]
    runs: dict[str, dict[int, dict[str, float]]]

    def seeds(self, *names: str) -> list[int]:
        """The seeds under which all of these rows have runs."""
        return sorted(set.intersection(*(set(self.runs.get(name, ())) for name in names)))

    def values(self, name: str, metric: str, seeds: Sequence[int]) -> NDArray[np.float64]:
        """A metric of a row, in the order of the seeds."""
        return np.array([self.runs[name][seed][metric] for seed in seeds])

    def mean(self, name: str, metric: str, beside: Sequence[str] = ()) -> float:
        """The mean of a metric of a row, over the seeds that it shares with the rows beside it."""
        return float(self.values(name, metric, self.seeds(name, *beside)).mean())


def markdown(ledger: Ledger, order: Sequence[str]) -> str:
    """All tables of a ledger, and the summary over its data sets.

    Args:
        ledger: The ledger of finished runs.
        order: Names of the rows in their order; others follow.

    Returns:
        Markdown text.
    """
    groups = gather(ledger, order)
    return page(groups) if groups else "The ledger holds no finished runs."


def page(groups: Sequence[Group]) -> str:
    """The tables of all data sets, and the summary over them, as Markdown."""
    sections = [LEGEND, *(section(group) for group in groups)]
    # Networks of different sizes are not compared with each other.
    for size in dict.fromkeys(size_of(group.settings) for group in groups):
        alike = [group for group in groups if size_of(group.settings) == size]
        if len(alike) > 1:
            sections.append(summary(alike, size))
    return "\n\n".join(sections) + "\n"


def gather(ledger: Ledger, order: Sequence[str]) -> list[Group]:
    """The finished runs by data set and settings, rows in the given order."""
    groups: dict[str, Group] = {}
    for run in ledger.runs(status="finished"):
        configuration = run["configuration"]
        key = json.dumps(configuration["settings"], sort_keys=True)
        group = groups.setdefault(key, Group(**configuration, runs={}))
        metrics = {name: values[-1] for name, values in run["metrics"].items()}
        group.runs.setdefault(run["pipeline"], {})[run["seed"]] = metrics
    places = {name: place for place, name in enumerate(order)}

    def in_order(group: Group) -> Group:
        names = sorted(group.runs, key=lambda name: places.get(name, len(places)))
        return group._replace(runs={name: group.runs[name] for name in names})

    return [in_order(group) for group in groups.values()]


def section(group: Group) -> str:
    """Heading, sizes and table of one data set."""
    settings, data = group.settings, group.data
    counts = sorted({len(runs) for runs in group.runs.values()})
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    seconds = sum(m["seconds"] for runs in group.runs.values() for m in runs.values())
    # All rows of a seed share one base model.
    base = {seed: m["base_seconds"] for runs in group.runs.values() for seed, m in runs.items()}
    sizes = (
        f"{data['num_train']:,} training, {data['num_development']:,} development and "
        f"{data['num_test']:,} test rows, {data['positive_rate']:.1%} of these positive; "
        f"{data['num_columns']} columns; z is `{data['field']}` with {data['num_field_values']:,} "
        f"values. {size_of(settings)}; batches of {data['batch_size']}; {seeds} "
        f"{'seed' if seeds == '1' else 'seeds'}; "
        f"{seconds + sum(base.values()):,.0f} s in all."
    )
    paper = published_figures(settings["data"])
    if paper:
        sizes += (
            " In parentheses: the figures of the paper. This table is only a sample of the paper's "
            "data, so compare the order of the rows, not the size of the figures."
        )
    titles = [column.title for column in COLUMNS.values()]
    head = ["", *titles, "log loss minus Model-1", "seconds"]
    rows = [
        [
            name,
            *(cell(group, name, metric, paper) for metric in COLUMNS),
            difference(group, name),
            f"{group.mean(name, 'seconds'):.1f}",
        ]
        for name in group.runs
    ]
    return f"### {settings['data']}\n\n{sizes}\n\n{markdown_table(head, rows)}"


def size_of(settings: Mapping[str, Any]) -> str:
    """The sizes of the networks."""
    hidden = " and ".join(map(str, settings["hidden_units"]))
    return f"Embeddings of {settings['embedding_dim']}, {hidden} hidden units"


def cell(group: Group, name: str, metric: str, paper: Mapping[str, Mapping[str, float]]) -> str:
    """Mean and half of the interval, with the paper's figure in parentheses."""
    column = COLUMNS[metric]
    values = column.factor * group.values(name, metric, sorted(group.runs[name]))
    text = f"{values.mean():.{column.decimals}f}"
    if len(values) > 1 and np.isfinite(values).all():
        # The interval of a mean is that of its difference from 0.
        estimate = mean_difference(np.zeros_like(values), values, paired=True)
        text += f" ± {estimate.high - estimate.value:.{column.decimals}f}"
    if metric in paper.get(name, {}):
        text += f" ({column.factor * paper[name][metric]:.{min(column.decimals, 4)}f})"
    return text


def difference(group: Group, name: str) -> str:
    """Log loss of a row minus that of Model-1, over the seeds of both."""
    seeds = group.seeds(name, BASE)
    if name == BASE or not seeds:
        return ""
    base, values = (group.values(each, "log_loss", seeds) for each in (BASE, name))
    mean = (values - base).mean()
    if len(seeds) == 1 or not np.isfinite(mean):
        return f"{mean:+.5f}"
    estimate = mean_difference(base, values, paired=True)
    return f"{mean:+.5f} [{estimate.low:+.5f}, {estimate.high:+.5f}]"


def summary(groups: Sequence[Group], size: str) -> str:
    """On how many data sets each row is the best, and better than Model-1 and Platt scaling."""
    names = list(dict.fromkeys(name for group in groups for name in group.runs))

    def num_lowest(name: str, metric: str) -> int:
        return sum(
            all(
                group.mean(name, metric, [each]) <= group.mean(each, metric, [name])
                for each in group.runs
                if group.seeds(name, each)
            )
            for group in groups
            if name in group.runs
        )

    def num_better(name: str, other: str) -> str:
        both = [group for group in groups if group.seeds(name, other)]
        if name == other or not both:
            return ""
        wins = sum(
            group.mean(name, "log_loss", [other]) < group.mean(other, "log_loss", [name])
            for group in both
        )
        return f"{wins} of {len(both)}"

    rows = [
        [
            name,
            str(num_lowest(name, "log_loss")),
            str(num_lowest(name, "field_rce")),
            num_better(name, BASE),
            num_better(name, PLATT),
        ]
        for name in names
    ]
    head = ["", "lowest log loss", "lowest Field-RCE", "log loss below Model-1", "below Platt"]
    title = f"### Summary of {len(groups)} data sets"
    text = f"{size}. On how many data sets, by the mean over the seeds that two rows share:"
    return f"{title}\n\n{text}\n\n{markdown_table(head, rows)}"


def published_figures(folder: str) -> dict[str, dict[str, float]]:
    """The paper's figures for a data set, by our row and metric; empty for other data sets."""
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    figures: dict[str, dict[str, float]] = {}
    if folder not in published["folders"]:
        return figures
    data = published["folders"][folder]
    for content in published["tables"].values():
        for name, values in content["rows"].items():
            found = values if content.get("data") == data else values.get(data, {})
            # Tables 1 to 5 come first, and have more decimals than table 6 or as many.
            ours = published["rows"][name]
            figures[ours] = {**found, **figures.get(ours, {})}
    return {name: values for name, values in figures.items() if values}
