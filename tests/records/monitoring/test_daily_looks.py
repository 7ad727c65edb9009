"""A log that is looked at every day: how often right predictions alarm, and how soon wrong ones."""

import numpy as np
import pytest
from scipy.special import logsumexp

from calibration_records.monitoring.shifts import SHIFTS, log_ratios
from calibration_records.monitoring.sums import Sums

pytestmark = pytest.mark.slow

# Logs with 500 expected positives a day, of rows with these probabilities; a third of the yearly
# false alarms is that of the whole log.
P, ROWS = np.array([0.01, 0.05, 0.2]), np.array([16_667, 3_333, 833])
NUM_LOGS, YEAR, LEAST = 200, 365.25, np.log(3 / 0.01)


def days_to_the_alarm(factor, num_days, seed):
    """Days from a change of all rates until the evidence suffices, of each log."""
    rng = np.random.default_rng(seed)
    first = np.full(NUM_LOGS, num_days + 1)
    evidence = np.full((NUM_LOGS, len(SHIFTS)), -np.inf)
    rows, predicted, squares = (np.full(NUM_LOGS, ROWS @ P**power) for power in range(3))
    for day in range(1, num_days + 1):
        positives = rng.binomial(ROWS, factor * P, (NUM_LOGS, 3)).sum(axis=1).astype(float)
        ratios = log_ratios(Sums(rows, positives, predicted, squares), 0.0)
        evidence = np.logaddexp(evidence, -np.log(YEAR)) + ratios
        is_off = logsumexp(evidence, axis=1) - np.log(len(SHIFTS)) >= LEAST
        first = np.where(is_off, np.minimum(first, day), first)
    return first


def test_right_predictions_alarm_as_rarely_as_promised():
    num_days = 2 * 365
    alarms = np.sum(days_to_the_alarm(1.0, num_days, seed=0) <= num_days)
    # At most 0.01 / 3 in a year: 1.3 of 200 logs in two years; 6 or more by chance in 0.2 %.
    assert alarms <= 5


@pytest.mark.parametrize(("factor", "days"), [(1.03, 60), (1.1, 8), (1.3, 1), (0.9, 9)])
def test_an_error_is_found_within_days(factor, days):
    assert np.median(days_to_the_alarm(factor, 100, seed=1)) <= days
