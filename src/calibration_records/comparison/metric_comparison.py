"""The results of one metric in a comparison."""

from dataclasses import dataclass

from calibration_records.statistics.estimate import Estimate


@dataclass(frozen=True)
class MetricComparison:
    """One metric of pipelines A and B, compared over their seeds.

    Args:
        metric: Name in the ledger.
        maximize: Whether larger is better; `None` if unknown.
        num_a: Number of runs of A.
        num_b: Number of runs of B.
        mean_a: Mean over the runs of A.
        mean_b: Mean over the runs of B.
        std_a: Sample standard deviation over the runs of A; NaN with one run.
        std_b: Sample standard deviation over the runs of B; NaN with one run.
        difference: Mean of B minus mean of A with its interval; `None` with too few runs.
        b_beats_a: Probability that a run of B beats a run of A with another seed; `None` if the
            direction is unknown.
        b_beats_a_same_seed: Probability that a run of B beats the run of A with the same seed;
            `None` for independent runs.
        judged: The difference with the interval that decides on the verdict, which allows for other
            looks; `None` if the interval of `difference` decides.

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
    judged: Estimate | None = None

    @property
    def favors(self) -> str | None:
        """`"A"` or `"B"`, whichever has the better mean; `None` for equal means."""
        # In paired comparisons, only the pairs decide, whose difference may have the other sign.
        value = self.mean_b - self.mean_a if self.difference is None else self.difference.value
        if self.maximize is None or not abs(value) > 0:
            return None
        return "B" if (value > 0) == self.maximize else "A"

    @property
    def better(self) -> str | None:
        """`"A"` or `"B"` if the deciding interval excludes 0, otherwise `None`."""
        judged = self.judged or self.difference
        return self.favors if judged is not None and judged.excludes(0.0) else None
