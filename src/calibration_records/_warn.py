"""Warnings that point to the line of the user's program, and notices that are left out."""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line that is outside of both packages, Keras and TensorFlow."""
    # Keras calls a layer or a callback, and TensorFlow a step of training.
    names = ("calibration_records", "keras_calibration", "keras", "tensorflow")
    modules = map(sys.modules.get, names)
    files = (getattr(module, "__file__", None) for module in modules)
    folders = tuple(os.path.join(os.path.dirname(file), "") for file in files if file)
    stacklevel, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(folders):
        stacklevel, frame = stacklevel + 1, frame.f_back
    warnings.warn(message, category, stacklevel=stacklevel)


@contextlib.contextmanager
def without_notices(library: str, below: int = logging.WARNING) -> Iterator[None]:
    """Leaves out what a library's logger says below a warning: it names files that are gone."""
    logger = logging.getLogger(library)
    level = logger.level
    logger.setLevel(max(level, below))
    try:
        yield
    finally:
        logger.setLevel(level)
