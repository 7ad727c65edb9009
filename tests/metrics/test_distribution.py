"""The metrics under `tf.distribute`, and merged from shards: the figures of one device."""

import inspect
import io
import itertools
import json
import os
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest

from backends import digits
from keras_calibration.metrics import CalibratedLogLoss, FieldECE, FieldRCE
from metric_references import Rows, calibrated_log_loss

N = 960  # 15 batches of 64
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(-1, 1, N)
DATA = {
    "p": (1 / (1 + np.exp(-LOGITS))).astype("float32"),
    "y": (RNG.random(N) < 1 / (1 + np.exp(0.5 - LOGITS))).astype("float32"),
    "w": RNG.integers(1, 4, N).astype("float32"),
    "site": RNG.integers(0, 12, N),
    "row": np.arange(N),
}
# Other folds have other noise: little beside the loss' standard error, 0.014 here.
TOLERANCE = {"in_sample": 1e-9, "folds": 1e-3, "field_ece": 1e-12, "field_rce": 1e-12}


@pytest.fixture
def data(tmp_path):
    np.savez(tmp_path / "data.npz", **DATA)
    return str(tmp_path / "data.npz")


def metrics():
    return [
        CalibratedLogLoss(name="folds"),
        CalibratedLogLoss(num_folds=1, name="in_sample"),
        FieldECE(12),
        FieldRCE(12),
    ]


def update(metric, rows=slice(None)):
    y, p, w, site = (DATA[name][rows] for name in ("y", "p", "w", "site"))
    metric.update_state(y, p, w, **({"field": site} if "field" in metric.name else {}))


def cross_fitted(rows_of_replicas):
    """The cross-fitted loss with folds by each replica's own row numbers, from its definition."""
    numbers = np.empty(N, int)
    for rows in rows_of_replicas:
        numbers[rows] = np.arange(len(rows))
    columns = (DATA[name].astype(float) for name in ("y", "p", "w"))
    return calibrated_log_loss(Rows(*columns, numbers, DATA["site"]), num_folds=2)


def assert_agrees(figures, rows_of_replicas=None, rows=slice(None)):
    """Figures of several replicas against those of one device; the folds against NumPy."""
    every = {metric.name: metric for metric in metrics()}
    for name, value in figures.items():
        metric = every[name.removeprefix("site_")]
        for part in np.array_split(np.arange(N)[rows], 2):  # as many as are compiled anyway
            update(metric, part)
        expected, tolerance = float(metric.result()), digits(TOLERANCE[metric.name])
        if metric.name == "folds" and rows_of_replicas is not None:
            expected, tolerance = cross_fitted(rows_of_replicas), digits(1e-8)
        assert value == pytest.approx(expected, abs=tolerance), metric.name


METRICS = (
    """
import json, sys
import keras, numpy as np, tensorflow as tf
from keras_calibration.metrics import CalibratedLogLoss, FieldECE, FieldRCE

data = dict(np.load(sys.argv[1]))
"""
    + inspect.getsource(metrics)
    + """

def custom_loop(strategy, rows):
    with strategy.scope():
        every = metrics()
    dataset = tf.data.Dataset.from_tensor_slices({k: v[:rows] for k, v in data.items()}).batch(64)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = strategy.experimental_distribute_dataset(dataset.with_options(options))

    @tf.function
    def step(batch):
        def update(batch):
            for metric in every:
                field = {"field": batch["site"]} if "field" in metric.name else {}
                metric.update_state(batch["y"], batch["p"], batch["w"], **field)
        strategy.run(update, args=(batch,))

    results = []
    for _ in range(2):
        seen = [[] for _ in range(strategy.num_replicas_in_sync)]
        for batch in dataset:
            step(batch)
            for replica, part in enumerate(strategy.experimental_local_results(batch["row"])):
                seen[replica] += part.numpy().tolist()
        # Twice, since reading must not change the state.
        results += [{metric.name: float(metric.result()) for metric in every} for _ in range(2)]
        # The figures are quotients, which all sums being halved would not change.
        weight = every[2].per_field()["rows"].sum()
        assert weight == data["w"][:rows].sum(), weight
        for metric in every:
            metric.reset_state()
    first, *others = results
    assert all(other == first for other in others), results
    return first, seen
"""
)

