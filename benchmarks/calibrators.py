"""Every calibrator on the same base logits: `./dev run python benchmarks/calibrators.py`.

For each binary table with a `base_logits.npz`, all methods are fitted on the development part and
scored on the test part, beside the rivals of `peers.csv` (measured on exactly these logits).
Scikit-learn's two are fitted anew, and so are betacal and MCGrad where they are installed: these
have "(live)" beside the seconds. The wins are counted against the lower of a rival's two log
losses, the live one and that of `peers.csv`. Printed are a table of figures for each data set, the
losses of all, and the wins against the targets:

(a) what `calibrate` picks is never worse than raw or Platt by two paired standard errors;
(b) lowest test log loss among methods that see the same columns on two thirds of the tables;
(c) with all columns ahead of MCGrad on 7 tables, within 2 % of the best rival on 8.

The data are looked for in $KERAS_CALIBRATION_DATA, else in ../shared/data. `--tables NAME ...`
runs some of them.
"""

import argparse
import csv
import importlib.util
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from keras_calibration import calibrate_scores
from keras_calibration.layers import (
    ILPS,
    FieldBias,
    FieldILPS,
    PlattScaling,
)
from keras_calibration.metrics import FieldECE, FieldRCE

ROOT = pathlib.Path(__file__).parents[1]
sys.path.append(str(ROOT / "examples"))

from data_folder import read_data_folder  # noqa: E402

# Time columns of the tables whose `meta.json` names none.
ORDER_BY = {"diabetes_readmit_102k": "encounter_id"}
REFERENCES = ("noise_floor", "oracle_platt_on_test")
# By the columns that a method sees beside the logit: none, the field, or all.
RIVALS = {
    "logit": ("platt", "temperature", "isotonic", "histogram_20", "beta"),
    "field": ("field_bias_platt", "mcgrad_field_only"),
    "all": ("mcgrad", "logit_hashed_lr", "hgb_with_logit", "model2_epoch_on_dev"),
}
# What `calibrate` picks with these columns, from the development part alone.
OURS = {"logit": "calibrate", "field": "calibrate, field", "all": "calibrate, all"}
FIGURES = ("log_loss", "brier", "auc", "field_ece", "field_rce", "ratio", "seconds")


