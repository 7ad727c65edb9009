"""Logs whose labels come late: the numbers of LabelDelay and of NumPy, by DuckDB."""

import dataclasses
import json

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from calibration_records.logs.embedded import Embedded
from calibration_records.logs.late_labels.delay_curves import DelayCurves
from calibration_records.logs.query import Lookup, field_column
from calibration_records.logs.rows import Selection
from keras_calibration.calibration import LabelDelay, fit_calibrator
from keras_calibration.layers import BiasCorrection, FieldBias
from keras_calibration.logs import ScoredLog, log_sums
from keras_calibration.metrics import CalibratedLogLoss, CalibrationRatio, LogLoss
from keras_calibration.scoring import score, score_by_period

UNTIL = pd.Timestamp("2026-05-01")
WINDOW = 20


def frame(num_rows=30_000, rate=0.2, unit="us", seed=0):
    """Rows of 60 days; the delays of three sites differ, some are longer than the window."""
    rng = np.random.default_rng(seed)
    site = rng.integers(0, 3, num_rows)
    p = np.clip(rng.beta(2, 2 / rate - 2, num_rows), 0.001, 0.999)
    at = UNTIL - pd.to_timedelta(rng.uniform(0, 60, num_rows) * 86400, "s")
    delay = pd.to_timedelta(rng.exponential(1.0 + 3.0 * site) * 86400, "s")
    at, delay = at.floor(unit), delay.floor(unit)
    positive = rng.random(num_rows) < p
    label_at = (at + delay).where(positive)
    names = np.array(["a", "b'", "ç"])[site]
    columns = {"at": at, "bought_at": label_at, "p": p, "site": names, "number": site}
    # Some labels are already there that came after `observed_until`.
    return pd.DataFrame(columns)


FRAME = frame()


def log(source=None, **arguments):
    arguments = {
        "probability": "p",
        "timestamp": "at",
        "label_time": "bought_at",
        "observed_until": UNTIL,
        "delay_field": "site",
        **arguments,
    }
    return ScoredLog(FRAME if source is None else source, **arguments)


def fitted(rows=FRAME, field="site", **arguments):
    delay = LabelDelay(window=WINDOW, **arguments)
    return delay.fit(rows["at"], rows["bought_at"], UNTIL, None if field is None else rows[field])


def columns_of(opened_log, selection, *names):
    """Columns of the rows of a log, in the order of their times."""
    with Embedded(opened_log) as opened:
        sql = f"SELECT {', '.join(names)} FROM ({opened.rows(selection)}) ORDER BY k"
        return opened.run(sql).to_pandas()


@pytest.mark.parametrize("purpose", ["score", "fit"])
@pytest.mark.parametrize("field", [None, "site", "number"])
@pytest.mark.parametrize("unit", ["us", "D"])
def test_weights_are_those_of_weigh(purpose, field, unit):
    rows = frame(3000, unit=unit)
    delay = fitted(frame(unit=unit), field)
    values = None if field is None else rows[field]
    labels, weights = delay.weigh(
        rows["at"], rows["bought_at"], UNTIL, values, probability=rows["p"], purpose=purpose
    )
    found = columns_of(
        log(rows, delay_field=field).with_delay(delay), Selection(purpose=purpose), "y", "w"
    )
    np.testing.assert_array_equal(found["y"], labels)
    np.testing.assert_allclose(found["w"], weights, rtol=1e-12, atol=0)


def test_logits_own_weights_and_unknown_values():
    delay = fitted()
    rows = FRAME.head(2000).assign(
        site=np.resize(["a", "new", None], 2000), w=np.resize([0.0, 2.0, 0.5], 2000)
    )
    rows["z"] = np.log(rows["p"] / (1 - rows["p"]))
    _, weights = delay.weigh(
        rows["at"],
        rows["bought_at"],
        UNTIL,
        rows["site"].fillna("(missing)"),
        probability=rows["p"],
        purpose="score",
    )
    found = columns_of(log(rows, logit="z", sample_weight="w").with_delay(delay), Selection(), "w")
    # Rows of weight 0 are no rows.
    expected = (weights * rows["w"])[rows["w"] > 0]
    np.testing.assert_allclose(found["w"], expected, rtol=1e-9)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("field", [None, "site", "number"])
