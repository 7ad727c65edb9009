"""Table 1 of *Field-aware Calibration*: what the columns known only after the outcome are worth.

    ./dev run python examples/field_aware_calibration/lending_club.py

The paper does not list the columns of Lending Club's public file that it uses. The file also holds
what was paid back, long after a loan was issued. Boosted trees are trained here on a sample of that
file with and without such columns, and with these alone, on the split of the tables. The runs are
kept in a ledger, and are not repeated.

The data are read from $KERAS_CALIBRATION_DATA, or else from ../shared/data.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from tables_markdown import published

from data_folder import data_root
from end_record import end_record
from keras_calibration.datasets.table import split_parts
from keras_calibration.seeds import Ledger
from markdown_table import markdown_table

FOLDER = "lendingclub_2018_32k"
AFTER_THE_OUTCOME = ("total_rec_late_fee", "last_pymnt_amnt")
WITHOUT, WITH, ALONE = (
    "columns known when the loan is issued",
    "and those known only afterwards",
    "the latter alone",
)
NUM_SEEDS = 10
PAPERS_ROWS = {
    "Base (Model-1)": "the paper: Model-1",
    "Base (Model-2)": "the paper: Model-2",
    "Neural Calibration": "the paper: Neural Calibration",
}
DIRECTIONS = {"auc": "max", "log_loss": "min"}


def main() -> None:
    """Makes the runs that are missing in the ledger, then prints the section."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--data", type=Path, default=data_root() / FOLDER, help="(default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, default=Path("output/lending_club"), help="ledger")
    arguments = parser.parse_args()
    ledger = Ledger(arguments.output)
    if not ledger.runs(status="finished"):
        for record in records(arguments.data):
            ledger.append(record)
    print(section(ledger))


def records(folder: Path) -> list[dict[str, Any]]:
    """The runs of all choices of columns, as records for a ledger."""
    import pandas as pd

    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    frame = pd.read_csv(folder / meta["files"][0], sep=meta["sep"], **meta["read_csv"])
    labels = (frame["loan_status"] == "1").to_numpy(float)
    at_issue = [*meta["numeric"], *meta["categorical"]]
    for name in at_issue:
        frame[name] = frame[name].astype("category")
    for name in (*meta["numeric"], *AFTER_THE_OUTCOME):
        frame[name] = pd.to_numeric(frame[name], errors="coerce").astype(float)
    order = np.random.default_rng(0).permutation(len(frame))
    frame, labels = frame.iloc[order], labels[order]
    after = list(AFTER_THE_OUTCOME)
    choices = {WITHOUT: at_issue, WITH: [*at_issue, *after], ALONE: after}
    return [
        record(name, frame[columns], labels, seed)
        for name, columns in choices.items()
        for seed in range(NUM_SEEDS)
    ]


def record(name: str, columns: Any, labels: np.ndarray, seed: int) -> dict[str, Any]:
    """Trains on the training rows as long as the development rows gain; scores the test rows."""
    import lightgbm
    from sklearn.metrics import log_loss, roc_auc_score

    parts = split_parts(len(labels))
    train, development = (
        lightgbm.Dataset(columns.iloc[parts[part]], labels[parts[part]])
        for part in ("train", "development")
    )
    development.reference = train
    settings = {
        **{"objective": "binary", "learning_rate": 0.05, "num_leaves": 31, "verbosity": -1},
        **{"bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.8},
    }
    stop = lightgbm.early_stopping(50, verbose=False)
    model = lightgbm.train(
        {**settings, "seed": seed, "num_threads": 1}, train, 2000, [development], callbacks=[stop]
    )
    p = model.predict(columns.iloc[parts["test"]])
    test_labels = labels[parts["test"]]
    metrics = {"auc": roc_auc_score(test_labels, p), "log_loss": log_loss(test_labels, p)}
    configuration = {"num_columns": columns.shape[1], "settings": settings}
    return end_record(
        name, seed, metrics, len(test_labels), directions=DIRECTIONS, configuration=configuration
    )


def section(ledger: Ledger) -> str:
    """The runs of `main` beside the paper's figures, as Markdown; a sentence without runs."""
    runs = ledger.runs(status="finished")
    if not runs:
        return "The ledger holds no finished runs."
    lines = []
    for name in (WITHOUT, WITH, ALONE):
        of_name = [run for run in runs if run["pipeline"] == name]
        auc, loss = (
            np.mean([run["metrics"][metric][0] for run in of_name]) for metric in DIRECTIONS
        )
        columns = str(of_name[0]["configuration"]["num_columns"])
        lines.append([name, columns, f"{auc:.3f}", f"{loss:.3f}"])
    table_1 = published()["tables"]["1"]["rows"]
    for row, name in PAPERS_ROWS.items():
        figures = table_1[row]
        lines.append([name, "", f"{figures['auc']:.3f}", f"{figures['log_loss']:.3f}"])
    seeds = len({run["seed"] for run in runs})
    text = (
        f"Boosted trees (LightGBM) on 31,766 loans of 2018, {runs[0]['num_rows']:,} of them test "
        f"rows; means over {seeds} seeds. Two columns are known only afterwards: "
        f"{' and '.join(f'`{name}`' for name in AFTER_THE_OUTCOME)}. The paper does not list its "
        "columns; its rows, positive rate and model are others. Its figures are near those with "
        "such columns. This suggests that the paper uses some of them, and does not show it."
    )
    return f"{text}\n\n{markdown_table(['', 'columns', 'AUC', 'log loss'], lines)}"


if __name__ == "__main__":
    main()
