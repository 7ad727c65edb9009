"""refresh_savedmodel: refits the head of an exported model and writes the next version."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_calibration.export.head_file import HEAD_FILE, SavedHead
from keras_calibration.export.provenance import PROVENANCE_FILE, files_sha256, read_provenance
from keras_calibration.export.refresh import Exported, NewRows, refresh
from keras_calibration.export.savedmodel.files import (
    EXTRA,
    collection_keys,
    read_tensors,
    replace_tensors,
)
from keras_calibration.export.savedmodel.format import SavedModelFormat
from keras_calibration.export.savedmodel.signatures import HEAD_WEIGHTS, INTERVAL_WEIGHTS
from keras_calibration.export.target import NEXT, Target, versions_in
from keras_calibration.export.verification import check_verification
from keras_calibration.layers.fit_settings import FitSettings
from keras_calibration.layers.head import Head
from keras_calibration.layers.network_trainer import weights_of
from keras_calibration.layers.posterior import without_posterior


def refresh_savedmodel(
    path: str | os.PathLike[str],
    predictions: ArrayLike,
    labels: ArrayLike,
    features: Mapping[str, ArrayLike] | None = None,
    sample_weight: ArrayLike | None = None,
    *,
    from_logits: bool = False,
    time: ArrayLike | str | None = None,
    weights_are: str = "importance",
    forget: float = 1.0,
    settings: FitSettings | None = None,
    destination: str | os.PathLike[str] | None = None,
    verify: str = "new_process",
) -> Path:
    """Fits the head of an exported model to new rows, and writes the next version.

    It needs neither the Keras model nor its inputs, only what the base model predicted for logged
    rows, their labels, and the features that the head reads. The head's own `fit` replaces the
    earlier fit; with `forget` below 1, its `update` adds to it. The graph and the base model's
    weights stay the same, bit for bit. The old version is unchanged.

    The new version is verified and moved into place as by `export_savedmodel`. Its provenance holds
    the figures of this fit: the log loss of the head that was served, and the cross-fitted change
    from it (`FitSummary`); the fit is used whether it is better or not. The figures of the
    previous version are under `"refreshed_from"`.

    Args:
        path: The version to start from, or the model's folder, which means its highest version.
        predictions: The base model's probabilities, (n,) or (n, 1): the served output
            `uncalibrated_probability`. With `from_logits=True` its logits, the output `logit`,
            which have more digits near 0 and 1; these for K classes, (n, K).
        labels: Labels in [0, 1] (n,) or (n, 1). For K classes: class numbers (n,) or (n, 1), or
            one-hot or soft labels (n, K).
        features: Name → values, (n,) or (n, 1), of the features that the head reads, under the
            model's own names, or a data frame. Not needed for a logit-only calibrator.
        sample_weight: Sample weights (n,), not negative, importances unless `weights_are` says
            otherwise; ones by default.
        from_logits: Whether `predictions` holds logits. Must be True for K classes, whose
            probabilities leave open a constant of each row.
        time: The time of each row (n,), numbers or dates; the name of a column of `features`; or
            `"order"`, if the rows are in order of time. A head that follows time, as `calibrate`
            makes with `time`, needs it; any other ignores it.
        weights_are: `"importance"`, known up to a common factor, or `"counts"` of rows, see
            `Head.fit`.
        forget: Share of the weight of the rows of earlier fits to drop, in [0, 1]. With 1, the head
            is fitted to the new rows alone. Less requires a head that has `update`, as `FieldBias`,
            `ILPS` and `PlattScaling` have, and updates it: the new rows suffice.
        settings: How to train the head's network, if it has one.
        destination: The folder to create; by default the next version number beside `path`.
        verify: See `export_savedmodel`.

    Returns:
        The path of the new version.

    Raises:
        ValueError: If the SavedModel was not written by `export_savedmodel`; a feature is missing;
            the rows cannot be fitted; probabilities are outside [0, 1]; with `forget` below 1, the
            head knows no earlier rows; or the destination exists. Nothing is written.
        RuntimeError: If the outputs of the new SavedModel differ from the refitted head.

    Warns:
        UserWarning: If logits look like probabilities, or if the median logit lies outside the
            range of the previous version's logits.

    Example:
        >>> import tempfile
        >>> import keras
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
        ...     first = export_savedmodel(model, f"{folder}/ctr/1", verify="same_process")
        ...     logged = {"predictions": logits, "from_logits": True, "labels": labels}
        ...     second = refresh_savedmodel(first, **logged, verify="same_process")
        ...     second.name
        '2'
    """
    source = _version(Path(path))
    check_verification(verify)
    target = _target(source, destination)
    target.check()
    provenance = _provenance_of(source)
    saved = SavedHead.read((source / EXTRA / HEAD_FILE).read_bytes(), source / EXTRA)
    keys = collection_keys(source, HEAD_WEIGHTS)
    _check_served(source, saved.head, keys)
    old = Exported(provenance, saved, {"version": source.name})
    new = NewRows(
        predictions,
        labels,
        features,
        sample_weight,
        from_logits,
        weights_are,
        forget,
        settings,
        time,
    )
    return refresh(old, new, target, lambda told: _Refreshed(source, saved, keys, told, verify))


@dataclass
class _Refreshed(SavedModelFormat):
    """A SavedModel with other weights of the head.

    Args:
        source: The SavedModel before.
        saved: The fitted head.
        keys: Checkpoint keys of the weights of the served head.
        told: The provenance.
        verify: See `export_savedmodel`.
    """

    source: Path
    saved: SavedHead
    keys: list[str]
    told: dict[str, Any]
    verify: str
    rows_are = "fit"

    def write(self, path: Path) -> None:
        """Copies the SavedModel and replaces the weights and the saved head."""
        shutil.copytree(self.source, path)
        head = self.saved.head
        new = dict(zip(self.keys, _weights(head.served()), strict=True))
        if self.told.get("interval") is not None:
            all_keys = collection_keys(self.source, INTERVAL_WEIGHTS)
            new |= dict(zip(all_keys, weights_of(head), strict=True))
        replace_tensors(path, new)
        (path / EXTRA / HEAD_FILE).write_bytes(self.saved.content())

    def provenance(self) -> dict[str, Any]:
        """The provenance."""
        return self.told


def _version(path: Path) -> Path:
    """The folder of the SavedModel: `path`, or the highest version in it."""
    versions = versions_in(path)
    source = path if (path / "saved_model.pb").is_file() or not versions else None
    source = source or path / str(versions[-1])
    if not (source / "saved_model.pb").is_file():
        raise ValueError(
            "Argument `path` must be the folder of a SavedModel, or the folder of its versions. "
            f"Received: path={str(path)!r}, which holds no SavedModel."
        )
    return source


def _target(source: Path, destination: str | os.PathLike[str] | None) -> Target:
    if destination is not None:
        return Target(Path(destination))
    if source.name.isascii() and source.name.isdecimal():
        return Target(source.parent, NEXT)
    raise ValueError(
        "The folder of the SavedModel must be named by its version number, unless `destination` is "
        f"given. Received: path={str(source)!r}. Pass `destination`, the folder to write."
    )


def _provenance_of(source: Path) -> dict[str, Any]:
    """Reads the provenance; raises if the SavedModel was changed or not written by this package."""
    extra = source / EXTRA
    missing = [name for name in (PROVENANCE_FILE, HEAD_FILE) if not (extra / name).is_file()]
    if missing:
        raise ValueError(
            "Argument `path` must be a SavedModel written by `export_savedmodel`. Received: "
            f"{str(source)!r}, without {missing} in `assets.extra`. Export the model again."
        )
    try:
        before = read_provenance(extra)
        is_same = before["files_sha256"] == files_sha256(source)
        # What the refresh reads from it.
        _ = before["logits"], before.get("interval")
    except (ValueError, TypeError, KeyError, RecursionError, OSError) as error:
        raise ValueError(
            f"Argument `path` must be a whole SavedModel. Received: {str(source)!r}, which is "
            f"damaged ({type(error).__name__}: {error}). Export the model again."
        ) from error
    if not is_same:
        raise ValueError(
            "Argument `path` must be a SavedModel as it was exported. Received: "
            f"{str(source)!r}, whose files have changed since the export: the hash of graph, "
            "weights, vocabularies and head differs from that in provenance.json. Export the model "
            "again."
        )
    return before


def _check_served(source: Path, head: Head, keys: list[str]) -> None:
    """Raises if the saved head is not the one that the SavedModel serves."""
    tensors = read_tensors(source, keys)
    served, weights = [tensors[key] for key in keys], _weights(head.served())
    # Values computed from the head's weights on another machine differ in the last digits.
    if len(weights) != len(served) or not all(
        w.shape == np.shape(s) and np.allclose(w, s, rtol=1e-5, atol=1e-5, equal_nan=True)
        for w, s in zip(weights, served, strict=True)
    ):
        raise ValueError(
            f"The head in {str(source / 'assets.extra')!r} must be the head that the SavedModel "
            "serves, but their weights differ. Export the model again."
        )


def _weights(layer: Head) -> list[np.ndarray]:
    return [ops.convert_to_numpy(weight) for weight in without_posterior(layer.weights)]
