"""The public names of the package, as a list: every change of them shows here."""

import doctest
import importlib
import inspect
import types

import pytest

import keras_calibration

TOP = """
    CalibrationReport MonitorReport __version__ base_logits calibrate calibrate_scores callbacks
    datasets export_litert export_onnx export_savedmodel fit_calibrator fit_head interval layers
    logs metrics models monitor ops plots refresh_savedmodel scoring seeds signature_input
    update_calibrator
"""
ROOMS = {
    "callbacks": """
        LogitAverage SeedVariance
    """,
    "calibration": """
        CalibrationReport CandidateScore calibrate calibrate_scores calibrator_queries
        fit_calibrator update_calibrator
    """,
    "datasets": """
        Table generate_click_log
    """,
    "export": """
        export_litert export_onnx export_savedmodel refresh_savedmodel signature_input
    """,
    "layers": """
        BetaCalibration BiasCorrection BlendedHead FieldBias FieldILPS FieldNetwork FitSettings
        FitSummary Head HistogramBinning ILPS IsotonicRegression NeuralCalibration NeuralFitSummary
        PlattScaling QuadraticScaling SamplingCorrection StructuredMatrixScaling TemperatureScaling
        VectorScaling
    """,
    "logs": """
        LogSums Periods Query ScoredLog Selection log_sums
    """,
    "metrics": """
        AdditiveMetric CalibratedCategoricalLogLoss CalibratedLogLoss CalibratedQuadraticLoss
        CalibrationGain CalibrationRatio CrossFittedMetric ExpectedCalibrationError FieldECE
        FieldError FieldRCE LogLoss LogitAUC NormalizedEntropy RollingCalibratedLoss
        SmoothECE SparseCalibratedCategoricalLogLoss
    """,
    "models": """
        BaseLogits CalibratedModel FieldMetricsModel ModelFitSummary
    """,
    "monitoring": """
        ClassMonitorReport MonitorReport Periods monitor
    """,
    "ops": """
        calibration_ratio crossed_ids expected_calibration_error field_ece_from_sums
        field_rce_from_sums field_sums log_loss_from_logits logits_from_probabilities
        normalized_entropy piecewise_linear smooth_ece_from_sums
    """,
    "plots": """
        CalibrationMapDisplay CurveStyle FieldDisplay Rates ReliabilityDisplay STYLES bin_by_mass
        group_rates wilson_interval
    """,
    "scoring": """
        Batch MulticalibrationError SegmentError calibrated_log_loss field_ece
        field_rce log_queries multicalibration_error score score_by_period
    """,
    "seeds": """
        Comparison Ledger Outcome Verdict compare import_csv import_mlflow import_tensorboard
        metric_accuracy set_dropout_seed set_seeds train write_report
    """,
    "statistics": """
        Estimate VarianceComponents accuracy_interval always_valid_difference
        detection_gain difference_on_new_rows hybrid_loss independent_seed_accuracy
        mean_difference metric_accuracy minimum_detectable_effect
        pitman_morgan pocock_confidence probability_better same_seed_accuracy seeds_needed
        std_ratio summarize variance_components
    """,
}
# Results, base classes and constants, whose use is shown where they come from.
WITHOUT_EXAMPLE = """
    calibration.CandidateScore
    monitoring.ClassMonitorReport monitoring.MonitorReport plots.Rates plots.STYLES
    scoring.MulticalibrationError scoring.SegmentError seeds.Outcome
    seeds.import_mlflow
"""
PUBLIC = [(room, name) for room, names in ROOMS.items() for name in names.split()]


def public(room, name):
    return getattr(importlib.import_module(f"keras_calibration.{room}"), name)


def test_names_of_the_package():
    assert sorted(dir(keras_calibration)) == TOP.split()
    assert all(hasattr(keras_calibration, name) for name in TOP.split())


@pytest.mark.parametrize("room", ROOMS)
def test_names_of_a_room(room):
    module = importlib.import_module(f"keras_calibration.{room}")
    found = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert sorted(found) == ROOMS[room].split()
    assert found == set(getattr(module, "__all__", found))


def test_no_name_has_two_meanings():
    meanings = {}
    for room, name in PUBLIC:
        meanings.setdefault(name, set()).add(id(public(room, name)))
    assert [name for name, objects in meanings.items() if len(objects) > 1] == []


@pytest.mark.parametrize(("room", "name"), PUBLIC, ids=map(".".join, PUBLIC))
def test_docstring_and_example(room, name):
    value = public(room, name)
    if not callable(value):
        assert f"{room}.{name}" in WITHOUT_EXAMPLE.split()
        return
    # A class without one would show that of its base.
    text = inspect.cleandoc(value.__doc__ or "")
    summary = text.partition("\n")[0]
    assert summary.endswith(".") or summary.endswith("`")
    has_example = bool(doctest.DocTestParser().get_examples(text))
    assert has_example == (f"{room}.{name}" not in WITHOUT_EXAMPLE.split())
