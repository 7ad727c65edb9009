"""The decisions of `compare`: `./dev run python benchmarks/compare_decisions.py`.

Three tables, all by `compare` itself:

- looks: how often it names a better pipeline where there is none, if the advised "about k more
  seeds each" are trained and compared again never, once, or until it is decided or the budget is
  spent. The runs are normal, or drawn with replacement from the runs of one pipeline of the
  archived ledgers (`benchmarks/ledgers`, click pipelines that were trained for 59 to 125 steps);
- decisions: how often 1, 2, 5 and 10 runs each of two archived pipelines are right. Runs of even
  seeds are drawn where those of odd seeds tell which pipeline is better, and the other way round: a
  pair counts in a half if the mean losses of the other half differ with p < 0.05 and a single run
  does not show it anyway (in less than 98.5 %). "Lower mean": the pipeline with the lower mean is
  the better. "Named": a better pipeline is named, rightly and wrongly, by default, which allows
  for another look, and with the level of one look. "P >= .9": how many of the draws with such a
  probability for either pipeline are right. With 1 and 2 runs each, the seed noise is that of five
  runs of each other pipeline;
- the other loss: the same where one loss is asked and the other one is what counts.
"""

import argparse
import itertools
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibration_records.comparison.compare import compare_runs
from calibration_records.comparison.comparison import Comparison
from calibration_records.comparison.question import Question
from calibration_records.comparison.verdict import Outcome
from calibration_records.runs.run_record import validate_record
from keras_calibration.statistics import independent_seed_accuracy, mean_difference

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from ledger_archive import read

LEDGERS = Path(__file__).parent / "ledgers"
PLAIN, CALIBRATED = "val_log_loss", "val_calibrated_log_loss"
NUMBERS_OF_RUNS = (1, 2, 5, 10)
MAX_P_VALUE, MAX_ACCURACY, LIKELY = 0.05, 0.985, 0.9
NUM_EARLIER = 5
TEMPLATE = validate_record({"pipeline": "a", "seed": 0, "status": "finished", "epochs": [0]})

Runs = np.ndarray[Any, np.dtype[np.float64]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=4000, help="experiments for each figure")
    parser.add_argument("--draws", type=int, default=10, help="draws of runs, a pair and half")
    options = parser.parse_args()
    start = time.time()
    studies = dict(archived_losses())
    looks_table(studies, options.trials)
    decisions_table(studies, options.draws)
    print(f"\n{time.time() - start:.0f} s")


def archived_losses() -> Iterator[tuple[str, dict[str, dict[int, Runs]]]]:
    """Of each study of clicks: pipeline → seed → plain and calibrated loss."""
    for file in sorted(LEDGERS.glob("clicks_*.jsonl.xz")):
        by_pipeline: dict[str, dict[int, Runs]] = {}
        for run in read(file).runs:
            metrics = run["metrics"]
            if run["status"] == "finished" and CALIBRATED in metrics:
                losses = np.array([metrics[PLAIN][-1], metrics[CALIBRATED][-1]])
                by_pipeline.setdefault(run["pipeline"], {})[run["seed"]] = losses
        yield file.name.removeprefix("clicks_").removesuffix(".jsonl.xz"), by_pipeline


def record(pipeline: str, seed: int, losses: Runs) -> dict[str, Any]:
    """A run of the ledger, with a calibrated loss or with both."""
    values = [[float(loss)] for loss in np.atleast_1d(losses)]
    metrics = dict(zip((PLAIN, CALIBRATED)[-len(values) :], values, strict=True))
    return {**TEMPLATE, "pipeline": pipeline, "seed": seed, "metrics": metrics}


def ask(a: Runs, b: Runs, *, paired: bool = True, **options: Any) -> Comparison:
    """Compares runs of A and B by their calibrated losses, shape `(num_runs,)`."""
    first = 0 if paired else len(a)
    records = [record("a", seed, loss) for seed, loss in enumerate(a)]
    records += [record("b", first + seed, loss) for seed, loss in enumerate(b)]
    return compare_runs(records, Question("a", "b", **options))


# Looks.


