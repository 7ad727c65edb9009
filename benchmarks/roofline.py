"""What the ILPS kernel costs a core by hand: `./dev run python benchmarks/roofline.py`.

The loops of `ops.piecewise_linear` written in C and compiled for this machine by `cc`: the forward
pass, each row comparing with one knot after the other as under XLA; and forward + backward in one
pass over memory, which XLA cannot do on a CPU, for its loops write one array each. All arrays are
there before, so that no loop pays for fresh memory. CPU time of one core, medians, in turns. The
gradient by the values is checked against float64. (With `--flags`, `-mprefer-vector-width=512` lets
GCC use the widest vectors of an x86 that has them.)
"""

import argparse
import ctypes
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np
from kernels import NUM_KNOTS, gradient_error

SOURCE = """
#define K %(num_knots)d
#define LANES 16
#define BLOCK 1024
typedef const float *restrict in;
typedef float *restrict out;

void copy(in l, out curve, long n) { for (long i = 0; i < n; i++) curve[i] = -l[i]; }

/* table: knot, value, slope and ceiling of each line. */
void forward(in l, in table, out curve, long n) {
  const float *a = table, *b = a + K, *s = b + K, *c = s + K;
  for (long i = 0; i < n; i++) {
    float first = b[0] + (l[i] - a[0]) * s[0], chosen = c[0] < first ? c[0] : first;
    #pragma GCC unroll %(num_knots)d
    for (int k = 1; k < K; k++) {
      float line = b[k] + (l[i] - a[k]) * s[k];
      line = c[k] < line ? c[k] : line;
      chosen = l[i] >= a[k] ? line : chosen;
    }
    curve[i] = chosen;
  }
}

/* sums: of the upstream gradient, and of it times the offset, by line. */
void both(in l, in g, in table, out curve, out by_logits, double *restrict sums, long n) {
  const float *a = table, *b = a + K, *s = b + K, *c = s + K;
  static float by_value[K * LANES], by_slope[K * LANES], weighted[BLOCK];
  static int cell[BLOCK];
  for (long start = 0; start < n; start += BLOCK) {
    long m = n - start < BLOCK ? n - start : BLOCK;
    for (long i = 0; i < m; i++) {
      float logit = l[start + i], upstream = g[start + i];
      int k = 0;
      #pragma GCC unroll %(num_knots)d
      for (int j = 1; j < K; j++) k += logit >= a[j];
      float offset = logit - a[k], line = b[k] + offset * s[k];
      curve[start + i] = c[k] < line ? c[k] : line;
      by_logits[start + i] = upstream * s[k];
      cell[i] = k * LANES;
      weighted[i] = upstream * offset;
    }
    for (long i = 0; i < m; i++) {
      by_value[cell[i] + i %% LANES] += g[start + i];
      by_slope[cell[i] + i %% LANES] += weighted[i];
    }
    for (int k = 0; k < K * LANES; k++) {
      sums[k / LANES] += by_value[k];
      sums[K + k / LANES] += by_slope[k];
      by_value[k] = by_slope[k] = 0;
    }
  }
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--flags", default="-O3 -march=native -fno-math-errno")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    num_rows = int(arguments.rows)
    generator = np.random.default_rng(0)
    logits = generator.normal(-1.2, 1.7, num_rows).astype(np.float32)
    upstream = generator.normal(size=num_rows).astype(np.float32)
    knots = np.quantile(logits[:100_000], (np.arange(NUM_KNOTS) + 0.5) / NUM_KNOTS)
    knots = knots.astype(np.float32)
    values = 0.8 * knots - 0.2
    slopes = np.diff(values) / np.diff(knots)
    ceilings = np.append(values[1:], np.inf)
    table = np.stack([knots, values, np.append(slopes, slopes[-1]), ceilings]).astype(np.float32)
    curve, by_logits, sums = np.ones_like(logits), np.ones_like(logits), np.zeros((2, NUM_KNOTS))
    library = compiled(SOURCE % {"num_knots": NUM_KNOTS}, arguments.flags)
    passes = {
        "copy": (library.copy, logits, curve),
        "forward": (library.forward, logits, table, curve),
        "forward + backward": (library.both, logits, upstream, table, curve, by_logits, sums),
    }
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(arguments.rounds):
        for name, (function, *arrays) in passes.items():
            start = time.process_time()
            function(*(ctypes.c_void_p(a.ctypes.data) for a in arrays), ctypes.c_long(num_rows))
            seconds[name].append(time.process_time() - start)
    for name, times in seconds.items():
        median, least = (1e9 * time / num_rows for time in (statistics.median(times), min(times)))
        print(f"{name:<20}{median:>6.2f} ns/row, at least {least:.2f}")
    by_value, by_slope = sums / arguments.rounds
    by_segment = by_slope[:-1] / np.diff(knots)
    # The last line goes on with the slope of the one before.
    by_segment[-1] += by_slope[-1] / (knots[-1] - knots[-2])
    by_values = by_value + np.append(0, by_segment) - np.append(by_segment, 0)
    error = gradient_error(by_values, logits, knots, values, upstream, "")
    print(f"error of the gradient by the values: {error:.1e}")


def compiled(source: str, flags: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "kernels.c")
        path.write_text(source)
        shared = ["-shared", "-fPIC", str(path), "-o", f"{path}.so"]
        subprocess.run(["cc", *flags.split(), *shared], check=True)
        return ctypes.CDLL(f"{path}.so")


if __name__ == "__main__":
    main()
