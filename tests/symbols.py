"""Inputs of Functional models."""

import keras


def symbols(**given):
    """Inputs by name: of a shape in float32, of a dtype with one value a row, or of both.

    Example:
        >>> sorted(symbols(price=(1,), site="int32", device=((1,), "int64")))
        ['device', 'price', 'site']
    """
    found = {}
    for name, what in given.items():
        shape, dtype = ((), what) if isinstance(what, str) else (what, "float32")
        if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[1], str):
            shape, dtype = shape
        found[name] = keras.Input(shape, dtype=dtype, name=name)
    return found
