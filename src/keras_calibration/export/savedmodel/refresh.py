"""refresh_savedmodel: refits the head of an exported model and writes the next version."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import instance
from calibration_records._progress import ProgressBar
from calibration_records._warn import warn
from keras_calibration._rows.checks import is_of_classes
from keras_calibration._rows.door import Given
from keras_calibration._rows.rows import Rows
from keras_calibration.export.head_file import HEAD_FILE, SavedHead
from keras_calibration.export.provenance import (
    PROVENANCE_FILE,
    describe_fit,
    describe_head,
    files_sha256,
)
from keras_calibration.export.publish import CALIBRATE, Request, publish
from keras_calibration.export.sample import first_rows
from keras_calibration.export.savedmodel.export import SavedModelFormat
from keras_calibration.export.savedmodel.files import EXTRA, collection_keys, replace_tensors
from keras_calibration.export.savedmodel.signatures import HEAD_WEIGHTS, served_weights
from keras_calibration.export.spec import by_signature, check_interval, head_outputs, tensor_specs
from keras_calibration.export.target import NEXT, Target, as_path, versions_in
from keras_calibration.export.verification import tolerance_for
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.fit_summary import FitSummary
from keras_calibration.layers.fit_text import NO_COMPARISON, how_good, report_text
from keras_calibration.layers.fits import assign_all, rows_to_fit, settings_for, wanted_by
from keras_calibration.layers.posterior import interval_width
from keras_calibration.layers.refit import refit
from keras_calibration.layers.served_curve import tables_of

# Provenance entries kept from the previous version, including its `refreshed_from`.
_KEPT = ("exported_at", "versions", "fit", "logits", "refreshed_from")


@np.errstate(under="ignore")
def refresh_savedmodel(
    path: str | os.PathLike[str],
    predictions: ArrayLike | str,
    labels: ArrayLike | str,
    features: Mapping[str, ArrayLike] | None = None,
    sample_weight: ArrayLike | str | None = None,
    *,
    from_logits: bool = False,
    groups: ArrayLike | str | None = None,
    time: ArrayLike | str | None = None,
    weights_are: str = "importance",
    settings: FitSettings | None = None,
    only_if_better: bool = False,
    dry_run: bool = False,
    verbose: int | str = "auto",
) -> Refresh:
    """Fits the head of an exported model to new rows, and writes the next version.

    It needs neither the Keras model nor its inputs, only the base model's predictions for logged
    rows, their labels, and the features that the head reads. The head's `fit` replaces the earlier
    fit. The graph and the base model's weights stay the same, bit for bit. So does the vocabulary
    of each field: field values that it lacks, such as a new site, share one correction. To add
    them, call `calibrate` or `calibrate_scores`, and export again. The old version is unchanged.

    The fit is compared with the served head on rows that the fit did not see, as by `fit_head`. The
    new version is verified and moved into place as by `export_savedmodel`. Its provenance holds the
    figures of this fit (`FitSummary`), and those of the previous version under `"refreshed_from"`.

    Args:
        path: The version to start from, a folder named by its number, or the model's folder, for
            its highest version. The next version is created in the model's folder.
        predictions: The base model's probabilities, (n,) or (n, 1): the served output
            `uncalibrated_probability`. With `from_logits=True` its logits, the output `logit`,
            which have more digits near 0 and 1. For K classes, logits (n, K).
        labels: Labels in [0, 1] (n,) or (n, 1). For K classes: class numbers (n,) or (n, 1), or
            one-hot or soft labels (n, K).
        features: Name → values, (n,) or (n, 1), of the features that the head reads, under the
            names of the model's inputs, or a data frame. Not needed for a logit-only calibrator.
            Names of its columns may stand for the predictions, labels and weights.
        sample_weight: Sample weights (n,), not negative, see `weights_are`; ones by default.
        from_logits: Whether `predictions` holds logits. Must be True for K classes, because
            probabilities determine class logits only up to a constant for each row.
        groups: Which rows belong together, such as the rows of a customer: an array (n,), or the
            name of a column of `features`, see `calibrate`.
        time: The time of each row (n,), numbers or dates; the name of a column of `features`; or
            `"order"`, if the rows are in order of time. Required for a head that follows time, as
            `calibrate` makes with `time`; other heads ignore it.
        weights_are: `"importance"`, known up to a common factor, or `"counts"` of rows, see
            `Head.fit`.
        settings: How to train the head's network, if it has one.
        only_if_better: Whether to write nothing if the fit predicts new rows worse than the served
            head. By default, the version is written in any case, because newer rows may be more
            like those to come; a fit that is worse by more than its standard error gives a warning.
        dry_run: Whether to write nothing in any case, to see the figures first.
        verbose: `"auto"` or 1 shows progress and prints the report; 0 shows nothing.

    Returns:
        A `Refresh`: the path of the new version, or of the one before if nothing was written, and
        the `FitSummary`. Its `report` is a text: what was written and why, or why nothing was, and
        the figures of the fit. You can pass it to functions that take a path.

    Raises:
        ValueError: If the SavedModel was not written by `export_savedmodel`; a feature is missing;
            the rows cannot be fitted; probabilities are outside [0, 1]; or intervals are served,
            and weights are unequal importances, of which there are none. Nothing is written.
        RuntimeError: If the outputs of the new SavedModel differ from the refitted head.

    Warns:
        UserWarning: If the fit predicts new rows worse than the served head, by more than the
            standard error or so that nothing is written; if the mean prediction differs from the
            mean label after the fit; if the served head is far off in total on predictions that are
            right without it, as if they were the served `probability`; if logits look like
            probabilities; if the median of the logits lies outside the range of those of the
            previous version, or their spread is less than half or more than twice as large; if
            field values outside the vocabulary make up more than 1 % of the rows, or the observed
            rate of one of them differs significantly from its prediction.

    Example:
        >>> import tempfile
        >>> import keras
        >>> import numpy as np
        >>> from keras_calibration import export_savedmodel
        >>> from keras_calibration.layers import PlattScaling
        >>> from keras_calibration.models import CalibratedModel
        >>> inputs = {"price": keras.Input((1,), name="price")}
        >>> base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["price"]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model = CalibratedModel(base, PlattScaling())
        ...     logits = np.linspace(-3, 3, 200)
        ...     labels = np.arange(200) % 10 < 5 + 2 * logits
        ...     summary = model.head.fit(logits[::2], labels[::2])
        ...     first = export_savedmodel(model, f"{folder}/ctr/1")
        ...     logged = {"predictions": logits, "from_logits": True, "labels": labels}
        ...     second = refresh_savedmodel(first, **logged)
        2/2 steps, ...
        Version 2 is written; its fit predicts new rows better, but only within the standard error.
        Log loss: 0.4353 before, 0.4306 with the fit, cross-fitted (-0.0047 ± 0.0081).
        Mean prediction: 0.5823 before, 0.5400 with the fit; 0.5400 is observed.
        200 rows; the fit converged in 3 steps.
        >>> second.path.name, second.is_written
        ('2', True)
    """
    for name, flag in (("only_if_better", only_if_better), ("dry_run", dry_run)):
        instance(name, flag, (bool, np.bool_), "a bool")
    source = _find_version(as_path(path))
    if not dry_run:
        Target(source.parent, NEXT).check()
    before = _read_provenance(source)
    saved = SavedHead.read(source / EXTRA / HEAD_FILE)
    if keras.backend.backend() != "tensorflow" and "string" in {
        tensor.dtype for tensor in saved.model.inputs
    }:
        raise ValueError(
            "The Keras backend must be TensorFlow to refresh a head that reads strings. Received: "
            f"{keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow."
        )
    if is_of_classes(predictions) and not from_logits:
        raise ValueError(
            "Argument `from_logits` must be True for classes, because probabilities leave open a "
            "constant of the logits of each row. Received: from_logits=False and "
            f"predictions of shape {np.shape(predictions)}. Pass the logged `logit`."
        )
    settings = settings_for([saved.head], settings, verbose)
    given = Given(
        predictions,
        labels,
        sample_weight,
        features,
        # `calibrate` may have chosen a head that ignores time; the same call refreshes it.
        time=time if saved.head.follows_time else None,
        groups=groups,
        folds=settings.folds,
        from_logits=from_logits,
        weights_are=weights_are,
        argument="predictions",
    )
    inputs = {name: tensor for name, tensor in saved.inputs.items() if name != "logit"}
    wanted = replace(wanted_by(saved.head), names=sorted(inputs), inputs=inputs)
    rows = rows_to_fit(saved.head, given, wanted)
    progress = ProgressBar(2, "steps", verbose)
    fit = refit(saved.head, rows, settings, only_if_better, before["logits"])
    summary = fit.summary
    if summary.is_used:
        assign_all([(saved.head, fit)])
        check_interval(saved.head, {"logit": rows.logits, **rows.features}, before["interval"])
    _warn_of_other_logits(summary.logits, before["logits"])
    progress.add()
    is_written = summary.is_used and not dry_run
    path = _publish(source, before, saved, rows, summary) if is_written else source
    refresh = Refresh(path, summary, is_written)
    progress.add()
    progress.say(refresh.report)
    return refresh


def _publish(
    source: Path, before: Mapping[str, Any], saved: SavedHead, rows: Rows, summary: FitSummary
) -> Path:
    """Writes the next version, with the head as it was refitted to these rows."""
    import tensorflow as tf

    sample = first_rows({"logit": rows.logits, **rows.features}, tensor_specs(saved.inputs))
    with tf.device("CPU:0"):
        expected = head_outputs(saved.head, sample, before["interval"])
    provenance = {
        **before,
        "head": describe_head(saved.head),
        "fit": describe_fit(summary),
        "logits": summary.logits,
        "refreshed_from": {"version": source.name, **{n: before[n] for n in _KEPT if n in before}},
    }
    return publish(
        Target(source.parent, NEXT),
        _Refreshed(source, saved, provenance),
        [Request(CALIBRATE, by_signature(sample), lambda _: expected)],
        tolerance_for(sample["logit"]),
    )


@dataclass(frozen=True)
class Refresh:
    """What `refresh_savedmodel` has done. It can be passed where a path is expected.

    Args:
        path: The version to serve: the new one, or the one before if nothing was written.
        summary: The figures of the fit.
        is_written: Whether the new version was written.

    Example:
        >>> summary = FitSummary(1000, 0.31, 0.2875, 5, True, change=-0.02, change_error=0.004)
        >>> refresh = Refresh(Path("served/ctr/2"), summary, True)
        >>> str(refresh)
        'served/ctr/2'
        >>> print(refresh.report)
        Version 2 is written; its fit predicts new rows better.
        Log loss: 0.3100 before, 0.2900 with the fit, cross-fitted (-0.0200 ± 0.0040).
        1,000 rows; the fit converged in 5 steps.
    """

    path: Path
    summary: FitSummary
    is_written: bool

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def report(self) -> str:
        """What was written and why, or why nothing was; then the figures of the fit."""
        version = self.path.name
        fit = (
            f"is not compared on new rows: {NO_COMPARISON}"
            if np.isnan(self.summary.change)
            else f"predicts new rows {how_good(self.summary)}"
        )
        # A fit that is used and not written was only tried.
        why = "dry_run=True; the fit" if self.summary.is_used else "the fit"
        verdict = f"Nothing is written, because {why} {fit}. Version {version} stays as it was."
        if self.is_written:
            # Newer rows may be more like those to come, so that a worse fit is written too.
            but = ", although" if self.summary.change > 0 else ";"
            verdict = f"Version {version} is written{but} its fit {fit}."
        return report_text(verdict, self.summary)


@dataclass
class _Refreshed(SavedModelFormat):
    """A SavedModel with other weights of the head."""

    source: Path
    saved: SavedHead
    provenance: Mapping[str, Any]
    rows_are = "fit"

    def write(self, path: Path) -> None:
        """Copies the SavedModel and replaces the weights and the saved head."""
        # Only the contents: a version may be read-only, and the next one is written here.
        shutil.copytree(self.source, path, copy_function=shutil.copyfile)
        for folder, _, _ in os.walk(path):
            os.chmod(folder, os.stat(folder).st_mode | stat.S_IWUSR)
        # The graph stays; the checkpoint gets the weights of the head and the tables of its curves,
        # in the order in which the export listed them.
        weights = served_weights(self.saved.head, self.provenance["interval"])
        values = [*map(np.asarray, weights), *tables_of(self.saved.head)]
        keys = collection_keys(self.source, HEAD_WEIGHTS)
        replace_tensors(path, dict(zip(keys, values, strict=True)))
        self.saved.model.save(path / EXTRA / HEAD_FILE)


def _warn_of_other_logits(logits: Any, before: Any) -> None:
    """Warns if the logits do not look like those of the previous version: another place or unit."""
    if not (before and before["num_rows"]):
        return
    (low, median, high), (old_low, _, old_high) = map(_read_quantiles, (logits, before))
    # Another unit changes the spread by a factor, and drift by much less. Do not compare with a
    # sample, which may be any few rows. Logits from 0 to 1 gave a warning when they were read.
    spread = old_high - old_low
    is_compared = before["rows"] == "fit" and not 0 <= logits["min"] <= logits["max"] <= 1
    if not before["min"] <= median <= before["max"]:
        warn(
            f"The median of the logits, {median:g}, is outside of their range in the "
            f"{before['rows']} of the previous version, {before['min']:g} to {before['max']:g}. "
            "Check that they are from the same base model."
        )
    elif is_compared and not 0.5 * spread <= high - low <= 2 * spread:
        warn(
            f"Eight of ten logits lie between {low:g} and {high:g}; in the fit of the previous "
            f"version, between {old_low:g} and {old_high:g}. Check that they are from the same "
            "base model, in natural logarithms and not calibrated yet."
        )


def _read_quantiles(logits: Mapping[str, Any]) -> list[float]:
    return [float(logits["quantiles"][level]) for level in ("0.1", "0.5", "0.9")]


def _find_version(path: Path) -> Path:
    """The folder of the SavedModel: `path`, or the highest version in it."""
    versions = versions_in(path)
    is_version = (path / "saved_model.pb").is_file() or not versions
    source = path if is_version else versions[max(versions)]
    # `.`, and a link such as `current`, stand for the folder that they lead to.
    source = source if source.name.isdecimal() else source.resolve()
    if (
        source not in versions_in(source.parent).values()
        or not (source / "saved_model.pb").is_file()
    ):
        raise ValueError(
            "Argument `path` must be the folder of a SavedModel, named by its version number, or "
            f"the folder of its versions. Received: path={str(source)!r}. Move a SavedModel with "
            "another name to a new folder, and name it 1."
        )
    return source


def _read_provenance(source: Path) -> dict[str, Any]:
    """Reads the provenance; raises if the SavedModel was changed or not written by this package."""
    try:
        before = dict(json.loads((source / EXTRA / PROVENANCE_FILE).read_text(encoding="utf-8")))
        if before["files_sha256"] != files_sha256(source):
            raise ValueError("files have changed since the export: their hash differs")
        # The entries that the refresh reads.
        _ = interval_width(before["interval"] or 0.5)
        if (logits := before["logits"]) and logits["num_rows"]:
            _ = logits["rows"], sorted([logits["min"], logits["max"], *_read_quantiles(logits)])
    except (ValueError, TypeError, KeyError, RecursionError, OSError) as error:
        raise ValueError(
            "Argument `path` must be a SavedModel as `export_savedmodel` wrote it. Received: "
            f"{str(source)!r}, of which files are missing, damaged or changed "
            f"({type(error).__name__}: {error}). Export the model again."
        ) from error
    return before
