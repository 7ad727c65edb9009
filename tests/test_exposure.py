"""The recipe on exposure, on insurance policies, beside scikit-learn's Poisson regression."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance

from keras_calibration.layers import FieldBias

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[1] / "docs" / "guides" / "exposure.md"
COLUMNS = ["ClaimNb", "Exposure", "BonusMalus", "DrivAge", "VehAge", "Region"]
# Days from which the next group of lengths begins.
STARTS = [37, 183, 364]


def poisson(features, counts, exposure=None):
    """A Poisson regression with hardly a penalty: predicted counts, per exposure if there is one.

    Of rates: scikit-learn has no offset, but a weight is the same.
    """
    model = PoissonRegressor(alpha=1e-4, tol=1e-7, max_iter=3000)
    rates = counts if exposure is None else counts / exposure
    return model.fit(features, rates, sample_weight=exposure).predict


def expected_claims(head, logits, region):
    """The number of claims with which at least one has this probability, by Poisson."""
    return np.log1p(np.exp(np.asarray(head(logits, {"region": region}), np.float64)[:, 0]))


@pytest.fixture(scope="module")
def predicted(data_root):
    """Observed and predicted claims of the test rows, by way, and the group of each row."""
    file = data_root / "fremtpl2_678k" / "data.csv.xz"
    if not file.is_file():
        pytest.skip(f"{data_root} holds no fremtpl2_678k.")
    table = pd.read_csv(file, usecols=COLUMNS)
    table = table.iloc[np.random.default_rng(0).permutation(len(table))[:60_000]]
    days = np.maximum(np.rint(table["Exposure"].to_numpy() * 365), 1)
    claims, years = table["ClaimNb"].to_numpy(np.float64), days / 365
    train, fit, test = (np.arange(len(days)) % 3 == part for part in range(3))
    columns = [np.log(table["BonusMalus"] / 50), table["DrivAge"] / 40 - 1, table["VehAge"] == 0]
    columns = np.stack(columns, axis=1).astype(np.float64)
    base = poisson(columns[train], claims[train], years[train])
    rate = 1.3 * base(columns)  # too high
    names, region = np.unique(table["Region"].to_numpy(str), return_inverse=True)
    dummies = np.eye(len(names))[region]

    counts = {"observed": claims, "before": rate * years}
    per_day = np.log(np.expm1(rate / 365))
    head = FieldBias({"region": len(names)})
    head.fit(
        *(per_day[fit], (claims / days)[fit], {"region": region[fit]}, days[fit]),
        weights_are="counts",
    )
    counts["days as counts"] = days * expected_claims(head, per_day, region)
    features = np.column_stack([np.log(rate), dummies])
    reference = poisson(features[fit], claims[fit], years[fit])
    counts["Poisson regression of claims per year"] = years * reference(features)

    in_term = np.log(np.expm1(rate * years))
    head = FieldBias({"region": len(names)})
    head.fit(in_term[fit], claims[fit] > 0, {"region": region[fit]})
    counts["log exposure"] = expected_claims(head, in_term, region)
    features = np.column_stack([np.log(rate * years), dummies])
    counts["Poisson regression with log exposure"] = poisson(features[fit], claims[fit])(features)
    return {way: values[test] for way, values in counts.items()}, np.digitize(days, STARTS)[test]


def figures_of(predicted, way):
    """Predicted / observed by group of lengths, and the mean Poisson deviance of a row."""
    counts, group = predicted
    sums = np.bincount(group, counts[way]) / np.bincount(group, counts["observed"])
    return [*sums, mean_poisson_deviance(counts["observed"], counts[way])]


def test_the_figures_of_the_page(predicted):
    rows = re.findall(r"^\| (\w[\w ]+) \|((?: [\d.]+ \|){5})$", PAGE.read_text("utf-8"), re.M)
    assert {way for way, _ in rows} == predicted[0].keys() - {"observed"}
    for way, shown in rows:
        values = [float(number) for number in re.findall(r"[\d.]+", shown)]
        received = figures_of(predicted, way)
        np.testing.assert_allclose(received[:4], values[:4], atol=0.0101)
        assert received[4] == pytest.approx(values[4], abs=2e-4)


def test_days_as_counts_are_a_poisson_regression_of_rates(predicted):
    received = figures_of(predicted, "days as counts")
    expected = figures_of(predicted, "Poisson regression of claims per year")
    np.testing.assert_allclose(received[:4], expected[:4], rtol=0.02)
    assert received[4] < expected[4] + 5e-4
    both = [
        predicted[0][way] for way in ("days as counts", "Poisson regression of claims per year")
    ]
    assert both[0].sum() == pytest.approx(both[1].sum(), rel=0.005)


def test_the_log_of_the_exposure_is_right_where_claims_do_not_grow_in_proportion(predicted):
    received = figures_of(predicted, "log exposure")
    expected = figures_of(predicted, "Poisson regression with log exposure")
    assert received[4] < expected[4] + 5e-4
    assert received[4] < figures_of(predicted, "days as counts")[4] - 0.005
    # More policies than by Poisson have several claims, so that labels of 0 and 1 miss some.
    counts = predicted[0]
    assert 0.95 < counts["log exposure"].sum() / counts["observed"].sum() < 1.02