@pytest.mark.parametrize("half_life", [None, 10.0])
@pytest.mark.parametrize("unit", ["D", "h"])
def test_fit_log_is_fit_where_delays_are_whole(field, half_life, unit):
    rows = frame(unit=unit)
    expected = fitted(rows, field, half_life=half_life)
    found = LabelDelay(window=WINDOW, half_life=half_life).fit_log(
        log(rows, delay_field=field), verbose=0
    )
    ages = np.linspace(0, 25, 301)
    for value in [None] if field is None else rows[field].unique():
        values = None if value is None else np.full(301, value)
        np.testing.assert_allclose(
            found.observed_share(ages, values),
            expected.observed_share(ages, values),
            atol=1e-10,
        )
    assert str(found).split(":")[0] == str(expected).split(":")[0]


def test_fit_log_of_any_delays_is_fit_within_a_step():
    found = LabelDelay(window=WINDOW).fit_log(log(), verbose=0)
    ages = np.linspace(0, 25, 301)
    for site in ("a", "b'", "ç"):
        values = np.full(301, site)
        difference = found.observed_share(ages, values) - fitted().observed_share(ages, values)
        assert np.abs(difference).max() < 0.006


@pytest.mark.slow
def test_fit_log_says_what_fit_says(tmp_path):
    rows = FRAME[FRAME["at"] > "2026-04-20"]
    with pytest.raises(ValueError, match="50 rows with a label and an age of at least 20"):
        LabelDelay(window=WINDOW).fit_log(log(rows), verbose=0)
    with pytest.raises(ValueError, match="Argument `window`, the longest"):
        LabelDelay().fit_log(log(), verbose=0)
    with pytest.raises(ValueError, match="must name the times of its labels"):
        LabelDelay(window=WINDOW).fit_log(ScoredLog(FRAME, probability="p"), verbose=0)
    with pytest.raises(ValueError, match="Received: none"):
        LabelDelay(window=WINDOW).fit_log(log(FRAME.assign(bought_at=pd.NaT)), verbose=0)
    path = tmp_path / "delay.json"
    delay = LabelDelay(window=WINDOW).fit_log(log(), verbose=0)
    delay.save(path)
    again = LabelDelay.load(path)
    assert json.loads(path.read_text())["fitted"]["has_field"]
    np.testing.assert_array_equal(
        again.observed_share([1.0, 2.0], ["a", "ç"]), delay.observed_share([1.0, 2.0], ["a", "ç"])
    )
    assert log().with_delay(again).label_delay.horizon == WINDOW


def test_drifting_delays_are_told():
    rows = frame(60_000)
    late = (UNTIL - rows["at"]) / pd.Timedelta("1D") < 30
    slow = rows["at"] + 3 * (rows["bought_at"] - rows["at"])
    rows["bought_at"] = rows["bought_at"].where(~late, slow)
    with pytest.warns(UserWarning, match="young rows are longer"):
        LabelDelay(window=WINDOW).fit_log(log(rows, delay_field=None), verbose=0)


