import itertools
import json
import math
import types

import numpy as np
import pytest
from scipy import stats

from calibration_records.runs.metric_names import direction_of, loss_partners
from keras_calibration.seeds import Ledger, compare
from keras_calibration.statistics import always_valid_difference, bias_share, surviving_share
from run_references import Looked

numbers = itertools.count()
CALIBRATED = "calibrated_log_loss"


def append(ledger, pipeline, seed, metrics, **fields):
    """A run with one value, or a list over epochs, of each metric."""
    series = {name: np.atleast_1d(values).tolist() for name, values in metrics.items()}
    epochs = list(range(max(map(len, series.values()))))
    record = {"pipeline": pipeline, "seed": seed, "status": "finished", "epochs": epochs}
    return ledger.append({**record, "metrics": series, **fields})


def losses(seed, num_runs, shift=0.0, gain=0.0, spread=1.0, bias=0.0):
    """The metrics of runs, plain = calibrated + gain."""
    rng = np.random.default_rng(seed)
    biases = bias + 0.03 * spread * rng.normal(size=num_runs)
    calibrated = 0.37 + shift + 2e-4 * spread * rng.normal(size=num_runs)
    gains = gain + 0.06 * biases**2
    return [
        {
            "loss": 0.4,
            "val_loss": float(loss + extra),
            "val_calibrated_log_loss": float(loss),
            "val_calibrated_log_loss_bias": float(c),
            "val_auc": float(0.75 - loss / 10),
        }
        for loss, extra, c in zip(calibrated, gains, biases, strict=True)
    ]


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "runs")


def fill(ledger, pipeline, metrics, first_seed=None, **fields):
    # Seeds of their own unless `first_seed` is given: independent runs.
    start = 1000 * next(numbers) if first_seed is None else first_seed
    for number, values in enumerate(metrics):
        append(ledger, pipeline, start + number, values, **fields)


def test_the_better_in_both_directions(ledger):
    fill(ledger, "deepfm", losses(0, 12))
    fill(ledger, "dcn", losses(1, 12, shift=-7e-4))
    there, back = compare(ledger, "deepfm", "dcn"), compare(ledger, "dcn", "deepfm")
    assert (str(there.verdict), str(back.verdict)) == ("B better", "A better")
    assert there.metric == "val_calibrated_log_loss"
    assert there.probability_b_better() > 0.99
    assert back.probability_b_better() < 0.01
    np.testing.assert_allclose(there.difference.value, -back.difference.value)
    # By AUC, larger is better.
    by_auc = compare(ledger, "deepfm", "dcn", metric="auc")
    assert by_auc.deciding.maximize
    assert str(by_auc.verdict) == "B better"
    assert by_auc.probability_b_better() > 0.99
    assert by_auc.deciding.b_beats_a.value > 0.9
    turned = compare(ledger, "deepfm", "dcn", metric="auc", directions={"auc": "min"})
    assert str(turned.verdict) == "A better"


def test_shared_seeds_are_paired(ledger):
    common = 1e-2 * np.random.default_rng(2).normal(size=10)
    for pipeline, shift in (("deepfm", 0.0), ("dcn", -1e-3)):
        runs = [{**run} for run in losses(len(pipeline), 10, shift=shift)]
        for run, extra in zip(runs, common, strict=True):
            run["val_calibrated_log_loss"] += extra
        fill(ledger, pipeline, runs, first_seed=0)
    comparison = compare(ledger, "deepfm", "dcn")
    assert comparison.shared_seeds == tuple(range(10))
    assert str(comparison.verdict) == "B better"
    assert comparison.deciding.b_beats_a_same_seed.value == 1.0
    assert comparison.deciding.b_beats_a.value < 0.8
    assert comparison.method == "Student's paired t"


