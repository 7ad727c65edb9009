"""Inputs of Functional models."""

import keras


def symbols(**kinds):
    """Inputs by name: of a shape in float32, of a dtype with one value a row, or of both.

    Example:
        >>> sorted(symbols(price=(1,), site="int32", device=((1,), "int64")))
        ['device', 'price', 'site']
    """
    inputs = {}
    for name, what in kinds.items():
        shape, dtype = ((), what) if isinstance(what, str) else (what, "float32")
        if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[1], str):
            shape, dtype = shape
        inputs[name] = keras.Input(shape, dtype=dtype, name=name)
    return inputs
