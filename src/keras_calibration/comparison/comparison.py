"""What the runs of a ledger say of two pipelines."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple

from keras_calibration.comparison.metric_comparison import MetricComparison
from keras_calibration.comparison.pipeline_runs import PipelineRuns
from keras_calibration.comparison.verdict import Verdict, calibration_share
from keras_calibration.statistics.estimate import Estimate
from keras_calibration.statistics.posterior import probability_better
from keras_calibration.statistics.variance_components import VarianceComponents


class Noise(NamedTuple):
    """The noise of a difference of means.

    Args:
        variance: of the difference of one run each, s_a² + s_b², or s_d² of paired runs.
        standard_error: of the difference of the means.
        degrees: degrees of freedom of both.

    Example:
        >>> Noise(2.0, 0.5, 8).standard_error
        0.5
    """

    variance: float
    standard_error: float
    degrees: float


@dataclass(frozen=True)
class Comparison:
    """Two pipelines compared over their seeds; `seeds.compare` makes it, `print` shows it.

    Everything is B minus A. The intervals speak of new seeds on the same held-out rows;
    `difference_on_new_rows` also of new rows.

    Args:
        a: runs of A that were used, and the count of those that were not.
        b: runs of B.
        metric: name of the metric that decides.
        metrics: each metric that all runs have, the deciding one first.
        verdict: in words.
        method: how the interval was made, in words.
        shared_seeds: seeds by which the runs are paired; empty where they are not.
        confidence: of the intervals, all looks together.
        delta: the largest difference that does not matter; `None` where not said.
        epoch: which epoch's values, as asked for.
        num_looks: looks that the plan allows; `None` for any number.
        noise: of the deciding metric's difference; `None` where there is none.
        minimum_detectable_effect: difference that these seeds would find 4 times in 5.
        more_seeds: that each pipeline needs to find `delta`, or what is seen; at this level.
        plain_metric: name of the plain loss beside a calibrated one, where recorded.
        calibrated_metric: name of the calibrated loss, where both are recorded.
        gain_difference: calibration gain G = LL − CLL of B minus that of A.
        std_ratio_a: spread of A's calibrated loss over that of its plain loss.
        std_ratio_b: the same of B.
        detection_gain: how much oftener one run each finds the better by the calibrated loss.
        hybrid_difference: hybrid loss of B minus that of A, where the biases are recorded.
        components_a: seeds, seeds × rows and rows as sources of A's noise, from its row losses.
        components_b: the same of B.
        difference_on_new_rows: of the row losses, with an interval for new rows as well.
        notes: what a reader has to know before relying on it.

    Example:
        >>> from keras_calibration.comparison.pipeline_runs import gather_runs
        >>> from keras_calibration.comparison.verdict import Outcome
        >>> runs = [gather_runs([], name, ["val_loss"]) for name in ("deepfm", "dcn")]
        >>> verdict = Verdict(Outcome.CANNOT_TELL, "cannot tell: no runs")
        >>> Comparison(*runs, "val_loss", {}, verdict, "Welch's t").calibration_share is None
        True
    """

    a: PipelineRuns
    b: PipelineRuns
    metric: str
    metrics: Mapping[str, MetricComparison]
    verdict: Verdict
    method: str
    shared_seeds: tuple[int, ...] = ()
    confidence: float = 0.95
    delta: float | None = None
    epoch: int | str = "kept"
    num_looks: int | None = 1
    noise: Noise | None = None
    minimum_detectable_effect: float | None = None
    more_seeds: int | None = None
    plain_metric: str | None = None
    calibrated_metric: str | None = None
    gain_difference: Estimate | None = None
    std_ratio_a: Estimate | None = None
    std_ratio_b: Estimate | None = None
    detection_gain: Estimate | None = None
    hybrid_difference: float | None = None
    components_a: VarianceComponents | None = None
    components_b: VarianceComponents | None = None
    difference_on_new_rows: Estimate | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def deciding(self) -> MetricComparison:
        """The comparison by the metric that decides."""
        return self.metrics[self.metric]

    @property
    def difference(self) -> Estimate | None:
        """Mean of B minus mean of A of the deciding metric, with its interval."""
        return self.deciding.difference

    @property
    def calibration_share(self) -> float | None:
        """The share of the plain loss's difference that is one of calibration, ΔG/ΔLL."""
        plain = None if self.plain_metric is None else self.metrics[self.plain_metric]
        return calibration_share(plain, self.gain_difference)

    def probability_b_better(self, margin: float = 0.0, prior_scale: float | None = None) -> float:
        """The posterior probability that B is better by at least `margin`.

        Args:
            margin: in the unit of the deciding metric, at least 0.
            prior_scale: standard deviation of the differences to be expected; `None`: flat prior.

        Raises:
            ValueError: there are too few runs for any interval, or as `seeds.probability_better`.
        """
        return self._probability_better("B", margin, prior_scale)

    def probability_a_better(self, margin: float = 0.0, prior_scale: float | None = None) -> float:
        """The same of A."""
        return self._probability_better("A", margin, prior_scale)

    def _probability_better(self, side: str, margin: float, prior_scale: float | None) -> float:
        if self.noise is None or self.difference is None:
            raise ValueError(
                f"Received a comparison of {len(self.a)} and {len(self.b)} runs, which has no noise"
                " to judge by; expected at least two runs of each; train more seeds."
            )
        sign = -1 if self.deciding.maximize == (side == "B") else 1
        return probability_better(
            sign * self.difference.value,
            self.noise.standard_error,
            self.noise.degrees,
            margin=margin,
            prior_scale=prior_scale,
        )

    def to_dict(self) -> dict[str, Any]:
        """All results as JSON values: no records; `None` where a value is not finite."""
        values = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        values["verdict"] = {
            "outcome": self.verdict.outcome.value,
            "words": self.verdict.words,
            "better": self.verdict.better,
            "decided": self.verdict.decided,
        }
        values["calibration_share"] = _plain(self.calibration_share)
        values["posterior"] = None
        if self.noise is not None and self.difference is not None:
            margin = self.delta or 0.0
            values["posterior"] = {
                "margin": margin,
                "a_better": _plain(self.probability_a_better(margin)),
                "b_better": _plain(self.probability_b_better(margin)),
            }
        return values

    def __str__(self) -> str:
        # Imported when printed: rendering is built on top of comparisons.
        from keras_calibration.rendering.comparison_text import comparison_text

        return comparison_text(self)


def _plain(value: Any) -> Any:
    """A result as JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        # The records of the runs are in the ledger.
        names = [field.name for field in fields(value) if field.name != "records"]
        return {name: _plain(getattr(value, name)) for name in names}
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
