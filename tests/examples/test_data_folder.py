"""Data folders: every rule and error on tiny ones, the split of the real ones."""

import json

import numpy as np
import pytest

from data_folder import read_data_folder
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


def write(folder, rows=ROWS, without=(), **changes):
    """A folder with one table `log.csv`, its meta.json changed as wanted."""
    meta = {key: value for key, value in (META | changes).items() if key not in without}
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "log.csv").write_text("\n".join(rows) + "\n")
    return folder


def test_positional_split_and_columns(tmp_path):
    table = read_data_folder(write(tmp_path), min_count=1)
    assert table.name == tmp_path.name
    assert table.fields == ("site",)
    assert table.numeric == ("amount",)
    assert {part: (s.start, s.stop) for part, s in table.parts.items()} == {
        "train": (0, 12),
        "development": (12, 16),
        "test": (16, 20),
    }
    np.testing.assert_array_equal(table.rows, np.arange(20))
    np.testing.assert_array_equal(table.labels, LABELS)
    np.testing.assert_array_equal(table.features["amount"], np.arange(20, dtype=np.float32))
    np.testing.assert_array_equal(table.features["site"], np.arange(20) % 3)
    assert table.vocabularies["site"] == ("a", "b", "c", "(other)")
    assert table.num_values == {"site": 4}
    assert table.probabilities is None


def test_the_last_rows_alone_are_split(tmp_path):
    table = read_data_folder(write(tmp_path), min_count=1, max_rows=10)
    np.testing.assert_array_equal(table.rows, np.arange(10, 20))
    np.testing.assert_array_equal(table.labels, LABELS[10:])
    np.testing.assert_array_equal(table.features["amount"], np.arange(10, 20, dtype=np.float32))
    assert table.parts["test"] == slice(8, 10)
    whole = read_data_folder(write(tmp_path), min_count=1, max_rows=100)
    np.testing.assert_array_equal(whole.rows, np.arange(20))
    with pytest.raises(ValueError, match="max_rows=0"):
        read_data_folder(tmp_path, max_rows=0)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"column": "clicked", "equals": "1"}, LABELS),
        ({"column": "clicked", "equals": 1}, LABELS),
        ({"column": "clicked", "not_equals": "1"}, 1 - LABELS),
        ({"column": "site", "in": ["a", "c"]}, np.arange(20) % 3 != 1),
        ({"column": "site", "startswith": "b"}, np.arange(20) % 3 == 1),
        ({"column": "amount", "gt": 9}, np.arange(20) > 9),
        ({"column": "amount", "ge": 9}, np.arange(20) >= 9),
        ({"column": "amount", "lt": 9}, np.arange(20) < 9),
        ({"column": "amount", "le": 9}, np.arange(20) <= 9),
    ],
)
def test_label_rules(tmp_path, rule, expected):
    np.testing.assert_array_equal(read_data_folder(write(tmp_path, label=rule)).labels, expected)


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({"column": "amount", "notna": True}, np.r_[0:3, 4:20]),
        ({"column": "amount", "ge": 5}, np.arange(5, 20)),
        ({"column": "site", "in": ["a", "b"]}, [i for i in range(20) if i % 3 < 2]),
    ],
)
def test_row_filters_keep_the_row_numbers_of_the_file(tmp_path, rule, kept):
    rows = [row if row.split(",")[1] != "3" else "1,,a" for row in ROWS]
    table = read_data_folder(write(tmp_path, rows, row_filter=rule))
    np.testing.assert_array_equal(table.rows, kept)


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


def test_missing_and_unparsable_numbers_are_nan(tmp_path):
    rows = [*ROWS[:-2], "0,,a", "1,unknown,b"]
    amount = read_data_folder(write(tmp_path, rows)).features["amount"]
    assert amount.dtype == np.float32
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(amount)), [18, 19])


def test_random_split_is_the_permutation_of_seed_0(tmp_path):
    table = read_data_folder(write(tmp_path, split="random"))
    expected = np.random.default_rng(0).permutation(20)
    np.testing.assert_array_equal(table.rows, expected)
    np.testing.assert_array_equal(table.labels, LABELS[expected])
    np.testing.assert_array_equal(table.features["amount"], expected)


TIMES = [("2015", "July", 2), ("2015", "July", 10), ("2014", "August", 1), ("2015", "April", 3)]
TIME_ROWS = ["clicked,amount,site,arrival_year,arrival_month,arrival_day_of_month"] + [
    f"{i % 2},{i},a," + ",".join(map(str, TIMES[i % 4])) for i in range(20)
]
# By hand: 2014-08-01, 2015-04-03, 2015-07-02, 2015-07-10; five rows of each, in file order.
IN_TIME_ORDER = np.concatenate([np.arange(first, 20, 4) for first in (2, 3, 0, 1)])


