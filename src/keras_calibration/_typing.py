"""Names for types: those that Keras does not ship, and those that many modules use.

Where a module says `Any` instead, the value can be anything: an argument for Keras, a JSON value.
"""

from typing import Any, TypeAlias

Tensor: TypeAlias = Any
"""A tensor of the Keras backend, or a value that `keras.ops.convert_to_tensor` takes."""
