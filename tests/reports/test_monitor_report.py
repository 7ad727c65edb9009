"""Every number that `monitor` prints, computed from the rows with NumPy and SciPy alone."""

import functools

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, special, stats

from calibration_records.logs import ScoredLog
from calibration_records.monitoring import monitor
from printed import check_numbers

TOLERANCE, ALARMS = 0.05, 0.02
# All rows, rates and losses of periods; the values and the error of each of two fields.
NUM_KINDS, DAYS = 7, 365.25
RISK = ALARMS / NUM_KINDS / DAYS
# The second Monday begins a week.
DATES = np.array([20260305, 20260306, 20260307, 20260309, 20260310])
WEEKS = np.array([20260302, 20260302, 20260302, 20260309, 20260309])


def rows_of(rise, flat, risen):
    """Five days of four sites; some rates rise on the last days, and logits turn on the third."""
    rng = np.random.default_rng(7)
    day, site = np.repeat(np.arange(5), 400), np.tile([4, 4, 2, 1, 1, 3, 3, 3, 4, 4], 200)
    logit = rng.choice(np.arange(-4.5, 0.2, 0.5), 2000)
    true = np.where(day == 2, flat * (logit + 2) - 2, logit) + rise * (day > 2) * np.isin(
        site, risen
    )
    label = (rng.random(2000) < special.expit(true)).astype(float)
    return day, site, logit, label


def rate_of(p, y):
    """Rows, rates, their ratio, and the interval that Clopper and Pearson give it."""
    test = stats.binomtest(int(y.sum()), len(y))
    interval = test.proportion_ci(1 - RISK, method="exact")
    ends = [p.mean() / interval.high, p.mean() / interval.low]
    return [len(p), p.mean(), y.mean(), p.mean() / y.mean(), *ends]


def is_rate_off(rate):
    return bool(rate[4] > 1 + TOLERANCE or rate[5] < 1 / (1 + TOLERANCE))


def bias_of(logit, y):
    return optimize.brentq(lambda c: np.sum(special.expit(logit + c) - y), -20, 20)


def log_loss(logit, y):
    return np.mean(np.logaddexp(0, logit) - y * logit)


def loss_of(logit, y, earlier_bias):
    """Rolling loss, Calibrated Log Loss, its bounds, and the loss of right probabilities."""
    x = logit + bias_of(logit, y)
    p = special.expit(x)
    expected = np.mean(special.entr(p) + special.entr(1 - p))
    centre = np.average(x, weights=p * (1 - p))
    variance, level = np.sum(p * (1 - p) * (x - centre) ** 2), np.log(2 / RISK)
    third = np.abs(x - centre).max() * level / 3
    half = (np.sqrt(2 * variance * level + third**2) + third) / len(x) + TOLERANCE * expected
    rolling = [] if earlier_bias is None else [log_loss(logit + earlier_bias, y)]
    return [*rolling, log_loss(x, y), max(expected - half, 0), expected + half], expected


def shift_of(p, y, block, years, num_tests):
    """Whether there is an alert, the likeliest first block of a shift, and once in how many years.

    For each size θ, the log likelihood ratio of the rows from a block on; of all probabilities
    with a group's number, sum and sum of squares, those that make it least.
    """
    sizes, blocks = 0.005 * 2.0 ** np.arange(9), np.unique(block)
    ratios = []
    for theta in np.concatenate([-sizes, sizes]):
        factor = (1 + TOLERANCE) ** np.sign(theta) * np.expm1(theta)
        terms = []
        for q, labels in ((p[block == b], y[block == b]) for b in blocks):
            num, total, squares = len(q), q.sum(), np.sum(q**2)
            if theta < 0:  # some probabilities of 0, and others
                log_mean = total**2 / squares * np.log1p(squares / total * factor)
            else:  # some of 1, and others
                ones = (squares * num - total**2) / (num + squares - 2 * total)
                other = (total - ones) / (num - ones)
                log_mean = ones * np.log1p(factor) + (num - ones) * np.log1p(other * factor)
            terms.append(theta * labels.sum() - log_mean)
        ratios.append(np.cumsum(terms[::-1])[::-1])
    evidence = np.mean(np.sum(np.exp(ratios) * years, axis=1))
    start = np.unravel_index(np.argmax(ratios), np.shape(ratios))[1]
    return evidence >= num_tests / ALARMS, blocks[start], evidence / num_tests