def written(folder):
    """The same rows as sources of many kinds."""
    table = pa.Table.from_pandas(FRAME, preserve_index=False)
    FRAME.to_csv(folder / "log.csv", index=False)
    FRAME.to_parquet(folder / "log.parquet")
    zoned = FRAME.assign(
        at=FRAME["at"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"),
        bought_at=FRAME["bought_at"].dt.tz_localize("UTC").dt.tz_convert("America/Lima"),
    )
    seconds = FRAME.assign(
        at=(FRAME["at"] - pd.Timestamp(0)) / pd.Timedelta("1s"),
        bought_at=(FRAME["bought_at"] - pd.Timestamp(0)) / pd.Timedelta("1s"),
    )
    texts = FRAME.assign(
        at=FRAME["at"].dt.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        bought_at=FRAME["bought_at"].dt.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    )
    return {
        "csv": folder / "log.csv",
        "parquet": folder / "log.parquet",
        "arrow": table,
        "zoned": zoned,
        "seconds": seconds,
        "texts": texts,
    }


def test_every_source_gives_the_same_sums(tmp_path):
    delay = fitted()
    labels, weights = delay.weigh(
        FRAME["at"],
        FRAME["bought_at"],
        UNTIL,
        FRAME["site"],
        probability=FRAME["p"],
        purpose="score",
    )
    p = FRAME["p"]
    loss = -np.average(labels * np.log(p) + (1 - labels) * np.log1p(-p), weights=weights)
    for kind, source in written(tmp_path).items():
        late = log(str(source) if kind in ("csv", "parquet") else source, fields=["site"])
        late = late.with_delay(delay)
        found = score(late, [LogLoss(), CalibrationRatio()], verbose=0)
        # Times as seconds are whole in logs.
        tolerance = 1e-4 if kind == "seconds" else 1e-9
        assert found["log_loss"] == pytest.approx(loss, rel=tolerance), kind
        ratio = (weights @ p) / (weights @ labels)
        assert found["calibration_ratio"] == pytest.approx(ratio, rel=tolerance), kind
    # What is there now says too little: the estimate of all labels is nearly right.
    assert np.mean(p) / np.mean(labels) > 1.05
    assert ratio == pytest.approx(1.0, abs=0.03)


def test_calibrators_are_fitted_with_the_weights_of_fit():
    delay = fitted()
    rows = FRAME.assign(p=FRAME["p"] * 0.7)
    labels, weights = delay.weigh(
        rows["at"],
        rows["bought_at"],
        UNTIL,
        rows["site"],
        probability=rows["p"],
        purpose="fit",
    )
    logits = np.log(rows["p"] / (1 - rows["p"])).to_numpy()
    late = log(rows).with_delay(delay)
    expected, found = BiasCorrection(), BiasCorrection()
    expected.fit(logits, labels, sample_weight=weights)
    fit_calibrator(found, late, verbose=0)
    np.testing.assert_allclose(found(logits[:5]), expected(logits[:5]), atol=1e-4)
    field = FieldBias({"number": 3})
    fit_calibrator(field, late, verbose=0)
    expected = FieldBias({"number": 3})
    expected.fit(logits, labels, {"number": rows["number"].to_numpy()}, weights)
    np.testing.assert_allclose(
        field.get_offsets("number"), expected.get_offsets("number"), atol=0.01
    )


def test_metrics_of_folds_rows_and_periods_have_the_weights():
    delay = fitted()
    late = log(fields=["site"]).with_delay(delay)
    found = score(late, [CalibratedLogLoss(), LogLoss()], verbose=0)
    labels, weights = delay.weigh(
        FRAME["at"],
        FRAME["bought_at"],
        UNTIL,
        FRAME["site"],
        probability=FRAME["p"],
        purpose="score",
    )
    metric = CalibratedLogLoss()
    metric.update_state(labels, FRAME["p"].to_numpy(), weights)
    # The metric does not number rows of weight 0, so that other rows are in other folds.
    assert found["calibrated_log_loss"] == pytest.approx(float(metric.result()), rel=1e-4)
    by_week = score_by_period(late, CalibrationRatio(), "week", verbose=0)
    week = FRAME["at"].dt.to_period("W").dt.start_time.dt.strftime("%Y-%m-%d")
    for start, scores in by_week.items():
        chosen = (week == start).to_numpy()
        ratio = (weights @ (FRAME["p"] * chosen)) / (weights @ (labels * chosen))
        if np.isfinite(ratio):
            assert scores["calibration_ratio"] == pytest.approx(ratio, rel=1e-5)


def test_predictions_of_labels_so_far():
    delay = fitted()
    found = columns_of(
        log(fields=["site"]).with_delay(delay),
        Selection("day", purpose="observed"),
        *("y", "p", "w", field_column("site")),
    )
    share = delay.observed_share((UNTIL - FRAME["at"]) / pd.Timedelta("1D"), FRAME["site"])
    known = share >= delay.min_share
    np.testing.assert_allclose(found["p"], (FRAME["p"] * share)[known], rtol=1e-12)
    assert (found["w"] == 1.0).all()
    assert found["p"].sum() == pytest.approx(found["y"].sum(), rel=0.05)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (FRAME["at"] - pd.Timedelta("1s"), "not before it"),
        (np.where(FRAME.index == 7, "soon", None), "label time of soon in row 7"),
        (np.full(len(FRAME), 3), "3 in row 0"),
    ],
)
def test_wrong_label_times_are_refused(wrong, message):
    delay = fitted()
    with pytest.raises(ValueError, match=message):
        score(log(FRAME.assign(bought_at=wrong)).with_delay(delay), LogLoss(), verbose=0)
    with pytest.raises(ValueError, match=message):
        LabelDelay(window=WINDOW).fit_log(log(FRAME.assign(bought_at=wrong)), verbose=0)


