"""Compiles StableHLO for a GPU that is only described, and reads the program that comes out.

XLA needs neither a GPU nor a driver to compile for one: JAX's plugin for CUDA and NVIDIA's
assembler do, two wheels that `./dev gpu` fetches. `compile_for` gives the optimised program: its
kernels with the bytes that each reads and writes, the temporary arrays, and the machine code.

What is private in JAX is in `stablehlo`, `compile_into` and `_device`.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import pathlib
import re
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

# Read when JAX starts: it must not look for the GPU whose compiler it has.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

SPECS = pathlib.Path(__file__).parent / "specs"
MISSING = "The compiler for GPUs is missing: `./dev test --all` fetches it and runs these tests."

_ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "f64": 8}
_NO_KERNEL = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}
ARRAY = re.compile(r"\b(pred|bf16|[a-z]+\d+)\[([\d,]*)\]")
INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?(?P<name>\S+) = (?P<shape>\(.*?\)|\S+) (?P<op>[\w-]+)\(")
_BYTES_OF_INSTRUCTION = 16  # of every NVIDIA GPU since Volta


def is_available() -> bool:
    """Whether the two wheels are there."""
    names = ("jax_plugins", "jax_plugins.xla_cuda12", "nvidia", "nvidia.cuda_nvcc")
    return all(importlib.util.find_spec(name) is not None for name in names)


def architecture(name: str) -> str:
    """What the assembler calls the GPU of `specs/NAME.txtpb`."""
    text = (SPECS / f"{name}.txtpb").read_text()
    (capability,) = re.findall(r"cuda_compute_capability \{ major: (\d+)", text)
    return f"sm_{capability}0" + "a" * ("ACCELERATED_FEATURES" in text)


@dataclass(frozen=True)
class Kernel:
    """An operation of the optimised program.

    Args:
        name: Its name in the program.
        kind: Its operation, such as "fusion" or "scatter".
        num_bytes: Bytes of its operands and results.
    """

    name: str
    kind: str
    num_bytes: int


@dataclass(frozen=True)
class Code:
    """The machine code of a kernel.

    Args:
        ptx: Its instructions in NVIDIA's assembly language, without operands.
        num_instructions: Number of machine instructions, padding included.
        num_threads: Threads of a launch.
        spilled_bytes: Bytes that a thread keeps in memory for want of registers.
    """

    ptx: tuple[str, ...]
    num_instructions: int
    num_threads: int
    spilled_bytes: int


@dataclass(frozen=True)
class Program:
    """A program compiled for a GPU.

    Args:
        kernels: In order; of a conditional those of the branch that moves fewer bytes, of a loop as
            often as it is run, if that is known.
        kinds: All operations, also inside of kernels, loops and branches.
        temporary_bytes: Memory beside arguments and results.
        code: Name → machine code of the kernels that XLA made.
    """

    kernels: tuple[Kernel, ...]
    kinds: frozenset[str]
    temporary_bytes: int
    code: dict[str, Code]

    @property
    def num_bytes(self) -> int:
        """Bytes that all kernels read and write."""
        return sum(kernel.num_bytes for kernel in self.kernels)

    def over_rows(self, num_rows: int) -> list[Kernel]:
        """The kernels that move at least a byte for each row."""
        return [kernel for kernel in self.kernels if kernel.num_bytes >= num_rows]

    def code_of(self, kernel: Kernel) -> Code | None:
        """The machine code of a kernel; `None` where it is a library's."""
        return self.code.get(re.sub(r"[.-]", "_", kernel.name))

    def instructions_a_row(self, num_rows: int) -> float:
        """Machine instructions of the kernels over rows, divided by the rows of a thread.

        Exact for straight code; a loop counts once.
        """
        codes = [self.code_of(kernel) for kernel in self.over_rows(num_rows)]
        return sum(c.num_instructions * c.num_threads / num_rows for c in codes if c)


def compile_for(name: str, stablehlo: str) -> Program:
    """Compiles a program for the GPU of a name in `specs/`."""
    with tempfile.TemporaryDirectory() as folder:
        executable = compile_into(name, stablehlo, folder)
        (text,) = dumped(folder, "gpu_after_optimizations.txt")
        (thunks,) = dumped(folder, "thunk_sequence.txt")
        code = _code(dumped(folder, ".ptx"), thunks, architecture(name))
        temporary_bytes = executable.get_compiled_memory_stats().temp_size_in_bytes
    return read_program(text, temporary_bytes, code)


def stablehlo(hlo: bytes) -> str:
    """The StableHLO of a serialized program, as TensorFlow gives it.

    Its own StableHLO does not do: its text writes Booleans as older versions of MLIR did.
    """
    from jax._src.interpreters import mlir
    from jaxlib import _jax, xla_client
    from jaxlib.mlir import ir

    converted = _jax.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(hlo))
    with mlir.make_ir_context():
        module = ir.Module.parse(converted)
        for function in module.body.operations:
            for operation in list(function.regions[0].blocks[0].operations):
                if operation.name == "mhlo.copy":  # of variables; no part of StableHLO
                    operation.results[0].replace_all_uses_with(operation.operands[0])
                    operation.erase()
        return str(module)


def compile_into(name: str, stablehlo: str, folder: str) -> Any:
    """The compiled program; XLA writes what it goes through into the folder.

    Public: `jax.jit(…).trace(…).lower(…).compile()` takes functions of JAX alone, and compiles for
    the CPU where no GPU is attached.
    """
    from jax._src.interpreters import mlir
    from jaxlib import xla_client
    from jaxlib.mlir import ir

    options = xla_client.CompileOptions()
    options.env_option_overrides = [("xla_dump_to", folder), ("xla_dump_hlo_as_text", True)]
    device = _device(name)
    with mlir.make_ir_context():
        module = ir.Module.parse(stablehlo)
        return device.client.compile(module, xla_client.DeviceList((device,)), options)