@dataclass(frozen=True)
class Part:
    """The rows of development or test.

    Args:
        logits: Logits of the base model (n,).
        labels: Labels (n,).
        features: Feature name → array (n,).
    """

    logits: np.ndarray
    labels: np.ndarray
    features: Mapping[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tables", nargs="*", help="names of the tables; all by default")
    arguments = parser.parse_args()
    data = data_folder()
    peers = read_peers(data / "peers.csv")
    results = {}
    for name in arguments.tables or peers:
        results[name] = measure(data / name, peers[name])
        print_table(name, results[name])
    print_summary(results)


def data_folder() -> pathlib.Path:
    """The folder of the shared tables."""
    return pathlib.Path(os.environ.get("KERAS_CALIBRATION_DATA", ROOT.parent / "shared" / "data"))


def read_peers(path: pathlib.Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Table → method → figures, in the names used here."""
    peers: dict[str, dict[str, dict[str, Any]]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            names = ("log_loss", "brier", "auc", "field_ece", "field_rce")
            figures = {name: float(row[name] or "nan") for name in names}
            predicted, actual = (float(row[name] or "nan") for name in ("mean_p", "mean_y"))
            figures |= {"ratio": predicted / actual, "seconds": float(row["fit_seconds"] or "nan")}
            peers.setdefault(row["dataset"], {})[row["method"]] = {
                **figures,
                "of": row["field"],
                "split": row["split"],
            }
    return peers


def read_table(folder: pathlib.Path, field: str) -> tuple[Any, Part, Part]:
    """The table, and its development and test part with the base logits."""
    table = read_data_folder(folder, field=field, order_by=ORDER_BY.get(folder.name))
    with np.load(folder / "base_logits.npz") as base:
        parts = []
        for name, short in (("development", "dev"), ("test", "test")):
            features, labels = table.part(name)
            if not np.array_equal(table.rows[table.parts[name]], base[f"{short}_row"]):
                raise ValueError(f"The rows of {folder} and of its base_logits.npz differ.")
            parts.append(Part(base[f"{short}_logit"].astype("float64"), labels, features))
    return table, parts[0], parts[1]


def measure(folder: pathlib.Path, rivals: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Method → figures, the rivals' too."""
    table, development, test = read_table(folder, rivals["raw"]["of"])
    field = table.fields[0]
    results = {
        name: {**row, "lower": row["log_loss"]} for name, row in rivals.items() if name != "raw"
    }
    results["raw"] = score(test.logits, test, field, table.num_values[field])
    live = live_rivals(table)
    for name, fit in {**live, **methods(table, field, rivals["raw"]["split"] != "random")}.items():
        start = time.perf_counter()
        calibrated = fit(development)
        seconds = time.perf_counter() - start
        logits = np.asarray(calibrated(test), "float64").reshape(-1)
        figures = score(logits, test, field, table.num_values[field], seconds)
        figures["live"] = name in live
        figures["lower"] = min(row["log_loss"] for row in (figures, results.get(name, figures)))
        results[name] = figures
    return results


def methods(
    table: Any, field: str, is_ordered: bool
) -> dict[str, Callable[[Part], Callable[[Part], Any]]]:
    """Name → a function that fits on one part and returns one from another part to logits."""
    one_field = {field: table.num_values[field]}

    def fit_to_logits(layer: Any) -> Callable[[Part], Callable[[Part], Any]]:
        def fit(part: Part) -> Callable[[Part], Any]:
            layer.fit(part.logits, part.labels)
            return lambda test: layer(test.logits)

        return fit

    def fit_to_features(head: Any) -> Callable[[Part], Callable[[Part], Any]]:
        def fit(part: Part) -> Callable[[Part], Any]:
            print(f"    {head.fit(part.logits, part.labels, part.features)}")
            return lambda test: head(test.logits, test.features)

        return fit

    def fit_calibrate(fields: Any, numeric: Any) -> Callable[[Part], Callable[[Part], Any]]:
        def fit(part: Part) -> Callable[[Part], Any]:
            model = calibrate_scores(
                part.logits,
                part.labels,
                part.features if fields else None,
                from_logits=True,
                fields=fields,
                numeric=numeric,
                verbose=0,
                **({"time": "order"} if is_ordered else {"folds": 5}),
            )
            print(model.report)
            return lambda test: model.head(test.logits[:, None], test.features)

        return fit

    return {
        "PlattScaling": fit_to_logits(PlattScaling()),
        "ILPS": fit_to_logits(ILPS(smoothness="auto")),
        "FieldBias on ILPS": fit_to_features(FieldBias(one_field, ILPS(smoothness="auto"))),
        "FieldILPS on ILPS": fit_to_features(FieldILPS(one_field, ILPS(smoothness="auto"))),
        "calibrate": fit_calibrate({}, ()),
        "calibrate, field": fit_calibrate(one_field, ()),
        "calibrate, all": fit_calibrate(table.num_values, table.numeric),
    }


def live_rivals(table: Any) -> dict[str, Callable[[Part], Callable[[Part], Any]]]:
    """The rivals that are installed, in the form of `methods` and by their names in `peers.csv`."""

    def platt(part: Part) -> Callable[[Part], Any]:
        model = LogisticRegression(C=np.inf).fit(part.logits[:, None], part.labels)
        return lambda test: model.decision_function(test.logits[:, None])

    def isotonic(part: Part) -> Callable[[Part], Any]:
        steps = IsotonicRegression(out_of_bounds="clip").fit(part.logits, part.labels)
        # Probabilities of 0 and 1 are half a row away from them.
        least = 0.5 / len(part.labels)
        return lambda test: logit(np.clip(steps.predict(test.logits), least, 1 - least))

    def beta(part: Part) -> Callable[[Part], Any]:
        from betacal import BetaCalibration

        model = BetaCalibration("abm").fit(expit(part.logits)[:, None], part.labels)
        return lambda test: logit(model.predict(expit(test.logits)[:, None]))

    def mcgrad(part: Part) -> Callable[[Part], Any]:
        import pandas as pd
        from mcgrad import methods

        def frame(rows: Part) -> Any:
            columns = {**rows.features, "label": rows.labels, "prediction": expit(rows.logits)}
            return pd.DataFrame(columns)

        features = {
            "categorical_feature_column_names": list(table.num_values),
            "numerical_feature_column_names": list(table.numeric),
        }
        model = methods.MCGrad()
        model.fit(frame(part), "prediction", "label", **features)
        return lambda test: logit(model.predict(frame(test), "prediction", **features))

    installed: dict[str, Callable[[Part], Callable[[Part], Any]]] = {
        "platt": platt,
        "isotonic": isotonic,
    }
    for name, package, fit in (("beta", "betacal", beta), ("mcgrad", "mcgrad", mcgrad)):
        if importlib.util.find_spec(package):
            installed[name] = fit
    return installed


def score(
    logits: np.ndarray, test: Part, field: str, num_values: int, seconds: float = 0.0
) -> dict[str, Any]:
    """The figures of calibrated test logits."""
    probabilities = expit(logits)
    ece, rce = FieldECE(num_values), FieldRCE(num_values)
    for metric in (ece, rce):
        metric.update_state(test.labels, probabilities, field=test.features[field])
    losses = np.logaddexp(0, logits) - test.labels * logits
    return {
        "losses": losses,
        "log_loss": float(losses.mean()),
        "brier": float(np.mean((probabilities - test.labels) ** 2)),
        "auc": float(roc_auc_score(test.labels, logits)),
        "field_ece": float(ece.result()),
        "field_rce": float(rce.result()),
        "ratio": float(probabilities.mean() / test.labels.mean()),
        "seconds": seconds,
    }


def print_table(name: str, results: Mapping[str, Any]) -> None:
    print(f"\n{name}\n{'method':<26}" + "".join(f"{figure:>11}" for figure in FIGURES))
    shown = [method for method in results if method not in REFERENCES]
    for method in sorted(shown, key=lambda method: results[method]["log_loss"]):
        row = results[method]
        live = "  (live)" if row.get("live") else ""
        print(f"{method:<26}" + "".join(f"{row[figure]:>11.4f}" for figure in FIGURES) + live)
    floor = results["noise_floor"]
    print(f"{'noise floor':<59}{floor['field_ece']:>11.4f}{floor['field_rce']:>11.4f}")


def print_summary(results: Mapping[str, Mapping[str, Any]]) -> None:
    print(f"\n{'table':<24}{'sees':>6}{'ours':>9}{'rivals':>9}  their best")
    wins = dict.fromkeys(OURS, 0)
    for name, rows in results.items():
        for sees, method in OURS.items():
            loss = rows[method]["log_loss"]
            rival_loss, rival = min((rows[m]["lower"], m) for m in RIVALS[sees])
            wins[sees] += loss < rival_loss
            mark = "  (ahead)" if loss < rival_loss else ""
            print(f"{name:<24}{sees:>6}{loss:>9.4f}{rival_loss:>9.4f}  {rival}{mark}")
    total = len(results)
    print(
        "\n(a) test log loss of what `calibrate` picks, less raw and less Platt (standard error):"
    )
    for name, rows in results.items():
        cells = []
        for method in OURS.values():
            for other in ("raw", "PlattScaling"):
                change = rows[method]["losses"] - rows[other]["losses"]
                mean, error = float(change.mean()), float(change.std() / np.sqrt(len(change)))
                worse = " WORSE" if mean > 2 * error else ""
                cells.append(f"{mean:+.4f} ({error:.4f}){worse}")
        print(f"{name:<24}" + "  ".join(f"{cell:>16}" for cell in cells))
    print(f"\n(b) lowest log loss among methods that see the same columns, of {total} tables:")
    print("    " + ", ".join(f"{sees}: {number}" for sees, number in wins.items()))
    head = {name: rows[OURS["all"]]["log_loss"] for name, rows in results.items()}
    ahead = sum(head[name] < rows["mcgrad"]["lower"] for name, rows in results.items())
    every = [method for methods in RIVALS.values() for method in methods]
    best = {
        name: min(rows["raw"]["log_loss"], *(rows[method]["lower"] for method in every))
        for name, rows in results.items()
    }
    near = sum(head[name] <= 1.02 * best[name] for name in results)
    print(f"(c) the head with all columns: ahead of MCGrad on {ahead}, within 2 % of the best row")
    print(f"    on {near} of {total}.")


if __name__ == "__main__":
    main()
