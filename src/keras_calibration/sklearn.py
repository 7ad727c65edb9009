"""NeuralCalibrator: calibration of a scikit-learn classifier, as a scikit-learn classifier."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from calibration_records._columns import is_table, suggestion, warn_of_other_order
from calibration_records._warn import warn
from keras_calibration.calibration.calibrate_scores import SCORE, calibrate_scores

try:
    import sklearn.base
    from sklearn.frozen import FrozenEstimator
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import check_cv, cross_val_predict
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import LabelEncoder
    from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        check_is_fitted,
        column_or_1d,
        has_fit_parameter,
        validate_data,
    )
except ImportError as error:
    raise ImportError(
        "keras_calibration.sklearn needs scikit-learn 1.6 or newer. Install it with: pip install "
        "'keras-calibration[sklearn]'"
    ) from error

__all__ = ["NeuralCalibrator"]
__dir__ = __all__.copy


class NeuralCalibrator(sklearn.base.ClassifierMixin, sklearn.base.BaseEstimator):
    """Calibrates a classifier of two or more classes with `calibrate_scores`, also by its columns.

    As scikit-learn's `CalibratedClassifierCV(ensemble=False)`: the scores to calibrate are those of
    cross-validation, and the classifier is then fitted to all rows. A classifier that is already
    fitted, given as `FrozenEstimator(classifier)`, is used as it is; pass `fit` rows that it was
    not trained on. In contrast to scikit-learn's, the calibration may depend on categorical and
    numeric columns, and its method is chosen by cross-fitting.

    The scores are the columns of `predict_proba`, or else of `decision_function`. Probabilities of
    exactly 0 or 1, as forests and nearest neighbours give them, count as logits of ±36.7, as in
    `calibrate_scores`; `fit` warns if labels contradict them.

    Args:
        estimator: The classifier, with `predict_proba` or `decision_function`; None is a
            `LogisticRegression`.
        fields: Columns of X with categories, strings or whole numbers: their names if X is a data
            frame, else their numbers.
        numeric: Columns of numbers that the calibration may also use.
        methods: `"default"`, `"quick"`, `"thorough"`, or candidates by name, see `calibrate`.
        folds: How `calibrate` splits the rows. None for the test sets of `cv`, if that is an object
            or a list of splits, which may keep groups together; else for its own default.
        cv: Splits of the cross-validation, as in scikit-learn: a number, an object such as
            `GroupKFold()` or `TimeSeriesSplit()`, or a list of pairs of row numbers. Rows that are
            in no test set, as the first block of `TimeSeriesSplit`, are not used for calibration.
        weights_are: What sample weights are: `"importance"`, known up to a common factor, or
            `"counts"` of rows, see `calibrate`.
        seed: Seed of the folds of `calibrate` and of training.

    Attributes:
        classes_: The K classes, sorted; those of the classifier if it is frozen.
        estimator_: The fitted classifier.
        model_: The `CalibratedModel`, to export, for example. Its inputs are `"score"` and the
            columns, `"column_2"` for number 2. Its `report` shows how the methods compare.

    Raises:
        ValueError: In `fit`, if there are fewer than two classes, if a split of the
            cross-validation trains without one of them, if a row is in several test sets, if a
            frozen classifier does not know a class, if `decision_function` has not one column per
            class, or as `calibrate_scores` does.

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
        methods: str | Sequence[str] = "default",
        folds: Any = None,
        cv: Any = None,
        weights_are: str = "importance",
        seed: int = 0,
    ) -> None:
        self.estimator = estimator
        self.fields = fields
        self.numeric = numeric
        self.methods = methods
        self.folds = folds
        self.cv = cv
        self.weights_are = weights_are
        self.seed = seed

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        **fit_params: Any,
    ) -> Self:
        """Fits the classifier and its calibration.

        Args:
            X: Rows: an array (n, columns) or a data frame.
            y: Labels (n,) of two or more classes.
            sample_weight: Sample weights (n,) of the calibration and of the classifier, or None. Of
                a pipeline, the last step gets them.
            **fit_params: `groups` (n,) for `cv`, such as `GroupKFold`, and arguments of the
                classifier's `fit`, such as `scaler__sample_weight` for a step of a pipeline. With
                scikit-learn's metadata routing, `set_fit_request` decides what goes where.

        Returns:
            Self.
        """
        warn_of_other_order(X=X, y=y, sample_weight=sample_weight, **fit_params)
        validate_data(self, X, y, skip_check_array=True)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        base = self._classifier()
        is_frozen = isinstance(base, FrozenEstimator)
        # The columns of a frozen classifier's scores are its own classes.
        encoder = LabelEncoder().fit(getattr(base, "classes_", y) if is_frozen else y)
        labels = encoder.transform(y)
        self.classes_ = encoder.classes_
        if len(self.classes_) < 2:
            raise ValueError(
                "NeuralCalibrator needs labels of at least two classes. Received: "
                f"{len(self.classes_)} class(es)."
            )
        weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        params, split_params = self._routed(weights, fit_params, is_frozen)
        self.estimator_ = base if is_frozen else sklearn.base.clone(base).fit(X, labels, **params)
        has_probabilities = hasattr(self.estimator_, "predict_proba")
        self._method = "predict_proba" if has_probabilities else "decision_function"
        fold = np.zeros(len(labels), np.int64)
        if is_frozen:
            scores = self._scores(X)
        else:
            splits = self._splits(X, labels, split_params)
            scores, fold = self._held_out_scores(X, labels, splits, params)
        used = fold >= 0
        is_split_given = not (is_frozen or self.cv is None or isinstance(self.cv, int))
        self.model_ = calibrate_scores(
            scores[used],
            labels[used],
            {name: column[used] for name, column in self._columns(X)} or None,
            None if weights is None else weights[used],
            from_logits=not has_probabilities,
            fields=[_name(column) for column in _listed(self.fields)],
            numeric=[_name(column) for column in _listed(self.numeric)],
            methods=self.methods,
            folds=fold[used] if self.folds is None and is_split_given else self.folds,
            weights_are=self.weights_are,
            seed=self.seed,
            verbose=0,
        )
        return self

    def get_metadata_routing(self) -> MetadataRouter:
        """Which arguments of `fit` go to the classifier, and which to `cv`."""
        router = MetadataRouter(owner=self).add_self_request(self)
        router = router.add(
            estimator=self._classifier(),
            method_mapping=MethodMapping().add(caller="fit", callee="fit"),
        )
        if hasattr(self.cv, "split"):
            mapping = MethodMapping().add(caller="fit", callee="split")
            router = router.add(splitter=self.cv, method_mapping=mapping)
        return router

    def _routed(
        self, weights: np.ndarray | None, fit_params: Mapping[str, Any], is_frozen: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments of the classifier's `fit` and of the splits."""
        given = {} if weights is None else {"sample_weight": weights}
        if sklearn.get_config()["enable_metadata_routing"]:
            if not given and not fit_params:
                return {}, {}
            routed = process_routing(self, "fit", **given, **fit_params)
            splitting = routed.splitter.split if hasattr(self.cv, "split") else {}
            return dict(routed.estimator.fit), dict(splitting)
        params = dict(fit_params)
        groups = params.pop("groups", None)
        if weights is not None and not is_frozen:
            params = _weight_params(self._classifier(), weights) | params
        return params, {} if groups is None else {"groups": groups}

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities (n, K) of the classes, in the order of `classes_`."""
        check_is_fitted(self)
        # First, as the classifier checks the shape of X.
        scores = self._scores(X).astype("float32")
        validate_data(self, X, reset=False, skip_check_array=True)
        served = {SCORE: scores, **dict(self._columns(X))}
        probabilities = self.model_.predict(served, verbose=0).astype(np.float64)
        if probabilities.shape[1] == 1:
            return np.concatenate([1 - probabilities, probabilities], axis=1)
        # To the last digit of float64: scikit-learn's own functions check the sums.
        return probabilities / probabilities.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class of each row."""
        number = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[number]

    def __sklearn_tags__(self) -> Any:
        """How many classes there may be, and what X may hold, is up to the classifier."""
        tags = super().__sklearn_tags__()
        inner_tags = sklearn.utils.get_tags(self._classifier())
        class_tags = inner_tags.classifier_tags
        tags.classifier_tags.multi_class = class_tags is None or class_tags.multi_class
        tags.input_tags = inner_tags.input_tags
        return tags

    def _classifier(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _scores(self, X: Any) -> np.ndarray:
        return self._class_scores(getattr(self.estimator_, self._method)(X))

    def _splits(
        self, X: Any, labels: np.ndarray, params: Mapping[str, Any]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The splits of the cross-validation; raises if rows or classes forbid their use."""
        splits = list(check_cv(self.cv, labels, classifier=True).split(X, labels, **params))
        tested = np.concatenate([np.arange(len(labels))[test] for _, test in splits])
        if len(np.unique(tested)) < len(tested):
            raise ValueError(
                "Argument `cv` must have each row in at most one test set, because each row gets "
                f"one score. Received: {len(tested):,} rows in the test sets of {self.cv!r}, of "
                f"which {len(np.unique(tested)):,} differ. Use KFold, StratifiedKFold, GroupKFold "
                "or TimeSeriesSplit."
            )
        # scikit-learn would give a class that is missing there the probability 0.
        if any(len(np.unique(labels[train])) < len(self.classes_) for train, _ in splits):
            fewest = np.bincount(labels).argmin()
            raise ValueError(
                "Argument `cv` must give splits that train on rows of every class. Received: a "
                f"split without one of the {len(self.classes_)} classes; the rarest, "
                f"{self.classes_[fewest]!r}, has {np.sum(labels == fewest)} rows. Merge rare "
                "classes, use stratified splits, or pass a fitted classifier as FrozenEstimator."
            )
        return splits

    def _held_out_scores(
        self,
        X: Any,
        labels: np.ndarray,
        splits: list[tuple[np.ndarray, np.ndarray]],
        params: Mapping[str, Any],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores of each row by a classifier fitted to other rows, and its fold; -1 for none."""
        fold = np.full(len(labels), -1)
        for number, (_, test) in enumerate(splits):
            fold[test] = number
        untested = np.flatnonzero(fold < 0)
        # scikit-learn wants a score of each row; those of these rows are not used.
        every = [*splits, (splits[0][0], untested)] if len(untested) else splits
        scores = cross_val_predict(
            self._classifier(), X, labels, cv=every, method=self._method, params=dict(params)
        )
        return self._class_scores(scores), fold

    def _class_scores(self, scores: np.ndarray) -> np.ndarray:
        """Scores (n, K), or of two classes those of the second, (n,)."""
        num_classes = len(self.classes_)
        if num_classes == 2:
            return scores[:, 1] if scores.ndim == 2 else scores
        if scores.shape[1:] != (num_classes,):
            raise ValueError(
                f"The classifier must return one score for each of {num_classes} classes. "
                f"Received: scores of shape {scores.shape}. For a support vector classifier, use "
                'decision_function_shape="ovr".'
            )
        return scores

    def _columns(self, X: Any) -> Iterator[tuple[str, np.ndarray]]:
        fields, numeric = _listed(self.fields), _listed(self.numeric)
        for column in dict.fromkeys([*fields, *numeric]):
            values = _column(X, column)
            yield _name(column), _ids(values, column) if column in fields else values


def _weight_params(estimator: Any, weights: np.ndarray) -> dict[str, np.ndarray]:
    """The argument by which `fit` of a classifier, or the last step of a pipeline, gets weights."""
    if isinstance(estimator, Pipeline):
        name, step = estimator.steps[-1]
        return {f"{name}__{key}": each for key, each in _weight_params(step, weights).items()}
    parameters = inspect.signature(estimator.fit).parameters.values()
    takes_any = any(each.kind == each.VAR_KEYWORD for each in parameters)
    if takes_any or has_fit_parameter(estimator, "sample_weight"):
        return {"sample_weight": weights}
    warn(
        f"{type(estimator).__name__} takes no sample weights: they are used for the calibration "
        "alone. Pass sample_weight=None, or a classifier that takes them."
    )
    return {}


def _listed(columns: Any) -> list[Any]:
    """Columns given as a list, or as a single one."""
    return [columns] if isinstance(columns, str | int) else list(columns)


def _column(X: Any, column: str | int) -> np.ndarray:
    """A column of a data frame by its name, of other rows by its number."""
    if is_table(X):
        names = list(X.columns if hasattr(X, "columns") else X.column_names)
        if column not in names:
            alike = suggestion([str(column)], map(str, names))
            raise _no_column(column, f"a data frame with the columns {names}", alike)
        return np.asarray(X[column])
    is_sparse = hasattr(X, "toarray")
    rows: Any = X if is_sparse else np.asarray(X)
    if not isinstance(column, int | np.integer):
        raise _no_column(column, f"rows of type {type(X).__name__}, whose columns have no names")
    if rows.ndim != 2 or not -rows.shape[1] <= column < rows.shape[1]:
        raise _no_column(column, f"rows of shape {rows.shape}")
    return rows[:, [column]].toarray()[:, 0] if is_sparse else rows[:, column]


def _no_column(column: str | int, received: str, alike: str = "") -> ValueError:
    return ValueError(
        f"Argument `X` must have the column {column!r} that `fields` or `numeric` names. "
        f"Received: {received}.{alike} Pass a data frame to `fit` and to `predict_proba` if "
        "columns are named, and arrays if they are numbered."
    )


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
