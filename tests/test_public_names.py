"""The public names of the package, as a list: every change of them shows here."""

import doctest
import importlib
import inspect
import types

import pytest

import calibration_records
import keras_calibration

TOP = """
    __version__ base_logits calibrate calibrate_scores callbacks
    datasets export_onnx export_savedmodel fit_calibrator fit_head interval layers
    logs metrics models monitor plots refresh_savedmodel scoring seeds
    signature_input update_calibrator
"""
ROOMS = {
    "callbacks": """
        SeedVariance
    """,
    "datasets": """
        generate_click_log
    """,
    "layers": """
        BetaCalibration BiasCorrection BlendedHead BoostedTrees FieldBias FieldILPS
        FieldNetwork Fit FitSettings Head ILPS IsotonicRegression NeuralCalibration
        PlattScaling Reads SamplingCorrection TemperatureScaling
        VectorScaling
    """,
    "logs": """
        LogSums Periods Query ScoredLog log_sums monitor_sums
    """,
    "metrics": """
        CalibratedCategoricalLogLoss CalibratedLogLoss CalibratedQuadraticLoss
        CalibrationRatio ExpectedCalibrationError FieldECE
        FieldRCE LogLoss LogitAUC NormalizedEntropy
    """,
    "models": """
        CalibratedModel FieldMetricsModel
    """,
    "plots": """
        FieldDisplay ReliabilityDisplay STYLES
        bin_by_mass group_rates
    """,
    "scoring": """
        calibrated_log_loss field_ece field_rce log_queries
        multicalibration_error rolling_quadratic_loss score score_by_period
    """,
    "seeds": """
        Ledger compare metric_accuracy set_seeds train
    """,
    "testing": """
        check_head
    """,
}
# Further modules with a list of public names.
OTHER_ROOMS = {
    "calibration_records",
    *(f"calibration_records.{room}" for room in ("logs", "monitoring", "statistics")),
    *(f"keras_calibration.{room}" for room in ("calibration", "export", "sklearn", "statistics")),
}
RECORDS = "Ledger Periods ScoredLog __version__ compare metric_accuracy monitor"
# What functions return: in the reference, but no names of the package.
RESULTS = """
    CalibrationReport CandidateScore Comparison ComparisonDisplay CrossFittedRows Estimate
    FieldReport FitSummary Level MetricComparison MonitorReport MulticalibrationError Outcome
    PeriodReport PipelineRuns RateCheck Rates Refresh SeedNoise SegmentError SegmentErrors Table
    Verdict
"""
# Results and constants, whose use is shown where they come from.
WITHOUT_EXAMPLE = "plots.STYLES"
ROOMS_OF_TOP = {"__version__", *ROOMS}
PUBLIC = [("", name) for name in TOP.split() if name not in ROOMS_OF_TOP]
PUBLIC += [(room, name) for room, names in ROOMS.items() for name in names.split()]


def public(room, name):
    return getattr(importlib.import_module(f"keras_calibration.{room}".rstrip(".")), name)


def test_names_of_the_package():
    assert sorted(dir(keras_calibration)) == TOP.split()
    assert all(hasattr(keras_calibration, name) for name in TOP.split())


def test_names_without_keras():
    assert sorted(dir(calibration_records)) == RECORDS.split()
    assert calibration_records.compare is keras_calibration.seeds.compare
    assert calibration_records.monitor is keras_calibration.monitor
    with pytest.raises(AttributeError, match="no attribute 'Monitor'"):
        _ = calibration_records.Monitor


@pytest.mark.parametrize(
    "module", sorted({*(f"keras_calibration.{room}" for room in ROOMS), *OTHER_ROOMS})
)
def test_completion_offers_public_names_alone(module):
    """`dir` of a room, which editors and notebooks offer, is its list: no modules, no imports."""
    if module.endswith("sklearn"):
        pytest.importorskip("sklearn")
    room = importlib.import_module(module)
    assert sorted({*dir(room)} - {"__version__"}) == sorted(room.__all__)
    assert all(hasattr(room, name) for name in room.__all__)


@pytest.mark.parametrize("room", ROOMS)
def test_names_of_a_room(room):
    module = importlib.import_module(f"keras_calibration.{room}")
    names = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert sorted(names) == ROOMS[room].split()
    assert names == set(getattr(module, "__all__", names))


def test_no_name_has_two_meanings():
    meanings = {}
    for room, name in PUBLIC:
        meanings.setdefault(name, set()).add(id(public(room, name)))
    assert [name for name, objects in meanings.items() if len(objects) > 1] == []


@pytest.mark.parametrize(("room", "name"), PUBLIC, ids=map(".".join, PUBLIC))
def test_docstring_and_example(room, name):
    value = public(room, name)
    path = f"{room}.{name}".lstrip(".")
    if not callable(value):
        assert path in WITHOUT_EXAMPLE.split()
        return
    # A class without one would show that of its base.
    text = inspect.cleandoc(value.__doc__ or "")
    summary = text.partition("\n")[0]
    assert summary.endswith(".") or summary.endswith("`")
    has_example = bool(doctest.DocTestParser().get_examples(text))
    assert has_example == (path not in WITHOUT_EXAMPLE.split())
