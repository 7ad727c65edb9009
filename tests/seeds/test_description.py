"""What a run was trained with is recorded, and a change is named."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_calibration
from keras_calibration._keras import restart_names
from keras_calibration.metrics import CalibratedLogLoss
from keras_calibration.seeds import Ledger, set_seeds, train
from keras_calibration.seeds.description import (
    describe_callbacks,
    describe_model,
    describe_rows,
    differences,
    hash_array,
    names_without_configuration,
)
from keras_calibration.seeds.seed_task import SeedTask, Start, as_rows, fit_seed
from seed_pipelines import HELD_OUT, SMALL, TRAINING, build_model, build_small

TESTS = Path(__file__).parents[1]


class Scaled(keras.layers.Layer):
    """A layer of a user; Keras knows its configuration if the arguments are numbers."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, x):
        return self.factor * x


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of a user."""

    def __init__(self, peak):
        self.peak = peak

    def __call__(self, step):
        return self.peak

    def get_config(self):
        return {"peak": self.peak}


class Constant(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of a user, without `get_config`."""

    def __call__(self, step):
        return 0.1


class Own(keras.Model):
    """A subclass whose configuration says nothing of its layers."""

    def __init__(self, units):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(units), keras.layers.Dense(1, "sigmoid")

    def call(self, x):
        return self.out(self.hidden(x))

    def get_config(self):
        return {}


def loss_with(power):
    def loss(y, p):
        return keras.ops.mean(keras.ops.abs(y - p) ** power, axis=-1)

    return loss


def model_of(*layers, optimizer="sgd", loss="mse", **arguments):
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1, "sigmoid")])
    model.compile(optimizer, loss, **arguments)
    return model


def own_model(units):
    model = Own(units)
    model.compile("sgd", "mse")
    return model


def initial(value):
    return keras.initializers.Constant(np.full(40, value, "float32"))


def looking_up(words):
    inputs = keras.Input((), dtype="string")
    layer = keras.layers.StringLookup(output_mode="one_hot")
    layer.adapt(np.array(words))
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile("sgd", "mse")
    return model


# A model, another one, and how the difference is named.
CHANGES = {
    "units": (lambda n: model_of(keras.layers.Dense(n)), 8, 64, "dense.units=8, not 64"),
    "rate": (
        lambda rate: model_of(optimizer=keras.optimizers.Adam(rate)),
        0.01,
        1e-6,
        "optimizer.learning_rate=0.01, not 1e-06",
    ),
    "optimizer": (lambda o: model_of(optimizer=o), "sgd", "adam", "optimizer=SGD, not Adam"),
    "schedule": (
        lambda peak: model_of(optimizer=keras.optimizers.SGD(Warmup(peak))),
        0.1,
        0.2,
        "peak=0.1, not 0.2",
    ),
    "decay": (
        lambda d: model_of(optimizer=keras.optimizers.AdamW(weight_decay=d)),
        0.1,
        0.2,
        "weight_decay=0.1, not 0.2",
    ),
    "loss": (lambda name: model_of(loss=name), "mse", "mae", "compile.loss='mse', not 'mae'"),
    "metric": (
        lambda n: model_of(metrics=[CalibratedLogLoss(num_folds=n)]),
        2,
        3,
        "num_folds=2, not 3",
    ),
    "weights of losses": (lambda w: model_of(loss_weights=[w]), 1.0, 2.0, "loss_weights"),
    "more layers": (
        lambda n: model_of(*(keras.layers.Dense(2) for _ in range(n))),
        1,
        2,
        "model.layers=[InputLayer, Dense, Dense], not [InputLayer, Dense, Dense, Dense]",
    ),
    "dropout": (lambda rate: model_of(keras.layers.Dropout(rate)), 0.1, 0.2, "dropout.rate"),
    "frozen": (
        lambda trainable: model_of(keras.layers.Dense(2, trainable=trainable)),
        True,
        False,
        "dense.trainable=True, not False",
    ),
    "array": (
        lambda v: model_of(keras.layers.Normalization(mean=[v] * 3, variance=[1.0] * 3)),
        0.0,
        1.0,
        "layers.normalization.mean",
    ),
    "long array": (
        lambda v: model_of(keras.layers.Dense(40, bias_initializer=initial(v))),
        0.0,
        1.0,
        "other values of model.layers.dense.bias_initializer.value",
    ),
    "number of a user": (lambda v: model_of(Scaled(v)), 1.0, 2.0, "layers.Scaled.factor=1, not 2"),
    "subclass": (own_model, 8, 64, "dense.units=8, not 64"),
    "vocabulary": (looking_up, ["a", "b"], ["a", "c"], "vocabularies.string_lookup="),
}


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.tensorflow
def test_a_change_of_the_model_is_named(case):
    build, old, new, message = CHANGES[case]
    described = []
    for value in (old, old, new):
        restart_names()
        described.append(json.loads(json.dumps(describe_model(build(value)))))
    first, again, other = described
    assert differences(first, again) == []
    assert message in "; ".join(differences(first, other))


