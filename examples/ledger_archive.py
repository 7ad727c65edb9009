r"""Ledgers as data: the runs of a study in one compressed file, and back into a ledger's folder.

    ./dev run python examples/ledger_archive.py pack output/stocks/range \
        examples/ledgers/stocks_range.jsonl.xz --study stocks/range \
        --command "python examples/calibrated_metric/stocks.py" --seconds 1500
    ./dev run python examples/ledger_archive.py unpack examples/ledgers output
    ./dev run python examples/ledger_archive.py show examples/ledgers

The file has one JSON value a line, compressed by xz. The first line says what the study is and what
made it: command, machine, wall time, when the first and the last run were recorded, and from which
commits. Then come the runs, each with the metrics of the epoch that it kept, and the lines of the
files beside the ledger (`*.jsonl`, `*.csv`). Names of machines and folders are left out.
"""

import argparse
import json
import lzma
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from calibration_records.runs.run_record import to_json, validate_record
from keras_calibration.seeds import Ledger
from markdown_table import markdown_table

SUFFIX = ".jsonl.xz"
FORMAT = 1
# Significant digits of metrics, enough for the same tables to the last digit, and of side files.
DIGITS, SIDE_DIGITS = 10, 7
# What a page of results does not need: hashes, and references to other files.
LEFT_OUT = ("schema_version", "run_id", "versions", "initial_weights", "training")


class Archive(NamedTuple):
    """The contents of an archive.

    Args:
        about: What the study is, and what made it.
        runs: Records as `Ledger.runs` returns them, in their order.
        side_files: Name → text, of each file beside the ledger.
    """

    about: dict[str, Any]
    runs: list[dict[str, Any]]
    side_files: dict[str, str]


def pack(folder: Path, file: Path, about: Mapping[str, Any]) -> None:
    """Writes the runs of a ledger, and the files beside it, into an archive.

    Args:
        folder: Folder of the ledger.
        file: The archive, replaced if it exists; its name ends with `.jsonl.xz`.
        about: What goes into the first line; `study` is the ledger's folder below the `--output`
            of its script, such as `"stocks/range"`. Number of runs, the times of the first and the
            last one, and the versions of packages are added; so are the commits, if they are
            missing.

    Raises:
        ValueError: There are no runs, `study` is not a relative path, or a record has the name of
            this machine or the path of its home folder.
    """
    runs = Ledger(folder).runs()
    if not runs:
        raise ValueError(f"Argument `folder` must be a ledger with runs. Received: {folder}.")
    _relative(about["study"])
    versions = {name: version for run in runs for name, version in run["versions"].items()}
    times = sorted(run["created"] for run in runs)
    added = {"num_runs": len(runs), "first_run": times[0], "last_run": times[-1]}
    commits = about.get("commits") or [commit_at(time) for time in (times[0], times[-1])]
    first = {"format": FORMAT, **about, "commits": commits, **added, "versions": versions}
    lines = [first, *({"run": _packed_run(run)} for run in runs)]
    for path in sorted((*folder.glob("*.jsonl"), *folder.glob("*.csv"))):
        for text in path.read_text(encoding="utf-8").splitlines():
            is_json = path.suffix == ".jsonl"
            line = _rounded(json.loads(text), SIDE_DIGITS) if is_json else text
            lines.append({"file": path.name, "line": line})
    content = "\n".join(
        json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in lines
    )
    for secret in (platform.node(), str(Path.home())):
        if len(secret) > 3 and secret in content:
            raise ValueError(
                f"Argument `folder` must be a ledger that does not name this machine. Received: "
                f"{folder}, which has {secret!r} in its records."
            )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(lzma.compress(content.encode(), preset=9 | lzma.PRESET_EXTREME))


