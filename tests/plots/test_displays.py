"""The displays and their mathematics, against references written apart from the code."""

import pathlib
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
@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_wilson_interval_solves_the_score_equation(count, num_rows, confidence):
    from scipy.stats import norm

    z = norm.ppf(0.5 + confidence / 2.0)
    rate = count / num_rows
    # (rate - q)² = z² q (1 - q) / n as a polynomial in q.
    ratio = z * z / num_rows
    roots = np.sort(np.roots([1.0 + ratio, -(2.0 * rate + ratio), rate * rate]))
    np.testing.assert_allclose(wilson_interval(rate, num_rows, confidence), roots, atol=1e-12)


def test_wilson_interval_of_no_rows_is_everything():
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
        assert line.get_color() == STYLES[index].color
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["before", "after"]


def test_reliability_plot_of_one_row_and_of_column_vectors(axes):
    display = ReliabilityDisplay.from_predictions([[1]], [[0.0]]).plot(axes)
    assert display.curves["predicted"].num_rows == [1]
    assert axes.get_legend() is None


def test_plot_without_axes_makes_a_figure(rows):
    import matplotlib.pyplot as plt

    labels, probabilities, ids = rows
    for display in (
        ReliabilityDisplay.from_predictions(labels, probabilities),
        FieldDisplay.from_predictions(labels, probabilities, ids),
        CalibrationMapDisplay.from_calibrator(ILPS(), probabilities, labels),
        CalibrationMapDisplay.from_calibrator(IsotonicRegression(), [0.5]),
    ):
        display.plot().figure_.canvas.draw()
        plt.close(display.figure_)


def test_field_plot_draws_observed_minus_predicted_by_frequency(rows, axes):
    labels, probabilities, _ = rows
    ids = np.repeat([3, 0, 2, 1], [400, 300, 200, 100])
    curves = {"before": np.minimum(2.0 * probabilities, 1.0), "after": probabilities}
    display = FieldDisplay.from_predictions(
        labels, curves, ids, field_name="site", vocabulary="abcd", num_values_shown=3
    ).plot(axes)
    assert display.value_names == ("d", "a", "c")
    bars = [container for container in axes.containers if hasattr(container, "patches")]
    for (name, predicted), container in zip(curves.items(), bars, strict=True):
        expected = [(labels - predicted)[ids == value].mean() for value in (3, 0, 2)]
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


def test_calibration_map_without_labels_or_knots(axes):
    platt = PlattScaling()
    display = CalibrationMapDisplay.from_calibrator(platt, [-np.inf, -1.0, 2.0, np.inf], num_bins=2)
    np.testing.assert_array_equal(display.shares["rows"], [0.5, 0.5])
    np.testing.assert_allclose(display.values, display.logits, atol=1e-6)
    assert display.knots.size == 0
    assert [line.get_label() for line in display.plot(axes).ax_.lines] == ["identity", "η(l)"]


@pytest.mark.parametrize(
    ("calibrator", "logits", "options", "message"),
    [
        (None, [0.0], {}, "must be a head that reads no features"),
        (VectorScaling(3), [0.0], {}, "For one logit per row, use"),
        (ILPS(), [], {}, "must hold one or more labels"),
        (ILPS(), [0.0, np.nan], {}, "one finite value and no NaN"),
        (ILPS(), [np.inf], {}, "one finite value and no NaN"),
        (ILPS(), [0.0], {"labels": [0, 1]}, "1 values of 'logits' and 2 labels"),
        (ILPS(), [0.0], {"labels": [2]}, "must hold one or more labels, each 0 or 1"),
        (ILPS(), [0.0], {"sample_weight": [-1.0]}, "must be finite and non-negative"),
        (ILPS(), [0.0], {"num_bins": 0}, "`num_bins` must be at least 1"),
    ],
)
def test_bad_rows_of_a_calibration_map_are_refused(calibrator, logits, options, message):
    with pytest.raises(ValueError, match=message):
        CalibrationMapDisplay.from_calibrator(calibrator, logits, **options)


def test_before_and_after_differ_in_greyscale():
    from matplotlib.colors import to_rgb

    lightness = [np.dot(to_rgb(style.color), [0.299, 0.587, 0.114]) for style in STYLES[:2]]
    assert abs(lightness[0] - lightness[1]) > 0.25
    assert STYLES[0].marker != STYLES[1].marker


@pytest.mark.parametrize(
    ("labels", "probabilities", "options", "message"),
    [
        ([], [], {}, "must hold one or more labels, each 0 or 1"),
        ([0, 2], [0.1, 0.2], {}, "must hold one or more labels, each 0 or 1"),
        ([0, np.nan], [0.1, 0.2], {}, "must hold one or more labels, each 0 or 1"),
        ([0, 1], [0.1], {}, "1 values of 'predicted' and 2 labels"),
        ([0, 1], {"after": [0.1, 1.2]}, {}, r"predictions\['after'\]` must hold.* from 0.1 to 1.2"),
        ([0, 1], [0.1, np.nan], {}, "must not hold NaN"),
        ([0, 1], [0.1, 0.2], {"sample_weight": [1]}, "1 values of 'sample_weight'"),
        ([0, 1], [0.1, 0.2], {"sample_weight": [1, -1]}, "must be finite and non-negative"),
        ([0, 1], [0.1, 0.2], {"sample_weight": [0, 0]}, "must be finite and non-negative"),
        ([0, 1], [0.1, 0.2], {"num_bins": 0}, "`num_bins` must be at least 1"),
    ],
)
def test_bad_rows_are_refused(labels, probabilities, options, message):
    with pytest.raises(ValueError, match=message):
        ReliabilityDisplay.from_predictions(labels, probabilities, **options)


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        ([0], {}, "1 values of 'field' and 2 labels"),
        ([0.0, 1.0], {"vocabulary": ["a", "b"]}, "must hold integers of at least 0"),
        ([-1, 1], {"vocabulary": ["a", "b"]}, "must hold integers of at least 0"),
        ([0, 2], {"vocabulary": ["a", "b"]}, "2 names for 'field', whose largest id is 2"),
        ([0, 1], {"num_values_shown": 0}, "`num_values_shown` must be at least 1"),
    ],
)
def test_bad_ids_are_refused(ids, options, message):
    with pytest.raises(ValueError, match=message):
        FieldDisplay.from_predictions([0, 1], [0.1, 0.2], ids, **options)


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


EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_matplotlib_and_pandas_are_needed_only_where_they_are_used(tmp_path):
    (tmp_path / "meta.json").write_text(
        '{"files": ["log.csv"], "label": {"column": "y", "equals": 1},'
        ' "fields": ["x"], "split": "order"}'
    )
    program = f"""
import sys
# An import of these now fails, as where they are not installed.
sys.modules.update(matplotlib=None, pandas=None)
sys.path.append({str(EXAMPLES)!r})
from data_folder import read_data_folder
from keras_calibration.datasets import generate_click_log
from keras_calibration.plots import ReliabilityDisplay
table = generate_click_log(num_rows=100)
display = ReliabilityDisplay.from_predictions(table.labels, table.probabilities)
for use in (display.plot, lambda: read_data_folder({str(tmp_path)!r})):
    try:
        use()
    except ImportError as error:
        print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.splitlines() == [
        'Plots require Matplotlib. Install it with `pip install "keras-calibration[plots]"`.',
        "Reading a data folder requires pandas. Install it with `pip install "
        '"keras-calibration[examples]"`.',
    ], result.stderr
