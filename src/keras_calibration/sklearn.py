"""NeuralCalibrator: calibration of a scikit-learn classifier, as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._check import installed, known, refused
from calibration_records._columns import warn_of_other_order
from calibration_records._warn import warn
from keras_calibration.calibration.calibrate_scores import SCORE, calibrate_scores

with installed("sklearn", "keras_calibration.sklearn needs scikit-learn 1.6 or newer."):
    import sklearn.base
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import StratifiedGroupKFold, check_cv
    from sklearn.preprocessing import LabelEncoder
    from sklearn.utils import _safe_indexing, indexable
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_is_fitted,
        column_or_1d,
        has_fit_parameter,
        validate_data,
    )

__all__ = ["NeuralCalibrator"]
__dir__ = __all__.copy


class NeuralCalibrator(sklearn.base.ClassifierMixin, sklearn.base.BaseEstimator):
    """Calibrates a classifier of two or more classes with `calibrate_scores`.

    Like scikit-learn's `CalibratedClassifierCV(ensemble=False)`, it fits the calibration to the
    scores of a cross-validation, and the classifier to all rows. A fitted classifier, passed as
    `FrozenEstimator(classifier)`, is used as it is: pass rows to `fit` that it was not trained on.
    Unlike scikit-learn's, the calibration may depend on categorical and numeric columns, and
    cross-fitting chooses its method.

    The classifier gets the labels as they are, so that its `class_weight` may name them. The scores
    are the columns of `predict_proba`, or else of `decision_function`, in the order of the
    classifier's `classes_`, or of the sorted labels if it has none. Probabilities of exactly 0 or
    1, which forests and nearest neighbours return, count as logits of ±36.7, as in
    `calibrate_scores`; `fit` warns if labels contradict them.

    Args:
        estimator: The classifier, with `predict_proba` or `decision_function`.
        fields: Columns of X with categories, strings or whole numbers: their names if X is a data
            frame, else their positions.
        numeric: Columns of numbers, not in `fields`, that the calibration may also use.
        methods: `"default"`, `"quick"`, `"thorough"`, or candidates by name, see `calibrate`.
        cv: Splits of the cross-validation, as in scikit-learn: a number, an object such as
            `GroupKFold()` or `TimeSeriesSplit()`, or a list of pairs of row numbers. Rows that are
            in no test set, such as the first block of `TimeSeriesSplit`, are not used for
            calibration. The test sets of an object or a list are also the folds of `calibrate`.
        weights_are: What sample weights are: `"importance"`, known up to a common factor, or
            `"counts"` of rows, see `calibrate`.

    Attributes:
        classes_: The K classes, sorted; those of the classifier if it is frozen.
        estimator_: The fitted classifier.
        model_: The `CalibratedModel`, for example for export. Its inputs are `"score"` and the
            columns; the column at position 2 is `"column_2"`. Its `report` compares the methods.

    Raises:
        ValueError: In `fit`, if there are fewer than two classes, if a split of the
            cross-validation trains without one of them, if a row is in several test sets, if
            `fields` or `numeric` name columns that X does not have, if a frozen classifier lacks a
            class, if the `classes_` of the classifier are not the labels, if `decision_function`
            does not have one column per class, or as in `calibrate_scores`.

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
        estimator: Any,
        *,
        fields: Sequence[str | int] = (),
        numeric: Sequence[str | int] = (),
        methods: str | Sequence[str] = "default",
        cv: Any = None,
        weights_are: str = "importance",
    ) -> None:
        self.estimator = estimator
        self.fields = fields
        self.numeric = numeric
        self.methods = methods
        self.cv = cv
        self.weights_are = weights_are

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fits the classifier and its calibration.

        Args:
            X: Rows: an array (n, columns) or a data frame.
            y: Labels (n,) of two or more classes.
            sample_weight: Sample weights (n,) of the calibration, and of the classifier if its
                `fit` takes them, or None.
            groups: Groups (n,) of the rows, such as customers, or None. All folds keep the rows of
                a group together, and standard errors are those of independent groups. An object as
                `cv` must split by group, as `GroupKFold` does.

        Returns:
            Self.
        """
        warn_of_other_order(X=X, y=y, sample_weight=sample_weight, groups=groups)
        validate_data(self, X, y, skip_check_array=True)
        columns = self._read_columns(X)
        check_classification_targets(y)
        X, y = indexable(X, column_or_1d(y, warn=True))
        base = self.estimator
        is_frozen = isinstance(base, FrozenEstimator)
        # The columns of a frozen classifier's scores are its classes.
        encoder = LabelEncoder().fit(getattr(base, "classes_", y) if is_frozen else y)
        labels, self.classes_ = encoder.transform(y), encoder.classes_
        if len(self.classes_) < 2:
            raise ValueError(
                f"Labels must be of two classes or more, not 1 class: {self.classes_}."
            )
        weights = (
            None
            if sample_weight is None
            else _check_sample_weight(sample_weight, X, dtype=np.float64)
        )
        counted = y if weights is None else np.asarray(y)[weights > 0]
        if absent := np.setdiff1d(self.classes_, counted).tolist():
            raise ValueError(
                "Argument `y` must hold every class of the classifier where the weight is above 0. "
                f"Received: no rows of {absent}. Use more rows, or a classifier without them."
            )
        if is_frozen and self.cv is not None:
            warn("Argument `cv` has no effect on a frozen classifier.")
        if is_frozen:
            self.estimator_ = base
            scores = self._predict_scores(base, X)
            fold = np.zeros(len(labels), np.int64)
        else:
            base_weights = weights if has_fit_parameter(base, "sample_weight") else None
            if weights is not None and base_weights is None:
                warn(
                    f"{type(base).__name__} takes no sample weights: only the calibration uses "
                    "them."
                )
            # The classifier gets y itself: its `class_weight`, for example, may name classes.
            self.estimator_ = _fit_classifier(base, X, y, base_weights, np.arange(len(labels)))
            scores, fold = self._cross_fit_scores(X, y, base_weights, groups)
        used = fold >= 0
        has_splits = not (is_frozen or self.cv is None or isinstance(self.cv, int))
        self.model_ = calibrate_scores(
            scores[used],
            labels[used],
            {name: column[used] for name, column in columns.items()} or None,
            None if weights is None else weights[used],
            from_logits=not hasattr(self.estimator_, "predict_proba"),
            fields=list(self._name_columns("fields")),
            numeric=list(self._name_columns("numeric")),
            methods=self.methods,
            folds=fold[used] if has_splits else None,
            groups=None if groups is None else np.asarray(groups)[used],
            weights_are=self.weights_are,
            verbose=0,
        )
        # The numbers are those of the rows of X, of which some may be in no test set.
        report: Any = self.model_.report
        report.cross_fitted.rows[:] = np.flatnonzero(used)[report.cross_fitted.rows]
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities (n, K) of the classes, in the order of `classes_`."""
        check_is_fitted(self)
        # First, because the classifier checks the shape of X.
        scores = self._predict_scores(self.estimator_, X).astype("float32")
        validate_data(self, X, reset=False, skip_check_array=True)
        probabilities = self.model_.predict(
            {SCORE: scores, **self._read_columns(X)}, verbose=0
        ).astype(np.float64)
        if probabilities.shape[1] == 1:
            return np.concatenate([1 - probabilities, probabilities], axis=1)
        # Exact in float64: scikit-learn's functions check the sums.
        return probabilities / probabilities.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class of each row."""
        best = np.argmax(self.predict_proba(X), axis=1)  # raises before `fit`
        return self.classes_[best]

    def __sklearn_tags__(self) -> Any:
        """The tags for the number of classes and for X are those of the classifier."""
        tags = super().__sklearn_tags__()
        inner = sklearn.utils.get_tags(self.estimator)
        kinds, tags.input_tags = inner.classifier_tags, inner.input_tags
        tags.classifier_tags.multi_class = kinds is None or kinds.multi_class
        return tags

    def _predict_scores(self, classifier: Any, X: Any) -> np.ndarray:
        """Scores (n, K) in the order of `classes_`, or of two classes those of the second, (n,)."""
        has_probabilities = hasattr(classifier, "predict_proba")
        predict = classifier.predict_proba if has_probabilities else classifier.decision_function
        scores = predict(X)
        num_classes = len(self.classes_)
        columns = np.stack([-scores, scores], axis=1) if scores.ndim == 1 else scores
        if columns.shape[1:] != (num_classes,):
            raise ValueError(
                f"The classifier must return one score for each of {num_classes} classes. Received:"
                f' shape {scores.shape}. A support vector one needs decision_function_shape="ovr".'
            )
        classes = np.asarray(getattr(classifier, "classes_", self.classes_))
        if not np.array_equal(np.sort(classes), self.classes_):
            raise refused(
                "y",
                "labels among the classifier's `classes_`, because they name the columns of its "
                "scores",
                self.classes_,
                f"It has {classes}.",
            )
        columns = columns[:, np.argsort(classes)]
        return columns[:, 1] if num_classes == 2 else columns

    def _cross_fit_scores(
        self, X: Any, y: Any, weights: np.ndarray | None, groups: ArrayLike | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores of each row by a classifier fitted to other rows, and its fold, or -1."""
        num_classes = len(self.classes_)
        fold = np.full(len(y), -1)
        scores = np.zeros((len(y), num_classes) if num_classes > 2 else len(y))
        cv = check_cv(self.cv, y, classifier=True)
        if groups is not None and (self.cv is None or isinstance(self.cv, int)):
            cv = StratifiedGroupKFold(cv.n_splits)
        for number, (train, test) in enumerate(cv.split(X, y, groups)):
            if (fold[test] >= 0).any():
                raise refused("cv", "splits with each row in at most one test set", self.cv)
            if len(np.unique(y[train])) < num_classes:
                raise refused(
                    "cv",
                    "splits that train on rows of every class",
                    self.cv,
                    "Merge rare classes, or use stratified splits.",
                )
            fold[test] = number
            scores[test] = self._predict_scores(
                _fit_classifier(self.estimator, X, y, weights, train), _safe_indexing(X, test)
            )
        return scores, fold

    def _read_columns(self, X: Any) -> dict[str, np.ndarray]:
        """The columns of `fields` and `numeric` by their names as inputs of the model."""
        rows = X if hasattr(X, "shape") else np.asarray(X)
        given = self._name_columns("fields") | self._name_columns("numeric")
        columns = {name: _safe_indexing(rows, column, axis=1) for name, column in given.items()}
        return {
            name: values.toarray()[:, 0] if hasattr(values, "toarray") else np.asarray(values)
            for name, values in columns.items()
        }

    def _name_columns(self, argument: str) -> dict[str, str | int]:
        """Input of the calibrated model → its column of X, for `fields` or `numeric`."""
        columns = np.array(getattr(self, argument), object, ndmin=1).tolist()
        # True and 1.0 are equal to 1, but are no positions: as texts, they are refused.
        known(
            f"Argument `{argument}` must name columns of X",
            [c if isinstance(c, str | np.integer) or type(c) is int else str(c) for c in columns],
            [*range(getattr(self, "n_features_in_", 0)), *getattr(self, "feature_names_in_", ())],
        )
        return {c if isinstance(c, str) else f"column_{c}": c for c in columns}


def _fit_classifier(base: Any, X: Any, y: Any, weights: np.ndarray | None, rows: np.ndarray) -> Any:
    """A new classifier, fitted to some rows."""
    arguments = {} if weights is None else {"sample_weight": weights[rows]}
    return sklearn.base.clone(base).fit(_safe_indexing(X, rows), y[rows], **arguments)
