"""CalibratedModel: a trained base model and a calibration head, as one Keras model."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_calibration.layers.calibrator import Calibrator
from keras_calibration.layers.head import Head
from keras_calibration.layers.neural_calibration import NeuralCalibration
from keras_calibration.models.base_logits import (
    BaseLogits,
    check_base_model,
    serialized_base,
    symbolic_input,
    trainable_flags_kept,
)
from keras_calibration.models.development_set import DevelopmentSet, as_inputs, read_development_set
from keras_calibration.models.epoch_reports import (
    EndOfTraining,
    figures_of,
    reported_as_epoch,
    with_finite_progress,
)
from keras_calibration.models.field_metrics_model import FieldMetricsModel
from keras_calibration.models.head_rows import FEATURES, LOGIT, HeadRows, is_head_input
from keras_calibration.models.head_training import (
    fit_exactly,
    summarize,
    train_from_exact,
)
from keras_calibration.models.model_fit_summary import ModelFitSummary
from keras_calibration.models.model_inputs import (
    LogitModel,
    expected_inputs,
    inputs_by_name,
    named_inputs,
)
from keras_calibration.solvers.data_checks import check_rows

_LOGIT_BATCH_SIZE = 4096


@keras.saving.register_keras_serializable(package="keras_calibration")
class CalibratedModel(FieldMetricsModel):
    """A trained base model plus a calibration head: `q(l, x) = σ(head(l, x))`, l the base's logit.

    A Functional model on the base model's own inputs, whose output is the calibrated probability
    (batch, 1). The base model is frozen and in inference mode; only the head is trained. Inputs of
    the base model are the head's features, by name.

    The base model stays frozen as long as the calibrated model is used. To train it again
    afterwards, set `base_model.trainable = True` (or the flags of single layers) and compile it. If
    the constructor refuses its arguments, the base model is given back as it was.

    `fit` differs from `keras.Model.fit` in this. It solves for the head directly; training by
    gradient is optional, and kept only where it is better. The development set is read into memory,
    and the base model's logits of all its rows are computed once (of the validation data too).
    Labels, weights and logits are checked, and what is wrong is refused before anything is changed.
    In training, rows are shuffled every epoch, also those of a `tf.data.Dataset`, and a head that
    was never fitted places its knots by `head.adapt`.

    Behaviour with unusual input: ids outside a field's vocabulary are the field's "other" value.
    Soft labels in [0, 1] are allowed. In `predict` and `evaluate`, a NaN logit of the base model
    gives a NaN probability.

    Args:
        base_model: A trained Functional or Sequential Keras model with one sigmoid or logit output.
            It is set to `trainable=False`.
        head: A `Head`, `NeuralCalibration` for example, or a calibrator of the logit alone,
            `ILPS()` for example.
        base_output: `"probability"`, `"logit"`, or `"auto"`: told from the base's last layer.
        **kwargs: What every Keras model takes (`name`).

    Attributes:
        report: What `calibrate` found when it made the model, else None. It is not saved.
        fit_summary: What the last `fit` said, a `ModelFitSummary`, else None. It is not saved.
        fitted_at: When `fit` last ended, in UTC, else None. It is not saved.

    Raises:
        ValueError: If the base model cannot be calibrated as it is, or the head reads a feature
            that the base model does not take; in `fit`, if there is nothing to fit on: no rows, one
            class only, labels outside [0, 1], logits that are not finite, bad weights.

    Example:
        >>> from keras_calibration.layers import ILPS, FieldNetwork
        >>> rng = np.random.default_rng(0)
        >>> x = {"site": rng.integers(0, 3, 400), "price": rng.normal(size=(400, 1))}
        >>> y = rng.random(400) < 0.3
        >>> inputs = {
        ...     "site": keras.Input((), dtype="int32", name="site"),
        ...     "price": keras.Input((1,), name="price"),
        ... }
        >>> base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["price"]))
        >>> model = CalibratedModel(base, NeuralCalibration(ILPS(), FieldNetwork({"site": 3})))
        >>> history = model.fit(x, y, verbose=0)
        >>> model.predict(x, verbose=0).shape
        (400, 1)

    Reference:
        Pan et al., *Field-aware Calibration*, WWW 2020, eq. 7 and 8.
    """

    def __init__(
        self,
        base_model: keras.Model,
        head: Head | Calibrator,
        base_output: str = "auto",
        **kwargs: Any,
    ) -> None:
        if isinstance(head, Calibrator):
            head = NeuralCalibration(head)
        if not isinstance(head, Head):
            raise ValueError(
                "Argument `head` must be a `Head` or a `Calibrator`. Received: "
                f"head={head!r}. Use one of this package, or inherit from "
                "keras_calibration.layers.Head for one of your own."
            )
        check_base_model(base_model)
        inputs = named_inputs(symbolic_input(base_model))
        features = inputs_by_name(inputs, inputs)
        names = features if head.feature_names is None else head.feature_names
        missing = [name for name in names if name not in features]
        if missing:
            raise ValueError(
                f"The head reads the features {list(names)}. Received: a base model with "
                f"the inputs {sorted(features)}, without {missing}. The calibrated model takes the "
                "base model's own inputs: give it these as further inputs, used or not."
            )
        features = {name: features[name] for name in names}
        with trainable_flags_kept(base_model):
            base = BaseLogits(base_model, base_output, name="base")
            calibrated = head(base(inputs), features)
            probability = keras.layers.Activation("sigmoid", dtype=head.dtype, name="probability")
            super().__init__(inputs=inputs, outputs=probability(calibrated), **kwargs)
        base.freeze()
        self.base = base
        self.head = head
        self.probability = probability
        self.report: Any = None
        self.fit_summary: ModelFitSummary | None = None
        self.fitted_at: str | None = None
        self._logit_model: Any = None

    @property
    def base_model(self) -> keras.Model:
        """The base model, frozen."""
        return self.base.base_model

    def compile(
        self,
        optimizer: Any = "adam",
        loss: Any = "binary_crossentropy",
        *,
        field_metrics: Mapping[Any, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """As `keras.Model.compile`, with the log loss by default and with `field_metrics`.

        Args:
            optimizer: As for `keras.Model.compile`.
            loss: As for `keras.Model.compile`, on probabilities.
            field_metrics: Field name, or tuple of names for a cross → list of metrics with
                `update_state(..., field=ids)`. A field that the head looks up in a vocabulary is
                counted by the head's ids.
            **kwargs: Everything else that `keras.Model.compile` takes.
        """
        super().compile(optimizer=optimizer, loss=loss, field_metrics=field_metrics, **kwargs)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int | None = None,
        verbose: Any = "auto",
        callbacks: Any = None,
        *,
        initialize: str | None = "exact",
        validation_data: Any = None,
        sample_weight: Any = None,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Fits the head to the development set: exactly, and by training where that is better.

        With `initialize="exact"` the head's own `fit` comes first: the curve, offsets, the
        cross-fitted network. It starts afresh, also when `fit` is called again. If `epochs` is at
        least 1, training goes on from there with the optimizer, loss and callbacks of `compile` and
        `fit`, and held-out rows decide whether it is kept: those of `validation_data`, or else a
        random fifth of the development set, which neither that direct fit nor the training saw.
        Training is kept if it lowers the log loss of these rows by three standard errors, and
        ten of them are not of the more frequent class; otherwise the head is the direct fit to the
        whole development set. `fit_summary` tells which it is.

        With `initialize=None` the head is trained from where it stands, at first from the identity,
        as the papers do. So are heads that have no direct fit.

        Args:
            x: Inputs (arrays by name, with `y`), or a finite data set of batches `(x, y)` or
                `(x, y, sample_weight)`.
            y: Labels in [0, 1] (n,) or (n, 1), where `x` is arrays.
            batch_size: Rows of a batch; by default the data set's own, or 32.
            epochs: Number of passes of training over the development set. None is 0 after a direct
                fit, for which the model need not be compiled, and 1 otherwise.
            verbose: As for `keras.Model.fit`.
            callbacks: As for `keras.Model.fit`. Without training they see the direct fit as one
                epoch; where training is not kept, they see the direct fit as one more epoch.
            initialize: `"exact"` or None, as said above.
            validation_data: Held-out rows, `(x, y)`, `(x, y, sample_weight)` or a data set.
            sample_weight: Weights (n,), where `x` is arrays.
            steps_per_epoch: Number of batches to read from a data set, which are then the whole
                development set, or of an epoch over arrays; None for all.
            validation_steps: The same for the validation data.
            **kwargs: Everything else that `keras.Model.fit` takes, but for `class_weight`.
                `validation_split` holds out the last rows.

        Returns:
            The `History`: the epochs of training, and the direct fit as a last one if that is what
            is left.

        Raises:
            ValueError: If an argument or a row is not as described. Nothing is changed then.

        Warns:
            UserWarning: If, at the end, the mean prediction is not the mean label; if a data set
                has more batches than `steps_per_epoch`.
        """
        _check_arguments(initialize, kwargs.pop("class_weight", None))
        is_exact = initialize == "exact" and self.head.has_direct_fit
        if epochs is None:
            epochs = 0 if is_exact else 1
        num_epochs = epochs - kwargs.get("initial_epoch", 0)
        if not self.compiled and (num_epochs > 0 or not is_exact):
            raise ValueError(
                "Training by gradient needs a compiled model. Call `compile()` first, or leave "
                "out `epochs` where the head has a direct fit."
            )
        development = read_development_set(x, y, sample_weight, steps_per_epoch, self.input)
        rows = self._with_logits(development, verbose, both_classes=True)
        rows, held_out, validation = self._held_out(
            rows, validation_data, validation_steps, verbose, kwargs.pop("validation_split", 0.0)
        )
        if development.batch_size is not None:
            steps_per_epoch = None
        batch_size = batch_size or development.batch_size
        arguments = {
            **validation,
            **kwargs,
            "batch_size": batch_size,
            "epochs": epochs,
            "steps_per_epoch": steps_per_epoch,
            "verbose": verbose,
        }

        def figures() -> dict[str, float]:
            return figures_of(self, rows, held_out, batch_size)

        def train(part: HeadRows, decide: Callable[[], bool]) -> None:
            self._train(part, lambda: None if decide() else figures(), callbacks, arguments)

        if is_exact and num_epochs > 0:
            summary = train_from_exact(self.head, rows, held_out, num_epochs, train, bool(verbose))
        elif is_exact:
            with reported_as_epoch(self, callbacks, verbose) as report:
                exact = fit_exactly(self.head, rows, bool(verbose))
                summary = summarize(self.head, rows, exact)
                report(figures())
        else:
            if not self.head.is_adapted:
                self.head.adapt(rows.logits, rows.labels, rows.features, rows.weights)
            train(rows, lambda: True)
            summary = summarize(self.head, rows, None, num_epochs=num_epochs, training_kept=True)
        if verbose and is_exact:
            print(summary)
        self.fit_summary, self.fitted_at = summary, summary.fitted_at
        return self.history

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> np.ndarray:
        """As `keras.Model.predict`; `x` may be a data frame, or hold columns of one."""
        return super().predict(as_inputs(x, self.input), *args, **kwargs)

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.evaluate`; `x` may be a data frame, or hold columns of one."""
        x = x if x is None or is_head_input(x) else as_inputs(x, self.input)
        return super().evaluate(x, y, *args, **kwargs)

    def base_logits(self, x: Any, verbose: Any = 0) -> np.ndarray:
        """The base model's logits of many rows.

        Args:
            x: Inputs: arrays, or a data set of batches. Other columns than the model's inputs are
                left out.
            verbose: As for `keras.Model.predict`.

        Returns:
            Logits (n, 1), float32.

        Raises:
            ValueError: If an input is missing.
        """
        if self._logit_model is None:
            # Past Keras' tracking: it has no weights of its own. One for all calls, for Keras
            # traces every model anew.
            object.__setattr__(
                self, "_logit_model", LogitModel(self.input, self.base.output, name="base_logits")
            )
        x = as_inputs(x, self.input)
        return self._logit_model.predict(x, batch_size=_LOGIT_BATCH_SIZE, verbose=verbose)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Calibrated probabilities (batch, 1)."""
        if is_head_input(inputs):
            return self.probability(self.head(inputs[LOGIT], inputs[FEATURES]))
        return super().call(expected_inputs(inputs, self.input), training=training, mask=mask)

    @property
    def input_spec(self) -> None:
        """None: `call` checks the inputs itself, for they come with and without base logits."""
        return None

    def field_ids(self, x: Any, field: str) -> Any:
        """The ids (n,) of a field of the input, as the head counts them where it has the field."""
        features = x[FEATURES] if is_head_input(x) else inputs_by_name(x, self.input)
        for reader in self.head.field_readers():
            if field in {*reader.fields} & {*features}:
                return reader.field_ids(features, field)
        return super().field_ids(features, field)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.save`, to a `.keras` file."""
        if str(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                "Argument `filepath` must end in `.keras`. Received: "
                f"filepath={str(filepath)!r}. Keras cannot load a CalibratedModel from HDF5."
            )
        super().save(filepath, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain Python values."""
        return {
            "base_model": serialized_base(self.base_model),
            "head": keras.saving.serialize_keras_object(self.head),
            "base_output": self.base.base_output,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "CalibratedModel":
        """The model of a `get_config`."""
        parts = {
            name: keras.saving.deserialize_keras_object(config[name], custom_objects)
            for name in ("base_model", "head")
        }
        return cls(**{**config, **parts})

    def _train(
        self,
        rows: HeadRows,
        decide: Callable[[], dict[str, float] | None],
        callbacks: Any,
        arguments: dict[str, Any],
    ) -> None:
        """Trains the head by Keras' own `fit`; `decide` then chooses what it is left as."""

        def end() -> dict[str, float] | None:
            self.head.finalize()
            return decide()

        num_batches = math.ceil(len(rows) / (arguments["batch_size"] or 32))
        seen_by = EndOfTraining(
            with_finite_progress(callbacks, arguments["verbose"]),
            end,
            model=self,
            verbose=arguments["verbose"],
            epochs=arguments["epochs"],
            steps=arguments["steps_per_epoch"] or num_batches,
        )
        x, y, weights = rows.keras_data
        super().fit(x, y, sample_weight=weights, callbacks=seen_by, **arguments)

    def _with_logits(
        self, rows: DevelopmentSet, verbose: Any, both_classes: bool = False
    ) -> HeadRows:
        """The rows with their base logits, all checked, and the features that are needed."""
        inputs = expected_inputs(rows.inputs, self.input)
        is_long = bool(verbose) and len(rows.labels) > _LOGIT_BATCH_SIZE
        if is_long:
            print(f"Base logits of {len(rows.labels):,} rows:")
        logits = self.base_logits(inputs, verbose if is_long else 0)
        check_rows(logits, rows.labels, rows.weights, both_classes=both_classes)
        features = inputs_by_name(inputs, self.input)
        names = self.head.feature_names
        if names is not None:
            field_metrics = getattr(self, "_field_metrics", None)
            fields = () if field_metrics is None else field_metrics.fields
            features = {k: v for k, v in features.items() if k in names or k in fields}
        # Keras would take labels (n,) for (n, 1) too; the package's own metrics see them alike.
        labels = np.asarray(rows.labels, "float32").reshape(-1, 1)
        weights = None if rows.weights is None else np.asarray(rows.weights, "float32").reshape(-1)
        return HeadRows(logits, features, labels, weights)

    def _held_out(
        self, rows: HeadRows, data: Any, num_steps: int | None, verbose: Any, share: float
    ) -> tuple[HeadRows, HeadRows | None, dict[str, Any]]:
        """The rows to fit to, the held-out ones, and what Keras' `fit` takes of these."""
        held_out = None
        if data is not None:
            parts = data if isinstance(data, tuple | list) else (data,)
            val_x, val_y, val_weight = (*parts, None, None)[:3]
            read = read_development_set(val_x, val_y, val_weight, num_steps, self.input)
            held_out = self._with_logits(read, verbose)
            num_steps = num_steps if read.batch_size is None else None
        elif share:
            first_held_out = math.floor(len(rows) * (1 - share))
            numbers = np.arange(len(rows))
            rows, held_out = (
                rows.take(numbers[part])
                for part in (slice(first_held_out), slice(first_held_out, None))
            )
            check_rows(rows.logits, rows.labels, rows.weights, both_classes=True)
        if held_out is None:
            return rows, None, {}
        return (
            rows,
            held_out,
            {"validation_data": held_out.keras_data, "validation_steps": num_steps},
        )


def _check_arguments(initialize: Any, class_weight: Any) -> None:
    if initialize not in ("exact", None):
        raise ValueError(
            f'Argument `initialize` must be "exact" or None. Received: initialize={initialize!r}.'
        )
    if class_weight is not None:
        raise ValueError(
            "Argument `class_weight` must be None. It makes the model predict the share of "
            "positive labels among the weighted rows, not among the rows as they are, which undoes "
            f"the calibration. Received: class_weight={class_weight!r}. Leave it out. If the rows "
            "are a sample that holds some labels more often than they occur, pass sample_weight: 1 "
            "/ (the share of such rows that was kept)."
        )