def test_no_labels_at_all_and_missing_columns():
    delay = fitted()
    for nothing in (pd.NaT, None, np.nan):
        late = log(FRAME.assign(bought_at=nothing)).with_delay(delay)
        assert score(late, LogLoss(), verbose=0)["log_loss"] > 0
    with pytest.raises(ValueError, match="no columns"):
        score(log(label_time="sold_at").with_delay(delay), LogLoss(), verbose=0)
    with pytest.raises(ValueError, match="no columns"):
        score(log(delay_field="shop").with_delay(delay), LogLoss(), verbose=0)


def test_rows_after_observed_until_are_left_out():
    delay = fitted()
    until = UNTIL - pd.Timedelta("9D")
    late = log(observed_until=until).with_delay(delay)
    kept = FRAME[FRAME["at"] <= until]
    assert log_sums(late, {}).num_rows == len(kept)
    labels, _ = delay.weigh(kept["at"], kept["bought_at"], until, kept["site"])
    assert columns_of(late, Selection(), "y")["y"].sum() == labels.sum()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label_time": None}, "label_time=None"),
        ({"label": "y"}, "`label` must be left out"),
        ({"timestamp": None}, "`timestamp` must be given"),
        ({"observed_until": None}, "`observed_until` must be given"),
        ({"observed_until": "soon"}, "ISO 8601"),
        ({"label_delay": LabelDelay(window=3)}, "with_delay"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        log(**arguments)


def test_delays_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="nothing that says how late"):
        score(log(), LogLoss(), verbose=0)
    with pytest.raises(ValueError, match="not fitted"):
        log().with_delay(LabelDelay(window=3))
    with pytest.raises(ValueError, match="without a field"):
        log().with_delay(fitted(field=None))
    days = np.arange(100.0)
    with pytest.raises(ValueError, match="fitted to numbers"):
        log(delay_field=None).with_delay(LabelDelay(window=3).fit(days, days + 1, 101))
    assert len(log(delay_field=None).with_delay(fitted()).label_delay.values) == 0


def test_a_copy_keeps_what_it_knows():
    late = log().with_delay(fitted())
    assert dataclasses.replace(late, where="p > .5").label_delay is late.label_delay
    assert late.of("other.parquet").label_delay is late.label_delay


GRIDS = {
    "one": [0.0],
    "beyond one": [7.25],
    "hours": np.arange(1000) / 24,
    "random": np.random.default_rng(0).exponential(size=250),
    "near each other": 1.0 + np.arange(5) * 2.0**-52,
    "near 0 and far": [0.0, 5e-324, 1e-300, 1e-9, 2e-9, 1.0, 1e6],
    "below 0": [-3.5, -1e-9, 0.0, 2.0],
    "octaves": 2.0 ** np.arange(-17, 6, 1 / 16),
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", GRIDS)
def test_places_are_those_of_searchsorted(side, name):
    edges = np.unique(GRIDS[name])
    beside = [np.nextafter(edges, -np.inf), edges, np.nextafter(edges, np.inf)]
    between = np.random.default_rng(1).uniform(edges[0] - 1, edges[-1] + 1, 500)
    x = np.concatenate([*beside, between, [0.0, -0.0, 1e9, -1e9, np.inf, -np.inf]])
    lookup = Lookup("place of x", edges, "x", side)
    assert lookup.table().num_rows <= 4 * len(edges) + 3
    with duckdb.connect() as connection:
        connection.register("log", pa.table({"x": [*x, None]}))
        connection.register(lookup.name, lookup.table())
        found = connection.sql(lookup.sql("SELECT * FROM log")).to_arrow_table()
    assert found.num_rows == len(x) + 1
    x, place = (np.array(column.to_pylist(), float) for column in found.columns)
    is_missing = np.isnan(x)
    np.testing.assert_array_equal(place[~is_missing], np.searchsorted(edges, x[~is_missing], side))
    np.testing.assert_array_equal(place[is_missing], 0)


def test_a_query_is_short_however_many_steps_there_are():
    grid = np.arange(5000) / 24
    curves = DelayCurves(grid, np.ones((1, 5000)), np.zeros(0, str), 200.0, True, 0.1)
    with Embedded(dataclasses.replace(log(), label_delay=curves)) as opened:
        assert len(opened.rows(Selection("day", purpose="observed"))) < 5000