def looks_table(studies: dict[str, dict[str, dict[int, Runs]]], trials: int) -> None:
    print("\nA better pipeline named where there is none, %: no second look, one, until decided")
    archived = [
        np.array([losses[1] for losses in runs.values()])
        for pipelines in studies.values()
        for runs in pipelines.values()
        if len(runs) > 1
    ]
    sources: dict[str, Callable[[np.random.Generator, int], Runs]] = {
        "normal": lambda rng, size: rng.normal(size=(2, size)),
        "archived": lambda rng, size: rng.choice(
            archived[rng.integers(len(archived))], size=(2, size)
        ),
    }
    plans = (1, 2, "advised", None)
    heads = [f"looks: {'any' if looks is None else looks}" for looks in plans]
    print("| runs, seeds, first look, budget |", *(f"{head} |" for head in heads))
    print("| --- |" + " ---: |" * len(plans))
    cells = itertools.product(sources, ((False, 5), (True, 6)), (30, 60))
    for source, (paired, first), budget in cells:
        figures = []
        for num_looks in plans:
            rng = np.random.default_rng([len(source), paired, budget])
            hits = np.zeros(3)
            for _ in range(trials):
                runs = sources[source](rng, budget)
                hits += follow(*runs, paired=paired, first=first, num_looks=num_looks)
            figures.append(" / ".join(f"{100 * hit / trials:.1f}" for hit in hits) + " |")
        seeds = "shared" if paired else "own"
        print(f"| {source}, {seeds}, {first}, {budget} |", *figures, flush=True)


def follow(a: Runs, b: Runs, *, paired: bool, first: int, num_looks: int | str | None) -> Runs:
    """Whether a better pipeline is named at the first look, the second, and at any."""
    size, looks = first, 0
    while True:
        looks += 1
        comparison = ask(a[:size], b[:size], paired=paired, num_looks=num_looks)
        if comparison.verdict.better is not None:
            return np.array([looks <= 1, looks <= 2, True], float)
        if size == len(a) or comparison.verdict.decided or comparison.more_seeds is None:
            return np.zeros(3)
        size = min(len(a), size + comparison.more_seeds)


# Decisions.


class Pair(NamedTuple):
    """Two archived pipelines, in the half of the seeds that is drawn from.

    Args:
        losses: Losses of either, shape `(2, seeds, 2)`: plain and calibrated.
        is_b_better: Whether B is better by the plain loss, and by the calibrated loss; `None` if
            the difference is not significant, or if single runs nearly always show it.
        earlier: Records of the other pipelines.
    """

    losses: Runs
    is_b_better: tuple[bool | None, bool | None]
    earlier: list[dict[str, Any]]


def archived_pairs(pipelines: dict[str, dict[int, Runs]]) -> Iterator[Pair]:
    """All pairs of a study, by halves of the seeds, whose better one is known by either loss."""
    for a, b in itertools.combinations(pipelines, 2):
        seeds = sorted(pipelines[a].keys() & pipelines[b].keys())
        for parity in (0, 1):
            drawn = [seed for seed in seeds if seed % 2 == parity]
            deciding = [seed for seed in seeds if seed % 2 != parity]
            if min(len(drawn), len(deciding)) < max(NUMBERS_OF_RUNS):
                continue
            sides = np.array([[pipelines[name][seed] for seed in deciding] for name in (a, b)])
            truths = tuple(better(*sides[..., loss]) for loss in (0, 1))
            if truths == (None, None):
                continue
            earlier = [
                record(name, seed, pipelines[name][seed])
                for name in pipelines
                if name not in (a, b)
                for seed in sorted(pipelines[name])[:NUM_EARLIER]
            ]
            losses = np.array([[pipelines[name][seed] for seed in drawn] for name in (a, b)])
            yield Pair(losses, (truths[0], truths[1]), earlier)


def better(a: Runs, b: Runs) -> bool | None:
    """Whether B has the lower mean; `None` if unknown, or if single runs nearly always show it."""
    p_value = mean_difference(a, b, paired=True).p_value
    if p_value is None or p_value >= MAX_P_VALUE:
        return None
    is_b = bool(b.mean() < a.mean())
    accuracy = independent_seed_accuracy(*((b, a) if is_b else (a, b))).value
    return is_b if accuracy < MAX_ACCURACY else None