@pytest.mark.parametrize(
    "columns",
    [
        "arrival_year,arrival_month,arrival_day_of_month",
        "Year,Month,Day",
        "date year,date month,day",
    ],
)
def test_year_month_and_day_are_recognised_by_name(tmp_path, columns):
    rows = ["clicked,amount,site," + columns, *TIME_ROWS[1:]]
    folder = write(tmp_path, rows, split="time", columns=rows[0].split(","))
    np.testing.assert_array_equal(read_data_folder(folder).rows, IN_TIME_ORDER)


def test_timestamp_is_recognised_and_compared_as_a_number(tmp_path):
    rows = ["clicked,amount,site,timestamp", *(f"{row},{19 - i}" for i, row in enumerate(ROWS[1:]))]
    folder = write(tmp_path, rows, split="time", columns=rows[0].split(","))
    np.testing.assert_array_equal(read_data_folder(folder).rows, np.arange(19, -1, -1))


def test_time_order_of_the_file_of_meta_and_of_the_argument(tmp_path):
    rows = [
        "clicked,amount,site,when",
        *(f"{row},2020-01-{30 - i}" for i, row in enumerate(ROWS[1:])),
    ]
    changes = {"split": "time", "columns": rows[0].split(","), "time_ordered_file": True}
    folder = write(tmp_path, rows, **changes)
    np.testing.assert_array_equal(read_data_folder(folder).rows, np.arange(20))
    folder = write(tmp_path, rows, time="when", **changes)
    np.testing.assert_array_equal(read_data_folder(folder).rows, np.arange(19, -1, -1))
    by_site = np.argsort(np.arange(20) % 2, kind="stable")
    np.testing.assert_array_equal(read_data_folder(folder, order_by="clicked").rows, by_site)
    folder = write(tmp_path, rows, **(changes | {"split": "random"}))
    rows_by_two = read_data_folder(folder, order_by=["clicked", "when"]).rows
    np.testing.assert_array_equal(rows_by_two, by_site.reshape(2, 10)[:, ::-1].reshape(-1))


def test_files_with_the_same_header_are_concatenated(tmp_path):
    write(tmp_path, ROWS[:11], files=["log.csv", "more.csv"])
    (tmp_path / "more.csv").write_text("\n".join([ROWS[0], *ROWS[11:]]))
    table = read_data_folder(tmp_path)
    np.testing.assert_array_equal(table.rows, np.arange(20))
    np.testing.assert_array_equal(table.labels, LABELS)


def test_a_field_of_another_file_is_joined_and_other_files_are_left_alone(tmp_path):
    changes = {"files": ["sites.csv", "log.csv", "notes.csv"], "fields": ["kind", "site"]}
    write(tmp_path, **changes)
    (tmp_path / "sites.csv").write_text("site:token,kind:token,owner:token\na,shop,x\nc,blog,y\n")
    (tmp_path / "notes.csv").write_text("site,note\na,one\na,two\n")
    table = read_data_folder(tmp_path, min_count=1)
    assert table.fields == ("kind", "site")
    assert set(table.features) == {"kind", "site", "amount"}
    kinds = np.array(table.vocabularies["kind"])[table.features["kind"]]
    np.testing.assert_array_equal(kinds, np.resize(["shop", "(missing)", "blog"], 20))
    (tmp_path / "sites.csv").write_text("site,kind\na,shop\na,blog\n")
    with pytest.raises(ValueError, match=r"cannot be joined .* must name each of its rows once"):
        read_data_folder(tmp_path)


def test_a_field_that_is_numeric_or_dropped_becomes_a_categorical_feature(tmp_path):
    rows = [f"{row},{'owner' if i == 0 else i % 2}" for i, row in enumerate(ROWS)]
    folder = write(tmp_path, rows, columns=rows[0].split(","), fields=["site", "amount", "owner"])
    table = read_data_folder(folder)
    assert table.fields == ("site",)
    assert "owner" not in table.features
    table = read_data_folder(folder, field="amount", min_count=1)
    assert table.fields == ("amount_value", "site")
    assert table.numeric == ("amount",)
    assert table.num_values["amount_value"] == 13
    np.testing.assert_array_equal(table.features["amount_value"], np.minimum(np.arange(20), 12))
    assert read_data_folder(folder, field="owner").fields == ("owner", "site")