def test_a_gain_that_is_calibration_only(ledger):
    fill(ledger, "deepfm", losses(0, 12, gain=2e-3))
    fill(ledger, "calibrated", losses(1, 12))
    for a, b, better in (("deepfm", "calibrated", "B"), ("calibrated", "deepfm", "A")):
        # Calibrated again before it is served, neither is better; served as it was trained, one is.
        for metric, words, winner in (
            ("calibrated_log_loss", "the gain is calibration only", None),
            ("loss", f"{better} better", better),
        ):
            comparison = compare(ledger, a, b, metric=metric)
            assert (str(comparison.verdict), comparison.verdict.better) == (words, winner)
            # A verdict that says so needs no note.
            assert any("mostly" in note for note in comparison.notes) == (winner is not None)
            assert comparison.surviving_share.value < 0.1


def test_a_penalty_is_no_gain_by_calibration(ledger):
    """Keras' loss has the penalties of weights, which no correction of predictions removes."""
    for pipeline, penalty in (("plain", 0.0), ("l2", 0.03)):
        runs = losses(len(pipeline), 12)
        runs = [{**run, "val_log_loss": run["val_loss"]} for run in runs]
        penalized = [{**run, "val_loss": run["val_loss"] + penalty} for run in runs]
        fill(ledger, pipeline, penalized)
    by_default, by_total = (
        compare(ledger, "plain", "l2", metric=name) for name in ("calibrated_log_loss", "loss")
    )
    assert by_default.verdict.outcome.value == "undecided"
    assert str(by_total.verdict) == "A better"
    for comparison in (by_default, by_total):
        assert comparison.plain_metric == "val_log_loss"
        assert comparison.bias_share == compare(ledger, "plain", "l2", metric="log_loss").bias_share


@pytest.mark.parametrize("shared", [False, True])
def test_what_calibration_saves_in_seeds(ledger, shared):
    first = 0 if shared else None
    runs = [losses(0, 12, bias=0.1), losses(1, 12, bias=0.1, shift=-2e-4)]
    fill(ledger, "deepfm", runs[0], first_seed=first)
    fill(ledger, "dcn", runs[1], first_seed=first)
    plain, calibrated = (
        [[run[name] for run in pipeline] for pipeline in runs]
        for name in ("val_loss", "val_calibrated_log_loss")
    )
    for metric in ("calibrated_log_loss", "loss"):
        comparison = compare(ledger, "deepfm", "dcn", metric=metric)
        assert comparison.bias_share == bias_share(plain, calibrated, paired=shared)
        assert comparison.surviving_share == surviving_share(plain, calibrated, paired=shared)
        assert set(comparison.seeds_needed) == {"val_loss", "val_calibrated_log_loss"}


@pytest.mark.parametrize(
    ("metric", "names", "expected"),
    [
        ("val_calibrated_log_loss", ["val_loss", "val_log_loss"], "val_log_loss"),
        ("calibrated_log_loss", ["val_loss", "binary_crossentropy"], "binary_crossentropy"),
        ("click_calibrated_log_loss", ["click_log_loss", "log_loss"], "click_log_loss"),
        ("val_calibrated_quadratic_loss", ["val_mse"], "val_mse"),
        # It can be a mean absolute error.
        ("val_calibrated_quadratic_loss", ["val_loss"], None),
        ("val_calibrated_categorical_log_loss", ["val_loss"], "val_loss"),
        ("val_calibrated_log_loss", ["loss"], None),
    ],
)
def test_which_losses_belong_together(metric, names, expected):
    partners = (None, None) if expected is None else (expected, metric)
    assert loss_partners(metric, [metric, *names]) == partners
    if expected is not None:
        assert loss_partners(expected, [metric, *names]) == partners
        auc = "val_auc" if metric.startswith("val_") else "auc"
        if "click" not in metric:
            assert loss_partners(auc, [metric, *names]) == partners


def test_the_loss_of_the_same_rows_goes_before_one_of_that_name():
    names = ["val_calibrated_log_loss", "val_log_loss", "val_plain_log_loss", "val_auc"]
    pair = ("val_plain_log_loss", "val_calibrated_log_loss")
    for metric in ("val_calibrated_log_loss", "val_plain_log_loss", "val_auc"):
        assert loss_partners(metric, names) == pair
    assert loss_partners("val_log_loss", names) == (None, None)
    numbered = [f"{name}_1" for name in pair]
    assert loss_partners(numbered[1], [*numbered, "val_log_loss_1"]) == tuple(numbered)


