"""A callback that records runs in a ledger and summarizes metrics over seeds."""

from __future__ import annotations

import importlib.metadata
import math
import os
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any, TypedDict, Unpack

import joblib
import keras
import numpy as np

from calibration_records._check import instance, integer, known
from calibration_records._warn import warn
from calibration_records.runs.guarded import begin_run, end_run, read_runs
from calibration_records.runs.ledger import Ledger
from calibration_records.runs.metric_names import BIAS_SUFFIX, direction_of, main_metric, plain_name
from calibration_records.runs.run_record import RunRecord, validate_record
from calibration_records.statistics.summary import summarize
from keras_calibration._keras import call_after_callbacks, metric_direction, metrics_by_name
from keras_calibration.callbacks.chief import is_chief
from keras_calibration.callbacks.kept_epoch import Checksum, checksum_of, kept_epoch
from keras_calibration.callbacks.seed_table import is_diverged, seed_table

_PREFIX = "seed/"
_STATISTICS = ("count", "mean", "std", "min", "max")
_PACKAGES = ("keras", "tensorflow", "numpy", "keras-calibration")


class RecordFields(TypedDict, total=False):
    """Fields of a run's record that a user may set, see `Ledger`."""

    configuration: Any
    seeds: Mapping[str, int] | None
    num_rows: int | None
    training: Mapping[str, Any] | None


