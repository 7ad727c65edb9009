"""CalibratedModel: a trained base model plus a calibration head, as one Keras model."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from calibration_records._columns import suggestion
from keras_calibration._graph.base_logits import (
    BaseLogits,
    check_base_model,
    serialized_base,
    trainable_flags_kept,
    with_all_outputs,
)
from keras_calibration._graph.head_in_model import head_of
from keras_calibration._graph.outputs import num_logits, symbolic_input
from keras_calibration._keras import unnumbered_variables, without_replica_sums
from keras_calibration._rows.development_set import (
    DevelopmentSet,
    is_batches,
    read_development_set,
)
from keras_calibration._rows.model_inputs import expected_inputs, inputs_by_name, named_inputs
from keras_calibration._typing import Data, Inputs, Tensor
from keras_calibration.layers.field_ids import id_fields
from keras_calibration.layers.head import Head
from keras_calibration.metrics.field_metrics import MetricsByField
from keras_calibration.models.class_log_loss import class_log_loss
from keras_calibration.models.epoch_reports import (
    Callbacks,
    EndOfTraining,
    figures_of,
    reported_as_epoch,
    with_finite_progress,
)
from keras_calibration.models.field_metrics_model import FieldMetricsModel
from keras_calibration.models.head_rows import (
    FEATURES,
    LOGIT,
    HeadRows,
    is_head_input,
    rows_for_head,
)
from keras_calibration.models.head_training import (
    check_development_rows,
    fit_exactly,
    model_summary,
    train_from_exact,
)

if TYPE_CHECKING:
    from keras_calibration.calibration.calibration_report import CalibrationReport


@keras.saving.register_keras_serializable(package="keras_calibration")
class CalibratedModel(FieldMetricsModel):
    """A trained base model plus a calibration head: `q(l, x) = σ(head(l, x))`, with base logit l.

    A Functional model on the base model's own inputs. Its output is the calibrated probability
    (batch, 1). The base model is frozen and runs in inference mode; only the head is trained. The
    head reads its features, by name, from the inputs of the base model.

    For K classes, the base model returns K logits or their softmax, the head serves K logits, and
    the output is the softmax (batch, K). Labels are then class numbers (n,) or (n, 1), or
    one-hot or soft labels (n, K).

    If the base model has several outputs (a multi-task model), `calibrated_output` names the one
    to calibrate. This model returns only that one; `with_all_outputs` makes a model that returns
    the others too, and exports return them unchanged.

    The base model stays frozen while the calibrated model is in use. To train it again afterwards,
    set `base_model.trainable = True` (or the flags of single layers) and compile it. If the
    constructor raises, the base model is unchanged.

    `fit` differs from `keras.Model.fit`:

    - It fits the head directly. Training by gradient is optional, and kept only if it is better.
    - It reads the development set into memory and computes the base logits once for all rows, also
      for the validation data.
    - It checks labels, weights and logits, and raises before anything is changed.
    - If it trains, it shuffles the rows every epoch, also those of a `tf.data.Dataset`; a head that
      has not been fitted is adapted first (`head.adapt`).

    Ids outside a field's vocabulary are the field's "other" value. Soft labels in [0, 1] are
    allowed. In `predict` and `evaluate`, a NaN logit of the base model gives a NaN probability.

    To copy the model, use `CalibratedModel.from_config(model.get_config())` and `set_weights`.
    `keras.models.clone_model` rebuilds every Functional model layer by layer: it returns a plain
    one with new initial weights, which computes the same after `set_weights`.

    Args:
        base_model: A trained Functional or Sequential Keras model with a sigmoid or logit output,
            or a softmax or logits of K classes. It is set to `trainable=False`.
        head: A `Head`, for example `NeuralCalibration(...)` or `ILPS()`; for classes one that
            serves K logits, for example `VectorScaling(K)`.
        base_output: What the base model returns: `"probability"`, `"logit"`, or `"auto"` to infer
            it from the last layer.
        calibrated_output: Which of several outputs of the base model to calibrate: its key in a
            dictionary, its index in a list, or its name (the name of its last layer). None for a
            base model with one output.
        **kwargs: Keyword arguments of every Keras model (`name`).

    Attributes:
        report: The `CalibrationReport` if `calibrate` created the model, else None. Not saved.
        head: The head; its `fit_summary` is the `ModelFitSummary` of the last `fit`, else None.

    Raises:
        ValueError: If the base model cannot be calibrated (see `BaseLogits`), or the head reads a
            feature that is not an input of the base model; in `fit`, if there are no rows, one
            class only, labels outside [0, 1], logits that are not finite, or invalid weights.

    Example:
        >>> from keras_calibration.layers import ILPS, FieldNetwork, NeuralCalibration
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
        head: Head,
        base_output: str = "auto",
        calibrated_output: str | int | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(head, Head):
            raise ValueError(
                f"Argument `head` must be a `Head`. Received: head={head!r}. Use one of this "
                "package, ILPS() for example, or subclass keras_calibration.layers.Head."
            )
        check_base_model(base_model, calibrated_output)
        inputs = named_inputs(symbolic_input(base_model))
        features = inputs_by_name(inputs, inputs)
        names = features if head.feature_names is None else head.feature_names
        missing = [name for name in names if name not in features]
        if missing:
            raise ValueError(
                "Argument `base_model` must have an input for each feature that the head reads, "
                f"{list(names)}. Received: a base model with the inputs {sorted(features)}, "
                f"without {missing}.{suggestion(missing, features)} Add them to the base model as "
                "inputs, even if it does not use them."
            )
        features = {name: features[name] for name in names}
        with trainable_flags_kept(base_model):
            base = BaseLogits(base_model, base_output, calibrated_output, name="base")
            calibrated = head(base(inputs), features)
            is_of_classes = num_logits(base_model, calibrated_output) > 1
            activation = "softmax" if is_of_classes else "sigmoid"
            probability = keras.layers.Activation(activation, dtype=head.dtype, name="probability")
            super().__init__(inputs=inputs, outputs=probability(calibrated), **kwargs)
        base.freeze()
        self.base = base
        self.head = head
        self.probability = probability
        self.report: CalibrationReport | None = None

    @property
    def base_model(self) -> keras.Model:
        """The base model, frozen."""
        return self.base.base_model

    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer = "adam",
        loss: str | keras.losses.Loss | Callable[[Tensor, Tensor], Tensor] = "log_loss",
        *,
        field_metrics: MetricsByField | None = None,
        **kwargs: Any,
    ) -> None:
        """As `keras.Model.compile`, with log loss as default loss and with `field_metrics`.

        Args:
            optimizer: As for `keras.Model.compile`.
            loss: As for `keras.Model.compile`, on probabilities. `"log_loss"` is Keras'
                `"binary_crossentropy"`; for classes, it takes class numbers and shares.
            field_metrics: Field name, or tuple of names for a cross → list of metrics with
                `update_state(..., field=ids)`. If the head has the field, the metrics use the
                head's ids, for example those of its lookup layer.
            **kwargs: Other arguments of `keras.Model.compile`.
        """
        if loss == "log_loss":
            loss = class_log_loss if self.output.shape[1] > 1 else "binary_crossentropy"
        with unnumbered_variables():
            super().compile(optimizer=optimizer, loss=loss, field_metrics=field_metrics, **kwargs)
        if keras.backend.backend() == "tensorflow":
            without_replica_sums(self.optimizer)

    def fit(
        self,
        x: Data | None = None,
        y: ArrayLike | None = None,
        batch_size: int | None = None,
        epochs: int | None = None,
        verbose: int | str = "auto",
        callbacks: Callbacks = None,
        *,
        initialize: str | None = "exact",
        validation_data: Data | None = None,
        sample_weight: ArrayLike | None = None,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        weights_are: str = "importance",
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Fits the head to the development set: directly, then by training if that is better.

        With `initialize="exact"`, the head's direct fit comes first (see `Head.fit`). It replaces
        any earlier fit. If `epochs` is at least 1, training continues from there, with the
        optimizer, loss and callbacks of `compile` and `fit`. Held-out rows decide whether the
        trained head is kept: the rows of `validation_data`, or else a random fifth of the
        development set, which neither this direct fit nor the training saw. Training is kept if it
        lowers the log loss of the held-out rows by more than three standard errors and at least ten
        of them are outside the more frequent class. Otherwise the head is the direct fit to the
        whole development set. `head.fit_summary` reports the decision.

        With `initialize=None`, the head is trained from its current state, which is the identity at
        first, as in the papers. Heads without a direct fit are always trained this way.

        Args:
            x: Inputs (arrays by name, with `y`), or a finite data set of batches `(x, y)` or
                `(x, y, sample_weight)`.
            y: Labels in [0, 1], (n,) or (n, 1), if `x` holds arrays. Labels, and weights, may also
                be a dictionary by output of the base model, here and in batches.
            batch_size: Rows per batch; by default the data set's own, or 32.
            epochs: Number of training epochs. None means 0 after a direct fit, which needs no
                compiled model, and 1 otherwise.
            verbose: As for `keras.Model.fit`.
            callbacks: As for `keras.Model.fit`. Without training, they see the direct fit as one
                epoch. If training is not kept, they see the direct fit as one more epoch.
            initialize: `"exact"` or None, as described above.
            validation_data: Held-out rows, `(x, y)`, `(x, y, sample_weight)` or a data set.
            sample_weight: Sample weights (n,), importances unless `weights_are` says otherwise, if
                `x` holds arrays.
            steps_per_epoch: Number of batches to read from a data set; they are then the whole
                development set. For arrays, the number of batches per epoch. None uses all.
            validation_steps: As `steps_per_epoch`, for the validation data.
            weights_are: `"importance"`, known up to a common factor, or `"counts"` of rows, see
                `Head.fit`. A factor of those of `validation_data` does not change what is kept.
            **kwargs: Other arguments of `keras.Model.fit`, except `class_weight`.
                `validation_split` holds out the last rows.

        Returns:
            The `History` of the training epochs, with the direct fit as the last epoch if the
            training is not kept.

        Raises:
            ValueError: If an argument or a row is invalid. The model is then unchanged.

        Warns:
            UserWarning: If the mean prediction differs from the mean label after the fit; if a data
                set has more batches than `steps_per_epoch`; if a class has no rows (see `Head.fit`;
                training by gradient is then refused).
        """
        _check_arguments(initialize, kwargs.pop("class_weight", None))
        is_exact = initialize == "exact" and self.head.has_direct_fit
        if epochs is None:
            epochs = 0 if is_exact else 1
        num_epochs = epochs - kwargs.get("initial_epoch", 0)
        if not self.compiled and (num_epochs > 0 or not is_exact):
            raise ValueError(
                "The model must be compiled to be trained by gradient. Call `compile()` first, or "
                "omit `epochs` if the head has a direct fit."
            )
        num_batches = steps_per_epoch if is_batches(x) else None
        names = head_of(self).label_names
        development = read_development_set(
            x, y, sample_weight, num_batches, self.input, names, self._ids, has_epochs=True
        )
        development, _ = development.counted(weights_are)
        rows = self._with_logits(development, verbose, both_classes=True)
        check_development_rows(rows, is_trained=num_epochs > 0 or not is_exact)
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
                summary = model_summary(self.head, rows, exact)
                report(figures())
        else:
            if not self.head.is_adapted:
                self.head.adapt(rows.logits, rows.labels, rows.features, rows.weights)
            train(rows, lambda: True)
            summary = model_summary(
                self.head, rows, None, num_epochs=num_epochs, training_kept=True
            )
        if verbose and is_exact:
            print(summary)
        self.head.remember_fit(summary)
        return self.history

    def with_all_outputs(self) -> keras.Model:
        """Creates a Keras model with all outputs of the base model, one of them calibrated.

        A plain Functional model on the same inputs, with the base model's own structure of outputs
        (a dictionary, a list) and names. The calibrated probability, in the head's dtype, takes the
        place of the calibrated output, also if that is a logit. The other outputs are unchanged. It
        shares the layers of this model, so that a later `fit` of this model changes it too.

        To calibrate another output as well, calibrate the model returned. Layers that the two
        outputs share are then computed twice, once for each.

        Returns:
            The model. It is saved and loaded as any Keras model, once `keras_calibration` is
            imported.

        Example:
            >>> from keras_calibration.layers import ILPS, PlattScaling
            >>> inputs = keras.Input((2,), name="x")
            >>> outputs = {n: keras.layers.Dense(1, "sigmoid")(inputs) for n in ("click", "buy")}
            >>> base = keras.Model(inputs, outputs)
            >>> click = CalibratedModel(base, ILPS(), calibrated_output="click")
            >>> buy = CalibratedModel(
            ...     click.with_all_outputs(), PlattScaling(), calibrated_output="buy"
            ... )
            >>> both = buy.with_all_outputs()
            >>> sorted(both.predict(np.zeros((3, 2)), verbose=0))
            ['buy', 'click']
        """
        return with_all_outputs(self.base, self.head, self.input)

    def call(
        self, inputs: Inputs, training: bool | None = None, mask: Inputs | None = None
    ) -> Tensor:
        """Calibrated probabilities (batch, 1) or (batch, K)."""
        if is_head_input(inputs):
            return self.probability(self.head(inputs[LOGIT], inputs[FEATURES]))
        inputs = expected_inputs(inputs, self.input, self._ids)
        return super().call(inputs, training=training, mask=mask)

    @property
    def input_spec(self) -> None:
        """None: `call` checks the inputs itself, because they may be base logits and features."""
        return None

    def field_ids(self, x: Inputs, field: str) -> Tensor:
        """Ids (n,) of a field of the input: the head's ids if the head has the field.

        What is "other" for the head is -1, as for all metrics.
        """
        features = x[FEATURES] if is_head_input(x) else inputs_by_name(x, self.input)
        for reader in self.head.field_readers():
            if field in {*reader.fields} & {*features}:
                ids = reader.field_ids(features, field)
                return keras.ops.where(ids >= reader.num_values(field), -1, ids)
        return super().field_ids(features, field)

    def save(self, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.save`, to a `.keras` file."""
        if str(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                "Argument `filepath` must end in `.keras`. Received: "
                f"filepath={str(filepath)!r}. Keras cannot load a CalibratedModel from HDF5."
            )
        super().save(filepath, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as plain Python values."""
        return {
            "base_model": serialized_base(self.base_model),
            "head": keras.saving.serialize_keras_object(self.head),
            "base_output": self.base.base_output,
            "calibrated_output": self.base.calibrated_output,
            "name": self.name,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> CalibratedModel:
        """Creates the model from its `get_config`."""
        parts = {
            name: keras.saving.deserialize_keras_object(config[name], custom_objects)
            for name in ("base_model", "head")
        }
        return cls(**{**config, **parts})

    def _entering(self, x: Data) -> Data:
        """Inputs as they enter the model; base logits and features are already those of a fit."""
        return x if is_head_input(x) else super()._entering(x)

    @property
    def _ids(self) -> set[str]:
        """Names of the inputs that hold ids of the head's fields."""
        return id_fields(self.head.field_readers())

    def _train(
        self,
        rows: HeadRows,
        decide: Callable[[], dict[str, float] | None],
        callbacks: Callbacks,
        arguments: dict[str, Any],
    ) -> None:
        """Trains the head with Keras' `fit`; `decide` then keeps or replaces the trained head."""

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
        if keras.backend.backend() == "tensorflow" and not self.optimizer.built:
            # Keras would name the variables of the optimizer like the numbered layers.
            with self.distribute_strategy.scope(), unnumbered_variables():
                self.optimizer.build(self.trainable_variables)
        x, y, weights = rows.keras_data
        super().fit(x, y, sample_weight=weights, callbacks=seen_by, **arguments)

    def _with_logits(
        self, rows: DevelopmentSet, verbose: int | str, both_classes: bool = False
    ) -> HeadRows:
        """Computes base logits, checks the rows, and selects the features that are read."""
        field_metrics = getattr(self, "_field_metrics", None)
        fields = () if field_metrics is None else field_metrics.fields
        read = rows_for_head(head_of(self), rows, verbose, fields)
        self.head.check_rows(read.logits, read.labels, read.weights, both_classes)
        return read

    def _held_out(
        self,
        rows: HeadRows,
        data: Data | None,
        num_steps: int | None,
        verbose: int | str,
        share: float,
    ) -> tuple[HeadRows, HeadRows | None, dict[str, Any]]:
        """The rows to fit, the held-out rows, and the arguments of Keras' `fit` for the latter."""
        held_out = None
        if data is not None:
            parts = data if isinstance(data, tuple | list) else (data,)
            val_x, val_y, val_weight = (*parts, None, None)[:3]
            names = head_of(self).label_names
            num_batches = num_steps if is_batches(val_x) else None
            columns = val_x, val_y, val_weight, num_batches, self.input, names, self._ids
            read = read_development_set(*columns, steps_name="validation_steps", has_epochs=True)
            held_out = self._with_logits(read, verbose)
            num_steps = num_steps if read.batch_size is None else None
        elif share:
            first_held_out = math.floor(len(rows) * (1 - share))
            numbers = np.arange(len(rows))
            rows, held_out = (
                rows.take(numbers[part])
                for part in (slice(first_held_out), slice(first_held_out, None))
            )
            self.head.check_rows(rows.logits, rows.labels, rows.weights)
        if held_out is None:
            return rows, None, {}
        return (
            rows,
            held_out,
            {"validation_data": held_out.keras_data, "validation_steps": num_steps},
        )


def _check_arguments(initialize: str | None, class_weight: Mapping[int, float] | None) -> None:
    if initialize not in ("exact", None):
        raise ValueError(
            f'Argument `initialize` must be "exact" or None. Received: initialize={initialize!r}.'
        )
    if class_weight is not None:
        raise ValueError(
            "Argument `class_weight` must be None, because with class weights the model would "
            "predict the share of positives among the weighted rows, which is not calibrated. "
            f"Received: class_weight={class_weight!r}. If negatives were sampled at a rate, fit to "
            "the sample without weights, and put SamplingCorrection(rate) behind the model."
        )