@pytest.mark.parametrize("num_runs", [4, 5, 6])
def test_a_paired_test_needs_six_seeds(ledger, num_runs):
    for pipeline, shift in (("deepfm", 0.0), ("dcn", -0.1)):
        fill(ledger, pipeline, losses(len(pipeline), num_runs, shift=shift), first_seed=0)
        fill(ledger, f"own {pipeline}", losses(len(pipeline), num_runs, shift=shift))
    assert compare(ledger, "own deepfm", "own dcn").verdict.better == "B"
    comparison = compare(ledger, "deepfm", "dcn")
    assert comparison.verdict.decided == (num_runs == 6)
    if num_runs < 6:
        told = f"{num_runs} shared seeds, and a paired test needs 6. Train {6 - num_runs} more"
        assert told in str(comparison.verdict)
        assert comparison.difference.p_value is None
    # What is likely is told all the same.
    assert comparison.probability_b_better() > 0.99


def test_a_wrong_path_is_told(ledger):
    with pytest.raises(ValueError, match=r"'deepfm', 'dcn'.*check its path"):
        compare(ledger, "deepfm", "dcn")


@pytest.mark.parametrize(("first", "number"), [(1, 3), (3, 1), (9, 0)])
def test_few_shared_seeds_are_compared_as_if_independent(ledger, first, number):
    fill(ledger, "deepfm", losses(0, 3), first_seed=1)
    fill(ledger, "dcn", losses(1, 3), first_seed=first)
    comparison = compare(ledger, "deepfm", "dcn")
    heading = {
        3: "3 shared seeds, too few to pair the runs;",
        1: "1 shared seed, too few to pair the runs;",
        0: "no shared seeds;",
    }
    assert f"B = dcn (3 runs); {heading[number]}" in str(comparison)
    assert comparison.method == "Welch's t"
    told = {
        3: "3 shared seeds, and a paired test needs 6. Train 3 more seeds with both pipelines",
        1: "3 runs of deepfm and 3 runs of dcn, and a test needs 4 of each. Train 1 more seed each",
    }
    assert str(comparison.verdict) == f"cannot tell: {told[number or 1]}"


@pytest.mark.parametrize("same_seed", [False, True])
def test_one_run_each_is_judged_by_the_noise_of_the_ledger(ledger, same_seed):
    earlier = [losses(10 + number, 8, shift=number) for number in range(4)]
    for number, runs in enumerate(earlier):
        fill(ledger, f"earlier {number}", runs)
    fill(ledger, "equal", [losses(9, 1)[0]] * 5)  # no seed moves it
    fill(ledger, "other rows", losses(8, 9, spread=100.0), num_rows=7)
    first = 0 if same_seed else None
    a, b = losses(0, 1)[0], losses(1, 1, shift=-4e-4)[0]
    fill(ledger, "deepfm", [a], first_seed=first)
    fill(ledger, "dcn", [b], first_seed=first)
    comparison = compare(ledger, "deepfm", "dcn")
    values = np.array([[run["val_calibrated_log_loss"] for run in runs] for runs in earlier])
    std = np.sqrt(np.mean(values.var(axis=1, ddof=1)))
    difference = b["val_calibrated_log_loss"] - a["val_calibrated_log_loss"]
    expected = stats.t.cdf(-difference / (np.sqrt(2) * std), 28)
    assert comparison.probability_b_better() == pytest.approx(expected)
    assert 0.6 < expected < 0.99
    assert comparison.to_dict()["probability_b_better"] == pytest.approx(expected)
    text = " ".join(str(comparison).split())
    assert f"a seed standard deviation of {std:#.2g}, from 32 runs of the ledger" in text
    # Borrowed noise decides nothing, and says how many seeds will.
    assert str(comparison.verdict) == f"undecided: about {comparison.more_seeds} more seeds each"
    assert comparison.more_seeds >= (5 if same_seed else 3)
    turned = compare(ledger, "dcn", "deepfm")
    assert turned.probability_b_better() == pytest.approx(1 - expected)
    json.dumps(comparison.to_dict(), allow_nan=False)