class SeedVariance(keras.callbacks.Callback):
    """Records each run in a ledger and summarizes its metrics over the seeds.

    All metrics in the logs are recorded and summarized over the finite values x₁ … xₘ of this run
    and of the pipeline's earlier runs at the same epoch, one for each seed: their number m, mean x̄,
    sample standard deviation √(Σ (xᵢ − x̄)² / (m − 1)) and range. They appear in three places:

    - **The progress line**, and thus the history: only the monitored metric, as
      `seed/{metric}_mean` and `seed/{metric}_std`, if an earlier seed has the metric. Every epoch
      has the same keys; the deviation is NaN at an epoch that no earlier seed has reached.
    - **The table** printed at the end of training: all metrics at the kept epochs, over the seeds
      that have not diverged. With one seed, it shows the values.
    - **`statistics(epoch)`**: all metrics as a dict, with their number, during and after training.

    Place `EarlyStopping`, `ModelCheckpoint`, `CSVLogger` and `TensorBoard` after this callback if
    they use the keys of the progress line, with `mode="min"` or `"max"`; and callbacks that
    evaluate the model on other rows. Use one `SeedVariance` in a fit.

    **The record.** When training begins, the run is recorded with the status `"started"`. At the
    end, the status becomes `"finished"`, or `"diverged"` if a value was not finite at the kept
    epoch. A run that dies stays `"started"` and is counted as unfinished. A record has the metrics
    of each epoch, their directions if known, the configuration, package versions and a hash of the
    initial weights. Of a calibrated loss, the loss of the same rows without its correction is
    recorded too: `val_log_loss` beside `val_calibrated_log_loss`, or `val_plain_log_loss` where a
    metric of yours with this name has other weights or rows. Keras' `val_loss` can be more, as it
    has the penalties of weights and the weights of rows. The fitted bias of a
    `CalibratedLogLoss` is recorded as `{name}_bias`, in logits: what has to be added. Below 0, the
    predictions are too high.

    **The kept epoch.** Comparisons have to use the values of the epoch whose weights the model has
    after `fit`: `EarlyStopping(restore_best_weights=True)` restores those of its best epoch. The
    callback finds this epoch by a checksum of the weights at the end of each epoch, whichever
    callbacks restore weights, and in any order. If the final weights are those of no epoch, for
    example averages, the kept epoch is recorded as unknown, and comparisons use the last one. If
    you serve the file of a `ModelCheckpoint`, load it into the model in `on_train_end` of a
    callback, so that its epoch is recorded.

    **Errors of the ledger** never stop training. They become warnings, and the run is recorded in a
    temporary folder if necessary.

    **Seeds.** Statistics cover this run and the ended runs that the ledger had when training began;
    at an epoch, also those that diverged later. If a seed was run again, its latest run counts.

    **Names.** Metrics are identified by their names in the logs. Keras numbers unnamed metrics
    (`auc`, `auc_1`, …), so name them if one process trains several seeds.

    **Several workers.** All read the ledger; only the chief writes and prints.

    The callback sets no seed: call `keras.utils.set_random_seed(seed)` or `seeds.set_seeds` before
    the model is built.

    Args:
        ledger: A `keras_calibration.seeds.Ledger`, or the path of its folder.
        pipeline: Name of the pipeline; its runs differ only in their seed.
        seed: Seed of this run, an int.
        monitor: Name of the metric on the progress line, as in the logs. `None` takes the first of
            these in the epoch's logs: a calibrated loss of the held-out rows, such as
            `"val_calibrated_log_loss"`; `"val_loss"`; a calibrated loss; `"loss"`.
        verbose: 1 prints a table over the seeds at the end of training; 0 prints nothing.
        **record: Further fields of the record: `configuration`, any JSON value; `seeds`, the result
            of `seeds.set_seeds`; `num_rows`, the number of held-out rows; `training`, which
            `seeds.train` sets.

    Raises:
        ValueError: An argument is invalid.

    Warns:
        UserWarning: A run with another seed had the same initial weights; no epoch had the metric
            `monitor`; a callback stopped the training, and the final weights are those of no
            epoch; the ledger has a damaged file, or cannot be read or written.

    Example:
        >>> import tempfile
        >>> import keras, numpy as np
        >>> from keras_calibration.callbacks import SeedVariance
        >>> folder = tempfile.TemporaryDirectory()
        >>> x = np.linspace(-1.0, 1.0, 32)[:, None]
        >>> for seed in (1, 2, 3):
        ...     keras.utils.set_random_seed(seed)
        ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        ...     model.compile(loss="mse")
        ...     callback = SeedVariance(folder.name, pipeline="linear", seed=seed, verbose=0)
        ...     history = model.fit(x, 2.0 * x, epochs=2, verbose=0, callbacks=[callback])
        >>> sorted(history.history)
        ['loss', 'seed/loss_mean', 'seed/loss_std']
        >>> callback.statistics()["loss"]["count"]
        3.0
        >>> folder.cleanup()

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation: A Variance Reduced Metric Framework*,
        arXiv 2401.16692, on the variance of metrics over seeds.
    """

    def __init__(
        self,
        ledger: Ledger | str | os.PathLike[str],
        pipeline: str,
        seed: int,
        *,
        monitor: str | None = None,
        verbose: int = 1,
        **record: Unpack[RecordFields],
    ) -> None:
        super().__init__()
        instance("monitor", monitor, str | None, "the name of one metric, or None")  # type: ignore[arg-type]
        known(
            "Other arguments of SeedVariance must be fields of the record",
            record,
            [*RecordFields.__annotations__],
        )
        self.ledger = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
        # Validated here, so that errors show before the data are loaded.
        self._record = validate_record(
            {
                **{name: value for name, value in record.items() if value is not None},
                "pipeline": pipeline,
                "seed": seed,
                "status": "started",
                "backend": keras.backend.backend(),
                "versions": {package: _find_version(package) for package in _PACKAGES},
            }
        )
        self.monitor = monitor
        self.verbose = verbose
        self._others: list[RunRecord] = []
        self._forget()

    def _forget(self) -> None:
        """Forgets the values of an earlier fit."""
        self._epochs: list[int] = []
        self._metrics: dict[str, list[float | None]] = {}
        self._checksums: dict[int, Checksum] = {}
        self._kept_epoch: int | str | None = None
        self._named_metrics: dict[str, keras.metrics.Metric] = {}

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Records the start of the run, and reads the earlier runs of the pipeline."""
        self._forget()
        self._record["initial_weights"] = _hash_weights(self.model)
        runs = read_runs(self.ledger, self._record["pipeline"])
        self._num_unfinished = sum(run["status"] == "started" for run in runs)
        others = [run for run in runs if run["seed"] != self._record["seed"]]
        self._warn_of_equal_weights(others)
        # Runs are in the order of time: of a seed that was run again, the latest run counts.
        self._others = list(
            {run["seed"]: run for run in others if run["status"] != "started"}.values()
        )
        self._is_chief = is_chief()
        self._run_id = begin_run(self.ledger, self._record) if self._is_chief else None
        self._ends_last = call_after_callbacks(self.model, self._end)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Adds the statistics of the monitored metric over the seeds to `logs`."""
        logs = {} if logs is None else logs
        measured = {
            name: float(value)
            for name, value in logs.items()
            if isinstance(value, Real) and not name.startswith(_PREFIX)
        }
        name = self.monitor or main_metric(measured)
        # Once in a fit, because the names are those of results, which take time to compute.
        self._named_metrics = self._named_metrics or metrics_by_name(self.model)
        measured |= self._collect_uncorrected(measured)
        # Keep one value per epoch for each metric, None where the logs lack it: a metric may begin
        # late, or be validated every few epochs only.
        for metric in measured:
            self._metrics.setdefault(metric, [None] * len(self._epochs))
        for metric, values in self._metrics.items():
            values.append(measured.get(metric))
        self._epochs.append(epoch)

        if name in measured:
            logs |= self._summarize_progress(name, epoch)
        if self._is_chief:
            self._checksums[epoch] = checksum_of(self.model)

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Records the complete run and prints the table, unless the end of `fit` does so."""
        if not self._ends_last:
            self._end()

    def _end(self) -> None:
        """Records the complete run and prints the table over the seeds."""
        self._warn_of_missing_metric()
        if not self._is_chief:
            return
        if self._ends_last:
            self._kept_epoch = kept_epoch(self._checksums, checksum_of(self.model))
        record = {**self._record, **self._collect_values(), "directions": self._find_directions()}
        # Values that were not finite at other epochs do not make a run diverged.
        record["status"] = "diverged" if is_diverged(_select_kept_values(record)) else "finished"
        end_run(self.ledger, self._run_id, record)
        if self.verbose:
            values = (self._collect_rows(), self._num_unfinished, self.statistics())
            print(seed_table(self._record["pipeline"], *values))
        if self._kept_epoch is None and self.model.stop_training:
            warn(
                "A callback has stopped the training, and SeedVariance does not know an epoch that "
                "ended with the weights of the model. Comparisons use the values of the last epoch."
            )

    def statistics(self, epoch: int | None = None) -> dict[str, dict[str, float]]:
        """Returns the statistics over the seeds of every metric of this run.

        They cover this run and the ended runs that the ledger had when training began.

        Args:
            epoch: Number of an epoch, from 0. `None` takes each run's kept epoch, or the latest
                value of each metric if that is the last epoch or unknown, and leaves out runs that
                have diverged.

        Returns:
            For each metric a dict with `count`, `mean`, `std`, `min` and `max`, as floats.
            Undefined statistics are NaN, such as the standard deviation of one seed.

        Raises:
            ValueError: `epoch` is not a number of an epoch.
        """
        if epoch is not None:
            epoch = integer("epoch", epoch, 0, "Or pass None for the kept epoch.")
        rows = self._collect_rows(epoch)
        # A diverged run counts for no metric, as in a comparison. Its earlier epochs count.
        rows = [row for row in rows if epoch is not None or not is_diverged(row)]
        summaries = {name: _summarize_metric(name, rows) for name in self._metrics}
        return {
            name: {statistic: float(summary[statistic]) for statistic in _STATISTICS}
            for name, summary in summaries.items()
        }

    def _summarize_progress(self, name: str, epoch: int) -> dict[str, float]:
        """The statistics of a metric for the progress line, under the same keys at every epoch."""
        # Earlier seeds may end sooner, so the keys must not depend on the epoch.
        values = [value for run in self._others for value in run["metrics"].get(name, ())]
        if not any(value is not None and math.isfinite(value) for value in values):
            return {}
        summary = _summarize_metric(name, self._collect_rows(epoch))
        return {f"{_PREFIX}{name}_{statistic}": summary[statistic] for statistic in ("mean", "std")}

    def _collect_values(self) -> RunRecord:
        return {"epochs": self._epochs, "metrics": self._metrics, "kept_epoch": self._kept_epoch}

    def _collect_rows(self, epoch: int | None = None) -> list[dict[str, float]]:
        """The values of the runs that have any: at an epoch, or at each run's kept epoch."""
        rows = [
            _select_kept_values(run)
            if epoch is None
            else _select_epoch(run["metrics"], run["epochs"], epoch)
            for run in (*self._others, self._collect_values())
        ]
        return list(filter(None, rows))

    def _collect_uncorrected(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Of each calibrated loss, the uncalibrated loss of the same rows and the fitted bias."""
        found: dict[str, float] = {}
        for name, metric in self._named_metrics.items():
            # Under the name of the latest evaluation.
            key = f"val_{name}" if f"val_{name}" in measured else name
            if key not in measured or not hasattr(type(metric), "uncalibrated_loss"):
                continue
            if not np.isclose(float(metric.result()), measured[key], equal_nan=True):
                warn(
                    f"Metric {name!r} has seen other rows since {key!r} was logged, so the loss "
                    "and the bias of its rows are not recorded. Pass SeedVariance before callbacks "
                    "that evaluate the model."
                )
                continue
            loss = float(metric.uncalibrated_loss)
            plain = plain_name(key)
            # A loss of the user may have other weights or rows: then this one has its own name.
            if not np.isclose(measured.get(plain, loss), loss, equal_nan=True):
                plain = plain_name(key, own=True)
            found[plain] = measured.get(plain, loss)
            if hasattr(type(metric), "fitted_bias"):
                found[f"{key}{BIAS_SUFFIX}"] = metric.fitted_bias
        return found

    def _find_directions(self) -> dict[str, str]:
        """The directions of the metrics, from Keras or else from their names."""
        by_metric: dict[str, str | None] = {}
        for name, metric in self._named_metrics.items():
            # Field metrics have the name of their field as a prefix.
            named = dict(getattr(metric, "named_metrics", dict)()) | {name: metric}
            by_metric |= {name: metric_direction(inner) for name, inner in named.items()}
        by_metric = {plain_name(name): way for name, way in by_metric.items()} | by_metric
        # Keras prefixes the metrics of an output with its name.
        outputs = "|".join(map(re.escape, getattr(self.model, "output_names", None) or ()))
        directions = {}
        for name in self._metrics:
            key = name.removeprefix("val_")
            plain = re.sub(rf"^({outputs})_", "", key)
            directions[name] = by_metric.get(key) or by_metric.get(plain) or direction_of(plain)
        return {name: way for name, way in directions.items() if way is not None}

    def _warn_of_equal_weights(self, others: list[dict[str, Any]]) -> None:
        digest = self._record["initial_weights"]
        seeds = {run["seed"] for run in others if run["initial_weights"] == digest}
        if digest is not None and seeds:
            warn(
                f"Seed {self._record['seed']} of the pipeline {self._record['pipeline']!r} has the "
                f"same initial weights as the seeds {sorted(seeds)}, so the statistics do not "
                "include the noise of initialization. Call keras.utils.set_random_seed(seed) "
                "before the model is built."
            )

    def _warn_of_missing_metric(self) -> None:
        if self.monitor is not None and self._epochs and self.monitor not in self._metrics:
            warn(
                "Argument `monitor` of SeedVariance names no metric of this training, so that the "
                f"progress line has no statistics. Received: monitor={self.monitor!r}; the logs "
                f"have {list(self._metrics)}. Names that begin with 'val_' require "
                "validation_data."
            )


def _select_epoch(
    metrics: dict[str, list[float | None]], epochs: list[int], epoch: int
) -> dict[str, float]:
    if epoch not in epochs:
        return {}
    index = epochs.index(epoch)
    return {name: value for name, values in metrics.items() if (value := values[index]) is not None}


def _select_kept_values(run: RunRecord) -> dict[str, float]:
    """The values at the kept epoch, or the last value of each metric."""
    if isinstance(run["kept_epoch"], int):
        return _select_epoch(run["metrics"], run["epochs"], run["kept_epoch"])
    measured = {
        name: [value for value in values if value is not None]
        for name, values in run["metrics"].items()
    }
    return {name: values[-1] for name, values in measured.items() if values}


def _summarize_metric(name: str, rows: list[dict[str, float]]) -> dict[str, float]:
    return summarize([row[name] for row in rows if name in row])


def _hash_weights(model: keras.Model) -> str | None:
    weights = model.get_weights()
    return str(joblib.hash(weights)) if weights else None


def _find_version(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    found = importlib.metadata.distributions(name=package)
    return next((distribution.version for distribution in found), None)
