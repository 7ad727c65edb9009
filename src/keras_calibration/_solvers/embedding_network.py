"""The network of `FieldNetwork` and its training, in NumPy.

A step of so small a network takes TensorFlow or JAX several times as long as its arithmetic, and
tracing and compiling it takes longer than many of the fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from scipy import special

# Adam, as in Keras.
_FIRST_DECAY, _SECOND_DECAY, _EPSILON = 0.9, 0.999, 1e-7


@dataclass(frozen=True)
class NumericEncoding:
    """Where each value lies between knots: hats of the fine knots, ramps of the coarse ones.

    Args:
        left: Numbers of the knots at or below the values, (n, columns, 2), fine and coarse.
        right: Numbers of the next greater knots.
        share: How far the values are from left to right, in [0, 1].
        present: 1, or 0 where a value is missing, (n, columns).
        sizes: Numbers of fine and of coarse knots of a column.
    """

    left: np.ndarray
    right: np.ndarray
    share: np.ndarray
    present: np.ndarray
    sizes: tuple[int, int]

    def rows(self, batch: np.ndarray) -> np.ndarray:
        """The encoding of some rows, (batch, columns · width): hats, missing and ramps of each."""
        if not self.left.shape[1]:
            return np.zeros((len(batch), 0), self.share.dtype)
        left, right, share = self.left[batch], self.right[batch], self.share[batch]
        present = self.present[batch]
        num_fine, num_coarse = self.sizes
        encoded = np.zeros((*present.shape, num_fine + 1 + num_coarse), share.dtype)
        row, column = np.ogrid[: present.shape[0], : present.shape[1]]
        encoded[row, column, left[..., 0]] = present * (1 - share[..., 0])
        encoded[row, column, right[..., 0]] += present * share[..., 0]
        encoded[..., num_fine] = 1 - present
        knot = np.arange(num_coarse)
        coarse = [each[..., 1:] for each in (left, right, share)]
        ramps = np.where(knot <= coarse[0], 1, np.where(knot <= coarse[1], coarse[2], 0))
        encoded[..., num_fine + 1 :] = present[..., None] * ramps
        return encoded.reshape(len(batch), -1)


def numeric_encoding(
    values: np.ndarray, fine_knots: np.ndarray, coarse_knots: np.ndarray
) -> NumericEncoding:
    """The encoding of values (n, columns), for knots (columns, K) and (columns, C); C may be 0."""
    shape = (*values.shape, 2)
    left, right = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    share = np.zeros(shape, values.dtype)
    for kind, knots in enumerate((fine_knots, coarse_knots)):
        for number in range(values.shape[1] if knots.shape[1] else 0):
            place = np.s_[:, number, kind]
            left[place], right[place], share[place] = _located(values[:, number], knots[number])
    present = (~np.isnan(values)).astype(values.dtype)
    return NumericEncoding(
        left, right, share, present, (fine_knots.shape[1], coarse_knots.shape[1])
    )


class EmbeddingNetwork:
    """Embeddings and numeric encodings, ReLU layers, linear outputs; trained by Adam.

    Minimizes `Σ w log loss(y, curve + g) / batch + λ/2 Σ θ²` over the embeddings and the hidden
    kernels, with dropout of hidden units, and averages the parameters over the steps.

    Args:
        embeddings: Table of all fields, (rows, dim).
        kernels: Kernels of the hidden layers and of the output.
        biases: Their biases.
        dropout: Share of hidden units dropped in training.
        decay: λ.
        learning_rate: Learning rate of Adam.
        momentum: Momentum of the average.
        generator: Draws what is dropped.
    """

    def __init__(
        self,
        embeddings: np.ndarray,
        kernels: Sequence[np.ndarray],
        biases: Sequence[np.ndarray],
        *,
        dropout: float,
        decay: float,
        learning_rate: float,
        momentum: float,
        generator: np.random.Generator,
    ) -> None:
        # In one vector, so that a step of Adam is a few operations; those under the prior first.
        arrays = [embeddings, *kernels, *biases]
        self._theta = np.concatenate([each.ravel() for each in arrays])
        self._num_under_prior = sum(each.size for each in [embeddings, *kernels[:-1]])
        vectors = np.zeros((4, *self._theta.shape), self._theta.dtype)
        self._gradient, self._first, self._second, self._average = vectors
        shapes = [each.shape for each in arrays]
        self._layers = _layers(self._theta, shapes)
        self._gradients = _layers(self._gradient, shapes)
        self._num_steps = 0
        self._dropout, self._decay = dropout, decay
        self._learning_rate, self._momentum = learning_rate, momentum
        self._generator = generator

    @property
    def parameters(self) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
        """Embeddings, kernels and biases: views that change with the next step."""
        return self._layers

    def use_average(self) -> None:
        """Sets the parameters to their average over the steps."""
        self._theta[:] = self._average

    def outputs(self, ids: np.ndarray, encoded: np.ndarray) -> np.ndarray:
        """The network, for table rows (batch, fields) and numeric encodings (batch, width)."""
        embeddings, kernels, biases = self._layers
        hidden = _inputs(embeddings, ids, encoded)
        for kernel, bias in zip(kernels[:-1], biases[:-1], strict=True):
            hidden = np.maximum(hidden @ kernel + bias, 0)
        return hidden @ kernels[-1] + biases[-1]

    def step(
        self,
        ids: np.ndarray,
        encoded: np.ndarray,
        curve: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray,
    ) -> None:
        """One step of Adam on a batch of rows: curve and labels (batch, outputs), weights."""
        embeddings, kernels, biases = self._layers
        embedding_gradient, kernel_gradients, bias_gradients = self._gradients
        activations = [_inputs(embeddings, ids, encoded)]
        for kernel, bias in zip(kernels[:-1], biases[:-1], strict=True):
            hidden = np.maximum(activations[-1] @ kernel + bias, 0)
            if self._dropout:
                kept = self._generator.random(hidden.shape, np.float32) >= self._dropout
                hidden *= kept / hidden.dtype.type(1 - self._dropout)
            activations.append(hidden)
        logits = curve + activations[-1] @ kernels[-1] + biases[-1]
        is_binary = logits.shape[1] == 1
        probabilities = special.expit(logits) if is_binary else special.softmax(logits, axis=1)
        error = (probabilities - labels) * (weights / len(weights))[:, None]
        for number in reversed(range(len(kernels))):
            np.matmul(activations[number].T, error, out=kernel_gradients[number])
            error.sum(axis=0, out=bias_gradients[number])
            if number:
                # A unit that is dropped or below 0 is 0, and passes on nothing.
                passed = (activations[number] > 0) / error.dtype.type(1 - self._dropout)
                error = (error @ kernels[number].T) * passed
        embedded = ids.shape[1] * embeddings.shape[1]
        _add_up(error @ kernels[0][:embedded].T, ids, embedding_gradient)
        penalised = slice(self._num_under_prior)
        self._gradient[penalised] += self._decay * self._theta[penalised]
        self._adam()

    def _adam(self) -> None:
        self._num_steps += 1
        first, second, gradient = self._first, self._second, self._gradient
        first += (1 - _FIRST_DECAY) * (gradient - first)
        np.square(gradient, out=gradient)
        second += (1 - _SECOND_DECAY) * (gradient - second)
        rate = self._learning_rate * np.sqrt(1 - _SECOND_DECAY**self._num_steps)
        rate /= 1 - _FIRST_DECAY**self._num_steps
        np.sqrt(second, out=gradient)
        gradient += _EPSILON
        np.divide(first, gradient, out=gradient)
        gradient *= rate
        self._theta -= gradient
        # The average begins with the first step.
        momentum = self._momentum if self._num_steps > 1 else 0.0
        self._average += (1 - momentum) * (self._theta - self._average)


def _add_up(error: np.ndarray, ids: np.ndarray, gradient: np.ndarray) -> None:
    """Adds up the gradients of the embeddings of the rows, id by id."""
    by_place = error.reshape(ids.size, gradient.shape[1])
    columns = (np.ones(ids.size, error.dtype), ids.ravel(), np.arange(ids.size + 1))
    gradient[:] = scipy.sparse.csc_matrix(columns, shape=(len(gradient), ids.size)) @ by_place


def _layers(
    vector: np.ndarray, shapes: Sequence[tuple[int, ...]]
) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Embeddings, kernels and biases, as views of a vector."""
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])
    parts = np.split(vector, ends[:-1])
    embeddings, *others = (part.reshape(s) for part, s in zip(parts, shapes, strict=True))
    return embeddings, others[: len(others) // 2], others[len(others) // 2 :]


def _inputs(embeddings: np.ndarray, ids: np.ndarray, encoded: np.ndarray) -> np.ndarray:
    embedded = embeddings[ids].reshape(len(ids), -1)
    return np.concatenate([embedded, encoded], axis=1) if encoded.shape[1] else embedded


def _located(values: np.ndarray, knots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The knots to the left and right of each value, and how far it is between them.

    A repeated knot counts at its first occurrence; outside the knots, a value is at the outermost.
    """
    distinct, first = np.unique(knots, return_index=True)
    last = len(distinct) - 1
    left = np.clip(np.searchsorted(distinct, values, side="right") - 1, 0, max(last - 1, 0))
    right = np.minimum(left + 1, last)
    gap = np.where(right > left, distinct[right] - distinct[left], 1)
    share = np.clip((values - distinct[left]) / gap, 0, 1)
    return first[left], first[right], np.where(np.isnan(share), 0, share)
