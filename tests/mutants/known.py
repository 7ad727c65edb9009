"""Known faults below the public names, of kinds that no rule of `generate.py` makes.

A fault is found by its text wherever that stands below `src`, so that moving files changes nothing.
"""

from collections.abc import Iterator
from pathlib import Path

from mutants.generate import Fault

# What stands once in `src`, and the fault in its place.
KNOWN = (
    ("uniform >= bias_fraction", "uniform < bias_fraction"),
    ("others = np.reshape(1 - np.eye(num_folds)", "others = np.reshape(np.eye(num_folds)"),
    ("return sums[1:] if held_out else sums", "return sums[:1] if held_out else sums"),
    ("(logits, num_knots, balanced, SMALLEST_GAP)", "(logits, num_knots, balanced)"),
    ("positives / positives.sum() + negatives / negatives.sum()", "positives + negatives"),
    ("np.flatnonzero(np.r_[True, seen[1:] > seen[:-1]])", "np.arange(len(seen))"),
    ("~is_at_bound | (gradient < 0)", "~is_at_bound | (gradient > 0)"),
    ("np.sum((a < b) + 0.5 * (a == b))", "np.sum(a <= b)"),
    ("(a.size * _compute_placements(a, b) - same) / (a.size - 1)", "_compute_placements(a, b)"),
    ("shrink = (growth - 1) / growth", "shrink = 1 / growth"),
    ("np.sqrt(2 * variance * level + third**2) + third", "np.sqrt(2 * variance * level)"),
    ("np.diff(value, prepend=-1)", "np.diff(value, prepend=0)"),
    ('[] if log.sample_weight is None else [f"({weight}) IS DISTINCT FROM 0"]', "[]"),
    ("step > _MOST_LOST * (high - low)", "step > 1000 * _MOST_LOST * (high - low)"),
    ("part._trainable = flag", "part._trainable = True"),
    ("(total - (rounded - added)) + (term - added)", "(total - rounded) + term"),
    ("if has_bounds else ops.where(following < value, curve, bounded)", ""),
    ('edges.astype(dtype).astype(np.float64) if "float" in dtype else edges', "edges"),
    ("logical_and(totals[5] > 0, totals[6]", "logical_or(totals[5] > 0, totals[6]"),
    ("correction = len(sums) / max(len(sums) - 1, 1)", "correction = 1.0"),
    ('ops.sum(ops.cast(weights != 0, "int32"))', "ops.shape(weights)[0]"),
    ("shares *= shares.sum() / (shares @ shares)", "shares /= shares.mean()"),
    ("& (np.abs(sums[:, 0] - 1) <= _LABEL_TOLERANCE)", ""),
    ("max(differences.get(output, 0.0), difference)", "difference"),
    ("\n        and gain.excludes(0.0)", ""),
    ("(SHIFTS[SHIFTS < 0]) / (1 + tolerance)", "(SHIFTS[SHIFTS < 0]) * (1 + tolerance)"),
    ("codes * (int(fold.max()) + 1) + fold", "codes"),
    ('{"_bias": bias}, tuple(fits)', '{"_bias": 0 * bias}, tuple(fits)'),
    ("bias = bias if math.isnan(losses.bias) else losses.bias", "bias = losses.bias"),
    ('(periods, starts, side="right")', '(periods, starts, side="left")'),
    ("default_rng([seed, epoch]).permutation(", "default_rng(seed).permutation("),
    (
        "is_earlier & (rows.times <= rows.times[is_scored].min() - gap)",
        "(rows.times <= rows.times[is_scored].max() - gap)",
    ),
    ("rows_apart(rows, settings and settings.folds)", "rows_apart(rows)"),
    ("_divided_groups(settings and settings.folds, rows)", "_divided_groups(None, rows)"),
    ("max(float(np.hypot(error, choice_error)), _SMALLEST_ERROR)", "max(error, _SMALLEST_ERROR)"),
    ("[change_error, share * choice_error, by_chance]", "[change_error, by_chance]"),
    ("_EVIDENCE = 0.7", "_EVIDENCE = 0.9"),
    ("_EVIDENCE = 0.7", "_EVIDENCE = 0.6"),
)


def known_faults(source: Path) -> Iterator[Fault]:
    """The known faults in the files below a folder; raises if one stands not once."""
    contents = {path: path.read_text("utf-8") for path in sorted(source.rglob("*.py"))}
    for before, after in KNOWN:
        paths = [path for path, content in contents.items() if before in content]
        if len(paths) != 1 or contents[paths[0]].count(before) > 1:
            raise ValueError(f"A known fault must stand once in src. Received: {before}, {paths}.")
        start = contents[paths[0]].encode().index(before.encode())
        yield Fault(paths[0].relative_to(source).as_posix(), "", "known", before, after, start)
