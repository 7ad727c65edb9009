"""Notes: the caveats of a comparison."""

from calibration_records._text import counted
from calibration_records.comparison.comparison import Comparison
from calibration_records.comparison.pipeline_runs import PipelineRuns
from calibration_records.comparison.verdict import MOSTLY_CALIBRATION, Outcome


def make_notes(comparison: Comparison) -> tuple[str, ...]:
    """The notes on a comparison, the most important first.

    Example:
        >>> from calibration_records.comparison.pipeline_runs import gather_runs
        >>> from calibration_records.comparison.question import Question
        >>> from calibration_records.comparison.verdict import undecided
        >>> runs = [gather_runs([], name, ["val_loss"]) for name in ("deepfm", "dcn")]
        >>> question = Question("deepfm", "dcn", "loss", epoch="best")
        >>> comparison = Comparison(*runs, "val_loss", {}, undecided(4), "Welch's t", question)
        >>> make_notes(comparison)[0]
        'values are from the best epoch of each run, chosen on the same rows: they are too
        optimistic'
    """
    runs = (comparison.a, comparison.b)
    notes = _note_calibration(comparison)
    if comparison.question.epoch == "best":
        notes.append(
            "values are from the best epoch of each run, chosen on the same rows: they are too "
            "optimistic"
        )
    notes += [note for pipeline in runs for note in _note_excluded_runs(pipeline)]
    notes += [note for pipeline in runs for note in _note_equal_runs(pipeline, comparison.metric)]
    # Always-valid intervals need pairs: of shared seeds, or else in the order of the runs.
    in_turn = min(map(len, runs)) if comparison.question.num_looks is None else 0
    num_pairs = len(comparison.shared_seeds) or in_turn
    notes += [
        f"{pipeline.pipeline}: {counted(len(pipeline) - num_pairs, 'run')} without a partner: in "
        "the means of the table, but not in the difference"
        for pipeline in runs
        if 1 < num_pairs < len(pipeline)
    ]
    # Up to rounding, as adding a constant to all values may change their last digits.
    error = 1e14 * (comparison.standard_error or 0.0)
    if comparison.shared_seeds and error <= abs(comparison.deciding.mean_a):
        notes.append(
            "every seed gives the same difference: check that both pipelines were trained anew for "
            "each seed"
        )
    if len({run["num_rows"] for pipeline in runs for run in pipeline.records} - {None}) > 1:
        notes.append("the runs were evaluated on different numbers of rows")
    return tuple(notes)


def _note_calibration(comparison: Comparison) -> list[str]:
    """Notes on plain and calibrated losses that decide differently."""
    if comparison.plain_metric is None or comparison.calibrated_metric is None:
        return []
    plain = comparison.metrics[comparison.plain_metric]
    calibrated = comparison.metrics[comparison.calibrated_metric]
    better, other = calibrated.better, plain.better
    # Advice needs evidence: without two significant differences, the losses may disagree by chance.
    if {better, other} == {"A", "B"}:
        return [
            f"{plain.metric} favors {other}, {calibrated.metric} favors {better}, both "
            f"significantly: {better} ranks better but is worse calibrated; take {better} if it is "
            f"calibrated again before it is served, and {other} if not (`metric=`, --metric)"
        ]
    # The verdict itself may say so already.
    share = comparison.surviving_share
    is_told = comparison.verdict.outcome is Outcome.CALIBRATION_ONLY
    if other and not is_told and share is not None and share.high <= MOSTLY_CALIBRATION:
        return [
            f"the gain is mostly calibration: most of the difference in {plain.metric} would "
            "vanish if both were calibrated"
        ]
    return []


def _note_excluded_runs(runs: PipelineRuns) -> list[str]:
    """Notes on excluded runs: they may be the worst ones."""
    reasons = (
        (runs.num_diverged, "diverged"),
        (runs.num_unfinished, "unfinished"),
        (runs.num_without_metric, "lacked the metric at that epoch"),
        (runs.num_repeated, "repeated later"),
    )
    excluded = [f"{number} {reason}" for number, reason in reasons if number]
    return [f"{runs.pipeline}: excluded runs: {', '.join(excluded)}"] if excluded else []


def _note_equal_runs(runs: PipelineRuns, metric: str) -> list[str]:
    """Notes on runs that started from equal weights or have equal values."""
    # Runs of different seeds whose initial weights have one hash did not vary what they should.
    hashes = [run["initial_weights"] for run in runs.records if run["initial_weights"]]
    by_role = {run["seeds"].get("initialization", run["seed"]) for run in runs.records}
    if len(hashes) == len(runs) > 1 and len(set(hashes)) < len(by_role):
        return [
            f"{runs.pipeline}: runs with different seeds started from equal weights; set the seed "
            "before the model is built"
        ]
    # Equal results of several seeds mean that no seed reached the training.
    if len(runs) > 1 and len(set(runs.metric_values(metric))) == 1:
        return [f"{runs.pipeline}: all runs are equal: check that the seed has an effect"]
    return []
