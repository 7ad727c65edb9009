"""The displays and their mathematics, against references written apart from the code."""

import sys

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from keras_calibration.plots import (
    STYLES,
    FieldDisplay,
    ReliabilityDisplay,
    bin_by_mass,
    group_rates,
)
from keras_calibration.plots.rates import wilson_interval


@pytest.fixture
def rows():
    generator = np.random.default_rng(0)
    probabilities = generator.beta(1.0, 6.0, size=1000)
    labels = (generator.random(1000) < probabilities).astype(np.float64)
    return labels, probabilities, generator.integers(0, 6, size=1000)


@pytest.fixture
def axes():
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


@pytest.mark.parametrize(("count", "num_rows"), [(0, 10), (10, 10), (3, 17), (1, 4000), (0, 1)])
def test_wilson_interval_solves_the_score_equation(count, num_rows):
    rate = count / num_rows
    # (rate - q)² = z² q (1 - q) / n as a polynomial in q.
    ratio = 1.959963984540054**2 / num_rows
    roots = np.sort(np.roots([1.0 + ratio, -(2.0 * rate + ratio), rate * rate]))
    np.testing.assert_allclose(wilson_interval(rate, num_rows), roots, atol=1e-12)
    np.testing.assert_allclose(wilson_interval([np.nan], [0]), [[0.0], [1.0]])


