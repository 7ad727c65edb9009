"""One-line mutants of the code below the public names: do the quick tests notice each?

    ./dev run python tests/mutants/mutants.py            all, in ten minutes
    ./dev run python tests/mutants/mutants.py 3 7        some, by their numbers

A mutant is found by its line wherever it stands below `src`, and its tests by their file names, so
that moving files changes nothing here. Each is made in a copy of `src`, never in place.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from mutants.forked import ROOT, outcome_of, prepare


class Mutant(NamedTuple):
    """A line, what stands in its place, and the names of the test files that must notice it."""

    line: str
    replacement: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        'return ops.cast(uniform >= bias_fraction, "int32")',
        'return ops.cast(uniform < bias_fraction, "int32")',
        ("test_references",),
    ),
    Mutant(
        "others = np.reshape(1 - np.eye(num_folds)",
        "others = np.reshape(np.eye(num_folds)",
        ("test_references",),
    ),
    Mutant(
        "return sums[1:] if held_out else sums",
        "return sums[:1] if held_out else sums",
        ("test_references",),
    ),
    Mutant(
        "return quantile_knots(logits, num_knots, balanced, SMALLEST_GAP)",
        "return quantile_knots(logits, num_knots, balanced)",
        ("test_knots",),
    ),
    Mutant(
        "balanced = positives / positives.sum() + negatives / negatives.sum()",
        "balanced = positives + negatives",
        ("test_knots",),
    ),
    Mutant(
        "starts = np.flatnonzero(np.r_[True, seen[1:] > seen[:-1]])",
        "starts = np.arange(len(seen))",
        ("test_isotonic_regression",),
    ),
    Mutant(
        "free = (theta > lower) | (gradient < 0)",
        "free = (theta > lower) | (gradient > 0)",
        ("test_exact_fits", "test_ilps"),
    ),
    Mutant(
        "return gradient, rows.T @ (rows * (weights * one * (1 - one))[:, None]) + precision",
        "return gradient, rows.T @ (rows * (weights * one)[:, None]) + precision",
        ("test_exact_fits", "test_ilps"),
    ),
    Mutant(
        "wins = float(np.sum((a < b) + 0.5 * (a == b)))",
        "wins = float(np.sum(a <= b))",
        ("test_accuracy",),
    ),
    Mutant(
        "above = (a.size * _placements(a, b) - same) / (a.size - 1)",
        "above = _placements(a, b)",
        ("test_accuracy",),
    ),
    Mutant("shrink = (growth - 1) / growth", "shrink = 1 / growth", ("test_difference",)),
    Mutant(
        "tail = (1 - confidence) / 2\n    low = betaincinv",
        "tail = 1 - confidence\n    low = betaincinv",
        ("test_bounds",),
    ),
    Mutant(
        "half_width = np.sqrt(2 * variance * level + third**2) + third",
        "half_width = np.sqrt(2 * variance * level)",
        ("test_monitor_report",),
    ),
    Mutant(
        "firsts = np.flatnonzero(np.diff(value, prepend=-1))",
        "firsts = np.flatnonzero(np.diff(value, prepend=0))",
        ("test_shifts",),
    ),
    Mutant(
        'conditions = [] if log.sample_weight is None else [f"({weight}) IS DISTINCT FROM 0"]',
        "conditions = []",
        ("test_score_log",),
    ),
    Mutant(
        "if high > low and step > _MOST_LOST * (high - low):",
        "if high > low and step > 1000 * _MOST_LOST * (high - low):",
        ("test_columns",),
    ),
    Mutant("layer._trainable = flag", "layer._trainable = True", ("test_base_as_found",)),
    Mutant(
        "error = (total - (rounded - added)) + (term - added)",
        "error = (total - rounded) + term",
        ("test_additive_metric", "test_distribution"),
    ),
    Mutant(
        "(ops.cumsum(negatives) - 0.5 * negatives)",
        "(ops.cumsum(negatives) - negatives)",
        ("test_histogram_auc", "test_beside_references"),
    ),
    Mutant(
        "is_exact = ops.logical_and(ids == ops.floor(ids), ops.abs(ids) < most)",
        "is_exact = ops.logical_and(ids == ops.floor(ids), ops.abs(ids) <= most)",
        ("test_field_sums", "test_exact_ids"),
    ),
    Mutant(
        "return bounded if has_bounds else ops.where(following < value, curve, bounded)",
        "return bounded",
        ("test_piecewise_linear",),
    ),
    Mutant(
        'return edges.astype(dtype).astype(np.float64) if "float" in dtype else edges',
        "return edges",
        ("test_beside_references",),
    ),
    Mutant(
        "label_weights = weights * ops.sum(labels, axis=-1)",
        "label_weights = weights",
        ("test_class_temperature", "test_calibrated_categorical_log_loss"),
    ),
    Mutant(
        "solvable = ops.logical_and(totals[5] > 0, totals[6] > 0)",
        "solvable = ops.logical_or(totals[5] > 0, totals[6] > 0)",
        ("test_logit_moments", "test_calibrated_log_loss"),
    ),
    Mutant(
        "prior = -0.5 * (log_ratios / _POOLING) ** 2",
        "prior = -((log_ratios / _POOLING) ** 2)",
        ("test_field_spreads",),
    ),
    Mutant(
        "correction = len(sums) / max(len(sums) - 1, 1)",
        "correction = 1.0",
        ("test_stacking", "test_forward_folds", "test_honest_scores"),
    ),
    Mutant(
        'self.add_row_count(ops.sum(ops.cast(weights != 0, "int32")))',
        "self.add_row_count(ops.shape(weights)[0])",
        ("test_additive_metric", "test_references"),
    ),
    Mutant(
        "shares *= shares.sum() / (shares @ shares)",
        "shares /= shares.mean()",
        ("test_checks", "test_ilps_fit", "test_exact_fits"),
    ),
    Mutant(
        "bad = ~((shares >= 0).all(axis=1) & (np.abs(sums[:, 0] - 1) <= _LABEL_TOLERANCE))",
        "bad = ~(shares >= 0).all(axis=1)",
        ("test_refusals",),
    ),
    Mutant(
        "differences[output] = max(differences.get(output, 0.0), difference)",
        "differences[output] = difference",
        ("test_publish", "test_export_savedmodel"),
    ),
    Mutant(
        "return share * self.largest_others.get(output, self.largest_logit) / (1 if is_sum else 4)",
        "return share * self.largest_others.get(output, self.largest_logit)",
        ("test_publish", "test_export_savedmodel"),
    ),
    Mutant(
        "error = np.sqrt(sum((ratio.size - 1) * np.var(ratio) for ratio in ratios))",
        "error = np.sqrt(sum(np.var(ratio) for ratio in ratios))",
        ("test_bias",),
    ),
    Mutant(
        "and calibrated.better is None\n        and gain.excludes(0.0)",
        "and calibrated.better is None",
        ("test_verdict", "test_compare"),
    ),
    Mutant(
        "down = np.expm1(SHIFTS[SHIFTS < 0]) / (1 + tolerance)",
        "down = np.expm1(SHIFTS[SHIFTS < 0]) * (1 + tolerance)",
        ("test_shifts",),
    ),
    Mutant(
        "pairs = codes * (int(fold.max()) + 1) + fold",
        "pairs = codes",
        ("test_honest_scores", "test_calibrate"),
    ),
    Mutant(
        "bias=share * bias,",
        "bias=bias,",
        ("test_honest_scores",),
    ),
    Mutant(
        'return Fit(summary, logits, {"_bias": bias}, tuple(fits))',
        'return Fit(summary, logits, {"_bias": 0 * bias}, tuple(fits))',
        ("test_totals",),
    ),
    Mutant(
        "statistic = -2 * np.bincount(of_segment, np.log(p_value))",
        "statistic = -np.bincount(of_segment, np.log(p_value))",
        ("test_multicalibration_error",),
    ),
    Mutant(
        "leaves[0] += bias",
        "pass",
        ("test_totals", "test_boosting", "test_boosted_trees"),
    ),
    Mutant(
        "bias = bias if math.isnan(losses.bias) else losses.bias",
        "bias = losses.bias",
        ("test_rolling",),
    ),
    Mutant(
        'ends = np.searchsorted(periods, starts, side="right").tolist()',
        'ends = np.searchsorted(periods, starts, side="left").tolist()',
        ("test_rolling", "test_score_log"),
    ),
    Mutant(
        "return np.random.default_rng([seed, epoch]).permutation(",
        "return np.random.default_rng(seed).permutation(",
        ("test_train",),
    ),
    Mutant(
        "is_fitted = is_earlier & (rows.times <= rows.times[is_scored].min() - gap)",
        "is_fitted = rows.times <= rows.times[is_scored].max() - gap",
        ("test_forward_folds", "test_time"),
    ),
    Mutant(
        "variances += share * (given_s + (given_s * scores - offsets) ** 2)",
        "variances += share * given_s",
        ("test_intervals",),
    ),
    Mutant("sync(path)", "pass", ("test_target",)),
    Mutant(
        '"smallest_detectable_effect": half + float(special.stdtrit(degrees, _POWER)) * error,',
        '"smallest_detectable_effect": half,',
        ("test_compare",),
    ),
    Mutant(
        "apart, *places = rows_apart(rows, settings and settings.folds)",
        "apart, *places = rows_apart(rows)",
        ("test_refit",),
    ),
    Mutant(
        "refuse_divided_groups(settings and settings.folds, rows)",
        "refuse_divided_groups(None, rows)",
        ("test_refit",),
    ),
    Mutant(
        "evidence = slope / max(float(np.hypot(error, choice_error)), _SMALLEST_ERROR)",
        "evidence = slope / max(error, _SMALLEST_ERROR)",
        ("test_honest_scores",),
    ),
    Mutant(
        "np.linalg.norm([change_error, share * choice_error, by_chance])",
        "np.linalg.norm([change_error, by_chance])",
        ("test_honest_scores",),
    ),
    Mutant("_EVIDENCE = 0.7", "_EVIDENCE = 0.9", ("test_lasting_level",)),
    Mutant("_EVIDENCE = 0.7", "_EVIDENCE = 0.6", ("test_lasting_level",)),
)


def main() -> None:
    """Runs the tests of each mutant; exits with 1 if one survives."""
    chosen = [int(number) for number in sys.argv[1:]] or range(len(MUTANTS))
    prepare()
    survived = [number for number in chosen if not dies(number)]
    print(f"{len(chosen) - len(survived)} of {len(chosen)} were noticed; not: {survived}")
    sys.exit(bool(survived))


def dies(number: int) -> bool:
    """Whether a test fails with a mutant that passes without it."""
    mutant = MUTANTS[number]
    path = place_of(mutant, ROOT / "src")
    content = path.read_text("utf-8").replace(mutant.line, mutant.replacement).encode()
    name = path.relative_to(ROOT / "src").as_posix()
    noticed_by = outcome_of(name, content, "", files_of(mutant.tests), 300).noticed_by
    print(f"{number:2} {noticed_by or 'SURVIVED'} {mutant.line[:70]!r}", flush=True)
    return bool(noticed_by)


def place_of(mutant: Mutant, source: Path) -> Path:
    """The one file below a folder in which the line of a mutant stands, once."""
    counts = {path: path.read_text("utf-8").count(mutant.line) for path in source.rglob("*.py")}
    files = [path for path, count in counts.items() if count]
    if sum(counts.values()) != 1:
        raise ValueError(f"A mutant's line must stand once in src. Received: {mutant}, in {files}.")
    return files[0]


def files_of(names: Sequence[str]) -> list[Path]:
    """The test files of these names; raises if one is nowhere."""
    paths_by_name = {name: sorted((ROOT / "tests").rglob(f"{name}.py")) for name in names}
    missing = [name for name, paths in paths_by_name.items() if not paths]
    if missing:
        raise ValueError(f"Mutants must name test files. Received: {missing}.")
    return [path for paths in paths_by_name.values() for path in paths]


if __name__ == "__main__":
    main()