@pytest.mark.parametrize("is_significant", [False, True])
def test_losses_that_disagree_give_advice_only_on_evidence(ledger, is_significant):
    shift, gain = (7e-4, 2e-3) if is_significant else (3e-5, 6e-5)
    fill(ledger, "deepfm", losses(0, 12))
    fill(ledger, "dcn", losses(1 if is_significant else 0, 12, shift=-shift, gain=gain))
    for metric in ("calibrated_log_loss", "loss", "auc"):
        comparison = compare(ledger, "deepfm", "dcn", metric=metric)
        plain, calibrated = (comparison.metrics[f"val_{n}"] for n in ("loss", CALIBRATED))
        assert (plain.favors, calibrated.favors) == ("A", "B")
        assert comparison.verdict.decided == is_significant
        told = [note for note in comparison.notes if "favors" in note]
        assert len(told) == is_significant
        if told:
            assert told[0].startswith("val_loss favors A, val_calibrated_log_loss favors B")
    turned = compare(ledger, "dcn", "deepfm").notes
    assert any(note.startswith("val_loss favors B") for note in turned) == is_significant


def test_what_decides_stands_beside_the_verdict(ledger):
    fill(ledger, "deepfm", losses(0, 12), first_seed=0)
    fill(ledger, "dcn", losses(1, 12, shift=-2.2e-4), first_seed=0)
    p = compare(ledger, "deepfm", "dcn").difference.p_value
    # An interval of 95 % without 0 that leaves the question open: p allows for further looks.
    assert 0.05 / 3 < p < 0.05
    for options, verdict, rule in (
        ({}, "undecided", "Undecided, since p is not below 0.0167 (5 % shared by 3 looks)."),
        ({"num_looks": 1}, "B better", "Decided, since p < 0.05."),
        ({"num_looks": 4}, "undecided", "Undecided, since p is not below 0.0125 (5 % shared by 4 "),
        ({"num_looks": None}, "undecided", "Undecided, since p is not below 0.05 (at any number "),
        ({"delta": 1.0}, "no difference", "Decided, since the 98.333 % interval "),
        ({"delta": 1e-6}, "undecided", "Undecided, since p is not below 0.0167 (5 % shared by 3 "),
    ):
        first, figures, reason = str(compare(ledger, "deepfm", "dcn", **options)).split("\n")[:3]
        assert first.startswith(f"Verdict: {verdict}")
        assert figures.startswith("val_calibrated_log_loss: B − A = ")
        assert ", p = " in figures
        assert reason.startswith(rule)


def test_the_metric_chooses_the_loss(ledger):
    fill(ledger, "deepfm", losses(0, 12))
    fill(ledger, "dcn", losses(1, 12, shift=-7e-4, gain=2e-3))
    for prefix in ("", "val_"):
        for name, words in (("calibrated_log_loss", "B better"), ("loss", "A better")):
            comparison = compare(ledger, "deepfm", "dcn", metric=prefix + name)
            assert (comparison.metric, str(comparison.verdict)) == (f"val_{name}", words)


def test_runs_that_do_not_count_are_counted(ledger):
    fill(ledger, "deepfm", losses(0, 6))
    fill(ledger, "dcn", losses(1, 6), first_seed=50)
    append(ledger, "dcn", 90, {"val_calibrated_log_loss": math.nan}, status="diverged")
    append(ledger, "dcn", 91, {"val_calibrated_log_loss": math.inf})
    append(ledger, "dcn", 92, {"loss": 0.5})
    append(ledger, "dcn", 50, losses(9, 1)[0])
    ledger.append({"pipeline": "dcn", "seed": 93, "status": "started"})
    comparison = compare(ledger, "deepfm", "dcn")
    b = comparison.b
    assert (len(b), b.num_diverged, b.num_unfinished) == (6, 2, 1)
    assert (b.num_repeated, b.num_without_metric) == (1, 1)
    assert "dcn: excluded runs: 2 diverged" in str(comparison)
    # Of the runs with one seed the latest counts.
    assert b.values["val_calibrated_log_loss"][0] == losses(9, 1)[0]["val_calibrated_log_loss"]


