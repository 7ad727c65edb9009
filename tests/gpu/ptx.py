"""Runs a program that XLA compiled for a GPU on the CPU, instruction by instruction, in NumPy.

A `GpuProgram` is what a GPU would run: kernels in PTX, NVIDIA's assembly language, their order, and
the place of each array in memory. All threads of a kernel run at once. The threads at the lowest
line run next, so that they meet again after branches and at barriers.

Results are those of a GPU to the bit, because the instructions round as IEEE 754 says, with two
exceptions. `div.full` may be off by 2 units in the last place: `run` takes the division to use.
The order of atomic additions is not defined: here they are added in the order of the threads.
An instruction that is not known raises an error.

Reference: NVIDIA, *Parallel Thread Execution ISA*, version 8.8.
"""

from __future__ import annotations

import functools
import math
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gpu import compiler

Function = Callable[..., Any]

_DTYPES = {"f32": "f4", "s32": "i4", "u8": "u1", "pred": "?"}  # XLA's → NumPy's
_DTYPE_OF_REGISTERS = {"%p": "?", "%rs": "u2", "%r": "u4", "%rd": "u8"}
_WARP = 32
_ALIGNMENT = 256
_OPERAND = re.compile(r"\{.*?\}|\[.*?\]|[^\s,]+")
_ACCESS = re.compile(r"(ld|st)\.(global|shared)(?:\.nc)?(?:\.v[24])?\.b(8|16|32|64)")
_ADDITION = re.compile(r"atom(?:\.relaxed\.sys)?\.global(?:\.add\.f32|\.v[24]\.f32\.add)")


def _towards_zero(numbers: np.ndarray) -> np.ndarray:
    """The integer, or the nearest of those that there are; 0 for NaN."""
    ends = np.iinfo("i4")
    inside = np.clip(np.trunc(numbers.astype("f8")), ends.min, ends.max)
    return np.where(np.isnan(numbers), 0, inside).astype("i4")


