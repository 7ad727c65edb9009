"""The report of a table with forty fields: short lines, the worst fields first, every number."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import special, stats

from keras_calibration import calibrate_scores
from printed import check_numbers

NUM_FIELDS, SHOWN = 40, 6
LONG = "a_name_of_a_column_that_is_much_longer_than_what_anyone_would_ever_want_to_read_in_a_table"


def table_of(num_rows, effects, names=()):
    """A log with forty fields, some of which have an effect on the label."""
    rng = np.random.default_rng(0)
    named = dict(enumerate(names))
    columns = {
        named.get(k, f"field {k:02}"): rng.integers(0, 4, num_rows) for k in range(NUM_FIELDS)
    }
    logits = rng.normal(-0.5, 1, num_rows)
    true = logits + sum(size * (columns[name] - 1.5) for name, size in effects.items())
    labels = (rng.random(num_rows) < special.expit(true)).astype(float)
    return {**columns, "logit": logits, "y": labels}, list(columns)


def report_of(table, fields, methods):
    options = {"from_logits": True, "methods": methods, "folds": 2, "verbose": 0}
    return calibrate_scores("logit", "y", table, fields=fields, **options).report


def beyond_chance(values, rows, p):
    """F-ECE within folds minus its mean by chance, and its standard error, in plain NumPy.

    The package draws the labels a hundred times; so the first figure is a pair with what it may
    differ by.
    """
    y, w, rng = rows.labels, rows.weights, np.random.default_rng(5)
    _, cell = np.unique(values[rows.rows] * 9 + rows.folds, return_inverse=True)

    def field_ece(labels):
        return np.abs(np.bincount(cell, w * (labels - p))).sum() / w.sum()

    draws = [field_ece(rng.random(len(p)) < p) for _ in range(300)]
    residual = np.bincount(cell, w * (y - p))
    variance = np.bincount(cell, w**2 * p * (1 - p))
    scale = np.sqrt(variance)
    folded = stats.foldnorm.mean(np.abs(residual) / scale, scale=scale)
    error = np.sqrt(np.sum(residual**2 + variance - folded**2)) / w.sum()
    return (field_ece(y) - np.mean(draws), 0.5 * np.std(draws)), error


def figures_of(report, table, fields):
    """Name → what is beyond chance, before and after; of all forty fields."""
    rows = report.cross_fitted
    sides = [rows.probabilities(name) for name in ("identity", report.chosen)]
    return {name: [beyond_chance(table[name], rows, p) for p in sides] for name in fields}


def check(report, table, fields, stays):
    """The lines, their numbers and the order of the fields."""
    text = str(report)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    figures, order = figures_of(report, table, fields), list(report.worst_fields())
    sides = 1 if stays else 2
    # The package's own order, whose figures are those of NumPy up to its draws.
    worst = {name: max(pair)[0] for name, pair in report.worst_fields().items()}
    assert list(worst.values()) == sorted(worst.values(), reverse=True)
    for name, pair in report.worst_fields().items():
        for (ece, error), ((expected, slack), expected_error) in zip(
            pair, figures[name], strict=True
        ):
            assert abs(ece - expected) <= slack
            assert error == pytest.approx(expected_error, rel=1e-5)
    first, shown, rest = order[0], order[1:SHOWN], order[SHOWN:]
    (head,) = (number for number, line in enumerate(lines) if line.startswith("F-ECE of the next"))
    for line, name in zip(lines[head + 1 :], shown, strict=False):
        short = name if len(name) <= 36 else name[:35] + "…"
        assert line.startswith(short)
        check_numbers(line.removeprefix(short), [list(pair) for pair in figures[name][:sides]])
    sums_up = " ".join(lines[head + len(shown) + 1 :]).split("; `report.worst_fields()")[0]
    most = [max(figures[name][side][0] for name in rest) for side in range(sides)]
    check_numbers(sums_up, [len(rest), *most])
    assert f"{len(rest)} more fields" in sums_up
    # The column and the sentence are those of the worst field.
    joined = " ".join(text.split())
    assert f"F-ECE by {first!r}, which is farthest off of {NUM_FIELDS} fields" in joined
    sentence = joined.split("Beyond chance: ")[1].split(" F-ECE of the next")[0]
    check_numbers(sentence, [list(pair) for pair in figures[first][:sides]])
    for score in report.scores:
        (line,) = (row for row in lines if row[2:].startswith(f"{score.name} "))
        assert f"{score.field_ece[first]:.4f}" in line.split()
    return order, joined


def test_a_model_that_changes():
    table, fields = table_of(3000, {"field 07": 0.6, "field 31": -0.4})
    report = report_of(table, fields, ["bias", "field_bias"])
    assert report.chosen != "identity"
    order, _ = check(report, table, fields, stays=False)
    assert order[:2] == ["field 07", "field 31"]


def test_a_model_that_stays():
    table, fields = table_of(1500, {})
    report = report_of(table, fields, ["bias", "platt"])
    assert report.chosen == "identity"
    _, joined = check(report, table, fields, stays=True)
    assert "before" not in joined.split("F-ECE of the next")[1]


def test_long_names_and_hostile_ones():
    names = [LONG, LONG + "_too", "\x1b[31mred\n", "ünïcödé", "  spaces  "]
    table, fields = table_of(1500, {LONG + "_too": 0.7, LONG: 0.5}, names)
    report = report_of(table, fields, ["bias"])
    text = str(report)
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    assert list(report.worst_fields())[:2] == [LONG + "_too", LONG]
    assert LONG[:35] + "…" in text


def test_a_field_that_a_fit_has_made_worse_is_not_hidden():
    """The order is by the larger of before and after."""
    table, fields = table_of(1500, {"field 03": 0.3})
    report = report_of(table, fields, ["bias"])
    pairs = report.worst_fields()
    name = list(pairs)[-1]
    chance = dict(report.chance_after)
    chance[name] = replace(chance[name], field_ece=-1.0)
    assert next(iter(replace(report, chance_after=chance).worst_fields())) == name


def test_few_fields():
    table, fields = table_of(1500, {"field 01": 0.6})
    report = report_of(table, fields[:1], ["bias"])
    assert "next fields" not in str(report)
    assert "farthest off" not in str(report)
    report = report_of(table, fields[:3], ["bias"])
    text = str(report)
    assert next(iter(report.worst_fields())) == "field 01"
    assert "F-ECE by 'field 01', which is farthest off of 3 fields" in " ".join(text.split())
    assert all(any(line.startswith(name) for line in text.splitlines()) for name in fields[:1])
    assert "more field" not in text
    report = report_of(table, fields[:7], ["bias"])
    assert "1 more field: at most" in str(report)


def test_classes():
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(600, 3))
    labels = np.array([rng.choice(3, p=part) for part in special.softmax(0.5 * logits, axis=1)])
    columns = {f"field {k:02}": rng.integers(0, 3, 600) for k in range(NUM_FIELDS)}
    report = calibrate_scores(
        logits, labels, columns, from_logits=True, fields=list(columns), verbose=0
    ).report
    assert max(map(len, str(report).splitlines())) <= 100
    assert "34 more fields" in str(report)