@functools.cache
def _device(name: str) -> Any:
    from jax.experimental import topologies

    text = (SPECS / f"{name}.txtpb").read_text()
    topology = topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=text)
    return topology.devices[0]


def dumped(folder: str, ending: str) -> list[str]:
    return [path.read_text() for path in sorted(pathlib.Path(folder).glob(f"*{ending}"))]


def read_program(
    text: str, temporary_bytes: int = 0, code: dict[str, Code] | None = None
) -> Program:
    """Reads an optimised program of XLA's in text form."""
    computations: dict[str, list[re.Match[str]]] = {}
    entry = ""
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        if header := re.match(r"(ENTRY )?%?([\w.-]+) (?:\(.*\) -> .*)?\{", line):
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif instruction := INSTRUCTION.match(line):
            current.append(instruction)
    kinds = frozenset(instruction["op"] for lines in computations.values() for instruction in lines)
    return Program(tuple(_kernels(computations, entry)), kinds, temporary_bytes, code or {})


def _kernels(computations: dict[str, list[re.Match[str]]], name: str) -> list[Kernel]:
    shapes = {instruction["name"]: instruction["shape"] for instruction in computations[name]}
    kernels = []
    for instruction in computations[name]:
        kind, tail = instruction["op"], instruction.string[instruction.end() :]
        if kind in _NO_KERNEL or kind.endswith("-done"):
            continue
        if kind in ("conditional", "while", "call", "async-start"):
            kernels += _called_kernels(computations, kind, tail)
            continue
        operands = dict.fromkeys(re.findall(r"%([\w.-]+)", parenthesized(tail)))
        num_bytes = sum(map(_num_bytes, [instruction["shape"], *(shapes[o] for o in operands)]))
        kernels.append(Kernel(instruction["name"], kind, num_bytes))
    return kernels


def _called_kernels(
    computations: dict[str, list[re.Match[str]]], kind: str, tail: str
) -> list[Kernel]:
    """The kernels of the computations that an instruction runs."""
    names = re.findall(
        r"(?:body|to_apply|calls|true_computation|false_computation)=%?([\w.-]+)", tail
    )
    if branches := re.search(r"branch_computations=\{(.*?)\}", tail):
        names = re.findall(r"[\w.-]+", branches[1])
    named_kernels = [_kernels(computations, name) for name in names]
    if kind == "conditional":
        return min(named_kernels, key=lambda kernels: sum(k.num_bytes for k in kernels))
    trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', tail)
    return named_kernels[0] * (int(trips[1]) if kind == "while" and trips else 1)


def parenthesized(text: str) -> str:
    """The text up to the parenthesis that closes it."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return text[:place]
    return text


def _num_bytes(shape: str) -> int:
    return sum(
        _ITEM_BYTES.get(dtype, 4) * math.prod(int(size) for size in sizes.split(",") if size)
        for dtype, sizes in ARRAY.findall(shape)
    )


def _code(ptx: list[str], thunks: str, architecture: str) -> dict[str, Code]:
    """Kernel → machine code, by NVIDIA's assembler."""
    launches = {
        name: math.prod(int(number) for number in re.findall(r"\d+", sizes))
        for name, sizes in re.findall(r"(\S+) (grid: \[.*?\] threads: \[.*?\])", thunks)
    }
    code = {}
    for text in filter(str.strip, ptx):
        spilled, sizes = _assembled(text, architecture)
        for name, body in re.findall(r"\.entry\s+([\w$.]+)\((.*?)^\}", text, re.S | re.M):
            operations = re.findall(r"^\s+(?:@!?%\w+\s+)?([a-z][\w.:]*).*;", body, re.M)
            code[name] = Code(
                ptx=tuple(operations),
                num_instructions=sizes[name] // _BYTES_OF_INSTRUCTION,
                num_threads=launches.get(name, 0),
                spilled_bytes=spilled[name],
            )
    return code


def _assembled(ptx: str, architecture: str) -> tuple[dict[str, int], dict[str, int]]:
    """Kernel → spilled bytes, and kernel → bytes of machine code."""
    import nvidia.cuda_nvcc

    (folder,) = nvidia.cuda_nvcc.__path__
    with tempfile.TemporaryDirectory() as output:
        source, target = pathlib.Path(output, "kernel.ptx"), pathlib.Path(output, "kernel.cubin")
        source.write_text(ptx)
        command = [f"{folder}/bin/ptxas", f"-arch={architecture}", "-v", source, "-o", target]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        sizes = _sizes_of_sections(target.read_bytes())
    spilled = re.findall(
        r"Function properties for (\S+)\s+\d+ bytes stack frame, (\d+) bytes spill", done.stderr
    )
    return {name: int(number) for name, number in spilled}, {
        name.removeprefix(".text."): size
        for name, size in sizes.items()
        if name.startswith(".text.")
    }


def _sizes_of_sections(elf: bytes) -> dict[str, int]:
    """Name → size of the sections of an object file (64-bit ELF)."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    size, number, place_of_names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + size * k) for k in range(number)]
    names = headers[place_of_names][4]
    return {
        elf[names + name : elf.index(b"\0", names + name)].decode(): num_bytes
        for name, _, _, _, _, num_bytes in headers
    }
