import pytest

from calibration_records.comparison.metric_comparison import MetricComparison
from calibration_records.comparison.verdict import Outcome, judge
from keras_calibration.statistics import Estimate


def metric(low, high, maximize=False, name="val_loss"):
    difference = Estimate((low + high) / 2, low, high)
    return MetricComparison(name, maximize, 9, 9, 0.0, 0.0, 0.1, 0.1, difference, None, None)


def estimate(low, high):
    return Estimate((low + high) / 2, low, high)


@pytest.mark.parametrize(
    ("deciding", "options", "words", "better"),
    [
        (metric(-3, -1), {}, "B better", "B"),
        (metric(1, 3), {}, "A better", "A"),
        # Larger is better.
        (metric(-3, -1, maximize=True), {}, "A better", "A"),
        (metric(1, 3, maximize=True), {}, "B better", "B"),
        (metric(-1, 2), {"delta": 2.5}, "no difference larger than 2.5", None),
        # There is a difference, but none that matters.
        (metric(0.1, 0.2), {"delta": 0.5}, "no difference larger than 0.5", None),
        (metric(0.1, 0.9), {"delta": 0.5}, "A better", "A"),
        (metric(-0.9, -0.1), {"delta": 0.5}, "B better", "B"),
        (metric(0, 0), {}, "no difference larger than 0", None),
        (metric(-1, 3), {"more_seeds": 12}, "undecided: about 12 more seeds each", None),
        (metric(-3, 1), {"more_seeds": 99_000}, "undecided: over 1,000 more seeds each", None),
        (metric(-3, 1), {"delta": 2.5}, "undecided: about 1 more seed each", None),
        (metric(-3, -1), {"obstacle": "2 runs"}, "cannot tell: 2 runs", None),
        # The noise of other runs decides nothing, and tells how many are needed.
        (metric(-3, -1), {"is_borrowed": True}, "undecided: about 1 more seed each", None),
    ],
)
def test_words(deciding, options, words, better):
    verdict = judge(deciding, **options)
    assert (str(verdict), verdict.better) == (words, better)
    assert verdict.decided != words.startswith(("undecided", "cannot tell"))


@pytest.mark.parametrize(("sign", "better"), [(1, "A"), (-1, "B")])
def test_a_gain_in_calibration_only_in_both_directions(sign, better):
    def turned(low, high):
        return (low, high) if sign == 1 else (-high, -low)

    plain, same = metric(*turned(1, 3)), metric(*turned(-0.5, 0.6))
    gain = estimate(*turned(1, 2.5))
    for deciding in (plain, same):
        verdict = judge(deciding, plain=plain, calibrated=same, gain=gain, delta=5.0)
        assert str(verdict) == "the gain is calibration only"
        assert (verdict.better, verdict.outcome) == (better, Outcome.CALIBRATION_ONLY)
    # Not for a model that is served as it was trained,
    assert str(judge(plain, plain=plain, calibrated=same)) == f"{better} better"
    # nor where the calibrated loss differs too,
    other = metric(*turned(0.1, 0.6))
    assert str(judge(other, plain=plain, calibrated=other, gain=gain)) == f"{better} better"
    # nor where less than half is calibration,
    little = estimate(*turned(0.1, 0.4))
    verdict = judge(same, plain=plain, calibrated=same, gain=little)
    assert verdict.outcome is Outcome.UNDECIDED
    # nor where the calibration itself is within the noise.
    wide = estimate(*turned(-0.5, 3.5))
    verdict = judge(same, plain=plain, calibrated=same, gain=wide)
    assert verdict.outcome is Outcome.UNDECIDED
