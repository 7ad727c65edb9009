"""Boosted trees by LightGBM: rounds by folds, and the trees as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import special

from keras_calibration._ops.boosted_trees import LARGEST, NUM_CODES, NUM_SPLITS
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.logistic_fit import row_log_losses
from keras_calibration._solvers.repeated_rows import clusters_of
from keras_calibration._solvers.standard_errors import mean_and_error
from keras_calibration._solvers.total_bias import bias_of_total

_MIN_ROWS_OF_LEAF = 20
_PARAMETERS = {
    "objective": "cross_entropy",
    "learning_rate": 0.1,
    "num_leaves": NUM_SPLITS + 1,
    "min_data_in_leaf": _MIN_ROWS_OF_LEAF,
    "lambda_l2": 5.0,
    "feature_fraction": 0.7,
    "deterministic": True,
    "force_col_wise": True,
    "verbose": -1,
}
# A fold ends after so many rounds without improvement: before its first improvement, and later.
_FIRST_PATIENCE, _PATIENCE = 10, 30
# With fewer values per round, threads wait for each other longer than they save.
_VALUES_OF_THREADS = 1 << 21
_NUM_STEPS = 50  # each of at most a unit of the logit
_LIKE_ZERO = np.float32(1e-35)


@dataclass(frozen=True)
class Boosting:
    """The result of `boost`; without arguments, no trees, and nothing tried.

    Args:
        model: LightGBM's model, fitted to all rows; None if trees do not help.
        num_rounds: Its number of rounds; 0 if trees do not help.
        logits: Cross-fitted logits with trees (n,); the given logits if trees do not help.
        bias: What to add to the model's sums, so that the predicted total is the observed one.
        log_loss_without: Cross-fitted log loss of the given logits, in nats per row.
        log_loss_with: Cross-fitted log loss with the trees.
        standard_error: Standard error of the difference.
    """

    model: Any = None
    num_rounds: int = 0
    logits: np.ndarray = field(default_factory=lambda: np.empty(0))
    bias: float = 0.0
    log_loss_without: float = float("nan")
    log_loss_with: float = float("nan")
    standard_error: float = float("nan")


def load_lightgbm() -> Any:
    """The module `lightgbm`; raises an `ImportError` that says what to do if it cannot be loaded.

    LightGBM's library needs the library of OpenMP, which a bare machine may lack.
    """
    try:
        import lightgbm
    except (ImportError, OSError) as error:
        raise ImportError(
            f"LightGBM, which fits boosted trees, cannot be loaded: {error}. Install lightgbm and "
            "the library of OpenMP: libgomp1 on Debian and Ubuntu, libomp on macOS."
        ) from error
    return lightgbm


def boost(
    rows: Rows,
    columns: np.ndarray,
    parts: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    largest_num_rounds: int,
    seed: int | None = 0,
    clusters: np.ndarray | None = None,
    training: Callable[[int], tuple[np.ndarray, np.ndarray]] | None = None,
) -> Boosting:
    """Fits trees on top of given logits, with the number of rounds that is best on held-out rows.

    For each part, trees are fitted to some rows and scored on others after every round. The number
    of rounds that a part is scored with is the best one for the other parts: it has their lowest
    mean log loss, or is 0 unless this is lower than without trees by more than a standard error.
    Then trees are fitted to the rows that the parts score, with the mean of these numbers.

    With clusters, such as blocks of time, the fit first corrects the logits by the bias of each
    cluster (`biases_of`). Otherwise the trees would learn how the level moved from one block to the
    next, and extrapolate it.

    Args:
        rows: Cross-fitted logits (n,), on which trees are fitted; labels and weights. LightGBM
            counts the rows of a leaf, not their weights, so a row with a count of 2 must be passed
            as two rows (`rows_apart`).
        columns: What the trees see, (n, C), float32; NaN is missing.
        parts: For each part, the numbers of the rows to fit and of the rows to score.
        largest_num_rounds: Largest number of rounds.
        seed: Seed of the draw of columns that each tree may use.
        clusters: The cluster of each row (n,); rows of one cluster are dependent.
        training: A function from the number of a part to the logits (n,) and columns (n, C) on
            which its trees are fitted, computed without the labels of the rows that it scores. None
            if `rows` and `columns` are such already. As these take long, they are computed only if
            trees
            help on `columns`; the trees are then fitted again.
    """
    all_parts = list(range(len(parts)))
    # First try the cheap columns, which are biased in favour of trees, as they may know
    # labels of held-out rows. Only if trees help there, fit on the unbiased ones.
    for training_of in filter(None, [lambda _: (rows.logits, columns), training]):
        trees = _Trees(rows, columns, [scored for _, scored in parts], clusters, seed)
        for number, (fitted, _) in enumerate(parts):
            trees.fit_part(number, fitted, *training_of(number), largest_num_rounds)
        # The other parts choose the rounds of a part, as its own losses would flatter their
        # minimum: cross-validation within cross-validation (nested).
        rounds = [
            trees.best_rounds([other for other in all_parts if other != part] or all_parts)
            for part in all_parts
        ]
        num_rounds = round(float(np.average(rounds, weights=trees.shares)))
        if not num_rounds:
            # No tree is kept, but the report shows how far the best number of rounds was from
            # helping.
            rounds = [trees.lowest(all_parts)] * len(parts)
            break
    logits, bias = trees.logits(all_parts, rounds), 0.0
    if num_rounds and clusters is None:  # the next block has another total than past blocks
        logits, bias = trees.with_total(logits)
    without, change, error = trees.change(all_parts, logits)
    return Boosting(
        # The scored trees saw a part of the rows each; the model to keep is fitted to all of them.
        model=trees.fit_all(num_rounds) if num_rounds else None,
        num_rounds=num_rounds,
        logits=logits if num_rounds else rows.logits,
        bias=bias,
        log_loss_without=without,
        log_loss_with=without + change,
        standard_error=error,
    )


def biases_of(rows: Rows, clusters: np.ndarray) -> np.ndarray:
    """The bias of each row's cluster (n,), which gives the cluster the mean of its labels.

    The biases have a normal prior of variance 1, as the labels of a cluster may all be equal.

    Example:
        >>> rows = Rows(np.zeros(300), (np.arange(300) % 4 == 0).astype(float), None)
        >>> biases_of(rows, np.zeros(300, int))[:2].round(1)
        array([-1.1, -1.1])
    """
    _, cluster = np.unique(clusters, return_inverse=True)
    biases = np.zeros(int(cluster.max()) + 1)
    # Newton's method for all clusters at once: no two clusters share a parameter, so the Hessian of
    # the penalised log loss is diagonal. Clipping keeps a step out of saturated probabilities.
    for _ in range(_NUM_STEPS):
        means = special.expit(rows.logits + biases[cluster])
        gradient = np.bincount(cluster, rows.row_weights * (rows.labels - means)) - biases
        step = gradient / (1 + np.bincount(cluster, rows.row_weights * means * (1 - means)))
        biases += np.clip(step, -1.0, 1.0)
    return biases[cluster]


@dataclass(eq=False)
class _Trees:
    """LightGBM fits to parts of the rows, and their log losses on the held-out rows by round.

    Args:
        rows: Logits without trees, labels and weights.
        columns: What the trees see.
        parts: Numbers of the rows that each part scores.
        clusters: The cluster of each row (n,); rows of one cluster are dependent.
        seed: Seed of the draw of columns that each tree may use.
    """

    rows: Rows
    columns: np.ndarray
    parts: Sequence[np.ndarray]
    clusters: np.ndarray | None
    seed: int | None

    def __post_init__(self) -> None:
        self.lightgbm = load_lightgbm()
        self.shares = np.array([self.rows.row_weights[part].sum() for part in self.parts])
        self.scored = np.concatenate(self.parts)
        num_threads = 0 if self.columns.size > _VALUES_OF_THREADS else 1
        self.parameters = {**_PARAMETERS, "seed": self.seed or 0, "num_threads": num_threads}
        # For each part, the held-out log loss after 0, 1, 2 … rounds, and the model.
        self.curves: list[np.ndarray] = []
        self.models: list[Any] = []

    def fit_part(
        self, part: int, fitted: np.ndarray, logits: np.ndarray, columns: np.ndarray, limit: int
    ) -> None:
        """Fits at most `limit` rounds for a part, on top of logits (n,), to columns (n, C)."""
        held_out, weights = self.parts[part], self.rows.row_weights
        # The curve starts with the loss of no trees, so that 0 rounds can be the best.
        losses = row_log_losses(self.rows.labels[held_out], self.rows.logits[held_out])
        curve, model = [np.average(losses, weights=weights[held_out])], None
        # With fewer rows, no split leaves enough of them on both sides.
        if len(fitted) >= 2 * _MIN_ROWS_OF_LEAF:
            # LightGBM's own early stopping compares rounds with each other, but not with no trees.
            def end_early(state: Any) -> None:
                curve.append(state.evaluation_result_list[0][2])
                best = int(np.argmin(curve))
                if state.iteration + 1 - best >= (_PATIENCE if best else _FIRST_PATIENCE):
                    raise self.lightgbm.callback.EarlyStopException(best, [])

            train = self._build_dataset(fitted, self._correct_logits(logits), columns)
            # Held-out rows keep their plain logits: at prediction time, nobody knows a cluster's
            # bias.
            valid = [self._build_dataset(held_out, self.rows.logits, self.columns, train)]
            model = self.lightgbm.train(
                self.parameters, train, limit, valid_sets=valid, callbacks=[end_early]
            )
        self.curves.append(np.array(curve))
        self.models.append(model)

    def fit_all(self, num_rounds: int) -> Any:
        """The model of all scored rows after a number of rounds."""
        data = self._build_dataset(
            self.scored, self._correct_logits(self.rows.logits), self.columns
        )
        return self.lightgbm.train(self.parameters, data, num_rounds)

    def lowest(self, parts: Sequence[int]) -> int:
        """The number of rounds with the lowest mean log loss of some parts."""
        length = max(map(len, self.curves))
        # A part that stopped early would only have become worse.
        padded = [np.pad(curve, (0, length - len(curve)), mode="edge") for curve in self.curves]
        return int(np.argmin(self.shares[parts] @ np.stack(padded)[parts]))

    def best_rounds(self, parts: Sequence[int]) -> int:
        """`lowest`, or 0 unless it beats no trees by more than a standard error."""
        rounds = self.lowest(parts)
        _, change, error = self.change(parts, self.logits(parts, [rounds] * len(self.parts)))
        return rounds if change < -error else 0

    def with_total(self, logits: np.ndarray) -> tuple[np.ndarray, float]:
        """Logits (n,), moved in place by the bias that gives them the observed total; the bias."""
        # A part without a model keeps its logits, so it has no say in the bias of the trees.
        scored = np.concatenate(
            [part for part, model in zip(self.parts, self.models, strict=True) if model is not None]
        )
        bias = float(bias_of_total(logits[scored], self.rows.take(scored))[0])
        logits[scored] += bias
        return logits, bias

    def change(self, parts: Sequence[int], logits: np.ndarray) -> tuple[float, float, float]:
        """The log loss of some parts without trees, its change by logits (n,), and its error."""
        scored = np.concatenate([self.parts[part] for part in parts])
        rows = self.rows.take(scored)
        before = row_log_losses(rows.labels, rows.logits)
        change = row_log_losses(rows.labels, logits[scored]) - before
        without = float(np.average(before, weights=rows.row_weights))
        blocks = None if self.clusters is None else self.clusters[scored]
        return without, *mean_and_error(change, rows.row_weights, blocks, clusters_of(rows))

    def logits(self, parts: Sequence[int], rounds: Sequence[int]) -> np.ndarray:
        """The logits (n,), with the trees of some parts; `rounds` has the number of each part."""
        logits = self.rows.logits.copy()
        for part in parts:
            scored = self.parts[part]
            if rounds[part] and self.models[part] is not None:
                logits[scored] += self.models[part].predict(
                    self.columns[scored], raw_score=True, num_iteration=rounds[part]
                )
        return logits

    def _correct_logits(self, logits: np.ndarray) -> np.ndarray:
        """The logits (n,) below the trees, corrected by the bias of each cluster."""
        if self.clusters is None:
            return logits
        scored_rows = replace(self.rows, logits=logits).take(self.scored)
        starts = logits.copy()
        starts[self.scored] += biases_of(scored_rows, self.clusters[self.scored])
        return starts

    def _build_dataset(
        self, numbers: np.ndarray, logits: np.ndarray, columns: np.ndarray, reference: Any = None
    ) -> Any:
        return self.lightgbm.Dataset(
            columns[numbers],
            self.rows.labels[numbers],
            weight=self.rows.row_weights[numbers],
            init_score=logits[numbers],
            reference=reference,
            params=self.parameters,
        )


def tables_of(
    model: Any, num_trees: int, bias: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The trees of a model in the form of `_ops.boosted_trees.tree_sums`, and a bias.

    The tables agree with `model.predict`, plus the bias, for every float32 value. A row goes left
    at a node if `x <= t`, in float64. A missing value goes to the side that LightGBM has learnt. If
    LightGBM saw no missing values at a split, they go to the side of 0.

    Args:
        model: LightGBM's model, or None for no trees.
        num_trees: Number of trees in the tables; those beyond the model's are 0.
        bias: What is added to the sums: to all leaves of the first tree.

    Returns:
        Splits (7, T), int32, thresholds (7, T) and leaves (T, 128), float32.
    """
    splits = np.zeros((NUM_SPLITS, num_trees), "int32")
    # The bit of a split that a small tree lacks says nothing: `fill` writes a leaf for both values.
    thresholds = np.zeros((NUM_SPLITS, num_trees), "float32")
    leaves = np.zeros((num_trees, NUM_CODES), "float32")
    codes = np.arange(NUM_CODES)

    def fill(tree: int, node: dict[str, Any], reached: np.ndarray) -> None:
        # `reached` marks the codes with which a row arrives at this node: QuickScorer's bit
        # vectors.
        if "split_index" not in node:
            leaves[tree, reached] = node["leaf_value"]
            return
        names = ("split_index", "split_feature", "threshold")
        place, column, threshold = (node[name] for name in names)
        right = (codes >> place & 1).astype(bool)
        # The tables compare in float32, LightGBM in float64; the same rows have to go left.
        rounded, is_above = _round_down_to_float32(threshold), threshold > 0
        are_missing_left = node["default_left"] if node["missing_type"] == "NaN" else threshold >= 0
        # A split without missing values in training reads them as 0, which goes left if 0 <= t.
        if abs(threshold) > LARGEST:  # all numbers are on one side
            column = column + 2 * model.num_feature()
            right = right ^ is_above
            rounded = np.float32(0.5 if are_missing_left != is_above else -1)
        elif not are_missing_left:
            # Missing values go right. A comparison with NaN is false, so that a true one has to
            # mean left: -x > -t', where t' is the next number above t.
            column, right = column + model.num_feature(), ~right
            rounded = -_find_next_float32(rounded, np.inf)
        splits[place, tree], thresholds[place, tree] = column, rounded
        fill(tree, node["left_child"], reached & ~right)
        fill(tree, node["right_child"], reached & right)

    for tree, info in enumerate([] if model is None else model.dump_model()["tree_info"]):
        fill(tree, info["tree_structure"], np.ones(NUM_CODES, bool))
    leaves[0] += bias
    return splits, thresholds, leaves


def _round_down_to_float32(threshold: float) -> np.float32:
    """The largest float32 t with `x <= t` for the same float32 values x as `x <= threshold`."""
    if abs(threshold) <= float(_LIKE_ZERO):
        # LightGBM reads values of at most this magnitude as 0: all of them are on one side.
        return _LIKE_ZERO if threshold >= 0 else _find_next_float32(-_LIKE_ZERO, -np.inf)
    nearest = np.float32(np.clip(threshold, -LARGEST, LARGEST))
    # Rounding to the nearest float32 may end above the threshold; then the next one below is it.
    return nearest if float(nearest) <= threshold else _find_next_float32(nearest, -np.inf)


def _find_next_float32(value: np.float32, towards: float) -> np.float32:
    with np.errstate(over="ignore"):
        return np.nextafter(value, np.float32(towards))
