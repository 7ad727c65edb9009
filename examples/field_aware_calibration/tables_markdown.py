"""The runs of `tables.py` as Markdown: a table for each data set."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jackknife import read_jackknife
from numpy.typing import NDArray

from keras_calibration.seeds import Ledger
from keras_calibration.statistics import Estimate, mean_difference
from markdown_table import markdown_table
from two_way_bootstrap import pseudo_values, two_way_interval

BASE, PLATT, FLOOR = "Model-1", "Platt scaling", "Noise floor"
FLOOR_METRICS = ("field_ece", "field_rce")


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
LEGEND = """
Means over the seeds ± half of the 95 % interval, which covers the noise of training alone. The
interval of *minus Model-1* also covers the choice of the test rows. In parentheses: the paper's
figures, on far more rows, so compare the order of the rows and not the size of the figures.

- *ILPS* and *Neural Calibration* have the paper's schedule, one epoch; here it leaves the curve
  near the identity. Rows *to the end* have ours: a curve gets 3,000 steps, and a random tenth of
  the development rows stops a network. UMC and SBCR have that schedule too.
- *ILPS at its optimum* is the best isotonic curve on the same knots: *ILPS to the end* has
  converged where it is as good.
- *calibrate* weighs several methods by cross-fitting, in random folds.
- The rule of *calibrate* was chosen on all these tables but avazu and criteo, so its rows are not
  those of a method that never saw the tables.
- *Noise floor*: the field errors if the probabilities of *calibrate* were the true ones. With
  ε = 0.01, a value without positives adds its share of the rows times up to 100 times its mean
  prediction, so Field-RCE exceeds 100 % where values have few rows.