class Counts:
    """Numbers of draws, and of those that were right by each rule."""

    def __init__(self) -> None:
        self.draws = self.lower = self.likely = self.likely_right = 0
        # Named right and wrong, by default and with the level of one look.
        self.named = np.zeros((2, 2))

    def add(self, comparison: Comparison, is_b_better: bool) -> None:
        """Counts a draw."""
        truth = "B" if is_b_better else "A"
        is_right = comparison.deciding.favors == truth
        difference, probability = comparison.difference, comparison.probability_b_better()
        self.draws += 1
        self.lower += is_right
        if comparison.verdict.outcome in (Outcome.A_BETTER, Outcome.B_BETTER):
            self.named[0, int(not is_right)] += 1
        if difference is not None and (difference.p_value or 1) < 0.05:
            self.named[1, int(not is_right)] += 1
        if max(probability, 1 - probability) >= LIKELY:
            self.likely += 1
            self.likely_right += (probability > 0.5) == is_b_better

    def percent(self) -> list[str]:
        """Lower mean right, draws with P ≥ 0.9, right of these, named rightly and wrongly."""
        if not self.draws:
            return ["–"] * 5
        named = [" / ".join(f"{k:.0f}" for k in 100 * row / self.draws) for row in self.named]
        truth = f"{100 * self.likely_right / self.likely:.0f}" if self.likely else "–"
        shares = [f"{100 * number / self.draws:.0f}" for number in (self.lower, self.likely)]
        return [*shares, truth, *named]


def decisions_table(studies: dict[str, dict[str, dict[int, Runs]]], draws: int) -> None:
    tables: dict[tuple[str, int], dict[tuple[int, int], Counts]] = {}
    for study, pipelines in studies.items():
        rng = np.random.default_rng(zlib.crc32(study.encode()))
        for pair, num_runs in itertools.product(archived_pairs(pipelines), NUMBERS_OF_RUNS):
            for _ in range(draws):
                count_draw(pair, num_runs, rng, tables.setdefault((study, num_runs), {}))
    kinds, runs = ("plain", "calibrated"), " / ".join(map(str, NUMBERS_OF_RUNS))
    for truth, asked in itertools.product((0, 1), (0, 1)):
        print(f"\nThe {kinds[asked]} loss is asked, the {kinds[truth]} loss counts; in percent")
        print(
            f"| study | lower mean right, {runs} runs | draws with P >= .9, {runs} runs "
            f"| right of these, {runs} runs | named right / wrong, {NUMBERS_OF_RUNS[-1]} runs "
            "| the same with one look |"
        )
        print("| --- |" + " ---: |" * 5)
        for study in studies:
            counts = [
                tables.get((study, num_runs), {}).get((asked, truth), Counts()).percent()
                for num_runs in NUMBERS_OF_RUNS
            ]
            cells = [" / ".join(cell[k] for cell in counts) for k in range(3)]
            print(f"| {study} |", *(f"{cell} |" for cell in (*cells, *counts[-1][3:])), flush=True)


def count_draw(
    pair: Pair, num_runs: int, rng: np.random.Generator, counts: dict[tuple[int, int], Counts]
) -> None:
    """Compares runs of one draw by either loss, and counts what each truth makes of it."""
    places = rng.choice(pair.losses.shape[1], num_runs, replace=False)
    records = [
        record(name, int(place), losses[place])
        for name, losses in zip("ab", pair.losses, strict=True)
        for place in places
    ]
    for asked in (0, 1):
        question = Question("a", "b", metric=(PLAIN, CALIBRATED)[asked])
        comparison = compare_runs([*pair.earlier, *records] if num_runs < 4 else records, question)
        for truth, is_b_better in enumerate(pair.is_b_better):
            if is_b_better is not None:
                counts.setdefault((asked, truth), Counts()).add(comparison, is_b_better)


if __name__ == "__main__":
    main()