def read(file: Path) -> Archive:
    """The contents of an archive.

    Raises:
        ValueError: The file is not an archive of a ledger, or it has a newer format.
    """
    try:
        text = lzma.decompress(file.read_bytes()).decode()
        about, *lines = [json.loads(line) for line in text.split("\n")]
        is_current = about["format"] == FORMAT
    except (lzma.LZMAError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file} must be an archive that `pack` has written ({error}).") from error
    if not is_current:
        raise ValueError(f"{file} has the format {about['format']}; this script reads {FORMAT}.")
    runs: list[dict[str, Any]] = []
    side_files: dict[str, list[str]] = {}
    for line in lines:
        if "run" in line:
            runs.append(_unpacked_run(line["run"], len(runs), about["versions"]))
        else:
            name, value = line["file"], line["line"]
            text = value if isinstance(value, str) else json.dumps(value)
            side_files.setdefault(name, []).append(text + "\n")
    return Archive(about, runs, {name: "".join(texts) for name, texts in side_files.items()})


def unpack(file: Path, folder: Path) -> Archive:
    """Writes an archive into a new folder, which `Ledger` opens; returns its contents.

    Raises:
        ValueError: The folder exists and is not empty, or the archive is invalid.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"Argument `folder` must be new or empty. Received: {folder}.")
    archive = read(file)
    folder.mkdir(parents=True, exist_ok=True)
    for run in archive.runs:
        (folder / f"{run['run_id']}.json").write_text(to_json({}, run), encoding="ascii")
    for name, text in archive.side_files.items():
        (folder / Path(name).name).write_text(text, encoding="utf-8")
    return archive


def unpack_all(archives: Path, output: Path) -> list[Archive]:
    """Unpacks all archives of a folder, each into the folder of its study below `output`."""
    return [
        unpack(file, output / _relative(read(file).about["study"])) for file in files_of(archives)
    ]


def files_of(archives: Path) -> list[Path]:
    """The archives of a folder, by name."""
    return sorted(archives.glob(f"*{SUFFIX}"))


def about_studies(abouts: Sequence[Mapping[str, Any]]) -> str:
    """What made the runs, as a Markdown table with a line for each program and plan.

    Args:
        abouts: `about` of each archive, at least one.
    """
    programs: dict[str, list[Mapping[str, Any]]] = {}
    for about in abouts:
        match = re.search(r"[\w/]+\.py( --plan \w+)?", about["command"])
        program = f"`{match[0] if match else about['command']}`"
        program += ", on JAX" if "BACKEND=jax" in about["command"] else ""
        programs.setdefault(program, []).append(about)
    lines = []
    for program, studies in programs.items():
        hours = sum(about["wall_seconds"] for about in studies) / 3600
        line = [program, str(len(studies)), f"{sum(about['num_runs'] for about in studies):,}"]
        first = min(studies, key=lambda about: str(about["first_run"]))
        last = max(studies, key=lambda about: str(about["last_run"]))
        times = (first["first_run"], last["last_run"])
        commits = (first["commits"][0], last["commits"][-1])
        line += [f"{hours:.1f}", *(time[:16].replace("T", " ") for time in times)]
        lines.append([*line, " to ".join(dict.fromkeys(commit[:9] for commit in commits))])
    header = ["program", "ledgers", "runs", "hours", "first run", "last run", "commits"]
    machines = "; ".join(sorted({about["machine"] for about in abouts}))
    return f"{markdown_table(header, lines)}\n\nMachine: {machines}."


def machine() -> str:
    """Processor, cores and memory of this machine, without its name."""
    model = platform.machine()
    if (information := Path("/proc/cpuinfo")).exists():
        match = re.search(r"^model name\s*:\s*(.+)$", information.read_text(), re.MULTILINE)
        model = match[1] if match else model
    parts = [model, f"{os.cpu_count()} cores"]
    if hasattr(os, "sysconf"):
        parts.append(f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB")
    return ", ".join(parts)


def main() -> None:
    """Packs a ledger, unpacks a folder of archives, or lists them."""
    arguments = parse_arguments()
    if arguments.action == "pack":
        about = {"study": arguments.study, "command": arguments.command}
        about |= {"machine": machine(), "wall_seconds": arguments.seconds}
        about |= {"commits": arguments.commit} if arguments.commit else {}
        pack(arguments.folder, arguments.file, about)
        print(f"{arguments.file}: {arguments.file.stat().st_size:,} bytes")
    elif arguments.action == "unpack":
        for archive in unpack_all(arguments.archives, arguments.output):
            print(f"{archive.about['study']}: {len(archive.runs)} runs")
    else:
        print(about_studies([read(file).about for file in files_of(arguments.archives)]))


def parse_arguments() -> argparse.Namespace:
    """The command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    add = actions.add_parser("pack", help="write an archive").add_argument
    add("folder", type=Path, help="of the ledger")
    add("file", type=Path, help=f"archive, *{SUFFIX}")
    add("--study", required=True, help="folder of the ledger below its --output")
    add("--command", required=True, help="what made the runs")
    add("--seconds", type=float, required=True, help="wall time of all runs")
    text = "that made the runs, or the first and the last one (default: by their times)"
    add("--commit", nargs="+", help=text)
    add = actions.add_parser("unpack", help="write the ledgers' folders").add_argument
    add("archives", type=Path, help="folder of archives")
    add("output", type=Path, help="folder for the ledgers")
    add = actions.add_parser("show", help="what made each study").add_argument
    add("archives", type=Path, help="folder of archives")
    return parser.parse_args()


