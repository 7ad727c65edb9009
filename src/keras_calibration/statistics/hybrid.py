"""The hybrid loss: calibrated loss plus the cost of a systematic bias."""

from keras_calibration.statistics.estimate import RunValues, check_paired, check_runs


def hybrid_loss(calibrated: RunValues, biases: RunValues, curvature: float) -> float:
    """The mean calibrated loss of a pipeline plus the cost of its systematic bias.

    mean CLL + H/2 max(c̄² − s_c²/m, 0). The calibrated loss ignores every bias, and the plain loss
    includes also the random bias of each seed. The hybrid loss includes only the bias that all
    seeds share: s_c²/m is the contribution of chance to c̄².

    Args:
        calibrated: Calibrated loss of each run, `(num_runs,)`, at least 3.
        biases: Bias c fitted in each run, in logits.
        curvature: H, the mean of p (1 − p) over the held-out rows. With the calibration gains G of
            the runs, 2 Σ G / Σ c² is a good estimate.

    Returns:
        The hybrid loss, in the unit of the loss.

    Raises:
        ValueError: Fewer than three runs, a negative curvature, or unequal lengths.

    Example:
        >>> round(hybrid_loss([0.30, 0.31, 0.32], [0.2, 0.2, 0.2], curvature=0.1), 6)
        0.312
        >>> round(hybrid_loss([0.30, 0.31, 0.32], [0.2, -0.2, 0.1], curvature=0.1), 6)
        0.31

    Reference:
        A second-order expansion of the log loss in c; arXiv 2401.16692, section 5, on the
        limitation of the calibrated loss.
    """
    losses, c = check_paired(calibrated=calibrated, biases=biases)
    check_runs("calibrated", calibrated, at_least=3)
    if not curvature >= 0:
        raise ValueError(
            "Argument `curvature` must be the mean of p (1 − p), at least 0. Received: "
            f"curvature={curvature!r}."
        )
    systematic = max(float(c.mean() ** 2 - c.var(ddof=1) / c.size), 0.0)
    return float(losses.mean()) + curvature / 2 * systematic
