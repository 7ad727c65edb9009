"""Data folders: every rule and error on tiny ones, the split of the real ones."""

import json

import numpy as np
import pytest

from data_folder import TIME_COLUMNS, read_data_folder
from quantile_buckets import quantile_buckets
from tiers import slow_except

ROWS = ["clicked,amount,site"] + [f"{i % 2},{i},{'abc'[i % 3]}" for i in range(20)]
META = {
    "files": ["log.csv"],
    "columns": ["clicked", "amount", "site"],
    "label": {"column": "clicked", "equals": "1"},
    "numeric": ["amount"],
    "categorical": ["site"],
    "fields": {"site": 3},
    "split": "order",
}
LABELS = np.arange(20) % 2


def write(folder, rows=ROWS, **changes):
    """A folder with one table `log.csv`, its meta.json changed as wanted."""
    (folder / "meta.json").write_text(json.dumps(META | changes))
    (folder / "log.csv").write_text("\n".join(rows) + "\n")
    return folder


def test_positional_split_and_columns(tmp_path):
    table = read_data_folder(write(tmp_path), min_count=1)
    assert table.name == tmp_path.name
    assert table.fields == ("site",)
    assert table.numeric == ("amount",)
    parts = {"train": slice(0, 12), "development": slice(12, 16), "test": slice(16, 20)}
    assert table.parts == parts
    np.testing.assert_array_equal(table.rows, np.arange(20))
    np.testing.assert_array_equal(table.labels, LABELS)
    np.testing.assert_array_equal(table.features["amount"], np.arange(20, dtype=np.float32))
    np.testing.assert_array_equal(table.features["site"], np.arange(20) % 3)
    assert table.vocabularies["site"] == ("a", "b", "c", "(other)")
    assert table.num_values == {"site": 4}
    assert table.probabilities is None


def test_label_rules(tmp_path):
    number = np.arange(20)
    rules = {
        "equals": (5, number == 5),
        "not_equals": ("5", number != 5),
        "in": (["3", "7"], np.isin(number, [3, 7])),
        "startswith": ("1", np.isin(number, [1, *range(10, 20)])),
        "gt": (9, number > 9),
        "ge": (9, number >= 9),
        "lt": (9, number < 9),
        "le": (9, number <= 9),
    }
    for rule, (value, expected) in rules.items():
        table = read_data_folder(write(tmp_path, label={"column": "amount", rule: value}))
        np.testing.assert_array_equal(table.labels, expected, err_msg=rule)


def test_random_split_is_the_permutation_of_seed_0_and_missing_numbers_are_nan(tmp_path):
    rows = [*ROWS[:-2], "0,,a", "1,unknown,b"]
    table = read_data_folder(write(tmp_path, rows, split="random"))
    expected = np.random.default_rng(0).permutation(20)
    np.testing.assert_array_equal(table.rows, expected)
    np.testing.assert_array_equal(table.labels, LABELS[expected])
    amount = np.where(expected < 18, expected, np.nan)
    np.testing.assert_array_equal(table.features["amount"], amount)


def test_ids_go_by_training_frequency_and_rare_values_share_the_last(tmp_path):
    # Training part: 6 x "y", 4 x "x", one "rare", one missing; "new" comes after it.
    sites = ["y", "x"] * 4 + ["rare", "", "y", "y"] + ["new", "x", "rare", "y"] * 2
    rows = ROWS[:1] + [f"{i % 2},{i},{site}" for i, site in enumerate(sites)]
    table = read_data_folder(write(tmp_path, rows), min_count=2)
    assert table.vocabularies["site"] == ("y", "x", "(other)")
    ids = [{"y": 0, "x": 1}.get(site, 2) for site in sites]
    np.testing.assert_array_equal(table.features["site"], ids)
    table = read_data_folder(write(tmp_path, rows), min_count=1)
    assert table.vocabularies["site"] == ("y", "x", "rare", "(missing)", "(other)")
    assert table.features["site"][12] == 4


FOLDERS = ["adult_49k", "bank_marketing_45k", "credit_default_tw_30k", "diabetes_readmit_102k"]
FOLDERS += ["fremtpl2_678k", "hotel_bookings_119k", "kddcup2012_click40k", "lendingclub_2018_32k"]
FOLDERS += ["movielens_100k", "nycflights13_337k", "pg15_motor_100k", "sba_loans_22k"]
FOLDERS += ["tmall_repeat_261k"]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "name", slow_except(("adult_49k", "diabetes_readmit_102k", "movielens_100k"), FOLDERS)
)
def test_real_folders_are_split_as_their_base_logits(data_root, name):
    folder = data_root / name
    if not folder.is_dir():
        pytest.skip(f"{data_root} holds no {name}: point KERAS_CALIBRATION_DATA at a whole copy.")
    table = read_data_folder(folder, order_by=TIME_COLUMNS.get(name))
    field = table.fields[0]
    vocabulary = np.array(table.vocabularies[field])
    meta = json.loads((folder / "meta.json").read_text())
    assert len(table.labels) == meta["rows_used"]
    np.testing.assert_allclose(table.labels.mean(), meta["positive_rate"], atol=1e-6)
    with np.load(folder / "base_logits.npz") as reference:
        for part, prefix in (("development", "dev"), ("test", "test")):
            rows = table.parts[part]
            np.testing.assert_array_equal(table.rows[rows], reference[f"{prefix}_row"])
            np.testing.assert_array_equal(table.labels[rows], reference[f"{prefix}_label"])
            values = vocabulary[table.features[field][rows]]
            expected = reference["field_values"][reference[f"{prefix}_field"]]
            kept = values != "(other)"
            assert kept.mean() > 0.7
            np.testing.assert_array_equal(values[kept], expected[kept])


@pytest.mark.parametrize("is_training", [slice(0, 100), np.arange(103) < 100])
def test_numeric_columns_become_ids_by_quantiles_of_the_training_rows(is_training):
    ages = np.r_[np.arange(100.0), np.nan, -5, 1000]
    ids, number = quantile_buckets(ages, is_training)
    assert number == 25
    assert list(ids[[0, 99, 100, 101, 102]]) == [0, 23, 24, 0, 23]
    counts = np.bincount(ids[:100], minlength=25)
    assert counts[:24].min() >= 4
    assert counts[:24].max() <= 5


def test_buckets_of_missing_and_of_repeated_values():
    ids, number = quantile_buckets(np.full(4, np.nan), slice(0, 3))
    assert (number, ids.tolist()) == (2, [1] * 4)
    ids, _ = quantile_buckets(np.r_[np.zeros(90), np.ones(10)], slice(None))
    assert len(np.unique(ids)) == 2
    assert ids[0] < ids[-1]
