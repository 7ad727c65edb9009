"""The displays and their mathematics, against references written apart from the code."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from keras_calibration.layers import ILPS, IsotonicRegression, PlattScaling, VectorScaling
from keras_calibration.plots import (
    STYLES,
    CalibrationMapDisplay,
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
    rates = ReliabilityDisplay.from_predictions(labels, probabilities, num_bins=num_bins).curves[
        "predicted"
    ]
    observed, predicted = calibration_curve(
        labels, probabilities, n_bins=num_bins, strategy="quantile"
    )
    np.testing.assert_allclose(rates.observed, observed, rtol=1e-12)
    np.testing.assert_allclose(rates.predicted, predicted, rtol=1e-12)
    np.testing.assert_array_equal(rates.num_rows, 1000 // num_bins)


def test_ties_share_a_bin_and_empty_bins_are_dropped():
    bins = bin_by_mass([0.2] * 8 + [0.5, 0.7], num_bins=5)
    np.testing.assert_array_equal(bins, [0] * 8 + [1] * 2)
    np.testing.assert_array_equal(bin_by_mass(np.full(7, 0.3), num_bins=5), 0)


def test_logits_give_the_same_bins(rows):
    probabilities = rows[1]
    logits = np.log(probabilities) - np.log1p(-probabilities)
    np.testing.assert_array_equal(bin_by_mass(logits, 9), bin_by_mass(probabilities, 9))


def test_integer_weights_are_repeated_rows(rows):
    labels, probabilities, groups = rows
    weights = np.random.default_rng(1).integers(0, 4, size=1000)
    bins = bin_by_mass(probabilities, 7, weights)
    repeated = bin_by_mass(np.repeat(probabilities, weights), 7)
    np.testing.assert_array_equal(np.repeat(bins, weights), repeated)
    weighted = group_rates(labels, probabilities, groups, 6, weights)
    for group in range(6):
        mask = np.repeat(groups, weights) == group
        np.testing.assert_allclose(
            weighted.observed[group], np.repeat(labels, weights)[mask].mean()
        )
        np.testing.assert_allclose(
            weighted.predicted[group], np.repeat(probabilities, weights)[mask].mean()
        )


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
    assert np.isnan(rates.observed[1])
    assert np.isnan(rates.predicted[1])
    assert (rates.lower[1], rates.upper[1], rates.num_rows[1]) == (0.0, 1.0, 0)


def test_reliability_plot_draws_the_bins_of_each_curve(rows, axes):
    labels, probabilities, _ = rows
    curves = {"before": probabilities**2, "after": probabilities}
    display = ReliabilityDisplay.from_predictions(labels, curves, num_bins=8)
    assert display.plot(axes) is display
    assert display.ax_ is axes
    assert display.figure_ is axes.figure
    for index, (name, container) in enumerate(zip(curves, axes.containers, strict=True)):
        line = container.lines[0]
        np.testing.assert_array_equal(line.get_xdata(), display.curves[name].predicted)
        np.testing.assert_array_equal(line.get_ydata(), display.curves[name].observed)
        assert line.get_color() == STYLES[index]["color"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["before", "after"]


def test_plot_without_axes_makes_a_figure(rows):
    import matplotlib.pyplot as plt

    labels, probabilities, ids = rows
    for display in (
        ReliabilityDisplay.from_predictions([[1]], [[0.0]]),
        ReliabilityDisplay.from_predictions(labels, probabilities),
        FieldDisplay.from_predictions(labels, probabilities, ids),
        CalibrationMapDisplay.from_calibrator(ILPS(), probabilities, labels),
        CalibrationMapDisplay.from_calibrator(IsotonicRegression(), [0.5], [1]),
    ):
        display.plot().figure_.canvas.draw()
        plt.close(display.figure_)


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
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "d  (400)",
        "a  (300)",
        "c  (200)",
    ]


def test_calibration_map_draws_curve_knots_and_where_the_rows_lie(rows, axes):
    labels, probabilities, _ = rows
    logits = np.log(probabilities) - np.log1p(-probabilities)
    weights = np.random.default_rng(1).integers(0, 3, size=1000)
    ilps = ILPS(num_knots=6)
    ilps.fit(2.0 * logits + 1.0, labels)
    display = CalibrationMapDisplay.from_calibrator(
        ilps, 2.0 * logits[:, None] + 1.0, labels, sample_weight=weights, num_bins=9
    ).plot(axes)
    identity, curve, knots = axes.lines
    np.testing.assert_array_equal(identity.get_xdata(), identity.get_ydata())
    # Straight lines between the points are the curve itself: its bends are among them.
    at = np.linspace(*display.bin_edges[[0, -1]], 1001)
    expected = np.interp(at, curve.get_xdata(), curve.get_ydata())
    np.testing.assert_allclose(np.ravel(ilps(at)), expected, atol=1e-5)
    np.testing.assert_array_equal(knots.get_xdata(), ilps.get_knots())
    np.testing.assert_allclose(knots.get_ydata(), ilps.get_values(), atol=1e-5)
    (below,) = axes.child_axes
    assert below.get_xlim() == axes.get_xlim()
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["identity", "η(l)", "knots", "negatives", "positives"]
    for label, share in enumerate(display.shares.values()):
        chosen = np.repeat(2.0 * logits + 1.0, weights * (labels == label))
        expected = np.histogram(chosen, display.bin_edges)[0] / len(chosen)
        np.testing.assert_allclose(share, expected, atol=1e-12)


def test_calibration_map_without_knots_leaves_out_infinite_logits(axes):
    rows = [-np.inf, -1.0, 2.0, np.inf], [0, 0, 1, 1]
    display = CalibrationMapDisplay.from_calibrator(PlattScaling(), *rows, num_bins=2)
    np.testing.assert_array_equal(list(display.shares.values()), np.eye(2))
    np.testing.assert_allclose(display.values, display.logits, atol=1e-6)
    assert [line.get_label() for line in display.plot(axes).ax_.lines] == ["identity", "η(l)"]


def test_before_and_after_differ_in_greyscale():
    from matplotlib.colors import to_rgb

    lightness = [np.dot(to_rgb(style["color"]), [0.299, 0.587, 0.114]) for style in STYLES[:2]]
    assert abs(lightness[0] - lightness[1]) > 0.25
    assert STYLES[0]["marker"] != STYLES[1]["marker"]


of_predictions, of_a_field, map_of = (
    ReliabilityDisplay.from_predictions,
    FieldDisplay.from_predictions,
    CalibrationMapDisplay.from_calibrator,
)


@pytest.mark.parametrize(
    ("make", "arguments", "options", "message"),
    [
        (of_predictions, ([], []), {}, "labels"),
        (of_predictions, ([0, 2], [0.1, 0.2]), {}, "labels"),
        (of_predictions, ([0, np.nan], [0.1, 0.2]), {}, "labels"),
        (of_predictions, ([0, 1], [0.1]), {}, "`predicted`"),
        (of_predictions, ([0, 1], {"b": [0.1, 1.2]}), {}, r"predictions\['b'\]` must hold prob"),
        (of_predictions, ([0, 1], [0.1, np.nan]), {}, "predictions"),
        (of_predictions, ([0, 1], [0.1, 0.2]), {"sample_weight": [1]}, "sample_weight"),
        (of_predictions, ([0, 1], [0.1, 0.2]), {"sample_weight": [1, -1]}, "sample_weight"),
        (of_predictions, ([0, 1], [0.1, 0.2]), {"sample_weight": [0, 0]}, "sample_weight"),
        (of_predictions, ([0, 1], [0.1, 0.2]), {"num_bins": 0}, "num_bins"),
        (of_a_field, ([0, 1], [0.1, 0.2], [0]), {}, "`field`"),
        (of_a_field, ([0, 1], [0.1, 0.2], [0, 1]), {"num_values_shown": 0}, "num_values_shown"),
        (map_of, (None, [0.0], [1]), {}, "head that reads no features"),
        (map_of, (VectorScaling(3), [0.0], [1]), {}, "For one logit per row, use"),
        (map_of, (ILPS(), [], []), {}, "labels"),
        (map_of, (ILPS(), [0.0, np.nan], [0, 1]), {}, "`logits`"),
        (map_of, (ILPS(), [np.inf], [1]), {}, "`logits`"),
        (map_of, (ILPS(), [0.0], [0, 1]), {}, "`logits`"),
        (map_of, (ILPS(), [0.0], [1]), {"num_bins": 0}, "num_bins"),
    ],
)
def test_bad_rows_are_refused(make, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        make(*arguments, **options)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["b", "a", "b"], ("b", "a")),
        (np.array(["b", None, "b"], object), ("b", "missing")),
        ([0.5, -1, 0.5], ("0.5", "-1.0")),
        ([-3, 2 * 10**9, -3], ("-3", "2000000000")),
    ],
)
def test_a_field_of_any_kind_is_drawn(values, names):
    display = FieldDisplay.from_predictions([0, 1, 1], [0.1, 0.2, 0.6], values)
    assert display.value_names == names
    np.testing.assert_allclose(display.curves["predicted"].predicted, [0.35, 0.2])


@pytest.mark.slow
def test_matplotlib_is_needed_only_where_it_is_used():
    program = """
import sys
sys.modules["matplotlib"] = None  # an import of it now fails, as where it is not installed
from keras_calibration.plots import ReliabilityDisplay
display = ReliabilityDisplay.from_predictions([0, 1], [0.2, 0.7])
try:
    display.plot()
except ImportError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.splitlines() == [
        'Plots require Matplotlib. Install it with `pip install "keras-calibration[plots]"`.'
    ], result.stderr
