"""Designs of rivals that see columns, shared by arena.py and calibrate_speed.py."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import LogisticRegressionCV


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
        known = values[~np.isnan(values)]
        moments[name] = (known.mean(), known.std() or 1.0) if len(known) else (0.0, 1.0)

    def design(part: Any) -> scipy.sparse.csr_matrix:
        blocks = []
        if table.num_values:
            blocks.append(hashed({name: part.features[name] for name in table.num_values}))
        for name, (mean, spread) in moments.items():
            standard = (part.features[name] - mean) / spread
            blocks += [np.nan_to_num(standard)[:, None], np.isnan(standard)[:, None]]
        return scipy.sparse.hstack(blocks).tocsr()

    return design
