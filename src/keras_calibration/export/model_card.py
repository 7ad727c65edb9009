"""The model card of an export: what its provenance says, as a page for people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MODEL_CARD_FILE = "model_card.md"
_UNKNOWN = "not known"
_MOST_SEGMENTS = 10
_FIGURES = ("log_loss_change", "log_loss_change_error", "auc", "calibration_ratio")


def model_card(provenance: Mapping[str, Any]) -> str:
    """A Markdown page about an exported model.

    Args:
        provenance: The content of `provenance.json`. Entries that are missing or None are left out
            or called not known.
    """
    sections = {
        "Model": _model(provenance),
        "Fit of the calibration": _fit(provenance["fit"]),
        "Methods compared": _methods(provenance["fit"].get("report")),
        "Limits": _limits(provenance),
        "Check": _check(provenance),
        "Earlier versions": [f"- {line}" for line in _earlier(provenance.get("refreshed_from"))],
    }
    name = _code(provenance["base_model"]["name"])
    lines = [
        f"# Calibrated model {name}",
        "",
        "This SavedModel takes the features of the base model and returns a calibrated "
        "probability. The base model is served as it was trained; a head on top of its logit "
        "corrects the probability. All figures are from `provenance.json`, beside this file.",
    ]
    for title, section in sections.items():
        if section:
            lines += ["", f"## {title}", "", *section]
    return "\n".join(lines) + "\n"


def _model(provenance: Mapping[str, Any]) -> list[str]:
    base, head = provenance["base_model"], provenance["head"]
    config = head["config"]
    lines = [
        f"- Exported: {provenance['exported_at']}",
        f"- Base model: {_code(base['name'])}, {_number(base['num_weights'])} weights, SHA-256 of "
        f"the weights {_code(base['weights_sha256'])}",
    ]
    if base.get("calibrated_output") is not None:
        lines.append(f"- Calibrated output: {_code(base['calibrated_output'])}")
    if base.get("other_outputs"):
        others = ", ".join(map(_code, base["other_outputs"]))
        lines.append(f"- Other outputs, unchanged: {others}")
    lines.append(f"- Head: `{head['class']}`, {_number(head['num_weights'])} weights")
    fields = {name: size for each in _entries(config, "fields") for name, size in each.items()}
    if fields:
        named = ", ".join(f"{_code(name)} ({_size(size)})" for name, size in fields.items())
        lines.append(f"- Fields: {named}")
    numeric = dict.fromkeys(name for each in _entries(config, "numeric") for name in each)
    if numeric:
        lines.append(f"- Numeric columns: {', '.join(map(_code, numeric))}")
    if provenance.get("interval") is not None:
        lines.append(f"- Intervals: {provenance['interval']:.0%} of the calibrated probability")
    return lines


def _fit(fit: Mapping[str, Any]) -> list[str]:
    lines = [
        f"- Rows: {_number(fit['num_rows'])}",
        f"- Fitted: {fit.get('fitted_at') or _UNKNOWN}",
        _log_losses(fit.get("summary"), fit.get("report")),
    ]
    if fit.get("forget", 1) != 1:
        lines.append(
            f"- The rows were added to those of earlier fits, after {fit['forget']:.0%} of the "
            "weight of these was dropped."
        )
    return lines


def _log_losses(summary: Mapping[str, Any] | None, report: Mapping[str, Any] | None) -> str:
    """Before and after; a head that was trained by gradient alone has neither."""
    rows, before, after = "these rows", None, None
    if report is not None:
        rows = "these rows, cross-fitted"
        losses = {score["name"]: score["log_loss"] for score in report["scores"]}
        before, after = losses["identity"], losses[report["chosen"]]
    elif summary is not None:
        before, after = summary["log_loss_before"], summary["log_loss_after"]
    return f"- Log loss on {rows}: {_decimal(before)} before, {_decimal(after)} after, in nats"


def _methods(report: Mapping[str, Any] | None) -> list[str]:
    if report is None:
        return []
    lines = [
        f"Cross-fitted on {_number(report['num_rows'])} rows in {report['num_folds']} folds: each "
        "row is scored by a fit that did not see it.",
        "",
        "| method | log loss | change ± standard error | AUC | predicted / observed |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for score in report["scores"]:
        name = f"**{score['name']}**" if score["name"] == report["chosen"] else score["name"]
        change, error, *figures = (_decimal(score[each]) for each in _FIGURES)
        cells = [name, _decimal(score["log_loss"]), f"{change} ± {error}", *figures]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", f"Chosen: {report['chosen']}. {_plain_text(report['reason'])}"]


def _limits(provenance: Mapping[str, Any]) -> list[str]:
    lines = [
        "- The correction is right for rows like those of the fit. It knows nothing of drift: "
        "check the served log with `keras-calibration monitor`, and refit with "
        "`refresh_savedmodel`.",
        "- A field value that the fit has not seen counts as the field's value for all others.",
    ]
    logits = provenance.get("logits")
    if logits is not None and "min" in logits:  # not if none of a sample is finite
        lines.append(
            f"- Logits of {_number(logits['num_rows'])} rows: from {_decimal(logits['min'])} to "
            f"{_decimal(logits['max'])}, mean {_decimal(logits['mean'])}"
        )
    report = provenance["fit"].get("report") or {}
    return [*lines, *_segments(report.get("still_off") or [])]


def _segments(segments: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for segment in segments[:_MOST_SEGMENTS]:
        yield (
            f"- Still off beyond chance when fitted: {_code(segment['name'])}, "
            f"{_number(segment['num_rows'])} rows, predicted "
            f"{_decimal(segment['mean_prediction'])}, observed {_decimal(segment['observed_rate'])}"
        )
    if len(segments) > _MOST_SEGMENTS:
        yield f"- and {len(segments) - _MOST_SEGMENTS} more segments, see `provenance.json`"


def _check(provenance: Mapping[str, Any]) -> list[str]:
    check, versions = provenance["verification"], provenance["versions"]
    largest = max(check["largest_differences"].values(), default=0.0)
    where = "a new process" if check["in"] == "new_process" else "the same process"
    return [
        f"- The SavedModel was compared with the Keras model on {_number(check['num_rows'])} "
        f"rows in {where}; largest difference {largest:.1g}.",
        "- Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()),
        f"- SHA-256 of graph, weights and head: {_code(provenance['files_sha256'])}",
    ]


def _earlier(refreshed_from: Mapping[str, Any] | None) -> Iterator[str]:
    """A line for each earlier version, the latest first."""
    while refreshed_from is not None:
        fit = refreshed_from["fit"]
        yield (
            f"Version {_code(refreshed_from['version'])}: fitted to {_number(fit['num_rows'])} "
            f"rows, exported {refreshed_from['exported_at']}"
        )
        refreshed_from = refreshed_from.get("refreshed_from")


def _entries(config: Any, key: str) -> Iterator[Any]:
    """The values of a key, wherever it is in a configuration."""
    if isinstance(config, Mapping):
        if config.get(key) and not isinstance(config[key], str):
            yield config[key]
        for value in config.values():
            yield from _entries(value, key)
    elif isinstance(config, list | tuple):
        for value in config:
            yield from _entries(value, key)


def _size(size: Any) -> str:
    if isinstance(size, int):
        return f"{size:,} ids"
    kind = size.get("class_name") if isinstance(size, Mapping) else None
    return f"`{kind}`" if kind else "a lookup"


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _decimal(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.5f}"


def _code(text: Any) -> str:
    """Any text as a code span, in which Markdown and HTML mean nothing."""
    text = " ".join(str(text).split())
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    # Spaces keep backticks at the ends apart from the fence, and an empty text visible.
    padding = " " if longest or not text else ""
    return f"{fence}{padding}{text}{padding}{fence}"


def _plain_text(text: str) -> str:
    """A sentence with the characters escaped that Markdown and HTML would read."""
    return re.sub(r"([\\`*_{}\[\]<>#|&])", r"\\\1", " ".join(text.split()))
