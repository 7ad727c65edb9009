import dataclasses
import functools
import itertools
import math
import operator
import os
import random
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_calibration
from keras_calibration.callbacks import SeedVariance
from keras_calibration.seeds import Ledger, set_seeds, train
from keras_calibration.seeds.seed_task import SeedTask, fit_seed
from seed_pipelines import (
    HELD_OUT,
    SHAPE,
    SMALL,
    TRAINING,
    DieOnce,
    Fail,
    build_half,
    build_model,
    build_small,
)
from tiers import slow_except

TESTS = Path(__file__).parents[1]
# Where other processes find the tests' modules, and the package that is tested.
MODULES = os.pathsep.join([str(TESTS), str(Path(keras_calibration.__file__).parents[1])])


class KeptWeights(keras.callbacks.Callback):
    """Keeps the weights at the end of training."""

    def __init__(self, kept, seed):
        super().__init__()
        self.kept, self.seed = kept, seed

    def get_config(self):
        return {}

    def on_train_end(self, logs=None):
        self.kept[self.seed] = [np.array(weight) for weight in self.model.get_weights()]


@pytest.fixture
def one_core(monkeypatch):
    """One seed at a time."""
    monkeypatch.setattr("keras_calibration.seeds.together.cpu_count", lambda: 1)


def kept_in(kept, more=lambda: ()):
    return lambda seed: [*more(), KeptWeights(kept, seed)]


def solo(ledger, seed, build=build_model, order=None, callbacks=(), rows=TRAINING, epochs=2):
    """One seed by Keras alone: `fit` on the rows in the order of NumPy's generator."""
    keras.backend.clear_session()
    order = seed if order is None else order
    seeds = set_seeds(initialization=seed, order=order)
    model = build()
    model.run_eagerly = True  # quicker than tracing, for a few batches

    def batches():
        for epoch in itertools.count():
            permutation = np.random.default_rng([order, epoch]).permutation(203)
            for start in range(0, 203, 32):
                chosen = permutation[start : start + 32]
                yield keras.tree.map_structure(operator.itemgetter(chosen), rows)

    callback = SeedVariance(ledger, "p", seed, verbose=0, seeds=seeds)
    held_out = HELD_OUT if rows is TRAINING else None
    options = {"validation_data": held_out, "validation_batch_size": 32, "verbose": 0}
    options |= {"steps_per_epoch": 7, "epochs": epochs, "shuffle": False}
    model.fit(batches(), callbacks=[callback, *callbacks], **options)
    return [np.array(weight) for weight in model.get_weights()]


def run_seeds(ledger, build=build_small, rows=SMALL, **arguments):
    """The runs of `train`: of a small model and rows, unless others are given."""
    settings = {"pipeline": "p", "verbose": 0, **SHAPE, **arguments}
    return train(build, rows, ledger=ledger, **settings)


def compiled(*layers, kind=keras.Sequential, **options):
    """A model of three numbers."""
    model = kind([keras.Input((3,)), *layers])
    model.compile(**{"optimizer": "sgd", "loss": "binary_crossentropy", **options})
    return model


class OwnFit(keras.Sequential):
    """A model that overrides `fit`."""

    def fit(self, *arguments, **options):
        return super().fit(*arguments, **options)


def ended_seeds(ledger):
    return [run["seed"] for run in Ledger(ledger).runs() if run["status"] != "started"]


def assert_same_records(records, others, rtol):
    """Equal but for the time, and for the rounding of metrics."""
    assert len(records) == len(others)
    for record, other in zip(records, others, strict=True):
        assert set(record) == set(other)
        # `fit` alone has neither a description of the training nor what the user adds to it.
        other_fields = {"run_id", "created", "metrics", "training", "configuration", "num_rows"}
        for name in set(record) - other_fields:
            assert record[name] == other[name], name
        assert list(record["metrics"]) == list(other["metrics"])
        for name, values in record["metrics"].items():
            np.testing.assert_allclose(values, other["metrics"][name], rtol, 1e-6, err_msg=name)


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "averaged": lambda: keras.optimizers.SGD(0.1, 0.9, use_ema=True, ema_momentum=0.9),
    "schedule": lambda: keras.optimizers.Adagrad(
        keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)
    ),
    "norm": lambda: keras.optimizers.RMSprop(0.01, global_clipnorm=0.1),
}