""".strip()


class Group(NamedTuple):
    """The runs of one data set with the same settings.

    Args:
        settings: Data set, field, sizes and batch size.
        data: Numbers of rows, columns and field values.
        runs: Row of the table → seed → metrics.
        without_block: Row → seed → metric → values without each block of test rows.
    """

    settings: Mapping[str, Any]
    data: Mapping[str, Any]
    runs: dict[str, dict[int, dict[str, float]]]
    without_block: Mapping[str, Mapping[int, Mapping[str, Sequence[float]]]] = {}

    def seeds(self, *names: str) -> list[int]:
        """The seeds under which all of these rows have runs."""
        return sorted(set.intersection(*(set(self.runs.get(name, ())) for name in names)))

    def values(self, name: str, metric: str, seeds: Sequence[int]) -> NDArray[np.float64]:
        """A metric of a row, in the order of the seeds."""
        return np.array([self.runs[name][seed][metric] for seed in seeds])

    def without_blocks(self, name: str, metric: str, seeds: Sequence[int]) -> NDArray[np.float64]:
        """The same without each block of test rows, shape (seeds, blocks)."""
        return np.array([self.without_block[name][seed][metric] for seed in seeds])

    def pseudo_values(self, name: str, metric: str, seeds: Sequence[int]) -> NDArray[np.float64]:
        """A metric of a row as contributions of seeds and blocks of test rows, (seeds, blocks)."""
        without = self.without_blocks(name, metric, seeds)
        return pseudo_values(self.values(name, metric, seeds), without)

    def difference(self, first: str, second: str, metric: str) -> Estimate | None:
        """A metric of the second row minus that of the first, over seeds and test rows.

        Returns:
            The estimate over the common seeds; None if these are fewer than two, a value is not
            finite, or the ledger's folder has no `jackknife.jsonl`.
        """
        seeds = self.seeds(first, second)
        without_block = (self.without_block.get(name, {}) for name in (first, second))
        if len(seeds) < 2 or not all(set(seeds) <= set(by_seed) for by_seed in without_block):
            return None
        values = [self.pseudo_values(name, metric, seeds) for name in (first, second)]
        return two_way_interval(*values) if np.isfinite(values).all() else None

    def mean(self, name: str, metric: str, beside: Sequence[str] = ()) -> float:
        """The mean of a metric of a row, over the seeds that it shares with the rows beside it."""
        return float(self.values(name, metric, self.seeds(name, *beside)).mean())


def markdown(ledger: Ledger, order: Sequence[str]) -> str:
    """All tables of a ledger."""
    groups = gather(ledger, order)
    return page(groups) if groups else "The ledger holds no finished runs."


def page(groups: Sequence[Group]) -> str:
    """The tables of all data sets as Markdown."""
    return "\n\n".join([LEGEND, *(section(group) for group in groups)]) + "\n"


def gather(ledger: Ledger, order: Sequence[str]) -> list[Group]:
    """The finished runs by data set and settings, rows in the given order."""
    groups: dict[str, Group] = {}
    without_block = read_jackknife(ledger.path)
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

    return [
        in_order(group)._replace(without_block=without_block.get(key, {}))
        for key, group in groups.items()
    ]


def section(group: Group) -> str:
    """Heading, sizes and table of one data set, of the rows that have all its seeds."""
    settings, data = group.settings, group.data
    seeds = max(len(runs) for runs in group.runs.values())
    names = [name for name, runs in group.runs.items() if len(runs) == seeds]
    text = (
        f"{data['num_train']:,} training, {data['num_development']:,} development and "
        f"{data['num_test']:,} test rows, {data['positive_rate']:.1%} of these positive; "
        f"{data['num_columns']} columns; z is `{data['field']}` with {data['num_field_values']:,} "
        f"values. {size_of(settings)}; batches of {data['batch_size']}; {seeds} "
        f"{'seed' if seeds == 1 else 'seeds'}."
    )
    paper = published_figures(settings["data"])
    if fewer := [f"{n} ({len(runs)})" for n, runs in group.runs.items() if n not in names]:
        text += f" Left out, because they have fewer seeds: {', '.join(fewer)}."
    titles = [column.title for column in COLUMNS.values()]
    head = ["", *titles, "log loss minus Model-1"]
    rows = [
        [
            name,
            *(cell(group, name, metric, paper) for metric in COLUMNS),
            difference_from_base(group, name),
        ]
        for name in names
    ]
    return f"### {settings['data']}\n\n{text}\n\n{markdown_table(head, rows)}"


def size_of(settings: Mapping[str, Any]) -> str:
    """The sizes of the networks."""
    hidden = " and ".join(map(str, settings["hidden_units"]))
    return f"Embeddings of {settings['embedding_dim']}, {hidden} hidden units"


def cell(group: Group, name: str, metric: str, paper: Mapping[str, Mapping[str, float]]) -> str:
    """Mean and half of the interval, with the paper's figure in parentheses."""
    if name == FLOOR and metric not in FLOOR_METRICS:
        return ""
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


def difference_from_base(group: Group, name: str) -> str:
    """Log loss of a row minus that of Model-1, over the seeds of both."""
    seeds = group.seeds(name, BASE)
    if name in (BASE, FLOOR) or not seeds:
        return ""
    base, values = (group.values(row, "log_loss", seeds) for row in (BASE, name))
    text = f"{(values - base).mean():+.5f}"
    estimate = group.difference(BASE, name, "log_loss")
    return f"{text} [{estimate.low:+.5f}, {estimate.high:+.5f}]" if estimate else text


def published() -> dict[str, Any]:
    """The figures of the paper."""
    text = Path(__file__).with_name("published.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def published_figures(folder: str) -> dict[str, dict[str, float]]:
    """The paper's figures for a data set, by our row and metric; empty for other data sets."""
    paper = published()
    figures: dict[str, dict[str, float]] = {}
    if folder not in paper["folders"]:
        return figures
    data = paper["folders"][folder]
    for content in paper["tables"].values():
        for name, values in content["rows"].items():
            metrics = values if content.get("data") == data else values.get(data, {})
            # Tables 1 to 5 come first, and have more decimals than table 6 or as many.
            ours = paper["rows"][name]
            figures[ours] = {**metrics, **figures.get(ours, {})}
    return {name: values for name, values in figures.items() if values}
