"""The pipelines of the study of clicks, and what the papers report on them."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from click_models import ARCHITECTURES
from pairs import Pair

L2_WEIGHTS = (3e-7, 5e-7, 7e-7, 1e-6, 2e-6)
# A penalty, however small, makes the gradients of the embeddings dense, and Adam then also updates
# rows that are not in the batch. So the pipeline without a penalty has a negligible one.
NO_L2 = 1e-12
# Accuracy by the log loss → by the calibrated log loss, in percent.
PUBLISHED_ARCHITECTURES = {
    ("dcn", "dcn_mix"): "64.4 → 71.5",
    ("deepfm", "dcn"): "77.2 → 83.9",
    ("deepfm", "fnn"): "76.9 → 79.9",
    ("fnn", "dcn_mix"): "61.5 → 72.0",
    ("deepfm", "dcn_mix"): "84.8 → 93.4",
}
# Table 6, on Avazu, and table 19, on Criteo, which has four weights: in the order of the weights.
PUBLISHED_L2 = (
    "63.2 → 69.3",
    "82.2 → 88.2, 78.1 → 84.4",
    "86.6 → 92.4, 82.3 → 90.0",
    "95.2 → 98.8, 90.0 → 96.4",
    "98.8 → 100.0, 91.0 → 98.1",
)


class Losses(NamedTuple):
    """Mean and standard deviation over the seeds of both losses."""

    plain_mean: float
    calibrated_mean: float
    plain_std: float
    calibrated_std: float


# Tables 2, 4, 12 and 13 of arXiv 2401.16692, on Avazu. The base and the penalty of 1e-6 are in
# tables 12 and 13.
PUBLISHED_LOSSES = {
    "without_dense": Losses(0.37408, 0.37403, 0.00047, 0.00038),
    "without_sparse": Losses(0.37404, 0.37398, 0.00050, 0.00042),
    "dcn": Losses(0.38021, 0.38011, 0.00044, 0.00033),
    "deepfm": Losses(0.37971, 0.37960, 0.00059, 0.00037),
    "fnn": Losses(0.38029, 0.38006, 0.00064, 0.00040),
    "dcn_mix": Losses(0.38046, 0.38037, 0.00048, 0.00034),
    "xdeepfm": Losses(0.37347, 0.37338, 0.00058, 0.00038),
    "smaller": Losses(0.37383, 0.37374, 0.00048, 0.00039),
    "normalized": Losses(0.37286, 0.37268, 0.00078, 0.00044),
    "dropout_0.7": Losses(0.37454, 0.37456, 0.00039, 0.00036),
}
# The same by the paper's weight of the penalty; 0 is the base.
PUBLISHED_L2_LOSSES = (
    Losses(0.37371, 0.37369, 0.00048, 0.00043),
    Losses(0.37419, 0.37411, 0.00059, 0.00050),
    Losses(0.37428, 0.37421, 0.00057, 0.00044),
    Losses(0.37475, 0.37459, 0.00061, 0.00042),
    Losses(0.37562, 0.37547, 0.00059, 0.00042),
)


def published_losses(l2_scale: float) -> dict[str, Losses]:
    """The papers' means and standard deviations, by our name of the pipeline."""
    with_penalty = zip(L2_WEIGHTS, PUBLISHED_L2_LOSSES, strict=True)
    return PUBLISHED_LOSSES | {l2_name(weight, l2_scale): losses for weight, losses in with_penalty}


