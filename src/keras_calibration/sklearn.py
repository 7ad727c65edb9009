"""NeuralCalibrator: calibration of a scikit-learn classifier, as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from keras_calibration.calibration.calibrate_scores import SCORE, calibrate_scores
from keras_calibration.models.tables import is_data_frame

try:
    import sklearn.base
    from sklearn.frozen import FrozenEstimator
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.preprocessing import LabelEncoder
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise ImportError(
        "keras_calibration.sklearn needs scikit-learn 1.6 or newer. Install it with: pip install "
        "'keras-calibration[sklearn]'"
    ) from error


class NeuralCalibrator(sklearn.base.ClassifierMixin, sklearn.base.BaseEstimator):
    """Calibrates a binary classifier with `calibrate_scores`, also by its columns.

    As scikit-learn's `CalibratedClassifierCV(ensemble=False)`: the scores to calibrate are those of
    cross-validation, and the classifier is then fitted to all rows. A classifier that is already
    fitted, given as `FrozenEstimator(classifier)`, is used as it is; pass `fit` rows that it was
    not trained on. In contrast to scikit-learn's, the calibration may depend on categorical and
    numeric columns, and its method is chosen by cross-fitting.

    Args:
        estimator: The classifier, with `predict_proba` or `decision_function`; None is a
            `LogisticRegression`.
        fields: Columns of X with categories, strings or whole numbers: their names if X is a data
            frame, else their numbers.
        numeric: Columns of numbers that the calibration may also use.
        method: `"auto"`, or the name of a candidate of `calibrate`.
        effort: `"quick"`, `"default"` or `"thorough"`, see `calibrate`.
        folds: How `calibrate` splits the rows.
        cv: Splits of the cross-validation, as in scikit-learn.
        seed: Seed of the folds of `calibrate` and of training.

    Attributes:
        classes_: The two classes.
        estimator_: The fitted classifier.
        model_: The `CalibratedModel`, to export, for example. Its inputs are `"score"` and the
            columns, `"column_2"` for number 2. Its `report` shows how the methods compare.

    Raises:
        ValueError: In `fit`, if there are not two classes, or as `calibrate_scores` does.

    Example:
        >>> from sklearn.naive_bayes import GaussianNB
        >>> rng = np.random.default_rng(0)
        >>> x = np.repeat(rng.normal(size=(2000, 1)), 3, axis=1)  # naive Bayes counts it thrice
        >>> y = rng.random(2000) < 1 / (1 + np.exp(-x[:, 0]))
        >>> calibrator = NeuralCalibrator(GaussianNB()).fit(x, y)
        >>> calibrator.predict_proba([[1.0, 1.0, 1.0]]).round(1)
        array([[0.3, 0.7]])
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        fields: Sequence[str | int] = (),
        numeric: Sequence[str | int] = (),
        method: str = "auto",
        effort: str = "default",
        folds: Any = None,
        cv: Any = None,
        seed: int = 0,
    ) -> None:
        self.estimator = estimator
        self.fields = fields
        self.numeric = numeric
        self.method = method
        self.effort = effort
        self.folds = folds
        self.cv = cv
        self.seed = seed

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fits the classifier and its calibration.

        Args:
            X: Rows: an array (n, columns) or a data frame.
            y: Labels (n,) of two classes.
            sample_weight: Sample weights (n,), or None.

        Returns:
            Self.
        """
        validate_data(self, X, y, skip_check_array=True)
        encoder = LabelEncoder()
        check_classification_targets(y)
        labels = encoder.fit_transform(column_or_1d(y, warn=True))
        if len(encoder.classes_) != 2:
            raise ValueError(
                "NeuralCalibrator needs labels of two classes. Received: "
                f"{len(encoder.classes_)} class(es). Only binary classification is supported. The "
                f"type of the target is {type_of_target(y)}."
            )
        base = self._classifier()
        weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        params = {} if weights is None else {"sample_weight": weights}
        is_frozen = isinstance(base, FrozenEstimator)
        self.estimator_ = base if is_frozen else sklearn.base.clone(base).fit(X, labels, **params)
        self._from_logits = not hasattr(self.estimator_, "predict_proba")
        if is_frozen:
            scores = self._scores(X)
        else:
            name = "decision_function" if self._from_logits else "predict_proba"
            scores = _positive(
                cross_val_predict(base, X, labels, cv=self.cv, method=name, params=params)
            )
        self.model_ = calibrate_scores(
            scores,
            labels,
            dict(self._columns(X)) or None,
            weights,
            from_logits=self._from_logits,
            fields=[_name(column) for column in self.fields],
            numeric=[_name(column) for column in self.numeric],
            method=self.method,
            effort=self.effort,
            folds=self.folds,
            seed=self.seed,
            verbose=0,
        )
        self.classes_ = encoder.classes_
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities (n, 2) of the classes, in the order of `classes_`."""
        check_is_fitted(self)
        # First, as the classifier checks the shape of X.
        scores = self._scores(X).astype("float32")
        validate_data(self, X, reset=False, skip_check_array=True)
        served = {SCORE: scores, **dict(self._columns(X))}
        positive = self.model_.predict(served, verbose=0)[:, 0].astype(np.float64)
        return np.stack([1 - positive, positive], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The more likely class of each row."""
        number = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[number]

    def __sklearn_tags__(self) -> Any:
        """Binary classification; what X may hold is up to the classifier."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags = sklearn.utils.get_tags(self._classifier()).input_tags
        return tags

    def _classifier(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _scores(self, X: Any) -> np.ndarray:
        score = self.estimator_.decision_function if self._from_logits else None
        return _positive((score or self.estimator_.predict_proba)(X))

    def _columns(self, X: Any) -> Iterator[tuple[str, np.ndarray]]:
        for column in dict.fromkeys([*self.fields, *self.numeric]):
            values = np.asarray(X[column] if is_data_frame(X) else X[:, column])
            yield _name(column), _ids(values, column) if column in self.fields else values


def _name(column: str | int) -> str:
    """The name of a column as an input of the calibrated model."""
    return column if isinstance(column, str) else f"column_{column}"


def _ids(values: np.ndarray, column: str | int) -> np.ndarray:
    """Categories as they are; those in an array of floats as integers."""
    if values.dtype.kind != "f":
        return values
    if not (np.isfinite(values) & (values == np.round(values))).all():
        raise ValueError(
            f"Column {column!r} of `fields` must hold strings or whole numbers. Received: other "
            "numbers, or missing ones. Name it in `numeric`, or encode its values as whole numbers."
        )
    return values.astype(np.int64)


def _positive(scores: np.ndarray) -> np.ndarray:
    return scores[:, 1] if scores.ndim == 2 else scores
