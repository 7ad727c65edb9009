"""The verdict of a comparison. Its strings are covered by tests."""

from enum import Enum
from typing import NamedTuple

from keras_calibration.comparison.metric_comparison import MetricComparison
from keras_calibration.statistics.estimate import Estimate

# Larger numbers are only said to be larger.
MAX_MORE_SEEDS = 1000
# Smallest calibration share for the verdict "calibration only".
MOSTLY_CALIBRATION = 0.5


class Outcome(Enum):
    """The possible verdicts."""

    A_BETTER = "A better"
    B_BETTER = "B better"
    NO_DIFFERENCE = "no difference"
    CALIBRATION_ONLY = "calibration only"
    UNDECIDED = "undecided"
    CANNOT_TELL = "cannot tell"


class Verdict(NamedTuple):
    """An outcome with its wording.

    Args:
        outcome: One of `Outcome`.
        words: `B better`, `A better`, `no difference larger than …`, `undecided: about k more
            seeds each`, `the gain is calibration only` or `cannot tell: …`.
        better: `"A"` or `"B"` for the better pipeline; `None` if there is none.

    Example:
        >>> verdict = Verdict(Outcome.B_BETTER, "B better", "B")
        >>> str(verdict), verdict.decided
        ('B better', True)
    """

    outcome: Outcome
    words: str
    better: str | None = None

    @property
    def decided(self) -> bool:
        """Whether the verdict is final: neither undecided nor "cannot tell"."""
        return self.outcome not in (Outcome.UNDECIDED, Outcome.CANNOT_TELL)

    def __str__(self) -> str:
        return self.words


def judge(
    deciding: MetricComparison,
    *,
    plain: MetricComparison | None = None,
    calibrated: MetricComparison | None = None,
    gain: Estimate | None = None,
    delta: float | None = None,
    more_seeds: int = 1,
    obstacle: str | None = None,
) -> Verdict:
    """The verdict: the first of the following rules that applies.

    1. Cannot tell: there is an obstacle, or no interval.
    2. Calibration only: the plain loss differs, the calibrated loss does not, and the calibration
       gains G = LL − CLL make up at least half of the difference.
    3. No difference larger than δ: the interval lies in [−δ, δ].
    4. A or B better: the interval excludes 0.
    5. Undecided, with the number of seeds that each pipeline still needs.

    Example:
        >>> interval = Estimate(-0.7, -1.0, -0.4)
        >>> metric = MetricComparison("loss", False, 9, 9, 3.0, 2.3, 0.1, 0.1, interval, None, None)
        >>> print(judge(metric))
        B better
        >>> print(judge(metric, delta=2.0))
        no difference larger than 2
    """
    if obstacle is not None or deciding.difference is None:
        return Verdict(Outcome.CANNOT_TELL, f"cannot tell: {obstacle or 'too few runs'}")
    share = calibration_share(plain, gain)
    if (
        plain is not None
        and calibrated is not None
        and share is not None
        and gain is not None
        and plain.better is not None
        and calibrated.better is None
        and gain.excludes(0.0)
        and share >= MOSTLY_CALIBRATION
    ):
        return Verdict(Outcome.CALIBRATION_ONLY, "the gain is calibration only", plain.better)
    if delta is not None and deciding.difference.lies_within(delta):
        return Verdict(Outcome.NO_DIFFERENCE, f"no difference larger than {delta:g}")
    if deciding.better is not None:
        outcome = Outcome.B_BETTER if deciding.better == "B" else Outcome.A_BETTER
        return Verdict(outcome, outcome.value, deciding.better)
    if deciding.difference.low == deciding.difference.high == 0:
        return Verdict(Outcome.NO_DIFFERENCE, "no difference larger than 0")
    seeds = f"about {more_seeds}" if more_seeds <= MAX_MORE_SEEDS else f"over {MAX_MORE_SEEDS}"
    noun = "seed" if more_seeds == 1 else "seeds"
    return Verdict(Outcome.UNDECIDED, f"undecided: {seeds} more {noun} each")


def calibration_share(plain: MetricComparison | None, gain: Estimate | None) -> float | None:
    """The share of calibration in the difference of the plain loss, ΔG/ΔLL.

    The rest is the difference of the calibrated loss, since LL = CLL + G in each run. A share below
    0 or above 1 means that the two parts have opposite signs.

    Example:
        >>> plain = MetricComparison(
        ...     "loss", False, 9, 9, 3.0, 2.0, 0.1, 0.1, Estimate(-1.0, -1.2, -0.8), None, None)
        >>> calibration_share(plain, Estimate(-0.75, -0.9, -0.6))
        0.75
    """
    if plain is None or gain is None or plain.difference is None or plain.difference.value == 0:
        return None
    return gain.value / plain.difference.value
