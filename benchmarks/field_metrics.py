"""The update of FieldECE beside DuckDB: `./dev run python benchmarks/field_metrics.py`.

The same seven sums by field value, of the same rows in memory, in one process and in turns: DuckDB
by `group by` from its own table, and `FieldECE` in batches of several sizes. Prints the median time
in nanoseconds per row and the median over rounds of the ratio to DuckDB's in the same round.
Compilation is not counted. `--rows` sets the number of rows, `--rounds` that of the rounds.
"""

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_calibration.metrics import FieldECE

SQL = """
select id, sum(w * (y - p)), sum(w * y), sum(w), sum(w * w), sum(w * w * p * (1 - p)),
    sum(case when w > 0 then p else 0 end), sum(case when w > 0 then p * p else 0 end)
from (select id, y::double y, p::double p, {weight}::double w from log) group by id
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--values", type=float, nargs="+", default=[5e3, 1e6])
    arguments = parser.parse_args()
    field_metrics_table(
        int(arguments.rows), arguments.rounds, [int(number) for number in arguments.values]
    )


def field_metrics_table(num_rows: int, num_rounds: int, numbers_of_values: list[int]) -> None:
    if importlib.util.find_spec("duckdb") is None:
        print("Skipped: DuckDB is not installed (pip install duckdb pyarrow).")
        return
    print(f"\nSums by field value of {num_rows:,} rows: ns per row (÷ DuckDB in the same round)")
    for num_values in numbers_of_values:
        for weighted in (False, True):
            calls = calls_of(num_rows, num_values, weighted)
            times: dict[str, list[float]] = {name: [] for name in calls}
            for call in calls.values():
                call()
            for _ in range(num_rounds):
                for name, call in calls.items():
                    start = time.perf_counter()
                    counted = call()
                    times[name].append((time.perf_counter() - start) / counted * 1e9)
            print(f"{num_values:,} field values, {'weights' if weighted else 'no weights'}")
            for name, each in times.items():
                ratios = [own / sql for own, sql in zip(each, times["DuckDB"], strict=True)]
                print(
                    f"  {name:<34} {statistics.median(each):>8.1f} "
                    f"{statistics.median(ratios):>6.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
                )


def calls_of(num_rows: int, num_values: int, weighted: bool) -> dict[str, Callable[[], int]]:
    """Each adds up rows and returns how many."""
    import duckdb
    import pyarrow

    generator = np.random.default_rng(0)
    predictions = (generator.random(num_rows) ** 20).astype("float32")
    labels = (generator.random(num_rows) < predictions).astype("float32")
    weights = generator.choice([0.5, 1, 2], num_rows).astype("float32")
    ids = generator.integers(0, num_values, num_rows).astype("int32")
    connection = duckdb.connect()
    connection.register(
        "rows", pyarrow.table({"id": ids, "y": labels, "p": predictions, "w": weights})
    )
    connection.execute("create table log as select * from rows")
    sql = SQL.format(weight="w" if weighted else "1")

    def by_sql() -> int:
        connection.execute(sql).fetchnumpy()
        return num_rows

    calls: dict[str, Callable[[], int]] = {"DuckDB": by_sql}
    columns = [labels, predictions, weights, ids]
    for batch_size in (num_rows, 131_072, 8192):
        # Small batches of a part of the rows: the time per row does not depend on their number.
        end = num_rows if batch_size > 8192 else min(num_rows, 128 * 8192)
        batches = [
            [tf.constant(column[start : start + batch_size]) for column in columns]
            for start in range(0, end, batch_size)
        ]
        name = "at once" if batch_size == num_rows else f"batches of {batch_size:,}"
        for kind in ("eager", "tf.function", "XLA"):
            calls[f"FieldECE {name}, {kind}"] = fed(num_values, batches, weighted, kind)
    return calls


def fed(num_values: int, batches: list[Any], weighted: bool, kind: str) -> Callable[[], int]:
    metric = FieldECE(num_values)

    def update(labels: Any, predictions: Any, weights: Any, ids: Any) -> None:
        metric.update_state(labels, predictions, weights if weighted else None, field=ids)

    if kind != "eager":
        update = tf.function(update, jit_compile=kind == "XLA", autograph=False)

    def call() -> int:
        for batch in batches:
            update(*batch)
        return sum(len(batch[0]) for batch in batches)

    return call


if __name__ == "__main__":
    main()
