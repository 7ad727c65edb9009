"""One metric of two pipelines, compared over their seeds."""

from dataclasses import dataclass

from keras_calibration.statistics.estimate import Estimate


@dataclass(frozen=True)
class MetricComparison:
    """What the runs say of one metric of A and B.

    Args:
        metric: its name in the ledger.
        maximize: whether larger is better; `None` where that is not known.
        num_a: runs of A.
        num_b: runs of B.
        mean_a: mean over the runs of A.
        mean_b: mean over the runs of B.
        std_a: sample standard deviation over the runs of A; NaN of a single one.
        std_b: the same of B.
        difference: mean of B minus mean of A, with its interval; `None` where it has none.
        b_beats_a: how often one run of B beats one run of A with another seed; `None` where it is
            not known what is better.
        b_beats_a_same_seed: how often it does under the same seed; `None` without common seeds.

    Example:
        >>> MetricComparison("val_auc", True, 1, 1, 0.7, 0.8, 0.0, 0.0, None, None, None).maximize
        True
    """

    metric: str
    maximize: bool | None
    num_a: int
    num_b: int
    mean_a: float
    mean_b: float
    std_a: float
    std_b: float
    difference: Estimate | None
    b_beats_a: Estimate | None
    b_beats_a_same_seed: Estimate | None

    @property
    def better(self) -> str | None:
        """`"A"` or `"B"` where the interval of the difference excludes 0, else `None`."""
        if self.maximize is None or self.difference is None or not self.difference.excludes(0.0):
            return None
        return "B" if (self.difference.value > 0) == self.maximize else "A"
