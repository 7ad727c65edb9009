"""What users would try in place of `calibrate`, for arena.py and calibrate_speed.py.

A method fits on one part and returns a function that maps another part to logits. A part has
`logits`, `labels` and, for a method of columns, `features`, a column by name.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.sparse
from scipy.special import expit, logit
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

# Venn–Abers compares every test row with every development row's isotonic fit.
MOST_VENN_ABERS_ROWS = 10_000
# scikit-learn's histogram boosting takes at most 255 categories; columns with more are ordered ids.
MOST_CATEGORIES = 255
SMALL_TREES = {
    "objective": "binary",
    "num_leaves": 4,
    "learning_rate": 0.05,
    "min_data_in_leaf": 20,
    "lambda_l2": 5.0,
    "num_threads": 1,
    "verbose": -1,
    "seed": 0,
}

Fit = Callable[[Any], Callable[[Any], Any]]


def hashed(columns: Mapping[str, np.ndarray]) -> scipy.sparse.csr_matrix:
    """Hashed one-hot columns."""
    hasher = FeatureHasher(2**14, input_type="string", alternate_sign=False)
    texts = [np.char.add(f"{name}=", ids.astype(str)) for name, ids in columns.items()]
    return hasher.transform(np.stack(texts, axis=1))


def tuned_regression() -> LogisticRegressionCV:
    """Logistic regression whose penalty is chosen by three folds."""
    return LogisticRegressionCV(
        Cs=[0.01, 0.03, 0.1, 0.3, 1.0],
        cv=3,
        scoring="neg_log_loss",
        l1_ratios=(0,),
        use_legacy_attributes=False,
    )


def tree_design(table: Any) -> Callable[[Any], np.ndarray]:
    """A function that maps a part of the table to its ids and numbers, (n, columns)."""
    names = [*table.num_values, *table.numeric]
    return lambda part: np.column_stack([part.features[name] for name in names]).astype(float)


def linear_design(table: Any, fitted: Any) -> Callable[[Any], scipy.sparse.csr_matrix]:
    """The same for hashed ids, and numbers standardised as in `fitted`, flagged where missing."""
    moments = {}
    for name in table.numeric:
        values = fitted.features[name].astype(float)
        present = values[~np.isnan(values)]
        moments[name] = (present.mean(), present.std() or 1.0) if len(present) else (0.0, 1.0)

    def design(part: Any) -> scipy.sparse.csr_matrix:
        blocks = []
        if table.num_values:
            blocks.append(hashed({name: part.features[name] for name in table.num_values}))
        for name, (mean, spread) in moments.items():
            standard = (part.features[name] - mean) / spread
            blocks += [np.nan_to_num(standard)[:, None], np.isnan(standard)[:, None]]
        return scipy.sparse.hstack(blocks).tocsr()

    return design


def not_installed(package: str) -> Fit:
    def fit(part: Any) -> Any:
        raise ImportError(f"{package} is not installed")

    return fit


def regression(design: Callable[[np.ndarray], np.ndarray], has_bias: bool = True) -> Fit:
    def fit(part: Any) -> Callable[[Any], Any]:
        model = LogisticRegression(C=np.inf, fit_intercept=has_bias, max_iter=1000)
        model.fit(design(part.logits), part.labels)
        return lambda test: model.decision_function(design(test.logits))

    return fit


def venn_abers(part: Any) -> Callable[[Any], Any]:
    from venn_abers import VennAbers

    if len(part.labels) > MOST_VENN_ABERS_ROWS:
        raise ValueError(f"Not run on more than {MOST_VENN_ABERS_ROWS:,} rows.")

    def pairs(logits: np.ndarray) -> np.ndarray:
        return np.stack([expit(-logits), expit(logits)], axis=1)

    model = VennAbers().fit(pairs(part.logits), part.labels.astype(int))
    return lambda test: logit(model.predict_proba(pairs(test.logits))[0][:, 1])


def boosted_logit(part: Any) -> Callable[[Any], Any]:
    """Small trees from the logit, their number chosen by folds."""
    import lightgbm

    rows = lightgbm.Dataset(part.logits[:, None], part.labels, init_score=part.logits)
    stopping = lightgbm.early_stopping(30, verbose=False)
    curve = lightgbm.cv(SMALL_TREES, rows, 500, nfold=5, seed=0, callbacks=[stopping])
    losses = np.asarray(curve["valid binary_logloss-mean"])
    raw = np.logaddexp(0, part.logits) - part.labels * part.logits
    if losses.min() >= raw.mean():
        return lambda test: test.logits
    whole = lightgbm.Dataset(part.logits[:, None], part.labels, init_score=part.logits)
    trees = lightgbm.train(SMALL_TREES, whole, int(np.argmin(losses)) + 1)
    return lambda test: test.logits + trees.predict(test.logits[:, None], raw_score=True)


def hashed_regression(table: Any) -> Fit:
    def fit(part: Any) -> Callable[[Any], Any]:
        columns = linear_design(table, part)

        def design(rows: Any) -> scipy.sparse.csr_matrix:
            return scipy.sparse.hstack([rows.logits[:, None], columns(rows)]).tocsr()

        model = tuned_regression().fit(design(part), part.labels)
        return lambda test: model.decision_function(design(test))

    return fit


def boosting(table: Any) -> Fit:
    columns = tree_design(table)
    is_category = [size <= MOST_CATEGORIES for size in table.num_values.values()]
    is_category = [False, *is_category, *(False for _ in table.numeric)]

    def design(part: Any) -> np.ndarray:
        return np.column_stack([part.logits, columns(part)])

    def fit(part: Any) -> Callable[[Any], Any]:
        model = HistGradientBoostingClassifier(
            categorical_features=is_category, early_stopping=True, random_state=0
        )
        model.fit(design(part), part.labels)
        return lambda test: model.decision_function(design(test))

    return fit