@pytest.mark.parametrize("num_bins", [1, 4, 10])
def test_bins_are_those_of_sklearn_where_there_are_no_ties(rows, num_bins):
    labels, probabilities, _ = rows
    display = ReliabilityDisplay.from_predictions(labels, probabilities, num_bins=num_bins)
    rates = display.curves["predicted"]
    expected = calibration_curve(labels, probabilities, n_bins=num_bins, strategy="quantile")
    np.testing.assert_allclose([rates.observed, rates.predicted], expected, rtol=1e-12)
    np.testing.assert_array_equal(rates.num_rows, 1000 // num_bins)


def test_ties_share_a_bin_and_empty_bins_are_dropped():
    bins = bin_by_mass([0.2] * 8 + [0.5, 0.7], num_bins=5)
    np.testing.assert_array_equal(bins, [0] * 8 + [1] * 2)
    np.testing.assert_array_equal(bin_by_mass(np.full(7, 0.3), num_bins=5), 0)
    assert bin_by_mass([], num_bins=5).shape == (0,)


def test_integer_weights_are_repeated_rows(rows):
    labels, probabilities, groups = rows
    weights = np.random.default_rng(1).integers(0, 4, size=1000)
    bins = bin_by_mass(probabilities, 7, weights)
    repeated = bin_by_mass(np.repeat(probabilities, weights), 7)
    np.testing.assert_array_equal(np.repeat(bins, weights), repeated)
    weighted = group_rates(labels, probabilities, groups, 6, weights)
    of_copies = group_rates(*(np.repeat(column, weights) for column in rows), 6)
    np.testing.assert_allclose(weighted.observed, of_copies.observed)
    np.testing.assert_allclose(weighted.predicted, of_copies.predicted)
    counted = group_rates(labels, probabilities, groups, 6, weights, "counts")
    for one, other in zip(counted, of_copies, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    with pytest.raises(ValueError, match="weights_are"):
        group_rates(labels, probabilities, groups, 6, weights + 0.5, "counts")


def test_displays_of_counts_are_those_of_the_rows(rows):
    """The most frequent values too: one line may be a thousand rows."""
    labels, probabilities, _ = rows
    field = np.array(["rare"] * 900 + ["frequent"] * 100)
    weights = np.where(field == "rare", 1, 30)
    columns = [np.repeat(column, weights) for column in (labels, probabilities, field)]
    options = {"sample_weight": weights, "weights_are": "counts"}
    counted = FieldDisplay.from_predictions(labels, probabilities, field, **options)
    repeated = FieldDisplay.from_predictions(*columns)
    assert counted.value_names == repeated.value_names == ("frequent", "rare")
    bins = ReliabilityDisplay.from_predictions(labels, probabilities, **options)
    bins_of_rows = ReliabilityDisplay.from_predictions(*columns[:2])
    for one, other in ((counted, repeated), (bins, bins_of_rows)):
        pair = (display.curves["predicted"] for display in (one, other))
        for column, expected in zip(*pair, strict=True):
            np.testing.assert_allclose(column, expected, rtol=1e-10)
    importances = FieldDisplay.from_predictions(labels, probabilities, field, sample_weight=weights)
    assert importances.value_names == ("rare", "frequent")


def test_intervals_take_the_effective_number_of_rows(rows):
    labels, probabilities, groups = rows
    plain = group_rates(labels, probabilities, groups, 6)
    scaled = group_rates(labels, probabilities, groups, 6, np.full(1000, 7.5))
    np.testing.assert_allclose(scaled.lower, plain.lower)
    # One heavy row among light ones counts for little more than one row.
    weights = np.where(np.arange(1000) == 0, 1e6, 1.0)
    heavy = group_rates(labels, probabilities, np.zeros(1000, int), 1, weights)
    assert heavy.upper[0] - heavy.lower[0] > 0.7


def test_an_empty_group_has_no_rate_and_the_whole_interval():
    rates = group_rates([0.0, 1.0], [0.2, 0.4], [0, 2], 3)
    assert np.isnan([rates.observed[1], rates.predicted[1]]).all()
    assert (rates.lower[1], rates.upper[1], rates.num_rows[1]) == (0.0, 1.0, 0)


def test_reliability_plot_draws_the_bins_of_each_curve(rows, axes):
    labels, probabilities, _ = rows
    curves = {"before": probabilities**2, "after": probabilities}
    display = ReliabilityDisplay.from_predictions(labels, curves, num_bins=8)
    assert display.plot(axes) is display
    assert (display.ax_, display.figure_) == (axes, axes.figure)
    for index, (name, container) in enumerate(zip(curves, axes.containers, strict=True)):
        line = container.lines[0]
        np.testing.assert_array_equal(line.get_xdata(), display.curves[name].predicted)
        np.testing.assert_array_equal(line.get_ydata(), display.curves[name].observed)
        assert line.get_color() == STYLES[index]["color"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["before", "after"]


def test_field_plot_draws_observed_minus_predicted_by_frequency(rows, axes):
    labels, probabilities, _ = rows
    ids = np.repeat(["d", "a", "c", "b"], [400, 300, 200, 100])
    curves = {"before": np.minimum(2.0 * probabilities, 1.0), "after": probabilities}
    display = FieldDisplay.from_predictions(
        labels, curves, ids, field_name="site", num_values_shown=3
    ).plot(axes)
    assert display.value_names == ("d", "a", "c")
    bars = [container for container in axes.containers if hasattr(container, "patches")]
    for (name, predicted), container in zip(curves.items(), bars, strict=True):
        expected = [(labels - predicted)[ids == value].mean() for value in "dac"]
        widths = [patch.get_width() for patch in container.patches]
        np.testing.assert_allclose(widths, expected, atol=1e-12)
        np.testing.assert_array_equal(display.curves[name].num_rows, [400, 300, 200])
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["d  (400)", "a  (300)", "c  (200)"]


def test_dollars_in_names_are_no_formula(rows, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    # Texts stay texts in the file.
    monkeypatch.setitem(plt.rcParams, "svg.fonttype", "none")
    labels, probabilities, _ = rows
    curves = {"$\\before{$": probabilities**2, "$after$": probabilities}
    field = np.where(probabilities < 0.1, "$1 to $5", "$_$")
    for display, names in (
        (ReliabilityDisplay.from_predictions(labels, curves), curves),
        (
            FieldDisplay.from_predictions(labels, curves, field, field_name="in $x$"),
            [*curves, "$1 to $5  (", "$_$  (", "in $x$ (rows)"],
        ),
    ):
        display.plot().figure_.savefig(tmp_path / "figure.svg")
        plt.close(display.figure_)
        text = (tmp_path / "figure.svg").read_text("utf-8")
        for name in names:
            assert f">{name}" in text


@pytest.mark.parametrize(
    ("make", "arguments", "options", "message"),
    [
        (ReliabilityDisplay.from_predictions, ([], []), {}, "labels"),
        (ReliabilityDisplay.from_predictions, ([0, 2], [0.1, 0.2]), {}, "labels"),
        (ReliabilityDisplay.from_predictions, ([0, 1], [0.1]), {}, "predictions"),
        (ReliabilityDisplay.from_predictions, ([0, 1], {"b": [0.1, 1.2]}), {}, "predictions"),
        (ReliabilityDisplay.from_predictions, ([0], [0.1]), {"sample_weight": [-1]}, "weight"),
        (ReliabilityDisplay.from_predictions, ([0], [0.1]), {"num_bins": 0}, "num_bins"),
        (ReliabilityDisplay.from_predictions, ([0], [0.1]), {"num_bins": 2.5}, "num_bins"),
        (ReliabilityDisplay.from_predictions, ([0], [0.1]), {"from_logits": "yes"}, "from_logits"),
        (ReliabilityDisplay.from_predictions, ([0], {}), {}, "`predictions`"),
        (FieldDisplay.from_predictions, ([0], {}, [0]), {}, "`predictions`"),
        (FieldDisplay.from_predictions, ([0], [0.1], [0]), {"num_values_shown": 2.5}, "num_values"),
        (FieldDisplay.from_predictions, ([0, 1], [0.1, 0.2], [0]), {}, "field"),
        (FieldDisplay.from_predictions, ([0], [0.1], [0]), {"num_values_shown": 0}, "num_values"),
        (group_rates, ([0], [0.1], [-1], 3), {}, "groups"),
        (group_rates, ([0], [0.1], np.array([-1]).astype("uint32"), 3), {}, "groups"),
        (group_rates, ([0], [0.1], [0.5], 3), {}, "groups"),
        (group_rates, ([0], [0.1], [0], 2.5), {}, "num_groups"),
        (group_rates, (["no"], [0.1], [0], 1), {}, "labels"),
        (group_rates, ([0], [0.1, 0.2], [0], 1), {}, "probabilities"),
        (group_rates, ([0], [0.1], [0], 1, [1, 1]), {}, "sample_weight"),
        (bin_by_mass, (["no"], 2), {}, "probabilities"),
        (bin_by_mass, ([0.1], 2, [1, 1]), {}, "sample_weight"),
        (bin_by_mass, ([0.1], 2, [-1]), {}, "sample_weight"),
    ],
)
def test_bad_rows_are_refused(make, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        make(*arguments, **options)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (np.array(["b", None, "b"], object), ("b", "missing")),
        ([0.5, np.nan, 0.5], ("0.5", "missing")),
        ([0.5, -1, 0.5], ("0.5", "-1.0")),
        ([-3, 2 * 10**9, -3], ("-3", "2000000000")),
    ],
)
def test_a_field_of_any_kind_is_drawn(values, names):
    display = FieldDisplay.from_predictions([0, 1, 1], [0.1, 0.2, 0.6], values)
    assert display.value_names == names
    np.testing.assert_allclose(display.curves["predicted"].predicted, [0.35, 0.2])


def test_matplotlib_is_needed_only_where_it_is_used(monkeypatch):
    display = ReliabilityDisplay.from_predictions([[1]], [[0.0]])
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # an import of it now fails
    with pytest.raises(ImportError, match="keras-calibration\\[plots\\]"):
        display.plot()
