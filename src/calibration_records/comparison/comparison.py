"""The result of a comparison of two pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calibration_records._text import ShownAsText, as_json
from calibration_records.comparison.comparison_display import ComparisonDisplay
from calibration_records.comparison.comparison_text import comparison_text
from calibration_records.comparison.metric_comparison import MetricComparison
from calibration_records.comparison.pipeline_runs import PipelineRuns
from calibration_records.comparison.question import Question
from calibration_records.comparison.seed_noise import SeedNoise
from calibration_records.comparison.verdict import Verdict
from calibration_records.statistics.estimate import Estimate
from calibration_records.statistics.posterior import probability_better

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Comparison(ShownAsText):
    """The result of `seeds.compare`; print it for a table with the verdict.

    Differences are B − A. Intervals are for new seeds on the same held-out rows.

    Args:
        a: Runs of A, with the numbers of excluded runs.
        b: Runs of B.
        metric: Name of the deciding metric.
        metrics: Results of each metric that all runs have, the deciding metric first.
        verdict: The verdict.
        method: Method of the interval in words.
        question: The arguments of `compare`.
        shared_seeds: Seeds by which the runs are paired; empty for independent runs.
        seed_noise: Seed noise of the ledger, with fewer than four runs of a pipeline.
        standard_error: Standard error of the deciding difference; `None` with too few runs.
        degrees: Degrees of freedom of the standard error.
        smallest_detectable_effect: Smallest difference that these seeds detect, with a power of
            80 %.
        more_seeds: Further seeds that each pipeline needs for a verdict, and to detect `delta` or,
            without it, the observed difference.
        plain_metric: Name of the plain loss, if both losses are recorded.
        calibrated_metric: Name of the calibrated loss, if both losses are recorded.
        gain_difference: Calibration gain G = LL − CLL of B minus the gain of A.
        surviving_share: How much of the difference of the plain loss survives calibration, ΔC/ΔL;
            `None` without both losses or with too few runs for a verdict.
        seeds_needed: Name of the plain or calibrated loss → seeds of each pipeline with which it
            detects its difference with a power of 80 %; `None` as for `surviving_share`.
        bias_share: Share of bias in the seed variance of the plain loss, Cov(LL, LL − CLL)/Var(LL)
            within the pipelines; `None` without both losses or with fewer than ten runs of each.
        notes: Caveats.

    Example:
        >>> from calibration_records.comparison.pipeline_runs import gather_runs
        >>> from calibration_records.comparison.verdict import undecided
        >>> runs = [gather_runs([], name, ["val_loss"]) for name in ("deepfm", "dcn")]
        >>> question = Question("deepfm", "dcn", "loss")
        >>> comparison = Comparison(*runs, "val_loss", {}, undecided(4), "Welch's t", question)
        >>> comparison.surviving_share is None
        True
    """

    a: PipelineRuns
    b: PipelineRuns
    metric: str
    metrics: Mapping[str, MetricComparison]
    verdict: Verdict
    method: str
    question: Question
    shared_seeds: tuple[int, ...] = ()
    seed_noise: SeedNoise | None = None
    standard_error: float | None = None
    degrees: float | None = None
    smallest_detectable_effect: float | None = None
    more_seeds: int | None = None
    plain_metric: str | None = None
    calibrated_metric: str | None = None
    gain_difference: Estimate | None = None
    surviving_share: Estimate | None = None
    seeds_needed: Mapping[str, int] | None = None
    bias_share: Estimate | None = None
    notes: tuple[str, ...] = ()

    @property
    def deciding(self) -> MetricComparison:
        """The results of the deciding metric."""
        return self.metrics[self.metric]

    @property
    def difference(self) -> Estimate | None:
        """Mean of B minus mean of A by the deciding metric, with its interval."""
        return self.deciding.difference

    def plot(self, ax: Axes | None = None) -> ComparisonDisplay:
        """Draws the deciding metric of each run, the means, and the difference with its interval.

        Args:
            ax: Matplotlib axes to draw on; None for a new figure.

        Returns:
            The display, with `ax_` and `figure_` set.

        Raises:
            ImportError: If Matplotlib is not installed.
        """
        name, sides, seeds = self.metric, (self.a, self.b), self.shared_seeds
        runs = {side.pipeline: side.metric_values(name) for side in sides}
        # Lines join pairs only where the comparison is paired.
        a, b = (side.metric_values(name, seeds) if seeds else [] for side in sides)
        unit = " (nats per row)" if name in (self.plain_metric, self.calibrated_metric) else ""
        return ComparisonDisplay(runs, (a, b), self.difference, name, unit).plot(ax)

    def probability_b_better(self, margin: float = 0.0, prior_scale: float | None = None) -> float:
        """The posterior probability that B is better than A by at least `margin`.

        Args:
            margin: Smallest improvement that matters, in the metric's unit, at least 0.
            prior_scale: Standard deviation of the expected differences, for example from earlier
                comparisons; `None` for a flat prior. It requires TensorFlow Probability.

        Raises:
            ValueError: There are too few runs, or an argument is out of its range.
        """
        if self.standard_error is None or self.degrees is None:
            raise ValueError(
                "A posterior requires at least two runs of each pipeline. Received: "
                f"{len(self.a)} and {len(self.b)}."
            )
        # Few runs have no interval, but a difference of means, and the noise of the ledger.
        value = (
            self.deciding.mean_b - self.deciding.mean_a
            if self.difference is None
            else self.difference.value
        )
        # `probability_better` takes losses.
        value = -value if self.deciding.maximize else value
        return probability_better(
            value, self.standard_error, self.degrees, margin=margin, prior_scale=prior_scale
        )

    def to_dict(self) -> dict[str, Any]:
        """All results as JSON values, without records; `None` for values that are not finite."""
        values: dict[str, Any] = as_json(self)
        values["verdict"]["decided"] = self.verdict.decided
        values["probability_b_better"] = (
            None if self.standard_error is None else self.probability_b_better()
        )
        return values

    def __str__(self) -> str:
        return comparison_text(self)
