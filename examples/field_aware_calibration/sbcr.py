"""SBCR: a monotone piecewise-linear map whose increments a network chooses from the context.

Zhang et al., *A Self-boosted Framework for Calibrated Ranking*, KDD 2024 (arXiv 2406.08010). This
is the paper's calibration module alone, trained after the base model; its self-boosted ranking loss
needs lists of candidates for a query, which tables do not have. Only the abstract and summaries of
the paper were available to us; the map and the constants below are those of the public code of a
later paper, baiyimeng/UMC, which compares with SBCR.
"""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops
from umc import dense


class SBCR(keras.layers.Layer):
    """The calibration module: p = Σ over bins of increment · part of the bin below σ(logit).

    The bins divide [0, 1] in equal parts. The increments are a softmax, hence positive, and sum to
    1: the map is monotone, and takes 0 to 0 and 1 to 1. Both log p and log(1 − p) are sums in log
    space, so that no probability has to be clipped (the public code clips to [1e-4, 1 − 1e-4]);
    logits must be within ±87.

    The paper's context is the query. Rows of a table have none: as in the public code, the context
    is all columns.

    Args:
        hidden_units: Units of the ReLU layers of the network.
        num_bins: Number of bins.

    Call arguments:
        logits: Shape (batch, 1).
        context: Shape (batch, dim).
    """

    def __init__(self, hidden_units: Sequence[int] = (256, 128, 128), num_bins: int = 100) -> None:
        """Creates the layers."""
        super().__init__()
        self.num_bins = num_bins
        self.network = keras.Sequential(
            [*(dense(units, "relu") for units in hidden_units), dense(num_bins)]
        )

    def build(self, logits_shape: Sequence[int], context_shape: Sequence[int]) -> None:
        """Creates the weights."""
        self.network.build(context_shape)

    def call(self, logits: keras.KerasTensor, context: keras.KerasTensor) -> keras.KerasTensor:
        """Returns calibrated logits, shape (batch, 1)."""
        log_increments = ops.log_softmax(self.network(context))
        first = np.arange(self.num_bins, dtype="float32")
        below = ops.clip(self.num_bins * ops.sigmoid(logits) - first, 0, 1)
        # From σ(−logit), because 1 − σ(logit) would be rounded to 0.
        above = ops.clip(self.num_bins * ops.sigmoid(-logits) - first[::-1], 0, 1)
        log_p, log_not_p = (
            ops.logsumexp(log_increments + ops.log(part), axis=1, keepdims=True)
            for part in (below, above)
        )
        return log_p - log_not_p
