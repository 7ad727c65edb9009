"""The kernels on GPUs that are not there: `./dev gpu python benchmarks/gpu_programs.py`.

Each kernel is lowered by the backend that Keras runs on and compiled for described GPUs, as the
tests in `tests/gpu` do. For each: the bytes that its program moves over those that must move, the
kernels over rows among all, temporary memory, machine instructions a row; and for each GPU the time
that the program needs at least (of each kernel the larger of the times of bytes and instructions),
with the ratio to a sigmoid of the same pass. The bytes, kernels and instructions are those for the
first GPU. The tables are Markdown.

`--pack FILE` also writes the programs into a file that is carried to a machine with a GPU and JAX,
where `python FILE` measures them (`stablehlo.py`). With `KERAS_BACKEND=jax`, the programs of JAX
are added to those of TensorFlow in the same file.
"""

import argparse
import json
import os
import pathlib
import zipfile
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

from gpu import compiler, programs

RUNNER = pathlib.Path(__file__).with_name("stablehlo.py")
MANIFEST = "programs.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=float, nargs="+", default=[1e7, 1e8])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--gpus", nargs="+", default=["h200", "h100", "a100", "b200"])
    parser.add_argument("--pack", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    packed = Pack(arguments.pack) if arguments.pack else None
    for num_rows in map(int, arguments.rows):
        for dtype in arguments.dtypes:
            print_table(num_rows, dtype, arguments.gpus, packed)


def print_table(num_rows: int, dtype: str, gpus: list[str], packed: "Pack | None") -> None:
    title = f"{num_rows:,} rows, {dtype}, {keras.backend.backend()}"
    print(f"\n{title}\n")
    heads = ["program", "bytes", "kernels", "temporary MB", "instructions a row"]
    heads += [f"{gpu.upper()}, µs" for gpu in gpus]
    print(f"| {' | '.join(heads)} |")
    print(f"| --- |{' ---: |' * (len(heads) - 1)}")
    sigmoid_times: dict[tuple[str, bool], float] = {}
    for name, kernel in programs.kernels(num_rows, dtype).items():
        stablehlo = programs.lowered(kernel)
        compiled = {gpu: compiler.compile_for(gpu, stablehlo) for gpu in gpus}
        program, num_bytes = compiled[gpus[0]], kernel.bytes_a_row * num_rows
        cells = [
            name,
            f"{program.num_bytes / num_bytes:.2f}",
            f"{len(program.over_rows(num_rows))} of {len(program.kernels)}",
            f"{program.temporary_bytes / 1e6:.0f}",
            f"{program.instructions_a_row(num_rows):.0f}",
        ]
        predicted = {}
        for gpu in gpus:
            seconds = compiled[gpu].seconds(compiler.Gpu.described(gpu))
            pass_ = (gpu, "gradient" in name)
            if "sigmoid" in name:
                sigmoid_times[pass_] = seconds
            predicted[gpu] = f"{1e6 * seconds:.0f}"
            is_rival = "sigmoid" in name or "ILPS" in name
            cells.append(
                predicted[gpu] + (f" ({seconds / sigmoid_times[pass_]:.2f})" if is_rival else "")
            )
        print(f"| {' | '.join(cells)} |", flush=True)
        if packed:
            packed.add(title, name, num_rows, kernel, stablehlo, predicted)


class Pack:
    """A file that Python runs: `stablehlo.py` and the programs.

    Args:
        path: Where to write it. What it holds already is kept.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._entries: list[dict[str, Any]] = []
        self._texts: dict[str, str] = {}
        if path.exists():
            with zipfile.ZipFile(path) as old:
                self._entries = json.loads(old.read(MANIFEST))
                files = [entry["file"] for entry in self._entries]
                self._texts = {file: old.read(file).decode() for file in files}

    def add(
        self,
        group: str,
        name: str,
        num_rows: int,
        kernel: programs.Kernel,
        stablehlo: str,
        predicted: dict[str, str],
    ) -> None:
        """Adds a program, with its predicted times in µs by GPU, and writes the file."""
        entry = {
            "group": group,
            "name": name,
            "num_rows": num_rows,
            "num_bytes": kernel.bytes_a_row * num_rows,
            "arguments": [[key, *spec] for key, spec in kernel.arguments.items()],
            "predicted": predicted,
            "file": f"program_{len(self._entries)}.mlir",
        }
        self._entries.append(entry)
        self._texts[entry["file"]] = stablehlo
        with zipfile.ZipFile(self._path, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.write(RUNNER, "__main__.py")
            packed.writestr(MANIFEST, json.dumps(self._entries, indent=1))
            for name, text in self._texts.items():
                packed.writestr(name, text)


if __name__ == "__main__":
    main()
