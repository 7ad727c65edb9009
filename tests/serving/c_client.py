"""The C client of the tests and of `benchmarks/serving.py`: compiled, and spoken to by files."""

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SOURCE = Path(__file__).with_name("serve.c")
NO_COMPILER = (
    "No C compiler (cc, gcc or clang) on the PATH: `apt-get install gcc libc6-dev`, or the like, "
    "and the SavedModel is also served from C."
)
_COMPILERS = ("cc", "gcc", "clang")
_DTYPES = {"DT_FLOAT": "float", "DT_INT32": "int32", "DT_INT64": "int64", "DT_STRING": "string"}


def find_compiler() -> str | None:
    """The path of a C compiler, or None."""
    return next(filter(None, map(shutil.which, _COMPILERS)), None)


@functools.cache
def client() -> Path:
    """The program, compiled against the shared libraries of the installed TensorFlow wheel."""
    import tensorflow as tf

    compiler = find_compiler()
    if compiler is None:
        raise FileNotFoundError(NO_COMPILER)
    # Kept for the life of the process.
    client.folder = tempfile.TemporaryDirectory()
    program = Path(client.folder.name, "serve")
    libraries = tf.sysconfig.get_lib()
    names = [f"-l:libtensorflow_{part}.so.2" for part in ("cc", "framework")]
    command = [compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", str(SOURCE)]
    command += ["-isystem", tf.sysconfig.get_include(), f"-L{libraries}", *names]
    command += [f"-Wl,-rpath,{libraries}", "-o", str(program)]
    if shutil.which("ld.gold"):  # reads the gigabyte of TensorFlow in a quarter of the time
        command += ["-fuse-ld=gold", "-Wl,--allow-shlib-undefined"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"The C compiler refused {SOURCE.name}:\n{done.stderr}")
    return program


def serve(
    model: Path,
    inputs: Mapping[str, Any],
    signature: str = "serving_default",
    outputs: Sequence[str] = ("probability", "uncalibrated_probability", "logit"),
) -> dict[str, np.ndarray]:
    """What the C program gets from a signature: output name → float64 values (n,)."""
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder, "request")
        write_request(request, model, inputs, signature, outputs)
        done = run([str(model), str(request)])
    if done.returncode:
        raise RuntimeError(f"serve exited with {done.returncode}: {done.stderr}")
    rows = np.array([line.split() for line in done.stdout.splitlines()], np.float64)
    return dict(zip(outputs, rows.T, strict=True))


def run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The program with these arguments, TensorFlow's notices left out."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "1"}
    command = [str(client()), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def write_request(
    path: Path,
    model: Path,
    inputs: Mapping[str, Any],
    signature: str = "serving_default",
    outputs: Sequence[str] = ("probability",),
    *,
    as_given: bool = False,
) -> None:
    """Writes a request; the graph's own tensor names are read from the signature.

    Args:
        path: The file to write.
        model: Folder of the SavedModel.
        inputs: Name of the signature's input → values; an input that is left out is not fed.
        signature: Name of the signature.
        outputs: Names of the outputs to fetch.
        as_given: Whether the values keep their shapes, in place of those of the signature.
    """
    from tensorflow.core.framework import types_pb2
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((Path(model) / "saved_model.pb").read_bytes())
    definition = saved.meta_graphs[0].signature_def[signature]
    lines = []
    for name, values in inputs.items():
        tensor = definition.inputs[name]
        values = np.asarray(values)
        if not as_given:
            values = values.reshape(len(values), *[dim.size for dim in tensor.tensor_shape.dim[1:]])
        dtype = _DTYPES[types_pb2.DataType.Name(tensor.dtype)]
        sizes = " ".join(map(str, values.shape))
        lines.append(f"input {tensor.name} {dtype} {values.ndim} {sizes}")
        lines += [_text(value, dtype) for value in values.reshape(-1).tolist()]
    lines += [f"output {definition.outputs[name].name}" for name in outputs]
    path.write_text("\n".join(lines) + "\n")


def _text(value: Any, dtype: str) -> str:
    if dtype != "string":
        return repr(value)
    return (value if isinstance(value, bytes) else value.encode()).hex()
