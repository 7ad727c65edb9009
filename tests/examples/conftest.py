"""The tests of examples import their modules by name, as the scripts do."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path += [str(EXAMPLES / name) for name in ("calibrated_metric", "field_aware_calibration")]