def _packed_run(run: Mapping[str, Any]) -> dict[str, Any]:
    """A record with the metrics of its kept epoch, without what is left out or empty."""
    packed = {name: value for name, value in run.items() if name not in LEFT_OUT and value}
    # The seed may be 0, which the line above drops as if it were empty.
    packed |= {"seed": run["seed"], "time": run["run_id"].partition("-")[0]}
    if run["epochs"]:
        kept = run["kept_epoch"] if isinstance(run["kept_epoch"], int) else run["epochs"][-1]
        position = run["epochs"].index(kept)
        values = {name: values[position] for name, values in run["metrics"].items()}
        # JSON has no NaN and no infinity.
        texts = {
            name: str(value) if value is not None and not _is_finite(value) else value
            for name, value in values.items()
        }
        packed |= {"epoch": kept, "metrics": _rounded(texts, DIGITS)}
    for name in ("epochs", "kept_epoch"):
        packed.pop(name, None)
    if "configuration" in packed:
        packed["configuration"] = _without_folders(packed["configuration"])
    return packed


def _unpacked_run(
    packed: Mapping[str, Any], number: int, versions: Mapping[str, str]
) -> dict[str, Any]:
    """The record of a packed run, with a run id that keeps the order."""
    run = dict(packed)
    header = {"run_id": f"{run.pop('time')}-{number:032x}", "created": run.pop("created")}
    metrics = {name: [_as_float(value)] for name, value in run.pop("metrics", {}).items()}
    epochs = [run.pop("epoch")] if "epoch" in run else []
    record = {**run, "epochs": epochs, "metrics": metrics, "versions": dict(versions)}
    return {**header, **validate_record(record)}


def _as_float(value: float | str | None) -> float | None:
    return None if value is None else float(value)


def _is_finite(value: float) -> bool:
    return value - value == 0


def _rounded(value: Any, digits: int) -> Any:
    """A JSON value with all floats rounded to `digits` significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: _rounded(item, digits) for key, item in value.items()}
    return [_rounded(item, digits) for item in value] if isinstance(value, list) else value


def _without_folders(value: Any) -> Any:
    """A JSON value with the last name in place of each absolute path."""
    if isinstance(value, str) and re.match(r"(/|~|[A-Za-z]:[\\/])", value):
        return re.split(r"[\\/]", value.rstrip("\\/"))[-1]
    if isinstance(value, dict):
        return {key: _without_folders(item) for key, item in value.items()}
    return [_without_folders(item) for item in value] if isinstance(value, list) else value


def _relative(study: str) -> PurePosixPath:
    """The folder of a study, which must lie below any output folder."""
    path = PurePosixPath(study)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in study:
        raise ValueError(
            f"Argument `study` must be a folder below --output. Received: study={study!r}."
        )
    return path


def commit_at(time: str) -> str:
    """The newest commit of this checkout's history at a time."""
    folder = str(Path(__file__).parent)
    command = ["git", "-C", folder, "rev-list", "-1", f"--before={time}", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
