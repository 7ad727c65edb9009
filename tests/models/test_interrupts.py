"""A `KeyboardInterrupt`, wherever it comes: heads are as they were, or as fitted; all of them."""

import os
import sys
import threading

import keras
import numpy as np
import pytest

import keras_calibration as kc
from keras_calibration import layers
from keras_calibration._rows.door import Given
from keras_calibration.layers.fits import assign_all, fit_to, heads_in, rows_to_fit
from symbols import symbols

NUM_ROWS = 300
pytestmark = [
    # Keras takes an interrupt in its check of the inputs for inputs that do not match, and warns.
    pytest.mark.filterwarnings(
        r"ignore:\s*(Exception encountered|The structure of `inputs`):UserWarning"
    ),
    # Python ignores one while it closes a generator.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
RNG = np.random.default_rng(0)
SITE = RNG.integers(0, 4, NUM_ROWS).astype("int32")
SCORE = RNG.normal(-0.5, 1.2, (NUM_ROWS, 1)).astype("float32")
X = {"score": SCORE, "site": SITE}


def labels_of(shift):
    true = shift + 0.7 * SCORE[:, 0] + np.array([0.8, -0.8, 0.3, 0.0])[SITE]
    return (RNG.random(NUM_ROWS) < 1 / (1 + np.exp(-true))).astype("float64")


PAST, NEW = labels_of(-1.5), labels_of(0.5)


class Interrupt:
    """A profile function that raises at one call, and counts the calls.

    Of functions of this package and of Keras: TensorFlow calls some of Python from C++, which ends
    the process if they raise.
    """

    ROOMS = tuple(os.path.dirname(package.__file__) for package in (kc, keras))

    def __init__(self, at=None):
        self.number, self.at = 0, at

    def __call__(self, frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(self.ROOMS):
            self.number += 1
            if self.number == self.at:
                raise KeyboardInterrupt  # Python then drops the profile function


def run(act, at=None):
    """Runs a function in a thread, which is interrupted at a call.

    Keras keeps its scopes by thread: one that is left open ends with its thread.

    Returns:
        How it ended, and the number of calls.
    """
    interrupt, ended = Interrupt(at), []

    def body():
        sys.setprofile(interrupt)
        try:
            act()
            ended.append("finished")
        except KeyboardInterrupt:
            ended.append("interrupted")

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return ended[0], interrupt.number


def record_of(part):
    return part.histogram, part.fit_summary, part._fitted_weights


class Heads:
    """The heads of a model, fitted to earlier labels, with their state: to read and to set back."""

    def __init__(self, **heads):
        inputs = symbols(score=(1,), site="int32")
        outputs = {
            name: keras.layers.Activation("sigmoid", name=name)(
                head(inputs["score"], {"site": inputs["site"]})
            )
            for name, head in heads.items()
        }
        self.model = keras.Model(inputs, outputs if len(heads) > 1 else outputs["a"])
        self.heads = [*heads.values()]
        for head in self.heads:
            head.fit(SCORE, PAST, X)
        self.labels = {name: NEW for name in heads} if len(heads) > 1 else NEW
        self.parts = [part for head in self.heads for part in heads_in(head)]
        self.weights = [(weight, np.array(weight)) for weight in self.model.weights]
        self.records = [record_of(part) for part in self.parts]
        self.before = self.state()

    def state(self):
        """All weights, and what is known of fits."""
        records = [
            (h and h.moments.tobytes(), str(s), hashed)
            for h, s, hashed in map(record_of, self.parts)
        ]
        weights = [np.array(weight).tobytes() for weight, _ in self.weights]
        return weights, records

    def set_back(self):
        for weight, value in self.weights:
            weight.assign(value)
        for part, record in zip(self.parts, self.records, strict=True):
            part.histogram, part.fit_summary, part._fitted_weights = record
        assert self.state() == self.before

    def check(self, act, places):
        """Interrupts a function at calls, given the number of all; at least half are noticed."""
        for _ in range(2):  # the first one also traces, which is more calls
            ended, last = run(act)
            after = self.state()
            assert ended == "finished"
            self.set_back()
        endings = []
        for place in places(last):
            ended, _ = run(act, place)
            endings.append(ended)
            state = self.state()
            assert state in (self.before, after), f"interrupted at call {place} of {last}"
            # Some Python swallows an interrupt, and goes on.
            assert ended == "interrupted" or state == after, f"at call {place} of {last}"
            self.set_back()
        assert endings.count("interrupted") > len(endings) / 2

    def new_fits(self):
        given = Given(SCORE, NEW, columns=X)
        return [(head, fit_to(head, rows_to_fit(head, given))) for head in self.heads]


def two_heads():
    curve = layers.FieldBias({"site": 4}, layers.ILPS(6))
    return Heads(
        a=curve, b=layers.BlendedHead([layers.PlattScaling(), layers.IsotonicRegression()])
    )


def spread(number):
    """This many calls, from the first to the last."""
    return lambda last: np.linspace(1, last, number).astype(int)


def test_an_interrupt_while_fits_are_assigned():
    heads = two_heads()
    fits = heads.new_fits()
    heads.check(lambda: assign_all(fits), spread(16))


def test_a_second_interrupt_while_weights_are_set_back(monkeypatch):
    heads = two_heads()
    fits, kind, calls = heads.new_fits(), type(heads.weights[0][0]), []
    assign = kind.assign

    def interrupted(self, value):
        calls.append(self)
        if len(calls) in places:
            raise KeyboardInterrupt
        return assign(self, value)

    number = len(heads.weights)
    for first in range(1, number + 1, 4):
        for second in range(first + 1, first + number, 3):
            places = {first, second}
            calls.clear()
            with monkeypatch.context() as patch:
                patch.setattr(kind, "assign", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    assign_all(fits)
            assert heads.state() == heads.before, places


# Function → the model, and how many interrupts, at most in the quick tests.
DOORS = {
    "fit": (lambda: Heads(a=layers.PlattScaling()), 20),
    "fit_head": (lambda: Heads(a=layers.FieldBias({"site": 4}, layers.PlattScaling())), 4),
    "fit_head, two heads": (two_heads, 3),
    "calibrate": (lambda: Heads(a=layers.FieldBias({"site": 4})), 4),
}


def call(name, heads):
    if name == "fit":
        return heads.heads[0].fit(SCORE, NEW, X)
    if name == "calibrate":
        how = {"fields": ["site"], "methods": ["bias", "platt"], "verbose": 0}
        return kc.calibrate(heads.model, X, NEW, **how)
    return kc.fit_head(heads.model, X, heads.labels, verbose=0)


@pytest.mark.parametrize("name", DOORS)
def test_an_interrupt_of_a_fit(name):
    make, number = DOORS[name]
    heads = make()
    heads.check(lambda: call(name, heads), spread(number))


@pytest.mark.slow
@pytest.mark.parametrize("name", DOORS)
def test_many_interrupts_of_a_fit(name):
    """Among them every tenth call of the end, where fits are assigned."""
    make, _ = DOORS[name]
    heads = make()
    heads.check(
        lambda: call(name, heads), lambda last: [*spread(20)(last), *range(last, 0, -10)[:20]]
    )


@pytest.mark.slow
def test_after_an_interrupt_scores_are_calibrated_as_before():
    def probabilities():
        how = {"fields": ["site"], "from_logits": True, "methods": "quick", "verbose": 0}
        model = kc.calibrate_scores(SCORE[:, 0], NEW, {"site": SITE}, **how)
        return model.predict(X, verbose=0)

    expected = probabilities()
    _, last = run(probabilities)
    for place in spread(6)(last)[1:-1]:
        ended, _ = run(probabilities, place)
        assert ended == "interrupted"
        np.testing.assert_array_equal(probabilities(), expected)
