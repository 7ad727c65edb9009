"""Records of training runs and of scored rows, without Keras: comparison and monitoring.

A `Ledger` keeps training runs, and `compare` tells a difference of two pipelines from luck with the
seeds. A `ScoredLog` describes scored rows, and `monitor` checks them against their labels. In
`keras_calibration` they are `kc.seeds.Ledger`, `kc.seeds.compare`, `kc.logs.ScoredLog` and
`kc.monitor`. Sums of a log are in `calibration_records.logs`, statistics of runs in `.statistics`.
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

__all__ = ["Ledger", "Periods", "ScoredLog", "compare", "metric_accuracy", "monitor"]
# Each is loaded when first used, so that the command starts without NumPy.
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