@pytest.mark.parametrize("optimizer", slow_except(["adam"], OPTIMIZERS))
def test_each_seed_is_what_fit_gives(tmp_path, optimizer):
    build = functools.partial(lambda make: build_model(make()), OPTIMIZERS[optimizer])
    weights = {}
    options = {"validation_data": HELD_OUT, "callbacks": kept_in(weights)}
    runs = run_seeds(tmp_path / "together", build, TRAINING, seeds=[3, 1], **options)
    # The second of those that are trained together.
    for ours, theirs in zip(weights[1], solo(tmp_path / "solo", 1, build), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert_same_records(runs[1:], Ledger(tmp_path / "solo").runs(), rtol=1e-4)
    assert [run["seed"] for run in runs] == [3, 1]
    assert len({run["initial_weights"] for run in runs}) == 2


@pytest.mark.slow
def test_callbacks_act_on_each_seed_alone(tmp_path):
    """Early stopping, restored weights and a learning rate that changes from epoch to epoch."""

    def callbacks():
        return [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * (2 if epoch else 1)),
            keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True),
        ]

    def build():
        return build_model(keras.optimizers.SGD(0.1))

    weights = {}
    options = {"seeds": range(3), "epochs": 8, "validation_data": HELD_OUT}
    options |= {"callbacks": kept_in(weights, callbacks), "configuration": "the rate is doubled"}
    runs = run_seeds(tmp_path / "together", build, TRAINING, **options)
    for seed in range(3):
        theirs = solo(tmp_path / "solo", seed, build, callbacks=callbacks(), epochs=8)
        for ours, other in zip(weights[seed], theirs, strict=True):
            np.testing.assert_allclose(ours, other, atol=1e-4)
    assert_same_records(runs, Ledger(tmp_path / "solo").runs(), rtol=1e-3)
    assert len({len(run["epochs"]) for run in runs}) > 1, "all seeds stopped at the same epoch"
    assert all(run["kept_epoch"] is not None for run in runs)


@pytest.mark.slow
def test_a_seed_that_diverges_is_recorded_and_leaves_the_others_alone(tmp_path):
    def callbacks(seed):
        def diverge(epoch, logs):
            if seed == 1 and epoch == 0:
                model = callback.model
                model.set_weights([np.full_like(w, np.nan) for w in model.get_weights()])

        callback = keras.callbacks.LambdaCallback(on_epoch_end=diverge)
        return [callback]

    runs = run_seeds(tmp_path / "one", seeds=range(3), callbacks=callbacks, configuration=1)
    assert [run["status"] for run in runs] == ["finished", "diverged", "finished"]
    assert math.isnan(runs[1]["metrics"]["loss"][1])
    alone = run_seeds(tmp_path / "two", seeds=[0, 2], configuration=1)
    assert_same_records([runs[0], runs[2]], alone, rtol=1e-6)


def assert_fit_has_the_losses(tmp_path, build, rows, names=("loss",)):
    """`fit` of Keras, epoch by epoch, has the losses of the only seed of `train`."""
    (run,) = run_seeds(tmp_path, build, tuple(rows), seeds=[5])
    set_seeds(initialization=5, order=5)
    model = build()
    model.run_eagerly = True
    for epoch in range(2):
        order = np.random.default_rng([5, epoch]).permutation(len(rows[1]))
        x, y, *weight = keras.tree.map_structure(operator.itemgetter(order), list(rows))
        weight = weight[0] if weight else None
        history = model.fit(x, y, sample_weight=weight, shuffle=False, verbose=0)
        for name in names:
            expected = history.history[name][0]
            np.testing.assert_allclose(run["metrics"][name][epoch], expected, 1e-5)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("num_rows", [32, 64, 1, 31])
def test_any_number_of_rows(tmp_path, num_rows):
    assert_fit_has_the_losses(tmp_path, build_small, [array[:num_rows] for array in SMALL])


@pytest.mark.slow
def test_weights_of_rows_and_lists_of_inputs(tmp_path):
    def build():
        inputs = [keras.Input((3,)), keras.Input((1,))]
        outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(inputs))
        model = keras.Model(inputs, outputs)
        model.compile("sgd", "mse", weighted_metrics=["mae"])
        return model

    x = [SMALL[0], SMALL[0][:, :1].astype("float64")]
    weight = (SMALL[0][:, 0] > 0).astype("float64")
    assert_fit_has_the_losses(tmp_path, build, (x, SMALL[1], weight), ("loss", "mae"))