def test_without_any_finished_run(ledger):
    fill(ledger, "deepfm", losses(0, 6))
    append(ledger, "dcn", 1, {"val_calibrated_log_loss": math.nan}, status="diverged")
    comparison = compare(ledger, "deepfm", "dcn")
    assert str(comparison.verdict).startswith("cannot tell: no finished run of dcn")
    json.dumps(comparison.to_dict(), allow_nan=False)
    with pytest.raises(ValueError, match=r"posterior.* 6 and 0"):
        comparison.probability_b_better()


def test_which_epoch(ledger):
    rng = np.random.default_rng(3)
    for pipeline in ("deepfm", "dcn"):
        for _ in range(5):
            values = 0.5 + 0.01 * rng.normal(size=3)
            append(ledger, pipeline, next(numbers), {"val_loss": values})
    runs = [run["metrics"]["val_loss"] for run in ledger.runs("deepfm")]
    for epoch, pick in (
        ("kept", lambda v: v[-1]),
        ("last", lambda v: v[-1]),
        (1, lambda v: v[1]),
        ("best", min),
    ):
        comparison = compare(ledger, "deepfm", "dcn", metric="loss", epoch=epoch)
        assert comparison.deciding.mean_a == pytest.approx(np.mean([pick(v) for v in runs]))
        assert any("too optimistic" in note for note in comparison.notes) == (epoch == "best")
    beyond = compare(ledger, "deepfm", "dcn", metric="loss", epoch=7)
    assert (beyond.a.num_without_metric, beyond.verdict.decided) == (5, False)


def test_the_epoch_that_was_kept_counts(ledger):
    for pipeline, best in (("deepfm", 0.5), ("dcn", 0.4)):
        for seed in range(5):
            series = {"val_loss": [0.9, best + seed / 1e3, 0.7], "val_auc": [0.6, None, 0.8]}
            append(ledger, pipeline, seed, series, kept_epoch=1)
    comparison = compare(ledger, "deepfm", "dcn", metric="loss")
    assert comparison.deciding.mean_b == pytest.approx(0.402)
    assert comparison.b.epochs == (1,) * 5
    last = compare(ledger, "deepfm", "dcn", metric="loss", epoch="last")
    assert (last.deciding.mean_b, last.b.epochs) == (pytest.approx(0.7), (2,) * 5)
    # A metric that was not measured there has no value of the model that was kept.
    assert compare(ledger, "deepfm", "dcn", metric="auc").b.num_without_metric == 5


@pytest.mark.parametrize(
    ("way", "names"),
    {
        "min": "loss val_loss test_rmse_1 train/mae test_binary_logloss validation_0-logloss "
        "Brier_Score val_calibrated_log_loss eval_mean_squared_error test-error hinge poisson",
        "max": "val_auc_2 test_roc_auc neg_log_loss test_neg_brier_score val_binary_io_u ndcg@10 "
        "r2 neg_root_mean_squared_log_error precision_at_recall f1_macro logit_auc",
        None: "loss_improvement auc_gap 1-auc -auc rmse_gain neg_brier neg_auc val_neg_loss "
        "log_loss_gain negative_loss calibration_ratio val_calibrated_log_loss_bias score uplift "
        "inverse_rmse loss_ratio delta_auc std_auc val_auc_std click_auc cosine_similarity auc-1 "
        "site_field_ece false_positives gini",
    }.items(),
)
def test_a_direction_is_known_by_the_whole_name(way, names):
    assert {name: direction_of(name) for name in names.split()} == (
        dict.fromkeys(names.split(), way)
    )


