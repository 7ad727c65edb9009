"""Real drift, found and mended: another model's scores of who is employed, over four years.

    ./dev run python examples/employment_drift.py

Rows of the American Community Survey, Massachusetts, 2015 to 2018 (US Census Bureau, public domain)
with the probabilities of a model that NannyML trained on other rows, from its package 0.13.1. The
scores are calibrated on 2015, and exported. At the end of each year, a monitor with a state looks
at the rows since 2016. At its first alert, the served model is refreshed on the rows from 2015 on.
A table of 2018 compares the scores, the calibration of 2015 and the refreshed one.

The data are read from $KERAS_CALIBRATION_DATA, or else from ../shared/data.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import tensorflow as tf

import keras_calibration as kc
from keras_calibration.logs import ScoredLog

ROOT = Path(__file__).parents[1]
FIELDS = ("SCHL", "RELP", "MAR", "ESP", "RAC1P", "SEX", "DIS", "CIT")
# What does not matter here: half a per cent of a rate of one half.
TOLERANCE = 0.005


def rows_of_survey(root: Path, num_rows: int | None = None) -> pd.DataFrame:
    """The rows, in order of the years; with `num_rows`, a sample."""
    rows = pd.read_parquet(root / "employment_ma_278k" / "data.parquet")
    if num_rows is not None:
        rows = rows.sample(num_rows, random_state=0).sort_values("year", kind="stable")
    # The survey tells the year alone.
    rows["time"] = pd.to_datetime(rows["year"].astype(str) + "-07-01")
    return rows.astype(dict.fromkeys(FIELDS, str))


def features_of(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """What the calibration may use."""
    fields = {name: rows[name].to_numpy() for name in FIELDS}
    return {**fields, "AGEP": rows["AGEP"].to_numpy("float32")}


def served(path: Path, rows: pd.DataFrame) -> np.ndarray:
    """The calibrated probabilities of an exported model."""
    model = tf.saved_model.load(path)
    scores = rows["predicted_probability"].to_numpy("float32")
    inputs = {"score": scores, **features_of(rows)}
    signature = model.signatures["serving_default"]
    names = signature.structured_input_signature[1]
    values = {name: tf.constant(inputs[name], names[name].dtype) for name in names}
    return signature(**values)["probability"].numpy().reshape(-1)


def figures(labels: pd.Series, probabilities: np.ndarray, rows: pd.DataFrame) -> dict[str, float]:
    """Log loss, ratio and field error of some rows."""
    log = ScoredLog(
        rows.assign(p=probabilities), probability="p", label="employed", fields=["RELP"]
    )
    metrics = [kc.metrics.LogLoss(), kc.metrics.CalibrationRatio()]
    return kc.scoring.score(log, metrics, verbose=0)


def run(rows: pd.DataFrame, folder: Path, verify: str = "new_process") -> dict[str, dict]:
    """Calibrates, monitors and refreshes; the figures of the last year by model."""
    year = rows["year"]
    past = rows[year == 2015]
    model = kc.calibrate_scores(
        past["predicted_probability"].to_numpy(),
        past["employed"].to_numpy(),
        features_of(past),
        fields=FIELDS,
        numeric=["AGEP"],
        verbose=0,
    )
    first = kc.export_savedmodel(model, folder / "employed", version=1, verify=verify)
    rows = rows.assign(calibrated=served(first, rows))
    (folder / "log").mkdir()
    for now in (2016, 2017):
        rows[year == now].to_parquet(folder / "log" / f"{now}.parquet")
        log = ScoredLog(
            str(folder / "log"),
            probability="calibrated",
            label="employed",
            timestamp="time",
            fields=FIELDS,
        )
        report = kc.monitor(log, period="year", tolerance=TOLERANCE, state=folder / "monitor.state")
        print(f"At the end of {now}: {len(report.alerts)} alerts")
        for alert in report.alerts:
            print(f"  {alert}")
        if report.is_alert:
            break
    old = rows[year <= now]
    second = kc.refresh_savedmodel(
        folder / "employed",
        old["predicted_probability"].to_numpy(),
        old["employed"].to_numpy(),
        features_of(old),
        verify=verify,
    )
    later = rows[year == 2018]
    return {
        name: figures(later["employed"], probabilities, later)
        for name, probabilities in (
            ("the scores", later["predicted_probability"].to_numpy()),
            ("calibrated on 2015", later["calibrated"].to_numpy()),
            (f"refreshed at the end of {now}", served(second, later)),
        )
    }


def main() -> None:
    """Prints the alerts of each year, and the figures of 2018."""
    root = Path(os.environ.get("KERAS_CALIBRATION_DATA", ROOT.parent / "shared" / "data"))
    with tempfile.TemporaryDirectory() as folder:
        found = run(rows_of_survey(root), Path(folder))
    print(pd.DataFrame(found).T.round(5).to_string())


if __name__ == "__main__":
    main()