def _permuted_bytes(low: np.ndarray, high: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """Four of the eight bytes of two registers."""
    both, result = low.astype("u8") | high.astype("u8") << 32, np.uint64(0)
    for place in range(4):
        byte = (selector.astype("u8") >> (4 * place)) & 15
        if np.any(byte > 7):
            raise NotImplementedError("prmt.b32 that repeats a sign")
        result = result | (both >> (8 * byte) & 255) << (8 * place)
    return result.astype("u4")


def _shift(bits: np.ndarray, number: np.ndarray, shift: Function) -> np.ndarray:
    """A shift, which gives 0 where it is by all bits or more."""
    size = bits.dtype.type(8 * bits.itemsize)
    return np.where(number < size, shift(bits, number % size), 0)


def _wide_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.multiply(a, b, dtype=f"{a.dtype.kind}{2 * a.itemsize}")


def _high_half(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (_wide_product(a, b) >> 8 * a.itemsize).astype(a.dtype)


_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "not": np.invert}
_ORDER = {"setp.lt": np.less, "setp.le": np.less_equal, "setp.gt": np.greater}
_ORDER |= {"setp.ge": np.greater_equal}
_CHOICE = {"setp.eq": np.equal, "selp": lambda a, b, condition: np.where(condition, a, b)}
_OF_INTEGERS = _ORDER | {
    "add": np.add,
    "sub": np.subtract,
    "mul.lo": np.multiply,
    "mul.wide": _wide_product,
    "mad.lo": lambda a, b, c: a * b + c,
    "min": np.minimum,
    "max": np.maximum,
    "mov": np.asarray,
}
_OF_UNSIGNED = {
    "cvta.to.global": np.asarray,
    "mul.hi": _high_half,
    "shr": functools.partial(_shift, shift=np.right_shift),
    # The register decides the size.
    **dict.fromkeys(("cvt.u16", "cvt.u32", "cvt.u64"), np.asarray),
}
_OF_BITS = {
    "mov": np.asarray,
    "setp.ne": np.not_equal,
    "shl": functools.partial(_shift, shift=np.left_shift),
    "prmt": _permuted_bytes,
}
# Sums and products without `.rn` are left out: the assembler may contract these, and round once.
_OF_FLOATS = {
    "add.rn": np.add,
    "sub.rn": np.subtract,
    "mul.rn": np.multiply,
    "min.NaN": np.minimum,
    "max.NaN": np.maximum,
    "neg": np.negative,
    "copysign": lambda sign, size: np.copysign(size, sign),
    "setp.ne": lambda a, b: (a < b) | (a > b),  # false for NaN
    "setp.nan": lambda a, b: np.isnan(a) | np.isnan(b),
    "cvt.rmi.f32": np.floor,
    "cvt.rzi.s32": _towards_zero,
}
# Type of the operands → their dtype, and the operations on it without the type.
_TYPES: dict[str, tuple[str, dict[str, Function]]] = {
    "pred": ("?", _LOGIC),
    "f32": ("f4", _ORDER | _CHOICE | _OF_FLOATS),
    **{f"b{8 * size}": (f"u{size}", _LOGIC | _CHOICE | _OF_BITS) for size in (2, 4, 8)},
    **{f"u{8 * size}": (f"u{size}", _OF_INTEGERS | _OF_UNSIGNED) for size in (2, 4, 8)},
    **{f"s{8 * size}": (f"i{size}", _OF_INTEGERS) for size in (2, 4, 8)},
}


class Instruction(NamedTuple):
    """An instruction, run by the threads whose guard, a predicate register, is as said."""

    guard: str
    guard_is: bool
    operation: str
    operands: list[str]


@dataclass
class Kernel:
    """A kernel in PTX: its instructions, and the instruction after each label.

    `parameters` are the names of addresses of arrays, `shared` has the addresses of the arrays that
    the threads of a block share, in `shared_bytes` bytes.
    """

    parameters: list[str]
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    shared_bytes: int = 0


def read_kernels(ptx: str) -> dict[str, Kernel]:
    """Name → kernel of a module."""
    entries = re.findall(r"\.entry\s+([\w$]+)\((.*?)\).*?^\{(.*?)^\}", ptx, re.S | re.M)
    return {name: _read_kernel(parameters, body) for name, parameters, body in entries}


def _read_kernel(parameters: str, body: str) -> Kernel:
    kernel = Kernel(re.findall(r"\.param .*?(\w+),?$", parameters, re.M))
    for line in filter(None, (line.split("//")[0].strip() for line in body.splitlines())):
        if label := re.fullmatch(r"(\$\w+):", line):
            kernel.labels[label[1]] = len(kernel.instructions)
        elif array := re.fullmatch(r"\.shared .*? (\w+)\[(\d+)\];", line):
            kernel.shared[array[1]] = kernel.shared_bytes
            kernel.shared_bytes += _aligned(int(array[2]))
        elif found := re.fullmatch(r"(?:@(!?)(%p\d+)\s+)?([a-z][\w.]*)\s*(.*?);", line):
            no, guard, operation, operands = found.groups(default="")
            given = _OPERAND.findall(operands)
            kernel.instructions.append(Instruction(guard, not no, operation, given))
        elif not line.startswith((".reg ", ".pragma ")):  # hints to the assembler
            raise NotImplementedError(f"Line of PTX: {line}")
    return kernel


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


class Launch:
    """A kernel that runs: the next instruction of each thread, registers and memory.

    `memory` is that of the GPU, in bytes; `addresses` are those of the arrays that the kernel
    takes; `grid` are the blocks and the threads of each; `divide` computes `div.full`.
    """

    def __init__(
        self,
        kernel: Kernel,
        memory: np.ndarray,
        addresses: Sequence[int],
        grid: tuple[int, int],
        divide: Function = np.divide,
    ) -> None:
        self.kernel, self.divide, (num_blocks, self.num_threads) = kernel, divide, grid
        self.parameters = dict(zip(kernel.parameters, addresses, strict=True))
        self.block = np.repeat(np.arange(num_blocks), self.num_threads)
        self.warp = np.arange(len(self.block)) // _WARP
        self.next = np.zeros_like(self.block)
        thread = np.tile(np.arange(self.num_threads, dtype="u4"), num_blocks)
        self.registers = {"%tid.x": thread, "%ctaid.x": self.block.astype("u4")}
        shared = np.zeros(num_blocks * kernel.shared_bytes, "u1")
        self.memory = {"global": memory, "shared": shared}

    def run(self) -> None:
        """Runs until all threads have ended."""
        with np.errstate(all="ignore"):
            while (number := self.next.min()) < len(self.kernel.instructions):
                instruction = self.kernel.instructions[number]
                here = np.flatnonzero(self.next == number)
                self.next[here] += 1
                if guard := instruction.guard:
                    here = here[self.registers[guard][here] == instruction.guard_is]
                if here.size:
                    self._execute(instruction.operation, instruction.operands, here)

    def _execute(self, operation: str, operands: list[str], here: np.ndarray) -> None:
        """Runs an instruction in the threads `here`."""
        name, _, suffix = operation.rpartition(".")
        dtype, functions = _TYPES.get(suffix, ("", {}))
        if function := self.divide if operation == "div.full.f32" else functions.get(name):
            values = [self._read(source, here, dtype) for source in operands[1:]]
            self._write(operands[0], function(*values), here)
        elif operation in ("bra", "bra.uni"):
            self.next[here] = self.kernel.labels[operands[0]]
        elif operation == "ret":
            self.next[here] = len(self.kernel.instructions)
        elif operation == "bar.sync":
            self._check_all_are_here(self.block, here)
        elif operation == "shfl.sync.down.b32":
            self._shuffle_down(operands, here)
        elif operation == "ld.param.b64":
            address = self.parameters[operands[1].strip("[]")]
            self._write(operands[0], np.array([address], "u8"), here)
        elif access := _ACCESS.fullmatch(operation):
            self._access(access[1], access[2], int(access[3]) // 8, operands, here)
        elif _ADDITION.fullmatch(operation):
            self._access("add", "global", 4, operands[1:], here)
        elif (
            operation != "griddepcontrol.wait"
        ):  # Here, no kernel starts before the last has ended.
            raise NotImplementedError(f"PTX instruction {operation}")

    def _read(self, operand: str, here: np.ndarray, dtype: str) -> np.ndarray:
        """A register in each thread, two side by side, or a constant; predicates are Boolean."""
        if operand.startswith("{"):
            low, high = (self._read(name, here, "u4").astype(dtype) for name in _items(operand))
            return low | high << 32
        if operand.startswith("%"):
            return _with_dtype(self.registers[operand][here], dtype)
        if operand.startswith("0f"):
            return np.array([int(operand[2:], 16)], "u4").view(dtype)
        size, shared = np.dtype(dtype).itemsize, self.kernel.shared
        number = shared[operand] if operand in shared else int(operand.removesuffix("U"), 0)
        return np.array([number % (1 << 8 * size)], f"u{size}").view(dtype)

    def _write(self, register: str, values: np.ndarray, here: np.ndarray) -> None:
        for half, name in enumerate(_items(register) if register.startswith("{") else ()):
            self._write(name, values >> 32 * half, here)
        if register.startswith("%"):  # else the parts above, or `_`, which takes what nobody needs
            dtype = _DTYPE_OF_REGISTERS[register.rstrip("0123456789")]
            thread_values = self.registers.setdefault(register, np.zeros(len(self.next), dtype))
            thread_values[here] = _with_dtype(values, dtype)

    def _places(
        self, operand: str, here: np.ndarray, space: str, size: int, number: int
    ) -> np.ndarray:
        """Indices of the items that each thread takes, (number, threads)."""
        base, offset = re.fullmatch(r"\[(\w+|%\w+)(?:\+(-?\d+))?\]", operand).groups(default="0")
        address = self._read(base, here, "u8").astype("i8") + int(offset)
        # No array of all is at 0.
        global_ends = (_ALIGNMENT, len(self.memory["global"]))
        low, high = global_ends if space == "global" else (0, self.kernel.shared_bytes)
        is_inside = (address >= low) & (address + size * number <= high)
        if not np.all(is_inside & (address % (size * number) == 0)):
            raise IndexError(f"{operand} is not aligned, or beyond the memory")
        if space == "shared":
            address = address + self.block[here] * self.kernel.shared_bytes
        return address // size + np.arange(number)[:, None]

    def _access(
        self, kind: str, space: str, size: int, operands: list[str], here: np.ndarray
    ) -> None:
        """Loads, stores or adds a register, or several side by side.

        What an addition finds in memory is not kept: without an order, it has no meaning.
        """
        registers, address = operands if kind == "ld" else operands[::-1]
        names, memory = _items(registers), self.memory[space].view(f"u{size}")
        places = self._places(address, here, space, size, len(names))
        for name, place in zip(names, places, strict=True):
            if kind == "ld":
                self._write(name, memory[place], here)
            elif kind == "st":
                memory[place] = self._read(name, here, f"u{size}")
            else:
                np.add.at(memory.view("f4"), place, self._read(name, here, "f4"))

    def _shuffle_down(self, operands: list[str], here: np.ndarray) -> None:
        """Reads a register of the thread some lanes on; at the end of a warp, the thread's own."""
        target, source, lanes, *rest = operands
        if rest != ["31", "-1"] or self.num_threads % _WARP:
            raise NotImplementedError(f"shfl.sync of parts of a warp: {operands}")
        self._check_all_are_here(self.warp, here)
        is_inside = here % _WARP + int(lanes) < _WARP
        self._write(target, self._read(source, here + int(lanes) * is_inside, "u4"), here)

    def _check_all_are_here(self, group: np.ndarray, here: np.ndarray) -> None:
        """Raises an error where only some of a group's threads have come."""
        expected = np.bincount(group[self.next < len(self.kernel.instructions)])
        found = np.bincount(group[here], minlength=len(expected))
        if np.any((found > 0) & (found < expected)):
            raise RuntimeError("Threads wait for others of their block or warp.")


def _items(operand: str) -> list[str]:
    return re.split(r",\s*", operand.strip("{}"))


def _with_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    """The same bits, cut or filled up with zeros where sizes differ."""
    if values.dtype == dtype or values.dtype == "?":
        return values
    return values.view(f"u{values.itemsize}").astype(f"u{np.dtype(dtype).itemsize}").view(dtype)


class GpuProgram:
    """A program compiled for the GPU of a name in `specs/`."""

    def __init__(self, gpu: str, stablehlo: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            compiler.compile_into(gpu, stablehlo, folder)
            (text,) = compiler.dumped(folder, "gpu_after_optimizations.txt")
            (buffers,) = compiler.dumped(folder, "buffer-assignment.txt")
            (thunks,) = compiler.dumped(folder, "thunk_sequence.txt")
            self.kernels = read_kernels("".join(compiler.dumped(folder, ".ptx")))
        grids = re.findall(r"(\S+) grid: \[(\d+), 1, 1\] threads: \[(\d+), 1, 1\]", thunks)
        self.grids = {name: (int(blocks), int(threads)) for name, blocks, threads in grids}
        self.places, self.num_bytes = _places_in_memory(buffers)
        self.parameters: dict[int, str] = {}
        self.shapes: dict[str, tuple[str, list[int]]] = {}
        self.launches: list[tuple[str, list[str]]] = []  # kernels, and the arrays that each takes
        entry = re.sub(r"/\*.*?\*/", "", text[text.index("\nENTRY ") :])
        for found in filter(None, map(compiler.INSTRUCTION.match, entry.splitlines())):
            self._read_operation(found["name"], found["shape"], found)
        self.num_rows = max(self.shapes[name][1][0] for name in self.parameters.values())
        over_rows = compiler.read_program(text).over_rows(self.num_rows)
        self.over_rows = {kernel.name for kernel in over_rows}

    def _read_operation(self, name: str, shape: str, found: re.Match[str]) -> None:
        kind, tail = found["op"], found.string[found.end() :]
        operands = re.findall(r"%([\w.-]+)", compiler.parenthesized(tail))
        arrays = compiler.ARRAY.findall(shape)
        self.results = [f"{name}{{{k}}}" for k in range(len(arrays))] if shape[0] == "(" else [name]
        if kind == "tuple":
            self.results = operands
        elif kind == "get-tuple-element":
            (number,) = re.findall(r"index=(\d+)", tail)
            self.places[name] = self.places[f"{operands[0]}{{{number}}}"]
        elif kind == "fusion":
            self.launches.append((name, [*dict.fromkeys(operands), *self.results]))
        elif kind == "parameter":
            self.parameters[int(compiler.parenthesized(tail))] = name
        else:
            raise NotImplementedError(f"Operation {kind}")
        for result, (dtype, sizes) in zip(self.results, arrays, strict=True):
            self.shapes[result] = _DTYPES[dtype], [int(n) for n in sizes.split(",") if n]

    def run(self, *arguments: np.ndarray, divide: Function = np.divide) -> list[np.ndarray]:
        """The results; where arguments are the first rows only, those of these rows.

        Kernels over rows, whose blocks take these in order, then run as few blocks: so a program of
        1e8 rows, which is not that of 1e4 rows, can be run on few.
        """
        memory, rows = np.zeros(self.num_bytes, "u1"), self.num_rows
        for number, name in self.parameters.items():
            array, (dtype, sizes) = arguments[number], self.shapes[name]
            rows = len(array) if sizes[0] == self.num_rows else rows
            memory[self.places[name] :][: array.nbytes] = array.astype(dtype).view("u1")
        for name, arrays in self.launches:
            num_blocks, num_threads = self.grids[name]
            if name in self.over_rows and rows < self.num_rows:
                num_blocks, rest = divmod(rows, -(-self.num_rows // num_blocks))
                if rest:
                    raise ValueError(f"{rows} rows are not whole blocks of {name}.")
            kernel = self.kernels[re.sub(r"[.-]", "_", name)]
            addresses = [self.places[array] for array in arrays]
            Launch(kernel, memory, addresses, (num_blocks, num_threads), divide).run()

        def result(name: str) -> np.ndarray:
            dtype, sizes = self.shapes[name]
            sizes = [rows if size == self.num_rows else size for size in sizes]
            return np.frombuffer(memory, dtype, math.prod(sizes), self.places[name]).reshape(sizes)

        return [result(name) for name in self.results]


def _places_in_memory(buffers: str) -> tuple[dict[str, int], int]:
    """Array → address, as XLA assigned it, and the bytes of memory that all take."""
    places, start, end = {}, 0, _ALIGNMENT
    for line in buffers.splitlines():
        if allocation := re.match(r"allocation \d+: size (\d+)", line):
            start, end = end, end + _aligned(int(allocation[1]))
        elif value := re.match(r" value: <\d+ (\S+) @0> \(size=\d+,offset=(\d+)\)", line):
            places[value[1]] = start + int(value[2])
    return places, end
