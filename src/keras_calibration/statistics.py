"""Statistics over seeds: functions of numbers, with NumPy and scipy."""

from calibration_records.statistics import *  # noqa: F403
from calibration_records.statistics import __all__ as __all__

__dir__ = __all__.copy
