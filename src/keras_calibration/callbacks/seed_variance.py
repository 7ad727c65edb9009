"""Records each training run in a ledger and shows its metrics beside those of other seeds."""

import hashlib
import importlib.metadata
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import keras

from keras_calibration.callbacks.chief import is_chief
from keras_calibration.callbacks.guarded_ledger import begin_run, end_run, read_runs
from keras_calibration.callbacks.kept_epoch import fit_callbacks, kept_epoch
from keras_calibration.callbacks.tensorboard_trial import import_hparams, tensorboard_trial
from keras_calibration.metrics.calibrated_log_loss import CalibratedLogLoss
from keras_calibration.seeds.ledger import Ledger
from keras_calibration.seeds.metric_names import BIAS_SUFFIX, direction_of, loss_partners
from keras_calibration.seeds.run_record import validate_record
from keras_calibration.seeds.statistics import summarize

_PREFIX = "seed/"
_STATISTICS = ("count", "mean", "std", "min", "max")
_PACKAGES = ("keras", "tensorflow", "numpy", "keras-calibration")


class SeedVariance(keras.callbacks.Callback):
    """Appends a run to a ledger and puts statistics over the seeds of its pipeline into the logs.

    Two models that differ less than one model differs from itself under another seed cannot be
    told apart by one run each. This callback makes that noise visible while training: at the end
    of each epoch it takes the monitored metrics of this run, and of the earlier runs of the same
    pipeline at the same epoch, and adds to the epoch's logs, all as floats:

    - `seed/{metric}_count`, `_mean`, `_std`, `_min`, `_max`: over the finite values x₁ … xₘ, one
      for each seed, the number m, the mean x̄, the sample standard deviation
      √(Σ (xᵢ − x̄)² / (m − 1)) and the range; NaN where not defined, so the standard deviation of
      the first seed;
    - `seed/{calibrated loss}_std_reduction`: 1 − s_calibrated / s_plain, the share of the spread
      that calibration takes away, over the runs with both losses, as `val_calibrated_log_loss` and
      `val_loss`;
    - `seed/count`: the seeds that reached this epoch, this run's included;
    - `seed/num_diverged`: those of them with a monitored value that is NaN or infinite there. Such
      a value enters no statistic.

    The keys are there from the first epoch on (those of `val_` metrics from the first validation,
    where `validation_freq` delays it), in the history always. Keras runs callbacks in list order:
    `EarlyStopping`, `ModelCheckpoint` and `CSVLogger` see the keys only when they stand after this
    one. Give those `mode="min"` or `"max"`, for Keras cannot guess it from these names. Use one
    `SeedVariance` in a fit; of several, the last sets the keys, and none monitors the other's.

    **What is recorded.** When training begins the run is in the ledger with the status
    `"started"`; when it ends, the record is replaced by the whole one, `"finished"`, or
    `"diverged"` where a monitored value was not finite at the epoch that is kept. Keras calls no
    callback when training dies by an exception, Ctrl-C or kill -9: such a run stays `"started"`
    and is counted, as unfinished, in what is printed. A record has the metrics of each epoch,
    whether smaller or larger values of each are better where Keras or the name says so, the
    configuration, the versions of the packages and a SHA-256 of the initial weights. The bias that
    `CalibratedLogLoss` fitted is recorded, and shown over the seeds, as a metric `{name}_bias`.

    **The epoch that is kept.** `EarlyStopping(restore_best_weights=True)` leaves behind the weights
    of its best epoch, and `ModelCheckpoint(save_best_only=True)` saves them. That epoch is recorded
    as `kept_epoch`, wherever the two stand in the list (restored weights come first), and its
    values are those that `seeds.compare`, the report and the printed table use.

    **When the ledger fails.** A full disk, a deleted folder or a foreign file never stops training:
    a warning says what happened. A run that the ledger cannot take is recorded in a temporary
    folder, whose path is in the warning.

    **What counts as a seed.** The statistics are over the finished and the diverged runs that the
    ledger had when training began, and this one. A repeat of a seed is no new sample: of the runs
    with one seed the latest counts, and this run stands for all earlier ones with its seed.

    A metric is known by its name in the logs. Keras numbers unnamed metrics through a process
    (`auc`, `auc_1`, …), so name them where one process trains several seeds.

    **Several workers.** All of them read the ledger and get the keys; the chief alone writes and
    prints (`TF_CONFIG`; process 0 on JAX).

    The callback sets no seed. Call `keras.utils.set_random_seed(seed)` before the model is built.

    Args:
        ledger: a `keras_calibration.seeds.Ledger`, or the path of its folder.
        pipeline: name of what is trained, and how; its runs differ in their seed only.
        seed: int, the seed of this run.
        monitor: names of the metrics, as in the logs; `None` for every number there.
        configuration: any JSON value to be recorded with the run.
        family: what the pipeline is a variant of; comparisons of few runs learn from its family.
        seeds: role → int where roles have seeds of their own: `"initialization"`, `"order"`,
            `"dropout"`, `"augmentation"`.
        num_rows: number of held-out rows, to be recorded.
        verbose: 1 prints a table over the seeds when training ends, each run with its last value
            of each metric; 0 prints nothing.
        tensorboard_folder: `log_dir` of the run's `keras.callbacks.TensorBoard`. The run is entered
            there for TensorBoard's HParams page, with the pipeline as trial id, so that the page
            groups the seeds of a pipeline; its hyperparameters are the pipeline and what
            `configuration` has on its first level. `None`: nothing is entered.

    Raises:
        ValueError: an argument is not of the form above; at the end of the first epoch, a name in
            `monitor` is not in the logs.
        ImportError: `tensorboard_folder` is given, and TensorBoard is not installed.

    Warns:
        UserWarning: when training begins, a run with another seed had the same initial weights;
            at the end of the first epoch, this run's metrics have other names than earlier ones;
            the ledger has a damaged file, or cannot be read or written.

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
        >>> history.history["seed/count"]
        [3.0, 3.0]
        >>> folder.cleanup()

    Reference:
        Fan, Si, Song, Zhang, *Calibration-then-Calculation: A Variance Reduced Metric Framework*,
        arXiv 2401.16692, for the spread of a metric over seeds as what limits the comparison.
    """

    def __init__(
        self,
        ledger: Ledger | str | os.PathLike[str],
        pipeline: str,
        seed: int,
        monitor: Sequence[str] | None = None,
        configuration: Any = None,
        verbose: int = 1,
        family: str | None = None,
        seeds: Mapping[str, int] | None = None,
        num_rows: int | None = None,
        tensorboard_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(monitor, str):
            raise ValueError(
                f"Received monitor={monitor!r}; expected a list of names, or None for every "
                f"metric; pass monitor=[{monitor!r}]."
            )
        self.ledger = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
        # Checked here, so that a mistake shows before the data are loaded and the model is built.
        self._record = validate_record(
            {
                "pipeline": pipeline,
                "seed": seed,
                "status": "started",
                "backend": keras.backend.backend(),
                "versions": {package: _version(package) for package in _PACKAGES},
                "configuration": configuration,
                "family": family,
                "seeds": {} if seeds is None else dict(seeds),
                "num_rows": num_rows,
            }
        )
        self.monitor = None if monitor is None else list(monitor)
        self.verbose = verbose
        self.tensorboard_folder = tensorboard_folder
        if tensorboard_folder is not None:
            import_hparams()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Records that the run has started, and reads the earlier runs of its pipeline."""
        self._epochs: list[int] = []
        self._metrics: dict[str, list[float | None]] = {}
        self._logs: dict[int, dict[str, Any]] = {}
        self._record["initial_weights"] = _hash_weights(self.model)
        runs = read_runs(self.ledger, self._record["pipeline"])
        self._num_unfinished = sum(run["status"] == "started" for run in runs)
        others = [run for run in runs if run["seed"] != self._record["seed"]]
        self._warn_of_equal_weights(others)
        latest = {run["seed"]: run for run in others if run["status"] != "started"}
        self._others = list(latest.values())
        self._is_chief = is_chief()
        self._run_id = begin_run(self.ledger, self._record) if self._is_chief else None
        self._trial = None
        if self.tensorboard_folder is not None and self._is_chief:
            self._trial = tensorboard_trial(self.tensorboard_folder, self._record)
            self._trial.on_train_begin()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the statistics over the seeds at this epoch to `logs`."""
        logs = {} if logs is None else logs
        measured = self._monitored(logs)
        measured |= self._fitted_biases(measured)
        if not self._epochs:
            self._warn_of_other_names(set(measured))
        for name in measured:
            self._metrics.setdefault(name, [None] * len(self._epochs))
        for name, values in self._metrics.items():
            values.append(measured.get(name))
        self._epochs.append(epoch)

        rows = [_at_epoch(run["metrics"], run["epochs"], epoch) for run in self._others]
        rows = [*filter(None, rows), measured]
        logs[f"{_PREFIX}count"] = float(len(rows))
        logs[f"{_PREFIX}num_diverged"] = float(self._num_diverged(rows))
        for name in self._metrics:
            summary = _summarize_metric(name, rows)
            for statistic in _STATISTICS:
                logs[f"{_PREFIX}{name}_{statistic}"] = float(summary[statistic])
        for name in self._metrics:
            plain, calibrated = loss_partners(name, self._metrics)
            if name == calibrated and plain is not None:
                logs[f"{_PREFIX}{name}_std_reduction"] = _std_reduction(plain, name, rows)
        self._logs[epoch] = dict(logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Records the whole run and prints the table over the seeds."""
        if not self._is_chief:
            return
        kept = kept_epoch(fit_callbacks(), self._logs)
        record = {
            **self._record,
            "epochs": self._epochs,
            "metrics": self._metrics,
            "kept_epoch": kept,
            "directions": self._directions(),
        }
        # What happened before or after the epoch that is kept is of no account.
        is_finite = all(map(math.isfinite, _kept_values(record).values()))
        record["status"] = "finished" if is_finite else "diverged"
        end_run(self.ledger, self._run_id, record)
        if self._trial is not None:
            self._trial.on_train_end()
        if self.verbose:
            print(self._table(record))

    def _monitored(self, logs: dict[str, Any]) -> dict[str, float]:
        available = {
            name: float(value)
            for name, value in logs.items()
            if isinstance(value, Real) and not name.startswith(_PREFIX)
        }
        if self.monitor is None:
            return available
        missing = [name for name in self.monitor if name not in available]
        # Later epochs may lack a metric, as validation with `validation_freq` does.
        if missing and not self._epochs:
            raise ValueError(
                f"Received monitor={self.monitor}, of which the first epoch's logs lack {missing}; "
                f"expected names among {list(available)}; correct the names, pass "
                "validation_data for those that begin with 'val_', or leave `monitor` out."
            )
        return {name: available[name] for name in self.monitor if name in available}

    def _fitted_biases(self, measured: Mapping[str, float]) -> dict[str, float]:
        """The biases of the calibrated losses, of the rows on which they were computed last."""
        biases = {}
        for metric in _flatten(self.model.metrics):
            if isinstance(metric, CalibratedLogLoss):
                held_out = f"val_{metric.name}"
                name = held_out if held_out in measured else metric.name
                if name in measured:
                    biases[f"{name}{BIAS_SUFFIX}"] = float(metric.bias.mean())
        return biases

    def _directions(self) -> dict[str, str]:
        """Whether "min" or "max" is better, by Keras' metrics, else by the names."""
        ways = {"up": "max", "down": "min"}
        by_metric = {
            metric.name: ways[metric._direction]
            for metric in _flatten(self.model.metrics)
            if getattr(metric, "_direction", None) in ways
        }
        directions = {
            name: by_metric.get(name.removeprefix("val_")) or direction_of(name)
            for name in self._metrics
        }
        return {name: way for name, way in directions.items() if way is not None}

    def _num_diverged(self, rows: list[dict[str, float]]) -> int:
        return sum(
            not all(math.isfinite(row[name]) for name in self._metrics if name in row)
            for row in rows
        )

    def _warn_of_equal_weights(self, others: list[dict[str, Any]]) -> None:
        digest = self._record["initial_weights"]
        seeds = {run["seed"] for run in others if run["initial_weights"] == digest}
        if digest is not None and seeds:
            warnings.warn(
                f"Received seed={self._record['seed']}, under which the model begins with the same "
                f"weights as under the seeds {sorted(seeds)} of the pipeline "
                f"{self._record['pipeline']!r}; expected a seed to change them; call "
                "keras.utils.set_random_seed(seed) before the model is built. If all runs are to "
                "begin with these weights, the spread leaves out that of initialisation.",
                stacklevel=2,
            )

    def _warn_of_other_names(self, names: set[str]) -> None:
        earlier = {name for run in self._others for name in run["metrics"]}
        # One set within the other is a metric added, left out or not yet measured.
        if names - earlier and earlier - names:
            warnings.warn(
                f"Received the metrics {sorted(names - earlier)}, which earlier runs of the "
                f"pipeline {self._record['pipeline']!r} lack, while they have "
                f"{sorted(earlier - names)}; expected one name for one metric in all runs, for "
                "statistics go by name; Keras numbers the metrics that have none, so give them "
                "names, as in keras.metrics.AUC(name='auc').",
                stacklevel=2,
            )

    def _table(self, record: Mapping[str, Any]) -> str:
        rows = [row for run in (*self._others, record) if (row := _kept_values(run))]
        title = (
            f"Pipeline {self._record['pipeline']!r}, value of each run at the epoch that it kept; "
            f"seeds: {len(rows)}, diverged: {self._num_diverged(rows)}, "
            f"unfinished runs: {self._num_unfinished}"
        )
        cells = [["metric", *_STATISTICS]]
        for name in self._metrics:
            summary = _summarize_metric(name, rows)
            figures = [f"{summary[statistic]:.6g}" for statistic in _STATISTICS]
            cells.append([name, *figures])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join([name.ljust(widths[0]), *map(str.rjust, figures, widths[1:])])
            for name, *figures in cells
        ]
        return "\n".join([title, *lines])


def _at_epoch(
    metrics: dict[str, list[float | None]], epochs: list[int], epoch: int
) -> dict[str, float]:
    if epoch not in epochs:
        return {}
    index = epochs.index(epoch)
    row = {name: values[index] for name, values in metrics.items()}
    return {name: value for name, value in row.items() if value is not None}


def _kept_values(run: Mapping[str, Any]) -> dict[str, float]:
    """The values at the epoch that a run kept, each metric's last where it kept the last."""
    if run["kept_epoch"] is not None:
        return _at_epoch(run["metrics"], run["epochs"], run["kept_epoch"])
    measured = {
        name: [value for value in values if value is not None]
        for name, values in run["metrics"].items()
    }
    return {name: values[-1] for name, values in measured.items() if values}


def _summarize_metric(name: str, rows: list[dict[str, float]]) -> dict[str, float]:
    return summarize([row[name] for row in rows if name in row])


def _std_reduction(plain: str, calibrated: str, rows: list[dict[str, float]]) -> float:
    pairs = [(row[plain], row[calibrated]) for row in rows if plain in row and calibrated in row]
    pairs = [pair for pair in pairs if all(map(math.isfinite, pair))]
    plain_std, calibrated_std = (
        summarize([pair[side] for pair in pairs])["std"] for side in (0, 1)
    )
    return 1 - calibrated_std / plain_std if plain_std else math.nan


def _flatten(metrics: Sequence[Any]) -> list[Any]:
    """The metrics, with those that Keras keeps inside another, as `compile` gathers them."""
    inner = [getattr(metric, "metrics", None) or [metric] for metric in metrics]
    return [metric for group in inner for metric in group]


def _hash_weights(model: keras.Model) -> str | None:
    weights = model.get_weights()
    if not weights:
        return None
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(weight.tobytes())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
