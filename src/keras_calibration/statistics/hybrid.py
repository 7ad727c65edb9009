"""A loss that is as steady as the calibrated one and sees systematic miscalibration too."""

from keras_calibration.statistics.estimate import RunValues, check_paired, check_runs


def hybrid_loss(calibrated: RunValues, biases: RunValues, curvature: float) -> float:
    """The mean calibrated loss of a pipeline, plus what its systematic bias costs.

    mean CLL + H/2 max(c̄² − s_c²/m, 0). The calibrated loss is blind to a pipeline that predicts
    too high under every seed; the plain loss sees it, but also the bias that is an accident of each
    seed. The fitted biases c tell the two apart: s_c²/m is what chance adds to c̄².

    Args:
        calibrated: calibrated loss of each run, `(num_runs,)`, at least 3.
        biases: the bias c that was fitted in each run, in logits.
        curvature: H, the mean of p (1 − p) over the held-out rows. With the calibration gains G of
            the runs, 2 Σ G / Σ c² is a good value.

    Returns:
        The hybrid loss of the pipeline, in the unit of the loss.

    Raises:
        ValueError: fewer than three runs, a negative curvature, or values of unequal number.

    Example:
        >>> round(hybrid_loss([0.30, 0.31, 0.32], [0.2, 0.2, 0.2], curvature=0.1), 6)
        0.312
        >>> round(hybrid_loss([0.30, 0.31, 0.32], [0.2, -0.2, 0.1], curvature=0.1), 6)
        0.31

    Reference:
        The second-order expansion of the log loss in c; arXiv 2401.16692, section 5, names the
        blindness that it mends.
    """
    losses, c = check_paired(calibrated=calibrated, biases=biases)
    check_runs("calibrated", calibrated, at_least=3)
    if not curvature >= 0:
        raise ValueError(
            f"Received curvature={curvature!r}; expected the mean of p (1 − p), from 0 to 0.25; "
            "take it from the held-out predictions."
        )
    systematic = max(float(c.mean() ** 2 - c.var(ddof=1) / c.size), 0.0)
    return float(losses.mean()) + curvature / 2 * systematic
