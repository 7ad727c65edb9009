"""xDeepFM: a compressed interaction network, a linear part and a perceptron."""

from collections.abc import Sequence
from typing import Any

import keras

from click_models.embedded import ModelOptions, Tensor, embed, ids_input, linear, output, perceptron


class CompressedInteraction(keras.layers.Layer):
    """The compressed interaction network (CIN): explicit products of embeddings of rising degree.

    With the embeddings X⁰, `(num_columns, size)`, layer k has the rows

    Xᵏ_h = Σᵢ Σⱼ Wᵏʰᵢⱼ (Xᵏ⁻¹ᵢ ∘ X⁰ⱼ),

    where ∘ multiplies elementwise, passed through a ReLU. Of each layer but the last, the first
    half of the rows goes on to the next layer, and the second half to the output; of the last
    layer, all rows. The output has their sums over the embedding dimension: products of two columns
    from the first layer, of three from the second, and so on. ReLU and halves are those of DeepCTR,
    which the papers use; Lian et al. recommend no activation.

    Args:
        units: Number of rows of each layer; even for all but the last.
        kernel_regularizer: Regularizer of the weights W, or `None`.
        **kwargs: `name` and other arguments of `keras.layers.Layer`.

    Raises:
        ValueError: `units` is empty, or a number that must be even is odd.

    Example:
        >>> import numpy as np
        >>> pooled = CompressedInteraction([4, 3])(np.ones((4, 6, 8)))  # 6 columns of size 8
        >>> tuple(pooled.shape)
        (4, 5)

    Reference:
        Lian et al. (2018), *xDeepFM: Combining explicit and implicit feature interactions for
        recommender systems*, arXiv 1803.05170, eq. 6 and 7.
    """

    def __init__(
        self,
        units: Sequence[int],
        kernel_regularizer: keras.regularizers.Regularizer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not units or any(number % 2 for number in units[:-1]):
            raise ValueError(
                "Argument `units` must have a number for each layer, even for all but the last, "
                f"whose rows are halved. Received: units={units}."
            )
        self.units = tuple(units)
        self.kernel_regularizer = kernel_regularizer

    def build(self, input_shape: Sequence[int]) -> None:
        """Creates a kernel for each layer, `(rows of the layer before · num_columns, rows)`."""
        num_columns = input_shape[1]
        passed_on = (num_columns, *(number // 2 for number in self.units[:-1]))
        self.kernels = [
            self.add_weight(
                shape=(before * num_columns, after),
                initializer="glorot_uniform",
                regularizer=self.kernel_regularizer,
                name=f"kernel_{number}",
            )
            for number, (before, after) in enumerate(zip(passed_on, self.units, strict=True))
        ]

    def call(self, embeddings: Tensor) -> Tensor:
        """Embeddings `(batch, num_columns, size)` → sums of the rows of the output."""
        # With the columns last, a layer is one matrix product.
        first = keras.ops.transpose(embeddings, (0, 2, 1))
        _, size, num_columns = first.shape
        rows, pooled = first, []
        for number, kernel in enumerate(self.kernels, 1):
            products = rows[:, :, :, None] * first[:, :, None, :]
            products = keras.ops.reshape(products, (-1, size, rows.shape[-1] * num_columns))
            rows = keras.ops.relu(keras.ops.matmul(products, kernel))
            half = 0 if number == len(self.kernels) else rows.shape[-1] // 2
            pooled.append(keras.ops.sum(rows[:, :, half:], axis=1))
            rows = rows[:, :, :half]
        return keras.ops.concatenate(pooled, axis=-1)


def xdeepfm(options: ModelOptions, cin_units: Sequence[int] = (16, 16)) -> keras.Model:
    """A linear part, a compressed interaction network and a perceptron, on the same embeddings.

    logit = Σ_c w_c + w_cinᵀ CIN([e₁, …, e_C]) + wᵀ MLP([e₁, …, e_C]) + b.

    Args:
        options: Columns and sizes.
        cin_units: Number of rows of each layer of the compressed interaction network.

    Example:
        >>> options = ModelOptions(num_ids=(5, 3), embedding_dim=4, hidden_units=(8,))
        >>> model = xdeepfm(options, cin_units=(3,))
        >>> model.output_shape, model.count_params()
        ((None, 1), 136)

    Reference:
        Lian et al. (2018), arXiv 1803.05170.
    """
    ids = ids_input(options)
    embeddings = embed(ids, options.num_ids, options.embedding_dim, options)
    crosses = CompressedInteraction(cin_units, options.regularizer())(embeddings)
    hidden = perceptron(keras.layers.Flatten()(embeddings), options.hidden_units, options)
    # One dense layer on both parts has the weights w_cin and w.
    joined = keras.layers.Concatenate()([crosses, hidden])
    logits = keras.layers.Add()([linear(ids, options), output(joined, options)])
    return keras.Model(ids, logits, name="xdeepfm")