MIRRORED = (
    """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
"""
    + METRICS
    + """
from keras_calibration.models import FieldMetricsModel

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
out = {}
out["loop"], out["seen"] = custom_loop(strategy, None)
out["uneven"], out["seen_uneven"] = custom_loop(strategy, 747)
with strategy.scope():
    # The prediction is an input: a network's own last digit may differ with the rows beside it.
    inputs = {
        "site": keras.Input((), dtype="int32", name="site"),
        "given": keras.Input((1,), name="given"),
    }
    model = FieldMetricsModel(inputs, keras.layers.Activation("linear")(inputs["given"]))
    folds, in_sample, ece, rce = metrics()
    model.compile(
        keras.optimizers.SGD(0.0),
        "binary_crossentropy",
        weighted_metrics=[folds, in_sample],
        field_metrics={"site": [ece, rce]},
    )
x = {"site": data["site"], "given": data["p"].reshape(-1, 1)}
arguments = {"sample_weight": data["w"], "batch_size": 64, "verbose": 0}
out["evaluate"] = model.evaluate(x, data["y"], return_dict=True, **arguments)
history = model.fit(x, data["y"], shuffle=False, epochs=2, **arguments).history
out["fit"] = {name: values[-1] for name, values in history.items()}
for name in ("evaluate", "fit"):
    del out[name]["loss"]
print(json.dumps(out))
"""
)

WORKER = (
    METRICS
    + """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
assert strategy.num_replicas_in_sync == 2
figures, seen = custom_loop(strategy, None)
uneven, seen_uneven = custom_loop(strategy, 747)
print(json.dumps({"loop": figures, "seen": seen[0], "uneven": uneven, "rows": seen_uneven[0]}))
"""
)


def start(script, data, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", script, data],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", **environment},
    )


def start_workers(script, data):
    """Two processes, each a worker of the same cluster on free ports of the loopback device."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    cluster = {"worker": [f"127.0.0.1:{server.getsockname()[1]}" for server in sockets]}
    for server in sockets:
        server.close()
    tasks = [{"type": "worker", "index": index} for index in range(2)]
    configs = [json.dumps({"cluster": cluster, "task": task}) for task in tasks]
    return [start(script, data, TF_CONFIG=config) for config in configs]


def results(*processes):
    """What each process prints last, as JSON; none of them outlives this call."""
    try:
        outputs = [process.communicate() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.mark.slow
@pytest.mark.tensorflow
def test_mirrored_strategy(data):
    (out,) = results(start(MIRRORED, data))
    assert len(out["seen"][0]) == len(out["seen"][1]) == N // 2
    assert sorted(itertools.chain(*out["seen"])) == list(range(N))
    assert_agrees(out["loop"], out["seen"])
    assert set(out["evaluate"]) == {"in_sample", "folds", "site_field_ece", "site_field_rce"}
    assert_agrees(out["evaluate"])
    assert_agrees(out["fit"])
    assert sorted(itertools.chain(*out["seen_uneven"])) == list(range(747))
    # The last batch of the first 747 rows (43 rows) cannot be halved.
    assert_agrees(out["uneven"], rows=slice(0, 747))


@pytest.mark.slow
@pytest.mark.tensorflow
def test_two_workers_print_the_figures_of_one_process(data):
    first, second = results(*start_workers(WORKER, data))
    assert first["loop"] == second["loop"]
    assert sorted(first["seen"] + second["seen"]) == list(range(N))
    assert first["seen"]
    assert second["seen"]
    assert_agrees(first["loop"], [first["seen"], second["seen"]])
    assert first["uneven"] == second["uneven"]
    assert sorted(first["rows"] + second["rows"]) == list(range(747))
    assert_agrees(first["uneven"], rows=slice(0, 747))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("metric", metrics(), ids=lambda metric: metric.name)
def test_state_travels_as_arrays(metric):
    # To another process or machine: `variables` in, `assign` out.
    def copy_of(metric):
        return type(metric).from_config(metric.get_config())

    merged, received = copy_of(metric), []
    for part in (slice(0, 500), slice(500, N)):
        metric.reset_state()
        update(metric, part)
        sent = io.BytesIO()
        np.savez(sent, *(keras.ops.convert_to_numpy(v) for v in metric.variables))
        sent.seek(0)
        arrays = np.load(sent, allow_pickle=False)
        received.append(copy_of(metric))
        for variable, key in zip(received[-1].variables, arrays, strict=True):
            variable.assign(arrays[key])
        assert float(received[-1].result()) == float(metric.result())
    merged.merge_state(received)
    parts = [np.arange(500), np.arange(500, N)]
    assert_agrees({metric.name: float(merged.result())}, parts)
