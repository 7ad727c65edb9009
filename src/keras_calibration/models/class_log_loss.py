"""class_log_loss: the loss with which a calibrated model of several classes is trained."""

import keras

from keras_calibration._typing import Tensor


@keras.saving.register_keras_serializable(package="keras_calibration")  # type: ignore[untyped-decorator]
def class_log_loss(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Log loss of class probabilities, whether labels are class numbers or shares.

    Args:
        y_true: Class numbers (batch,) or (batch, 1), or one-hot or soft labels (batch, K).
        y_pred: Probabilities (batch, K).

    Returns:
        Losses (batch,), in nats.

    Example:
        >>> probabilities = keras.ops.array([[0.5, 0.25, 0.25]])
        >>> print(class_log_loss(keras.ops.array([1]), probabilities).numpy().round(4))
        [1.3863]
        >>> shares = keras.ops.array([[0.0, 0.5, 0.5]])
        >>> print(class_log_loss(shares, probabilities).numpy().round(4))
        [1.3863]
    """
    if len(y_true.shape) == 2 and y_true.shape[1] == y_pred.shape[1]:
        return keras.losses.categorical_crossentropy(y_true, y_pred)
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
