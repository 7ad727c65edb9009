"""Records of training runs and of scored rows, without Keras: is it real, is it still right?

A `Ledger` keeps training runs, and `compare` tells whether one pipeline is better than another, or
the seeds were luck. A `ScoredLog` says where scored rows are, and `monitor` checks them against
their labels. In `keras_calibration` they are `kc.seeds.Ledger`, `kc.seeds.compare`,
`kc.logs.ScoredLog` and `kc.monitor`. The sums of a log are in `calibration_records.logs`, the
functions of numbers in `.statistics`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibration_records.comparison.compare import compare
    from calibration_records.logs.periods import Periods
    from calibration_records.logs.scored_log import ScoredLog
    from calibration_records.monitoring.monitor import monitor
    from calibration_records.runs.ledger import Ledger
    from calibration_records.statistics.accuracy import metric_accuracy

__version__ = "0.1.0"

__all__ = [
    "Ledger",
    "Periods",
    "ScoredLog",
    "compare",
    "metric_accuracy",
    "monitor",
]
# Each is loaded when it is first asked for: the command starts without NumPy.
_HOMES = {
    "Ledger": "runs.ledger",
    "Periods": "logs.periods",
    "ScoredLog": "logs.scored_log",
    "compare": "comparison.compare",
    "metric_accuracy": "statistics.accuracy",
    "monitor": "monitoring.monitor",
}

if not TYPE_CHECKING:  # With it, a type checker would take any name for one of this package.

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__, "__version__"]
