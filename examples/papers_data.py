"""The papers' data in full: finds them in a folder, and runs the papers' pipelines on them.

    ./dev run python examples/papers_data.py FOLDER                        what is there
    ./dev run python examples/papers_data.py FOLDER --run                  all of it
    ./dev run python examples/papers_data.py FOLDER --run --rows 9000 --seeds 2    a try

`papers_data.json` says which files are looked for, and has the columns, commands and sizes. The
programs are those of the page of results. They keep their runs in ledgers below `--output`, so the
same command goes on where it stopped.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent
TEXT = """
## The papers' data in full

Not run: the files are not here. With them in a folder of yours, one program finds them and runs the
programs of this page. Rows, held-out rows, seeds, sizes and batches are the papers' where they give
them. For Fan et al., Criteo is the first 15 million rows, 85 % of them for training, with 25 seeds
of DLRM and 60 of xDeepFM; the paper trains DLRM by SGD, and we by Adam. The same command goes on
where it stopped.

```console
$ ./dev run python examples/papers_data.py FOLDER          # which files it finds, and the commands
$ ./dev run python examples/papers_data.py FOLDER --run    # all of it
$ ./dev run python examples/papers_data.py FOLDER --run --only porto_seguro
```

*Hours* are for two cores and all seeds: the seconds a row of our runs on samples, times the rows
(Porto Seguro by Lending Club, which has about as many columns). Those runs had smaller batches,
which take longer, and smaller networks, which do not. So read them as an order of magnitude.
CIFAR-10 has the networks of the paper, with the numbers of parameters of its code. Its hours are
for one H100, and a guess: 5e17 operations a seed for the five networks, at 5e13 a second. *Memory*
is that of reading the file.
"""


def main() -> None:
    """Prints what is there and the commands, and runs them if asked."""
    arguments = parse_arguments()
    stored = read()
    for run in stored["runs"]:
        if arguments.only and run["name"] not in arguments.only:
            continue
        data = stored["data"][run["data"]]
        files = [arguments.folder / name for name in data["files"]]
        file = next((path for path in files if path.is_file()), None)
        print(f"\n{run['name']}: {run['claim']}")
        if file is None:
            print(f"  not found: expected {' or '.join(map(str, files))} ({data['source']})")
            continue
        num_rows, seeds = size_of(run, data, arguments.rows), arguments.seeds or run["seeds"]
        folder = arguments.folder
        if "meta" in data:
            folder = lay_out(arguments.output / "data" / run["name"], file, data["meta"], num_rows)
        command = command_of(run, folder, num_rows, seeds, arguments.output)
        print(f"  found {file}; about {hours_of(run, num_rows, seeds)}")
        print(f"  {' '.join(command)}", flush=True)
        if arguments.run:
            subprocess.run(command, check=True)


def parse_arguments() -> argparse.Namespace:
    """The command-line arguments."""
    names = [run["name"] for run in read()["runs"]]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("folder", type=Path, help="where the papers' files are")
    add("--run", action="store_true", help="run the commands, and do not only print them")
    add("--only", nargs="+", choices=names, help="some of the runs (default: all)")
    add("--rows", type=int, help="use only the first ROWS rows of each file (default: all)")
    add("--seeds", type=int, help="of each pipeline (default: as in the papers)")
    add("--output", type=Path, default=Path("output") / "papers", help="folder for the ledgers")
    return parser.parse_args()


def read() -> dict[str, Any]:
    """The data, with their files and columns, and the runs."""
    text = Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def size_of(run: Mapping[str, Any], data: Mapping[str, Any], most: int | None = None) -> int:
    """The number of rows of a run."""
    return min(run.get("rows", data["rows"]), most or data["rows"])


def lay_out(folder: Path, file: Path, meta: Mapping[str, Any], num_rows: int) -> Path:
    """A data folder with a link to the file and a `meta.json` that reads its first rows."""
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / file.name
    link.unlink(missing_ok=True)
    link.symlink_to(file.resolve())
    reading = {**meta.get("read_csv", {}), "nrows": num_rows}
    text = json.dumps({**meta, "files": [file.name], "read_csv": reading}, indent=1)
    (folder / "meta.json").write_text(text, encoding="utf-8")
    return folder


def command_of(
    run: Mapping[str, Any], folder: Path, num_rows: int, seeds: int, output: Path
) -> list[str]:
    """The command of a run."""
    held_out = int(num_rows * run.get("held_out", 0))
    values = {"folder": folder, "train": num_rows - held_out, "held_out": held_out, "seeds": seeds}
    program = EXAMPLES / run["program"]
    output = output / "field_aware_calibration" if program.name == "tables.py" else output
    filled = [text.format(**values) for text in run["arguments"]]
    return [sys.executable, str(program), *filled, "--output", str(output)]


def hours_of(run: Mapping[str, Any], num_rows: int, seeds: int) -> str:
    """Expected hours: measured seconds a row of a run, times rows and runs; on a GPU, a guess."""
    if "gpu_hours_per_seed" in run:
        return f"{run['gpu_hours_per_seed'] * seeds:,.0f} hours on a GPU"
    num_train = num_rows * (1 - run.get("held_out", 0))
    hours = run["seconds_per_row"] * num_train * run.get("pipelines", 1) * seeds / 3600
    return f"{hours:,.0f} hours on two cores"


def markdown() -> str:
    """The runs with their expected hours and memory, and an empty cell for each result."""
    stored = read()
    lines = ["| run | claim | rows | seeds | hours | memory | result |", f"|{' --- |' * 7}"]
    for run in stored["runs"]:
        data = stored["data"][run["data"]]
        num_rows = size_of(run, data)
        hours = hours_of(run, num_rows, run["seeds"])
        memory = f"{num_rows * data['bytes_per_row'] / 1e9:.2g} GB"
        cells = [run["name"], run["claim"], f"{num_rows:,}", str(run["seeds"])]
        lines.append(f"| {' | '.join([*cells, hours.replace(' hours', ''), memory])} | |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