@keras.saving.register_keras_serializable(package="tests")
def doubled(x):
    return 2 * x


class Table(keras.layers.Layer):
    """A layer of a user that Keras cannot configure: it has an array for an argument."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, x):
        return x + self.table


# What has no configuration, the names that are told, and another one of the same name.
NAMES = {
    "lambda": (lambda n: model_of(keras.layers.Lambda(lambda x: n * x)), ["<lambda>"]),
    "activation": (lambda n: model_of(keras.layers.Dense(n, doubled)), ["tests>doubled"]),
    "layer": (lambda n: model_of(Table(np.full(3, n))), ["Sequential", "Table"]),
    "loss": (lambda n: model_of(loss=loss_with(n)), ["loss_with.<locals>.loss"]),
    "metric": (lambda n: model_of(metrics=[loss_with(n)]), ["loss_with.<locals>.loss"]),
    "partial": (lambda n: model_of(loss=functools.partial(loss_with(2))), ["partial"]),
    "schedule": (lambda n: model_of(optimizer=keras.optimizers.SGD(Constant())), ["SGD"]),
    "nothing": (
        lambda n: model_of(
            keras.layers.Lambda(keras.ops.sin) if n < 0 else Scaled(n),
            keras.layers.TimeDistributed(keras.layers.Dense(2)) if n < 0 else adapted(),
            optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9)),
            loss=keras.losses.binary_crossentropy,
            metrics=["mse", keras.metrics.AUC(), keras.metrics.binary_accuracy],
        ),
        [],
    ),
}


def adapted():
    layer = keras.layers.Normalization()
    layer.adapt(SMALL[0])
    return layer


@pytest.mark.parametrize("case", NAMES)
def test_the_names_of_what_has_no_configuration(case):
    build, names = NAMES[case]
    restart_names()
    described = json.loads(json.dumps(describe_model(build(2))))
    assert names_without_configuration(described) == names


def test_a_training_of_which_names_alone_are_known_is_warned_of(tmp_path):
    def sweep(factor, callbacks=None, **arguments):
        def build():
            return model_of(keras.layers.Lambda(lambda x: factor * x))

        return train(
            build,
            SMALL,
            ledger=tmp_path,
            pipeline="p",
            seeds=[0],
            verbose=0,
            callbacks=callbacks,
            **arguments,
        )

    with pytest.warns(UserWarning, match=r"without a configuration: <lambda>\. .*`configuration`"):
        sweep(2.0)
    # Another function of the same name cannot be told from it.
    with pytest.warns(UserWarning, match="<lambda>"):
        sweep(3.0)
    with pytest.raises(ValueError, match=r"configuration=None, not {'factor': 3.0}"):
        sweep(3.0, configuration={"factor": 3.0})
    assert len(Ledger(tmp_path)) == 1


def test_settings_that_only_make_it_faster_do_not_count():
    described = []
    for jit_compile in (False, True):
        restart_names()
        described.append(describe_model(model_of(jit_compile=jit_compile)))
    assert differences(*described) == []


def test_changed_rows_are_named():
    x, y = TRAINING
    first = describe_rows(as_rows("data", (x, y)))
    assert describe_rows(as_rows("data", (dict(reversed(x.items())), y.astype("float64")))) == first
    other = np.array(x["numbers"])
    other[202, 2] += 1e-6
    for rows, message in [
        (({**x, "numbers": other}, y), ["other values of x.numbers"]),
        ((x, 1 - y), ["other values of y"]),
        ((x, y, y), ["sample_weight=None, not {rows, dtype, values}"]),
        (({**x, "id": x["id"].astype("int64")}, y), ["other values of x.id"]),
    ]:
        assert differences(first, describe_rows(as_rows("data", rows)))[-1:] == message
    fewer = as_rows("data", ({name: v[:100] for name, v in x.items()}, y[:100]))
    assert "x.id.rows=203, not 100" in differences(first, describe_rows(fewer))


def test_hashes_of_arrays_are_of_their_values():
    values = np.arange(12.0).reshape(3, 4)
    assert hash_array(values) == hash_array(np.asfortranarray(values))
    assert hash_array(values) != hash_array(values.reshape(4, 3))
    assert hash_array(["ab", "c"]) == hash_array(np.array(["ab", "c"], object))
    assert hash_array(["ab", "c"]) != hash_array(["a", "bc"])
    assert hash_array(np.zeros((0, 3))) != hash_array(np.zeros((1, 3)))
    hash_array(np.array([True, False])), hash_array(np.float32(1)), hash_array(values[::2, ::3])


def test_callbacks_are_compared_by_their_settings():
    class Decay(keras.callbacks.Callback):
        def __init__(self, scale, path=None):
            super().__init__()
            self._scale, self.path = scale, path

    def described(patience=1, scale=0.5, folder="one", logs=()):
        return describe_callbacks(
            [
                keras.callbacks.EarlyStopping("val_loss", patience=patience),
                Decay(scale),
                keras.callbacks.ModelCheckpoint(f"{folder}.keras"),
                *logs,
            ]
        )

    first = described()
    assert differences(first, described(folder="two", logs=[keras.callbacks.CSVLogger("x")])) == []
    assert differences(first, described(patience=2)) == ["EarlyStopping.patience=1, not 2"]
    assert differences(first, described(scale=0.1)) == ["Decay.scale=0.5, not 0.1"]
    assert names_without_configuration(first) == []
    unseen = [Decay(0.5, path="weights"), keras.callbacks.LearningRateScheduler(doubled)]
    assert names_without_configuration(describe_callbacks(unseen)) == ["doubled", "Decay"][::-1]
    used = keras.callbacks.EarlyStopping("val_loss", patience=1)
    new = describe_callbacks([used])
    used.wait, used.stopped_epoch, used.best = 5, 3, 0.1
    assert describe_callbacks([used]) == new


@pytest.mark.slow
def test_a_changed_pipeline_is_refused_and_names_the_change(tmp_path):
    def build(units=8, rate=0.01):
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(units), keras.layers.Dense(1, "sigmoid")]
        )
        model.compile(keras.optimizers.Adam(rate), "binary_crossentropy")
        return model

    x, y = SMALL
    sweep = functools.partial(
        train, ledger=tmp_path, pipeline="p", seeds=range(2), validation_data=SMALL, verbose=0
    )
    runs = sweep(build, SMALL)
    assert sweep(build, SMALL, engine="ray", seeds=[1]) == runs[1:]
    for change, message in [
        (lambda: sweep(lambda: build(rate=1e-6), SMALL), "learning_rate=0.01, not 1e-06"),
        (lambda: sweep(lambda: build(64), SMALL), "layers.dense.units=8, not 64"),
        (lambda: sweep(build, (0 * x, y)), "other values of data.x"),
        (lambda: sweep(build, SMALL, batch_size=16), "batch_size=32, not 16"),
        (lambda: sweep(build, SMALL, order=7), "'order': 0}, not {'initialization': 0, 'order': 7"),
        (lambda: sweep(build, SMALL, validation_data=(x[:9], y[:9])), "validation_data.x.rows"),
        (lambda: sweep(build, SMALL, validation_data=None), "validation_data="),
        (
            lambda: sweep(build, SMALL, callbacks=lambda s: [keras.callbacks.TerminateOnNaN()]),
            "callbacks=\\[\\], not \\[TerminateOnNaN\\]",
        ),
    ]:
        with pytest.raises(ValueError, match=rf"(?s)`pipeline`.*{message}.*Pass another name"):
            change()
    assert Ledger(tmp_path).runs() == runs


def test_runs_without_a_description_are_refused(tmp_path):
    record = {
        "pipeline": "own",
        "seed": 0,
        "status": "finished",
        "seeds": {"initialization": 0, "order": 0},
    }
    Ledger(tmp_path).append(record)
    sweep = functools.partial(train, build_small, SMALL, ledger=tmp_path, seeds=[0], verbose=0)
    with pytest.raises(ValueError, match=r"no description.*seeds.train did not record it"):
        sweep(pipeline="own")
    sweep(pipeline="p")
    (description,) = (tmp_path / "trainings").iterdir()
    description.write_text(description.read_text().replace("32", "33"))
    with pytest.raises(ValueError, match="missing or damaged: trainings/"):
        sweep(pipeline="p")


def test_changed_initial_weights_are_warned_of(tmp_path):
    def build(value=1.0):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.set_weights([np.full((3, 1), value), np.zeros(1)])
        model.compile("sgd", "mse")
        return model

    sweep = functools.partial(train, data=SMALL, ledger=tmp_path, pipeline="p", verbose=0)
    sweep(build, seeds=[0])
    sweep(build, seeds=[0])
    with pytest.warns(UserWarning, match=r"norm is 1.73205, and now 3.4641"):
        sweep(lambda: build(2.0), seeds=[0])


def test_the_engines_describe_a_training_alike(tmp_path):
    """Also a model that is built by its first batch."""
    rows = as_rows("data", SMALL)
    data = {"data": describe_rows(rows), "validation_data": None}
    for number, build in enumerate((build_small, lambda: own_model(2))):
        pipeline = f"p{number}"
        task = SeedTask(build, rows, None, str(tmp_path), pipeline, 1, 32, data=data)
        fit_seed(task, 0)
        runs = train(
            build, SMALL, ledger=tmp_path, pipeline=pipeline, seeds=[0, 1], epochs=1, verbose=0
        )
        assert len({run["training"]["file"] for run in runs}) == 1


@pytest.mark.slow
def test_models_that_differ_by_seed_go_on(tmp_path):
    """Each seed is compared with what it trains itself."""

    def build():
        width = 2 + int(keras.random.randint((), 0, 5, seed=int(np.random.randint(2**30))))  # noqa: NPY002
        return model_of(keras.layers.Dense(width))

    rows = as_rows("data", SMALL)
    data = {"data": describe_rows(rows), "validation_data": None}
    task = SeedTask(build, rows, None, str(tmp_path), "p", 1, 32, data=data)
    for seed in range(3):
        fit_seed(task, seed)
    assert len(list((tmp_path / "trainings").iterdir())) > 1
    sweep = functools.partial(train, ledger=tmp_path, pipeline="p", seeds=range(3), verbose=0)
    assert len(sweep(build, SMALL, engine="ray")) == 3
    with pytest.raises(ValueError, match="optimizer=SGD, not Adam"):
        sweep(lambda: model_of(keras.layers.Dense(3), optimizer="adam"), SMALL, engine="ray")


DESCRIBED = """
import json, sys
import keras
from keras_calibration._keras import restart_names
from keras_calibration.seeds.description import describe_model, describe_rows
from seed_pipelines import TRAINING, build_model
for _ in range(int(sys.argv[1])):
    keras.layers.Dense(1), keras.layers.BatchNormalization(), keras.metrics.AUC()
restart_names()
described = [describe_model(build_model()), describe_rows(TRAINING)]
print(json.dumps(described, sort_keys=True))
"""


@pytest.mark.slow
def test_a_description_is_the_same_in_every_process():
    path = os.pathsep.join([str(TESTS), str(Path(keras_calibration.__file__).parents[1])])
    texts = {
        subprocess.run(
            [sys.executable, "-c", DESCRIBED, seed],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_the_random_numbers_of_a_description_are_the_seeds_own():
    task = SeedTask(build_model, TRAINING, HELD_OUT, "runs", "p", 2, 32)
    first, second = (Start.of(task.new_model(seed)) for seed in (0, 1))
    assert first.weights_norm != second.weights_norm
    assert dataclasses.replace(second, weights_norm=first.weights_norm) == first
    restart_names()
    set_seeds(initialization=0, order=0)
    assert Start.of(build_model()) == first