class Watch(keras.callbacks.Callback):
    """Notes what `fit` calls, and stops the training where it is told to."""

    def __init__(self, calls, stops_at=None):
        super().__init__()
        self.calls, self.stops_at = calls, stops_at

    def get_config(self):
        return {"stops_at": self.stops_at}

    def note(self, hook, logs):
        self.calls.append((hook, sorted(logs or {})))
        if hook == self.stops_at:
            self.model.stop_training = True

    def on_train_begin(self, logs=None):
        self.note("on_train_begin", logs)

    def on_epoch_begin(self, epoch, logs=None):
        self.note("on_epoch_begin", logs)

    def on_test_begin(self, logs=None):
        self.note("on_test_begin", logs)

    def on_test_end(self, logs=None):
        self.note("on_test_end", logs)

    def on_epoch_end(self, epoch, logs=None):
        self.note("on_epoch_end", [name for name in logs if not name.startswith("seed/")])

    def on_train_end(self, logs=None):
        self.note("on_train_end", [name for name in logs if not name.startswith("seed/")])


def vectorized_and_fit(tmp_path, build, callbacks):
    """The records of the engine and of `fit`."""
    options = {"epochs": 3, "callbacks": callbacks}
    runs = run_seeds(tmp_path / "together", build, seeds=[0, 1], validation_data=SMALL, **options)
    folder = str(tmp_path / "fit")
    task = SeedTask(
        build_model=build, rows=SMALL, ledger=folder, pipeline="p", validation=SMALL, **options
    )
    for seed in (0, 1):
        fit_seed(task, seed)
    return runs, Ledger(tmp_path / "fit").runs()