def test_a_direction_that_is_not_known_is_not_guessed(ledger):
    for pipeline, value in (("deepfm", 0.2), ("dcn", 0.3)):
        for seed in range(6):
            values = {"val_uplift": value + seed / 1e3, "val_calibration_ratio": value}
            append(ledger, pipeline, seed, {**values, "val_loss": 0.5 + seed / 1e3})
    for metric in ("uplift", "calibration_ratio"):
        with pytest.raises(ValueError, match=rf"directions=.'val_{metric}': 'max'.*--maximize"):
            compare(ledger, "deepfm", "dcn", metric=metric)
    for direction, words in (("max", "B better"), ("min", "A better")):
        turned = compare(ledger, "deepfm", "dcn", metric="uplift", directions={"uplift": direction})
        assert str(turned.verdict) == words
        assert turned.deciding.maximize == turned.deciding.b_beats_a.value == (direction == "max")
    # Shown beside one that decides, and not judged.
    beside = compare(ledger, "deepfm", "dcn", metric="loss").metrics["val_uplift"]
    assert (beside.maximize, beside.better, beside.b_beats_a) == (None, None, None)
    # The runs may say it.
    for pipeline, value in (("one", 0.2), ("other", 0.3)):
        for seed in range(6):
            values = {"val_uplift": value + seed / 1e3}
            append(ledger, pipeline, seed, values, directions={"val_uplift": "max"})
    assert str(compare(ledger, "one", "other", metric="uplift").verdict) == "B better"
    append(ledger, "other", 9, {"val_uplift": 0.3}, directions={"val_uplift": "min"})
    with pytest.raises(ValueError, match="`metric`"):
        compare(ledger, "one", "other", metric="uplift")


def test_looks_widen_the_interval(ledger):
    fill(ledger, "deepfm", losses(0, 12))
    fill(ledger, "dcn", losses(1, 12))
    comparisons = [compare(ledger, "deepfm", "dcn", num_looks=number) for number in (1, 4, None)]
    widths = [comparison.difference.high - comparison.difference.low for comparison in comparisons]
    assert widths == sorted(widths)
    one, four, any_number = comparisons
    # The four intervals of 98.75 % err together in at most 5 % of the cases.
    once = compare(ledger, "deepfm", "dcn", confidence=0.9875, num_looks=1)
    assert four.difference == once.difference
    # Without a number the interval is that of this look, and "about k more seeds" with another look
    # is allowed for.
    default = compare(ledger, "deepfm", "dcn")
    three = compare(ledger, "deepfm", "dcn", num_looks=3)
    assert default.difference == one.difference
    assert default.deciding.judged == three.difference
    for name in ("verdict", "more_seeds", "smallest_detectable_effect"):
        assert getattr(default, name) == getattr(three, name)
    assert one.method == four.method == "Welch's t"
    assert any_number.method == "an always-valid t"


@pytest.mark.parametrize(("num_looks", "risk"), [(1, 0.05), ("advised", 0.05 / 3), (5, 0.01)])
@pytest.mark.parametrize("shared", [False, True])
def test_the_detectable_effect_is_found_in_four_of_five_cases(ledger, shared, num_looks, risk):
    first = 0 if shared else None
    runs = [losses(2, 9), losses(3, 9 if shared else 13, spread=1.7)]
    for pipeline, metrics in zip(("deepfm", "dcn"), runs, strict=True):
        fill(ledger, pipeline, metrics, first)
    values = (np.array([run["val_calibrated_log_loss"] for run in metrics]) for metrics in runs)
    comparison = compare(ledger, "deepfm", "dcn", num_looks=num_looks)
    expected = Looked(*values, shared).detectable(1 - risk)
    assert comparison.smallest_detectable_effect == pytest.approx(expected, rel=1e-9)