def test_columns_may_be_left_out_of_meta(tmp_path):
    np.testing.assert_array_equal(
        read_data_folder(write(tmp_path, without=["columns"])).labels, LABELS
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"without": ["label"], "task": "regression"}, 'no "label" rule .its task: regression'),
        ({"without": ["fields", "split"]}, r"lacks \['fields', 'split'\]: expected the keys"),
        ({"split": "folds"}, "has the split 'folds': expected"),
        ({"files": ["log.csv", "gone.csv"]}, "lacks 'gone.csv', which meta.json lists"),
        ({"columns": ["clicked"]}, "No file of .* has the header"),
        ({"categorical": ["site", "page"]}, r"names the columns \['page'\], which no file holds"),
        ({"label": {"column": "sold", "equals": 1}}, "reads the column 'sold': expected one of"),
        ({"label": {"column": "clicked", "like": 1}}, "expected .* with one RULE of"),
        ({"label": {"column": "clicked", "gt": 0, "lt": 9}}, "expected .* with one RULE of"),
        ({"label": "clicked"}, 'The "label" of .* is .clicked.: expected'),
        ({"label": {"column": "clicked", "equals": "yes"}}, "gives one class for all 20 rows"),
        ({"label": {"column": "site", "gt": 0}}, "holds no number: expected numbers"),
        ({"numeric": ["site"]}, "holds no number: expected numbers, got for example 'a'"),
        ({"split": "time"}, "no column is known to give the time: expected columns of .*order_by"),
        ({"split": "time", "time": "site"}, "cannot be put in time order: .* for example 'a'"),
        ({"row_filter": {"column": "amount", "gt": 99}}, "gives one class for all 0 rows"),
        ({"row_filter": {"column": "amount", "ge": 16}}, "must be at least 5.*num_rows=4"),
    ],
)
def test_errors_say_what_is_wrong(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        read_data_folder(write(tmp_path, **changes))


@pytest.mark.parametrize("rule", [{"not_equals": "0"}, {"gt": 0}])
def test_a_missing_label_is_refused_rather_than_counted_as_a_class(tmp_path, rule):
    folder = write(tmp_path, [*ROWS, ",20,a"], label={"column": "clicked", **rule})
    with pytest.raises(ValueError, match=r"1 rows of .* have no .* Leave rows without a label out"):
        read_data_folder(folder)


def test_two_candidates_for_the_year_are_refused(tmp_path):
    rows = [f"{row},{'birth_year,sale_year' if i == 0 else '1,2'}" for i, row in enumerate(ROWS)]
    folder = write(tmp_path, rows, columns=rows[0].split(","), split="time")
    with pytest.raises(ValueError, match="no column is known to give the time"):
        read_data_folder(folder)


def test_errors_of_the_arguments_and_of_the_folder(tmp_path):
    with pytest.raises(ValueError, match=r"holds no meta\.json"):
        read_data_folder(tmp_path)
    write(tmp_path)
    with pytest.raises(ValueError, match="has no field 'page': expected one of"):
        read_data_folder(tmp_path, field="page")
    with pytest.raises(ValueError, match=r"order_by is \['when'\]: expected columns of"):
        read_data_folder(tmp_path, order_by="when")
    with pytest.raises(ValueError, match="`min_count` must be at least 1"):
        read_data_folder(tmp_path, min_count=0)
    (tmp_path / "meta.json").write_text("{")
    with pytest.raises(ValueError, match="is not valid JSON"):
        read_data_folder(tmp_path)
    (tmp_path / "meta.json").write_text("[]")
    with pytest.raises(ValueError, match="holds a list: expected a JSON object"):
        read_data_folder(tmp_path)


ORDER_BY = {"diabetes_readmit_102k": "encounter_id"}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "name",
    slow_except(
        ("adult_49k", "diabetes_readmit_102k", "movielens_100k"),
        [
            *("adult_49k", "bank_marketing_45k", "credit_default_tw_30k", "diabetes_readmit_102k"),
            *(
                "fremtpl2_678k",
                "hotel_bookings_119k",
                "kddcup2012_click40k",
                "lendingclub_2018_32k",
            ),
            *("movielens_100k", "nycflights13_337k", "pg15_motor_100k", "sba_loans_22k"),
            "tmall_repeat_261k",
        ],
    ),
)
def test_real_folders_are_split_as_their_base_logits(data_root, name):
    folder = data_root / name
    if not folder.is_dir():
        pytest.skip(f"{data_root} holds no {name}: point KERAS_CALIBRATION_DATA at a whole copy.")
    table = read_data_folder(folder, order_by=ORDER_BY.get(name))
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


@pytest.mark.parametrize("name", ["avazu_head10k", "criteo_head10k"])
def test_real_positional_folders(data_root, name):
    if not (data_root / name).is_dir():
        pytest.skip(f"{data_root} holds no {name}: point KERAS_CALIBRATION_DATA at a whole copy.")
    table = read_data_folder(data_root / name)
    np.testing.assert_array_equal(table.rows, np.arange(len(table.labels)))
    for column, num_values in table.num_values.items():
        assert 0 <= table.features[column].min() <= table.features[column].max() < num_values


def test_time_split_of_diabetes_asks_for_the_column(data_root):
    folder = data_root / "diabetes_readmit_102k"
    if not folder.is_dir():
        pytest.skip(f"{data_root} is no whole copy: point KERAS_CALIBRATION_DATA at one.")
    with pytest.raises(ValueError, match=r"encounter_id.*Pass one or more as order_by"):
        read_data_folder(folder)