@pytest.mark.slow
@pytest.mark.parametrize("swap_on_epoch", [False, True])
def test_weights_that_a_callback_swaps_for_the_validation(tmp_path, swap_on_epoch):
    def build():
        optimizer = keras.optimizers.Adam(0.05, use_ema=True)
        return compiled(keras.layers.Dense(1, "sigmoid"), optimizer=optimizer)

    def callbacks(seed):
        return [keras.callbacks.SwapEMAWeights(swap_on_epoch=swap_on_epoch)]

    runs, others = vectorized_and_fit(tmp_path, build, callbacks)
    assert_same_records(runs, others, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("stops_at", ["on_test_end", "on_test_begin", None])
def test_callbacks_are_called_as_by_fit(tmp_path, stops_at):
    calls = {}

    def callbacks(seed):
        return [Watch(calls.setdefault(seed, []), stops_at if seed else None)]

    runs, others = vectorized_and_fit(tmp_path, build_small, callbacks)
    assert_same_records(runs, others, rtol=1e-5)
    for seed, noted in calls.items():
        half = len(noted) // 2
        assert noted[:half] == noted[half:], seed
    assert [len(run["epochs"]) for run in runs] == [3, 1 if stops_at else 3]


def test_a_stop_before_the_first_batch_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`callbacks`.*epoch 0.*engine='loop'"):
        run_seeds(tmp_path, seeds=[0], callbacks=lambda seed: [Watch([], "on_epoch_begin")])
    assert ended_seeds(tmp_path) == []


class Noise(keras.layers.Layer):
    """Adds noise from a generator that Keras does not track, or from none."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def call(self, x):
        return x + self.draw(keras.ops.shape(x))


def drawn_constant():
    c = np.random.normal(size=(3, 2)).astype("float32")  # noqa: NPY002
    return keras.layers.Lambda(lambda x: keras.ops.matmul(x, c))


def drawn_attribute():
    class Fixed(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.kept = {"c": [np.random.normal()]}  # noqa: NPY002

        def call(self, x):
            return x * self.kept["c"][0]

    return Fixed()


def adapted_to_a_sample():
    layer = keras.layers.Normalization()
    layer.adapt(SMALL[0][np.random.permutation(203)[:50]])  # noqa: NPY002
    return layer


def drawn_rate():
    return keras.layers.Dropout(random.random())


NOT_OF_THE_SEED = {
    "constant": (drawn_constant, "outputs that differ by"),
    "attribute": (drawn_attribute, "outputs that differ by"),
    "adapted": (adapted_to_a_sample, "outputs that differ by"),
    "rate": (drawn_rate, "another configuration of model"),
}


@pytest.mark.parametrize("configuration", [{"units": (16, 8)}, {1: "a"}, (1, 0.5)])
def test_a_sweep_goes_on_whatever_the_form_of_its_configuration(tmp_path, one_core, configuration):
    for number in (1, 2):
        run_seeds(tmp_path, seeds=range(number), epochs=1, configuration=configuration)
    assert ended_seeds(tmp_path) == [0, 1]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("case", NOT_OF_THE_SEED)
def test_what_a_seed_draws_besides_its_weights_is_refused(tmp_path, one_core, case):
    layer, message = NOT_OF_THE_SEED[case]

    def build():
        return compiled(layer(), keras.layers.Dense(1, "sigmoid"))

    sweep = functools.partial(run_seeds, tmp_path, build, epochs=1, configuration=1)
    with pytest.raises(ValueError, match=rf"`build_model`.*seed 4 and seed 5 with .*{message}"):
        sweep(seeds=[4, 5])
    # The first seed was right; alone, so is the other, also when the sweep goes on.
    assert ended_seeds(tmp_path) == [4]
    sweep(seeds=[5])
    if case != "rate":  # which is of the configuration: another training
        assert [run["seed"] for run in sweep(seeds=[4, 5])] == [4, 5]


def tensorflow_noise(shape):
    import tensorflow as tf

    return tf.random.normal(shape)


@pytest.mark.tensorflow
@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["global", "untracked", "tensorflow"])
def test_random_numbers_that_are_not_the_models_own_are_refused(tmp_path, kind):
    def build():
        generator = keras.random.SeedGenerator()
        draw = {
            "global": keras.random.normal,
            "untracked": lambda shape: keras.random.normal(shape, seed=generator),
            "tensorflow": tensorflow_noise,
        }[kind]
        return compiled(Noise(draw), keras.layers.Dense(1), loss="mse")

    with pytest.raises(ValueError, match=r"`build_model`.*SeedGenerator"):
        run_seeds(tmp_path, build, seeds=[0], configuration=1)
    assert ended_seeds(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("num_before", [0, 1, 3])
def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path, num_before):
    # A file, for a list that the callback reads would be a part of the pipeline's description.
    interrupts = tmp_path.with_name(f"{tmp_path.name}-interrupts")
    interrupts.touch()

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if interrupts.exists() and len(ended_seeds(tmp_path)) >= num_before:
                interrupts.unlink()
                raise KeyboardInterrupt

    sweep = functools.partial(run_seeds, seeds=range(5), callbacks=lambda seed: [Interrupt()])
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path)
    assert num_before <= len(ended_seeds(tmp_path)) < 5
    runs = sweep(tmp_path)
    assert sorted(ended_seeds(tmp_path)) == [0, 1, 2, 3, 4]
    assert_same_records(runs, run_seeds(tmp_path / "whole", seeds=range(5)), rtol=1e-6)
    assert sweep(tmp_path) == runs
    assert sorted(ended_seeds(tmp_path)) == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_random_numbers_and_names_of_the_user_go_on(tmp_path):
    def drawn():
        return random.random(), np.random.random(), keras.layers.Dense(1).name  # noqa: NPY002

    random.seed(5), np.random.seed(5)  # noqa: NPY002
    keras.backend.clear_session()
    expected = [drawn(), drawn()]
    random.seed(5), np.random.seed(5)  # noqa: NPY002
    keras.backend.clear_session()
    first = drawn()
    run_seeds(tmp_path, seeds=[0, 1])
    assert [first, drawn()] == expected


def on_batches(seed):
    return [keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)]


BAD = {
    "engine": ({"engine": "cloud"}, "`engine`"),
    "epochs": ({"epochs": 0}, "`epochs`"),
    "batch size": ({"batch_size": 1.5}, "`batch_size`"),
    "no seeds": ({"seeds": []}, "`seeds` .*different"),
    "repeated": ({"seeds": [1, 1]}, "`seeds` .*different"),
    "a number for seeds": ({"seeds": 5}, "`seeds` .*different.*seeds=5"),
    "None for seeds": ({"seeds": None}, "`seeds` .*different"),
    "repeated of NumPy": ({"seeds": [1, np.int64(1)]}, "`seeds` .*different"),
    "negative": ({"seeds": [-1]}, "seeds=-1"),
    "held-out rows": ({"validation_data": SMALL[0]}, "`validation_data`"),
    "pipeline": ({"pipeline": ""}, "pipeline"),
    "list of callbacks": ({"callbacks": []}, r"callbacks=\[\]"),
    "no callbacks": ({"callbacks": lambda seed: None}, "`callbacks`.*None.*seed 0"),
    "no callbacks in a loop": (
        {"callbacks": lambda seed: ["stop"], "engine": "loop"},
        "`callbacks`.*'stop'.*seed 0",
    ),
    "batches": (
        {"callbacks": lambda seed: [keras.callbacks.TerminateOnNaN()]},
        "TerminateOnNaN.*engine='loop'",
    ),
    "batches of a function": (
        {"callbacks": on_batches, "configuration": 1},
        "on_train_batch_end.*engine='loop'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_arguments_leave_no_trace(tmp_path, case):
    arguments, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        run_seeds(tmp_path / "runs", **{"seeds": [0], **arguments})
    assert ended_seeds(tmp_path / "runs") == []


def test_invalid_data_and_models(tmp_path, one_core):
    x, y = SMALL
    for rows, message in [
        ((x, y[:-1]), r"`data`.*\[202, 203\]"),
        ((x[:0], y[:0]), r"`data`.*\[0\]"),
        (x, r"`data`.*ndarray"),
        ((x, y, y, y), r"`data`.*tuple"),
        ((x, np.where(y > 0, "yes", "no")), "`data`.*labels"),
        ((x, y, np.where(y > 0, "yes", "no").astype(object)), "`data`.*labels"),
    ]:
        with pytest.raises(ValueError, match=message):
            run_seeds(tmp_path, rows=rows, seeds=[0], engine="loop")
    assert Ledger(tmp_path).runs() == []

    widths = iter((1, 1, 2))
    for build, message in [
        (lambda: keras.Sequential(), "`build_model`.*compiled"),
        (lambda: None, "`build_model`.*compiled"),
        (build_small(), "`build_model`.*function"),
        (lambda: compiled(keras.layers.Dense(1), kind=OwnFit), "OwnFit overrides `fit`"),
        (lambda: compiled(keras.layers.Dense(1), run_eagerly=True), "run_eagerly"),
        (
            lambda: compiled(keras.layers.Dense(next(widths)), keras.layers.Dense(1)),
            "seed 0 and seed 0 with another configuration of model",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            run_seeds(tmp_path, build, seeds=[0])
    assert ended_seeds(tmp_path) == []


@pytest.mark.tensorflow
def test_a_step_that_returns_other_logs_is_refused(tmp_path):
    """`fit` records what it returns: the loss of the last batch."""

    class OwnStep(keras.Sequential):
        def train_step(self, data):
            return {"own": super().train_step(data)["loss"]}

    def build():
        return compiled(keras.layers.Dense(1), kind=OwnStep, loss="mse")

    with pytest.raises(ValueError, match=r"whose step returns \['own'\].*\['loss'\].*loop"):
        run_seeds(tmp_path, build, seeds=[0])
    fit_seed(SeedTask(build_model=build, rows=SMALL, ledger=str(tmp_path), pipeline="p"), 0)
    assert list(Ledger(tmp_path).runs()[0]["metrics"]) == ["own"]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(tmp_path, policy):
    keras.config.set_dtype_policy(policy)
    try:
        runs = run_seeds(tmp_path, seeds=[0, 1], epochs=4)
    finally:
        keras.config.set_dtype_policy("float32")
    for run in runs:
        losses = run["metrics"]["loss"]
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("engine", ["vectorized", "loop"])
def test_progress_is_shown(tmp_path, capsys, engine):
    for seeds in ([0], [0, 1, 2]):
        run_seeds(tmp_path, seeds=seeds, epochs=1, engine=engine, verbose=1)
    shown = capsys.readouterr().out
    assert "1 of 3 seeds are in the ledger" in shown
    assert "2/2" in shown
    assert "standard error" in shown


@pytest.mark.slow
def test_the_loop_trains_what_only_fit_trains(tmp_path):
    """A `fit` of the model's own, and callbacks that act on batches."""
    rates = []

    def callbacks(seed):
        return [
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: rates.append(seed)
            )
        ]

    def build():
        return compiled(keras.layers.Dense(1, "sigmoid"), kind=OwnFit)

    runs = run_seeds(tmp_path, build, seeds=[0, 1], engine="loop", callbacks=callbacks)
    assert rates == [0] * 14 + [1] * 14
    assert_same_records(runs, run_seeds(tmp_path / "lanes", seeds=[0, 1]), rtol=1e-5)