def test_the_detectable_effect_of_few_runs_has_the_seed_noise_of_the_others(ledger):
    others = [losses(seed, 5) for seed in (4, 5)]
    few = [losses(6, 2), losses(7, 3)]
    pipelines = ("one", "other", "deepfm", "dcn")
    for pipeline, metrics in zip(pipelines, [*others, *few], strict=True):
        fill(ledger, pipeline, metrics)
    values = [[run["val_calibrated_log_loss"] for run in runs] for runs in [*others, *few]]
    degrees = sum(len(runs) - 1 for runs in values)
    variance = sum((len(runs) - 1) * np.var(runs, ddof=1) for runs in values) / degrees
    error = np.sqrt(variance * (1 / 2 + 1 / 3))
    expected = stats.t.ppf([0.975, 0.8], degrees).sum() * error
    comparison = compare(ledger, "deepfm", "dcn", num_looks=1)
    assert comparison.smallest_detectable_effect == pytest.approx(expected, rel=1e-9)


def test_notes_on_what_the_records_say(ledger):
    for pipeline in ("deepfm", "dcn", "few"):
        for seed in range(6):
            weights = "same" if pipeline == "deepfm" else None
            values = {"val_loss": 0.5}
            append(ledger, pipeline, seed, values, initial_weights=weights, num_rows=len(pipeline))
    comparison = compare(ledger, "deepfm", "dcn", metric="loss")
    text = "\n".join(comparison.notes)
    for words in ("started from equal weights", "all runs are equal", "different numbers of rows"):
        assert words in text
    assert str(comparison.verdict) == "no difference larger than 0"
    assert not any("rows" in note for note in compare(ledger, "dcn", "few", metric="loss").notes)


def test_numbers_of_numpy_ask_the_same(ledger):
    for pipeline, shift in (("deepfm", 0.0), ("dcn", 0.2)):
        for seed in range(6):
            values = [0.9 + seed / 7, 0.5 + shift + seed**2 / 70, 0.7]
            append(ledger, pipeline, seed, {"val_loss": values})
    plain = {"epoch": 1, "delta": 0.25, "confidence": 0.75, "num_looks": 2}
    asked = compare(ledger, "deepfm", "dcn", metric="loss", directions={"loss": "min"}, **plain)
    assert asked.a.epochs == (1,) * 6
    kinds = {"epoch": np.int64, "delta": np.float32, "confidence": np.float64, "num_looks": np.int8}
    options = {name: kinds[name](value) for name, value in plain.items()}
    options["directions"] = types.MappingProxyType({np.str_("loss"): "min"})
    found = compare(ledger, np.str_("deepfm"), "dcn", metric="loss", **options)
    assert json.dumps(found.to_dict()) == json.dumps(asked.to_dict())
    assert str(found) == str(asked)


@pytest.mark.parametrize("step", [9, -9])
def test_pairs_at_any_number_of_looks_are_those_of_the_order_of_running(ledger, step):
    """However the seeds are numbered."""
    rng = np.random.default_rng(4)
    a, b = rng.normal(0.5, 0.1, 6), rng.normal(0.4, 0.1, 9)
    for number in range(9):  # in turn, as a loop would train them
        append(ledger, "dcn", 100 + step * number, {"val_loss": b[number]})
        if number < 6:
            append(ledger, "deepfm", number, {"val_loss": a[number]})
    comparison = compare(ledger, "deepfm", "dcn", metric="loss", num_looks=None)
    assert comparison.method == "an always-valid t"
    assert comparison.difference == always_valid_difference(a, b[:6], confidence=0.95)
    look = Looked(a, b[:6], False)
    expected = stats.t.cdf(-look.value / look.error, look.degrees)
    assert comparison.probability_b_better() == pytest.approx(expected)
    assert comparison.deciding.mean_b == pytest.approx(b.mean())
    assert [note for note in comparison.notes if "without a partner" in note] == [
        "dcn: 3 runs without a partner: in the means of the table, but not in the difference"
    ]
    # Other intervals are of all runs.
    planned = compare(ledger, "deepfm", "dcn", metric="loss")
    assert planned.difference.value == pytest.approx(b.mean() - a.mean())
    assert planned.notes == ()