def l2_name(weight: float, l2_scale: float) -> str:
    """The name of the pipeline with one of the papers' weights, scaled."""
    return f"l2_{float(f'{weight * l2_scale:.3g}'):g}"


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A click model and how it is trained.

    Args:
        architecture: One of `click_models.ARCHITECTURES`.
        embedding_dim: Embedding size of every column.
        hidden_units: Units of the layers of the perceptron.
        dropout: Dropout rate after each hidden layer.
        batch_normalization: Whether hidden layers are batch-normalised.
        l2: Weight of the sum of squares of embeddings and kernels.
        batch_size: Rows of a batch.
        learning_rate: Learning rate of Adam.
        without: Columns that the model does not get: `None`, `"dense"` or `"sparse"`.
    """

    architecture: str = "xdeepfm"
    embedding_dim: int = 8
    hidden_units: tuple[int, ...] = (64, 32)
    dropout: float = 0.0
    batch_normalization: bool = False
    l2: float = 0.0
    batch_size: int = 1024
    learning_rate: float = 1e-3
    without: str | None = None


class Study(NamedTuple):
    """The pipelines by name, and the pairs with what the papers report on them.

    Args:
        pipelines: Name → pipeline.
        published: Pair → published accuracies, an empty string for pairs that the papers lack.
    """

    pipelines: dict[str, Pipeline]
    published: dict[Pair, str]

    def with_kinds(self, kinds: Sequence[str] | None) -> "Study":
        """The pairs of some kinds, and their pipelines."""
        names = list(dict.fromkeys(pair.kind for pair in self.published))
        if unknown := set(kinds or ()) - set(names):
            raise SystemExit(f"No kinds of pairs {sorted(unknown)}: expected some of {names}.")
        published = {p: text for p, text in self.published.items() if p.kind in (kinds or names)}
        used = {name for pair in published for name in (pair.first, pair.second)}
        return Study({n: p for n, p in self.pipelines.items() if n in used}, published)


def make_study(base: Pipeline, l2_scale: float = 1.0) -> Study:
    """The variants of all tables of both versions of the paper.

    Args:
        base: The pipeline that is varied. DLRM has two hidden layers, with half and all of the
            units of the first layer of `base`, as in the papers' 128-256-1.
        l2_scale: Factor of the papers' L2 weights.
    """
    replace = dataclasses.replace
    pipelines = {name: replace(base, architecture=name) for name in ARCHITECTURES}
    # The first pipeline of a pair that the papers have is the one that is better there.
    published = {
        Pair("architecture", *((b, a) if (b, a) in PUBLISHED_ARCHITECTURES else (a, b))): ""
        for a, b in itertools.combinations(ARCHITECTURES, 2)
    }
    published |= {Pair("architecture", *ab): text for ab, text in PUBLISHED_ARCHITECTURES.items()}

    def add(kind: str, name: str, text: str, **changes: Any) -> None:
        """Adds a pair of xDeepFM and a variant of it."""
        pipelines[name] = replace(pipelines["xdeepfm"], **changes)
        published[Pair(kind, "xdeepfm", name)] = text

    add("features", "without_dense", "81.8 → 88.8, 96.7 → 100.0", without="dense")
    add("features", "without_sparse", "78.6 → 85.9, 87.6 → 95.7", without="sparse")
    smaller = tuple(units // 2 for units in base.hidden_units)
    add("size", "smaller", "69.6 → 73.6, 80.1 → 86.1", hidden_units=smaller)
    pipelines["normalized"] = replace(pipelines["xdeepfm"], batch_normalization=True)
    published[Pair("batch_normalization", "normalized", "xdeepfm")] = "80.2 → 89.7"
    add("dropout", "dropout_0.7", "95.0 → 99.3", dropout=0.7)
    add("dropout", "dropout_0.1", "78.3 → illegible", dropout=0.1)
    pipelines["no_l2"] = replace(pipelines["xdeepfm"], l2=NO_L2)
    for weight, text in zip(L2_WEIGHTS, PUBLISHED_L2, strict=True):
        scaled = float(f"{weight * l2_scale:.3g}")
        name = l2_name(weight, l2_scale)
        pipelines[name] = replace(pipelines["xdeepfm"], l2=scaled)
        published[Pair("l2", "no_l2", name)] = text
    return Study(pipelines, published | _dlrm_pairs(base, pipelines))


def _dlrm_pairs(base: Pipeline, pipelines: dict[str, Pipeline]) -> dict[Pair, str]:
    """Adds the variants of DLRM to `pipelines`, and returns their pairs."""
    width, size = base.hidden_units[0], base.embedding_dim
    dlrm = dataclasses.replace(base, architecture="dlrm", hidden_units=(width // 2, width))

    def add(name: str, **changes: Any) -> str:
        pipelines[name] = dataclasses.replace(dlrm, **changes)
        return name

    # 14, 16 and 18 in the paper.
    step = max(1, size // 8)
    sizes = (size - step, size, size + step)
    embeddings = [add(f"dlrm_embedding_{n}", embedding_dim=n) for n in sizes]
    published = {
        Pair("embedding", embeddings[0], embeddings[1]): "55.4 → 60.3",
        Pair("embedding", embeddings[0], embeddings[2]): "61.9 → 70.4",
        Pair("embedding", embeddings[1], embeddings[2]): "61.8 → 65.8",
    }
    # 128, 256 and 512 in the paper.
    small, *larger = (
        add(f"dlrm_batch_{n}", batch_size=n) for n in (base.batch_size // k for k in (8, 4, 2))
    )
    for batch, text in zip(larger, ("84.5 → 88.0", "89.0 → 95.5"), strict=True):
        published[Pair("batch", batch, small)] = text
    # 128, 256, 512 and 1024 in the paper, before a second layer of 256.
    narrow, *wider = (
        add(f"dlrm_{n}_{width}", hidden_units=(n, width))
        for n in (width * k // 2 for k in (1, 2, 4, 8))
    )
    for wide, text in zip(wider, ("57.4 → 60.2", "60.5 → 63.4", "58.6 → 61.4"), strict=True):
        published[Pair("width", narrow, wide)] = text
    return published