def test_callbacks_may_be_one_a_list_or_a_tuple():
    one = keras.callbacks.Callback()
    for made in (one, [one], (one,)):
        task = SeedTask(
            build_model=build_small,
            rows=SMALL,
            ledger="runs",
            pipeline="p",
            callbacks=lambda seed, made=made: made,
        )
        assert task.all_callbacks(3)[1:] == [one]


def test_the_order_of_a_seed_does_not_depend_on_other_arguments():
    task = SeedTask(build_model=build_small, rows=SMALL, ledger="runs", pipeline="p")
    orders = [task.row_order(7, epoch) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(203)) for order in orders)
    assert list(orders[0]) != list(orders[1])
    again = dataclasses.replace(task, batch_size=3, ledger="others")
    np.testing.assert_array_equal(again.row_order(7, 0), orders[0])


@pytest.mark.slow
def test_ray_gives_what_fit_gives_and_a_killed_seed_does_not_stop_the_others(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    # Ray's processes find the modules of the tests by it.
    monkeypatch.setenv("PYTHONPATH", MODULES)
    callbacks = DieOnce(tmp_path, seed=1)
    asked = {"seeds": range(4), "validation_data": HELD_OUT, "configuration": 1}
    asked |= {"engine": "ray", "callbacks": callbacks}
    with pytest.raises(RuntimeError, match=r"seeds \[1\] failed"):
        run_seeds(tmp_path / "ray", build_model, TRAINING, **asked)
    assert (tmp_path / "died").exists()
    assert sorted(ended_seeds(tmp_path / "ray")) == [0, 2, 3]
    runs = run_seeds(tmp_path / "ray", build_model, TRAINING, **asked)
    assert sorted(ended_seeds(tmp_path / "ray")) == [0, 1, 2, 3]
    statuses = [run["status"] for run in Ledger(tmp_path / "ray").runs()]
    assert sorted(statuses) == ["finished"] * 4 + ["started"]
    for seed in range(4):
        alone = solo(tmp_path / "solo", seed)
        with np.load(callbacks.path(seed)) as weights:
            for ours, theirs in zip(weights.values(), alone, strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert_same_records(runs, Ledger(tmp_path / "solo").runs(), rtol=1e-4)


@pytest.mark.slow
def test_other_processes_have_the_settings_of_this_one(tmp_path, monkeypatch):
    """Also if a module of the user starts TensorFlow when it is imported."""
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", MODULES)
    image_format, epsilon = keras.config.image_data_format(), keras.config.epsilon()
    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        keras.config.set_image_data_format("channels_first")
        keras.config.set_epsilon(0.05)
        runs = run_seeds(tmp_path / "ray", build_half, seeds=[0], engine="ray")
        alone = run_seeds(tmp_path / "alone", build_half, seeds=[0])
    finally:
        keras.config.set_dtype_policy("float32")
        keras.config.set_image_data_format(image_format)
        keras.config.set_epsilon(epsilon)
    assert_same_records(runs, alone, rtol=1e-4)


@pytest.mark.slow
def test_a_seed_that_always_fails_is_named_and_the_others_are_kept(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", MODULES)
    monkeypatch.setattr("keras_calibration.seeds.ray_cluster.cpu_count", lambda: 1)
    with pytest.raises(RuntimeError, match=r"seeds \[2\] failed[^$]*the disk is full"):
        run_seeds(tmp_path, seeds=range(3), engine="ray", callbacks=Fail(2), configuration=1)
    assert ended_seeds(tmp_path) == [0, 1]
    runs = run_seeds(tmp_path, seeds=range(3), configuration=1)
    assert [run["seed"] for run in runs] == [0, 1, 2]
