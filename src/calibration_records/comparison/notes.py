"""Notes: the caveats of a comparison."""

from calibration_records.comparison.comparison import Comparison
from calibration_records.comparison.pipeline_runs import PipelineRuns
from calibration_records.comparison.verdict import MOSTLY_CALIBRATION


def make_notes(comparison: Comparison) -> tuple[str, ...]:
    """The notes on a comparison, the most important first.

    Example:
        >>> from calibration_records.comparison.pipeline_runs import gather_runs
        >>> from calibration_records.comparison.verdict import undecided
        >>> runs = [gather_runs([], name, ["val_loss"]) for name in ("deepfm", "dcn")]
        >>> comparison = Comparison(*runs, "val_loss", {}, undecided(4), "Welch's t", epoch="best")
        >>> make_notes(comparison)[0]
        'values are from the best epoch of each run, chosen on the same rows: they are too
        optimistic'
    """
    return (
        *_calibration_notes(comparison),
        *_epoch_notes(comparison),
        *(note for runs in (comparison.a, comparison.b) for note in _run_notes(runs)),
        *_pairing_notes(comparison),
        *_record_notes(comparison),
    )


def _calibration_notes(comparison: Comparison) -> list[str]:
    if comparison.plain_metric is None or comparison.calibrated_metric is None:
        return []
    plain = comparison.metrics[comparison.plain_metric]
    calibrated = comparison.metrics[comparison.calibrated_metric]
    notes = []
    turned = {plain.favors, calibrated.favors} == {"A", "B"}
    if turned:
        known = {plain.better, calibrated.better} == {"A", "B"}
        hedge = "" if known else ", as far as these runs tell"
        better, other = calibrated.favors, plain.favors
        notes.append(
            f"{plain.metric} favors {other}, {calibrated.metric} favors {better}: {better} ranks "
            f"better but is worse calibrated{hedge}; take {better} if it is recalibrated before it "
            f"is served, and {other} if not (`recalibrated=`, --recalibrated)"
        )
    share, gain = comparison.surviving_share, comparison.gain_difference
    if plain.better and share is not None and share.value <= MOSTLY_CALIBRATION:
        part = "more than 100%" if share.value < 0 else f"{1 - share.value:.0%}"
        notes.append(
            f"the gain is mostly calibration: {part} of the difference in {plain.metric} would "
            "vanish if both were calibrated"
        )
    if calibrated.better and not turned and gain is not None and gain.excludes(0.0):
        worse = "B" if gain.value > 0 else "A"
        if worse == calibrated.better:
            notes.append(
                f"{worse} is better by {calibrated.metric} but worse calibrated; calibrate it "
                "before serving"
            )
    return notes


def _epoch_notes(comparison: Comparison) -> list[str]:
    if comparison.epoch == "best":
        return [
            "values are from the best epoch of each run, chosen on the same rows: they are too "
            "optimistic"
        ]
    records = [run for runs in (comparison.a, comparison.b) for run in runs.records]
    kept = sum(isinstance(run["kept_epoch"], int) for run in records)
    if comparison.epoch == "kept" and kept:
        return [
            f"{kept} of {len(records)} runs kept the weights of their best epoch, whose values are "
            "used; if it was chosen on the same rows, they are slightly too optimistic"
        ]
    epochs = {*comparison.a.epochs, *comparison.b.epochs}
    if len(epochs) > 1:
        return [f"the runs end at different epochs, {min(epochs)} to {max(epochs)}"]
    return []


def _run_notes(runs: PipelineRuns) -> list[str]:
    notes = []
    for number, what in (
        (runs.num_diverged, "diverged"),
        (runs.num_unfinished, "never finished"),
        (runs.num_without_metric, "lacked the metric at that epoch"),
    ):
        if number:
            verb = "was" if number == 1 else "were"
            left = "excluded: statistics cover finished runs"
            reason = left if what == "diverged" else "excluded"
            noun = "run" if number == 1 else "runs"
            notes.append(f"{runs.pipeline}: {number} {noun} {what} and {verb} {reason}")
    if runs.num_repeated:
        notes.append(
            f"{runs.pipeline}: {runs.num_repeated} earlier runs of repeated seeds were excluded"
        )
    return notes


def _pairing_notes(comparison: Comparison) -> list[str]:
    notes = []
    unit = "day" if comparison.days else "seed"
    for runs in (comparison.a, comparison.b):
        alone = len(runs) - len(comparison.shared_seeds)
        if comparison.shared_seeds and alone:
            notes.append(
                f"{runs.pipeline}: {alone} runs share no {unit} with the other pipeline and were "
                "excluded from pairs"
            )
        hashes = [run["initial_weights"] for run in runs.records if run["initial_weights"]]
        by_role = {run["seeds"].get("initialization", run["seed"]) for run in runs.records}
        if len(hashes) == len(runs) > 1 and len(set(hashes)) < len(by_role):
            notes.append(
                f"{runs.pipeline}: runs with different seeds started from equal weights; set the "
                "seed before the model is built"
            )
    for name, spread in (
        (("A", comparison.deciding.std_a), ("B", comparison.deciding.std_b))
        if (comparison.metric in comparison.metrics)
        else ()
    ):
        if spread == 0:
            notes.append(f"all runs of {name} are equal: check that the seed has an effect")
    return notes


def _record_notes(comparison: Comparison) -> list[str]:
    records = [run for runs in (comparison.a, comparison.b) for run in runs.records]
    notes = []
    if len({run["num_rows"] for run in records if run["num_rows"] is not None}) > 1:
        notes.append("the runs were evaluated on different numbers of rows")
    packages = {package for run in records for package in run["versions"]}
    mixed = [
        package
        for package in sorted(packages)
        if len({run["versions"].get(package) for run in records}) > 1
    ]
    if mixed:
        notes.append(f"the runs were made with different versions of {', '.join(mixed)}")
    return notes