def shift_numbers(p, y, block, years, num_tests):
    """The numbers in the sentence of an alert; none without an alert."""
    is_off, start, once_in = shift_of(p, y, block, years, num_tests)
    late = block >= start
    sentence = [start, p[late].mean(), y[late].mean(), late.sum(), min(once_in, 1e6)]
    return sentence if is_off else []


def relative_errors(positives, predicted, rows, all_rows):
    """What a field value adds to Field-RCE: N |Σ (y - p)| / Σ (y + ε), over all rows."""
    return np.abs(positives - predicted) * rows / (positives + 0.01 * rows) / all_rows


def chance_of(p, site):
    """Mean, deviation and skewness of Field-RCE if labels follow p, by the exact distribution."""
    moments = []
    for value in np.unique(site):
        q = p[site == value]
        masses = functools.reduce(np.convolve, np.stack([1 - q, q], axis=1), np.ones(1))
        terms = relative_errors(np.arange(len(masses)), q.sum(), len(q), len(p))
        mean = masses @ terms
        moments.append([mean, *(masses @ (terms - mean) ** power for power in (2, 3))])
    mean, variance, third = np.sum(moments, axis=0)
    return mean, np.sqrt(variance), third / variance**1.5


@pytest.mark.parametrize(
    ("rise", "flat", "risen", "num_alerts"),
    [(0, 1, [], 0), (1.1, -1, [4], 2), (2.5, 1, [1, 3, 4], 16)],
)
def test_every_number(rise, flat, risen, num_alerts):
    day, site, logit, y = rows_of(rise, flat, risen)
    shop = np.arange(len(y)) % 78 % 12 + 20
    p = special.expit(logit)
    dates = pd.to_datetime(DATES.astype(str))[day]
    frame = pd.DataFrame({"at": dates, "site": site, "shop": shop, "probability": p, "label": y})
    log = ScoredLog(frame, timestamp="at", fields=["site", "shop"])
    report = monitor(log, tolerance=TOLERANCE, false_alarms_per_year=ALARMS)

    table, alerts, value_alerts, bias = [], [], [], None
    all_sentence = shift_numbers(p, y, DATES[day], 1 / DAYS, NUM_KINDS)
    alerts += [all_sentence] * bool(all_sentence)
    for number, date in enumerate(DATES):
        rows = day == number
        rate, (loss, expected) = rate_of(p[rows], y[rows]), loss_of(logit[rows], y[rows], bias)
        table += [date, *rate, *loss]
        bounds = [1 / (1 + TOLERANCE), 1 + TOLERANCE]
        alerts += [[date, *rate[1:3], rate[0], *rate[4:], *bounds]] * is_rate_off(rate)
        *_, seen, low, high = loss
        alerts += [[date, seen, low, high, expected]] * (not bool(low <= seen <= high))
        bias = bias_of(logit[rows], y[rows])
    table += rate_of(p, y)

    for field in (site, shop):
        # Those with most rows first; ten of them, and all with an alert, are shown.
        values, counts = np.unique(field, return_counts=True)
        hidden = 0
        for place, value in enumerate(values[np.argsort(-counts, kind="stable")]):
            rows = field == value
            num_tests = NUM_KINDS * len(values)
            sentence = shift_numbers(p[rows], y[rows], WEEKS[day[rows]], 7 / DAYS, num_tests)
            is_shown = place < 10 or bool(sentence)
            table += [value, *rate_of(p[rows], y[rows])] * is_shown
            value_alerts += [[value, *sentence]] * bool(sentence)
            hidden += not is_shown
        sums = [(y[field == v].sum(), p[field == v].sum(), np.sum(field == v)) for v in values]
        error = sum(relative_errors(*figures, len(p)) for figures in sums)
        mean, deviation, skew = chance_of(p, field)
        high = mean + deviation * stats.pearson3.isf(RISK, skew) + TOLERANCE
        # The package draws a thousand times.
        drawn = [(mean, 0.15 * deviation), (deviation, 0.1 * deviation), (high, 0.05 * high)]
        table += [[hidden] * bool(hidden), error, *drawn]
        alerts += [[error, drawn[2], drawn[0]]] * bool(error > high) + value_alerts
        value_alerts = []
    first = [*[len(alerts)] * bool(alerts), alerts, 1 / ALARMS, TOLERANCE]
    check_numbers(str(report), [*first, *table])
    assert len(alerts) == num_alerts
