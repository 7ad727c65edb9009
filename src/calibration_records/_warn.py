"""Warnings that point to the line of the user's program; notices of libraries are silenced."""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator

# Keras calls a layer or a callback, TensorFlow a step of training, and NumPy's errstate a function.
_INSIDE = ("calibration_records", "keras_calibration", "keras", "tensorflow", "numpy")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line that is outside of both packages, Keras and TensorFlow."""
    # From Python 3.12 on, `skip_file_prefixes` of `warnings.warn`.
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _INSIDE)
    folders = [os.path.join(os.path.dirname(file), "") for file in files if file]
    inside = (*folders, contextlib.__file__)  # a block of `warnings_of` ends there
    stacklevel, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        stacklevel, frame = stacklevel + 1, frame.f_back
    warnings.warn(message, category, stacklevel=stacklevel)


@contextlib.contextmanager
def warnings_of(part: str) -> Iterator[None]:
    """Prefixes the warnings of a block of code with `part`, and gives each warning once.

    Example:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     with warnings_of("Fold 2"):
        ...         warn("No positives.")
        >>> str(caught[0].message)
        'Fold 2: No positives.'
    """
    with warnings.catch_warnings(record=True) as caught:
        yield
    for item in caught:
        if not issubclass(item.category, UserWarning):  # of a library: unchanged
            warnings.showwarning(item.message, item.category, item.filename, item.lineno)
    messages = {str(item.message) for item in caught if issubclass(item.category, UserWarning)}
    for message in sorted(messages):
        warn(f"{part}: {message}")


@contextlib.contextmanager
def without_notices(library: str, below: int = logging.WARNING) -> Iterator[None]:
    """Silences a library's logger below warnings: its notices name temporary files."""
    logger = logging.getLogger(library)
    level = logger.level
    logger.setLevel(max(level, below))
    try:
        yield
    finally:
        logger.setLevel(level)
