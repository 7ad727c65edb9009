"""The settings of a study's pipelines, read from its ledger."""

from keras_calibration.seeds import Ledger


def markdown_configurations(ledger: Ledger, base: str = "base") -> str:
    """A Markdown list of all settings of the base pipeline, and of what the others change."""
    settings = {run["pipeline"]: run["configuration"] for run in ledger.runs(status="finished")}
    if base not in settings:
        raise ValueError(
            f"The ledger {str(ledger.path)!r} must have a finished run of {base!r}. Received: runs "
            f"of {sorted(settings)}. Train {base!r} first."
        )
    common = settings.pop(base)
    lines = [f"- `{base}`: " + ", ".join(f"{key} {value}" for key, value in common.items())]
    for name, values in settings.items():
        changes = [f"{key} {value}" for key, value in values.items() if common.get(key) != value]
        lines.append(f"- `{name}`: " + ", ".join(changes))
    return "\n".join(lines)
