"""The verdict of a comparison. Its strings are covered by tests."""

from enum import Enum
from typing import NamedTuple

from calibration_records._text import counted
from calibration_records.comparison.metric_comparison import MetricComparison
from calibration_records.statistics.estimate import Estimate

# The text says "over 1,000" for larger numbers.
MAX_MORE_SEEDS = 1000
# Largest part of a difference that survives calibration for the verdict "calibration only".
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
    is_borrowed: bool = False,
) -> Verdict:
    """The verdict: the first of the following rules that applies.

    1. Undecided, with the number of seeds that each pipeline still needs: `compare` borrowed the
       seed noise from other runs, which may be less noisy than these.
    2. Cannot tell: there is an obstacle, or no interval.
    3. Calibration only: the plain loss differs, the calibrated loss does not, and the calibration
       gains G = LL − CLL make up at least half of the difference. `gain` is `None` if the model is
       served as it was trained: this rule does not apply.
    4. No difference larger than δ: the interval lies in [−δ, δ].
    5. A or B better: the interval excludes 0.
    6. Undecided.

    Example:
        >>> interval = Estimate(-0.7, -1.0, -0.4)
        >>> metric = MetricComparison("loss", False, 9, 9, 3.0, 2.3, 0.1, 0.1, interval, None, None)
        >>> print(judge(metric))
        B better
        >>> print(judge(metric, delta=2.0))
        no difference larger than 2
    """
    # Rule 1. Borrowed noise never decides, however clear the difference is.
    if is_borrowed:
        return undecided(more_seeds)
    difference = deciding.judged or deciding.difference
    # Rule 2. Without an interval, there is nothing to judge.
    if obstacle is not None or difference is None:
        return Verdict(Outcome.CANNOT_TELL, f"cannot tell: {obstacle or 'too few runs'}")
    # Rule 3. Part of the difference that calibration removes: gain over plain difference, with
    # signs.
    if (
        plain is not None
        and calibrated is not None
        and gain is not None
        and plain.difference is not None
        and plain.better is not None
        and calibrated.better is None
        and gain.excludes(0.0)
        and gain.value / plain.difference.value >= 1 - MOSTLY_CALIBRATION
    ):
        return Verdict(Outcome.CALIBRATION_ONLY, "the gain is calibration only", plain.better)
    # Rules 4 to 6. Equivalence comes first: a difference can be certain and still too small to
    # matter.
    if delta is not None and difference.lies_within(delta):
        return Verdict(Outcome.NO_DIFFERENCE, f"no difference larger than {delta:g}")
    if deciding.better is not None:
        outcome = Outcome.B_BETTER if deciding.better == "B" else Outcome.A_BETTER
        return Verdict(outcome, outcome.value, deciding.better)
    # All runs of both pipelines are equal: no noise, no difference.
    if difference.low == difference.high == 0:
        return Verdict(Outcome.NO_DIFFERENCE, "no difference larger than 0")
    return undecided(more_seeds)


def undecided(more_seeds: int) -> Verdict:
    """The verdict if more seeds are needed.

    Example:
        >>> print(undecided(2))
        undecided: about 2 more seeds each
    """
    size = "about" if more_seeds <= MAX_MORE_SEEDS else "over"
    number = counted(min(more_seeds, MAX_MORE_SEEDS), "more seed")
    return Verdict(Outcome.UNDECIDED, f"undecided: {size} {number} each")
