"""F1′, F3 and S1: the errors of fields against the package, and the means over tables."""

import full_page
import full_tables
import numpy as np
import pytest
from scipy import stats
from tables_markdown import Group

from keras_calibration.scoring import field_ece, field_rce

AREAS = ("auc", "brier", "log_loss", "field_rce of site")


def test_errors_of_fields_are_those_of_the_package():
    rng = np.random.default_rng(0)
    values = rng.choice([2, 5, 9], 3000).astype(np.int32)
    probabilities = rng.uniform(0.1, 0.4, 3000)
    labels = (rng.random(3000) < probabilities + 0.05 * (values == 5)).astype(np.float32)
    errors = full_tables.field_errors(labels, probabilities, {"site": values})
    by_field = (labels, probabilities, values)
    assert errors["field_ece of site"] == pytest.approx(field_ece(*by_field), abs=1e-7)
    assert errors["field_rce of site"] == pytest.approx(
        field_rce(*by_field, epsilon=0.01), abs=1e-6
    )
    assert 0 < errors["floor of field_ece of site"] < errors["field_ece of site"]


def test_the_square_is_unbiased():
    rng = np.random.default_rng(1)
    values = rng.integers(0, 20, 2000).astype(np.int32)
    probabilities = rng.uniform(0.1, 0.4, 2000)
    truth = probabilities + np.where(values < 10, 0.05, -0.02)
    squares = [
        full_tables.field_errors(
            (rng.random(2000) < truth).astype(np.float32), probabilities, {"site": values}
        )["square of site"]
        for _ in range(300)
    ]
    expected = np.mean((truth - probabilities) ** 2)
    error = np.std(squares, ddof=1) / np.sqrt(len(squares))
    # The noise is that of the probabilities, not of the truth: a small bias remains.
    noise = np.mean(truth * (1 - truth) - probabilities * (1 - probabilities)) / 100
    assert np.mean(squares) == pytest.approx(expected + noise, abs=4 * error)


def test_fields_at_the_floor_are_left_out():
    def runs(**errors):
        names = {"a": errors["a"], "b": errors["b"]}
        field_errors = {f"field_ece of {name}": value for name, value in names.items()}
        return {0: field_errors | {f"floor of field_ece of {name}": 0.1 for name in names}}

    group = Group({}, {"fields": ["a", "b"]}, {"N": runs(a=0.3, b=0.05), "M": runs(a=0.5, b=0.4)})
    errors = full_tables.ERRORS
    (ratio,) = full_tables.log_ratios(
        {"t": group}, "N", "M", errors["Field-ECE less the floor"]
    ).values()
    assert ratio == pytest.approx(np.log(0.2 / 0.4))
    (ratio,) = full_tables.log_ratios({"t": group}, "N", "M", errors["Field-ECE"]).values()
    assert ratio == pytest.approx(np.log(0.3 / 0.5) / 2 + np.log(0.05 / 0.4) / 2)


def test_curves_areas_and_the_order_of_time_are_means_over_tables(tmp_path):
    """F4, F5, F6 and S2 from made-up runs, against NumPy."""
    rng = np.random.default_rng(4)
    ledger = full_tables.Ledger(tmp_path)
    figures = {}
    for table in full_tables.DATA_SETS:
        for order in ("own", "shuffled") if table in full_tables.IN_TIME else ("own",):
            for row in full_tables.METHODS:
                for seed in range(full_tables.NUM_SEEDS):
                    values = {"log_loss": rng.random(), "brier": rng.random(), "auc": rng.random()}
                    for error in ("field_ece", "field_rce"):
                        values |= {f"{error} of z": 1 + rng.random(), f"floor of {error} of z": 0.1}
                    values["square of z"] = rng.random()
                    figures.setdefault((table, order, row), []).append(values)
                    data = {"fields": ["z"]}
                    settings = {"data": table, "order": order}
                    ledger.append(
                        {
                            "pipeline": row,
                            "seed": seed,
                            "status": "finished",
                            "epochs": [0],
                            "metrics": {name: [value] for name, value in values.items()},
                            "configuration": {"settings": settings, "data": data},
                        }
                    )
    mean = {
        key: {name: np.mean([value[name] for value in values]) for name in values[0]}
        for key, values in figures.items()
    }

    def shown(values):
        """Mean and 90 % interval of values of tables."""
        half = stats.t.ppf(0.95, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
        return [np.mean(values) + sign * half for sign in (0, -1, 1)]

    def ratio(row, tables, order="own"):
        name = "field_rce of z"
        logs = [
            np.log(mean[t, order, row][name] / mean[t, order, "Platt scaling"][name])
            for t in tables
        ]
        return "{:.2f} [{:.2f}, {:.2f}]".format(*np.exp(shown(logs)))

    def area(base):
        gains = [
            100 * (mean[t, "own", "Neural Calibration"]["auc"] - mean[t, "own", base]["auc"])
            for t in full_tables.DATA_SETS
        ]
        return "{:+.2f} [{:+.2f}, {:+.2f}]".format(*shown(gains))

    lines = full_page.hypotheses(ledger)
    by_name = {line["hypothesis"]: line for line in lines if line["hypothesis"]}
    assert by_name["F4"]["here"] == ratio("ILPS", full_tables.DATA_SETS)
    assert by_name["F5"]["here"] == area("Platt scaling")
    assert by_name["F6"]["here"] == area("Model-2")
    assert by_name["S2"]["here"] == ratio("Neural Calibration", full_tables.IN_TIME)
    assert "not run yet" not in {line["verdict"] for line in lines}
    (shuffled,) = (line for line in lines if line["claim"] == "S2 in shuffled rows")
    assert shuffled["here"] == ratio("Neural Calibration", full_tables.IN_TIME, "shuffled")
    table = [line.split("|") for line in full_page.columns(ledger).splitlines()]
    areas = {line[1].strip(): line[-2].strip() for line in table}
    assert areas["Neural Calibration"] == area("Platt scaling")


def test_without_runs_nothing_is_decided(tmp_path):
    lines = full_page.hypotheses(full_tables.Ledger(tmp_path))
    assert [line["verdict"] for line in lines] == ["not run yet"] * 4
    # Table 6 of the paper: 0.506, 0.989, 0.939, 0.888 and 1.
    assert lines[0]["published"] == "0.84"
    assert lines[1]["published"] == "+0.39"


@pytest.mark.slow
def test_a_seed_makes_all_rows_once(tmp_path, monkeypatch):
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 2, 500).astype(np.float32)
    site = (labels + rng.integers(0, 2, 500)).astype(np.int32)
    parts = [
        full_tables.Rows({"site": site[chosen]}, labels[chosen])
        for chosen in (slice(300), slice(300, 400), slice(400, 500))
    ]
    split = full_tables.Split("made up", "site", {"site": 3}, *parts)
    monkeypatch.setattr(full_tables, "BATCH_SIZE", 20)
    ledger = full_tables.Ledger(tmp_path)
    for _ in range(2):
        full_tables.run_seed(ledger, split, "own", ["site"], 0, {})
    runs = ledger.runs(status="finished")
    assert [run["pipeline"] for run in runs] == list(full_tables.METHODS)
    assert all(np.isfinite([run["metrics"][name][0] for name in AREAS]).all() for run in runs)
    assert runs[0]["versions"]["keras"]
    # A monotonic curve keeps the ranking.
    by_name = {run["pipeline"]: run["metrics"]["auc"][0] for run in runs}
    assert by_name["Platt scaling"] == by_name["Model-1"]