def test_runs_without_a_partner_are_told(ledger):
    fill(ledger, "deepfm", losses(0, 8), first_seed=1)
    fill(ledger, "dcn", losses(1, 7), first_seed=1)
    notes = compare(ledger, "deepfm", "dcn").notes
    assert [note[:30] for note in notes] == ["deepfm: 1 run without a partne"]


# Of binary fractions, the differences are exact; of decimals, they are not.
@pytest.mark.parametrize("step", [1 / 8, 0.1])
def test_a_difference_that_no_seed_moves_is_told(ledger, step):
    for seed in range(6):
        for pipeline, loss in (("deepfm", 4 * step), ("dcn", 3 * step)):
            append(ledger, pipeline, seed, {"val_loss": loss + seed**2 * step})
    comparison = compare(ledger, "deepfm", "dcn", metric="loss")
    text = str(comparison)
    assert comparison.verdict.better == "B"
    assert any("every seed gives the same difference" in note for note in comparison.notes)
    assert "P(B is better): over 99.9 %" in text
    if step == 1 / 8:
        assert comparison.difference.p_value is None
        assert "Decided, since all seeds show the same difference." in text
        assert "p <" not in text
        assert "smallest detectable effect" not in text


@pytest.mark.parametrize("num_looks", ["advised", None])
@pytest.mark.parametrize("shared", [False, True])
def test_the_unit_of_a_metric_changes_no_answer(ledger, shared, num_looks):
    """Also where the squares of its values are 0."""
    first = 0 if shared else None
    for number, shift in enumerate((0.0, -1e-4)):
        runs = losses(number, 8, shift=shift)
        for name, unit in (("one", 1.0), ("small", 2.0**-560)):
            scaled = [{key: value * unit for key, value in run.items()} for run in runs]
            fill(ledger, f"{name} {number}", scaled, first)
    one, small = (
        compare(ledger, f"{name} 0", f"{name} 1", num_looks=num_looks) for name in ("one", "small")
    )
    assert str(one.verdict) == str(small.verdict)
    assert one.more_seeds == small.more_seeds
    assert one.seeds_needed == small.seeds_needed
    assert one.difference.p_value == pytest.approx(small.difference.p_value)
    for name in ("standard_error", "smallest_detectable_effect"):
        assert getattr(small, name) * 2.0**560 == pytest.approx(getattr(one, name))
    assert small.deciding.std_a * 2.0**560 == pytest.approx(one.deciding.std_a)


def test_a_metric_of_one_pipeline_is_missed_in_the_other(ledger):
    fill(ledger, "deepfm", losses(0, 6))
    fill(ledger, "dcn", [{"val_loss": 0.5 + seed / 1e3} for seed in range(6)])
    for pair in (("deepfm", "dcn"), ("dcn", "deepfm")):
        comparison = compare(ledger, *pair)
        assert str(comparison.verdict).startswith("cannot tell: no finished run of dcn")
    with pytest.raises(ValueError, match=r"`metric` must name metrics that `a` or `b` has"):
        compare(ledger, "deepfm", "dcn", metric="gauc")


WRONG = {
    "a": [["deepfm"], None],
    "b": ["dnn", "deepfm", ("dcn",)],
    "metric": ["calibrated_los", ["loss"], None],
    "epoch": ["first", True, -1, np.array([1, 2])],
    "delta": [0.0, math.inf],
    "directions": [{"auc": "up"}, {"nope": "max"}, ["auc"], "max", []],
    "confidence": [95],
    "num_looks": [0, 51, True, 2.0, "any", np.array([1, 2])],
}


@pytest.mark.parametrize("name", WRONG)
def test_refuses_wrong_arguments(ledger, name):
    fill(ledger, "deepfm", losses(0, 4))
    fill(ledger, "dcn", losses(1, 4))
    for value in WRONG[name]:
        with pytest.raises(ValueError, match=f"^Arguments? (`a` and )?`{name}`"):
            compare(**{"ledger": ledger, "a": "deepfm", "b": "dcn", name: value})
