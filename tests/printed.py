"""Reads every number out of a printed report, to compare it with one computed from the rows."""

import itertools
import re

import numpy as np

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?%?|[-+]?\binf\b")
# An error, after its figure.
_ERROR = re.compile(r"\d ?± ?([\d.,]*\d)")
# A figure and its interval, or its deviation, share one power of ten, which is printed once.
_SCALED = re.compile(r"([-\d.,]+ )?(\[\S+, \S+\]) (e-?\d+)|([-\d.,]+±[\d.,]+) (e-?\d+)")


def numbers_of(text):
    """The numbers of a text as they are printed, in their order; a date is one, without dashes."""
    text = re.sub(r"(\d) %", r"\1%", " ".join(text.split()))
    text = re.sub(r"(\d{4})-(\d\d)-(\d\d)", r"\1\2\3", text)
    text = _SCALED.sub(_with_power, text)
    return [number.rstrip(",") for number in _NUMBER.findall(text)]


def _with_power(match):
    """The numbers before a power of ten, each with that power."""
    power = match[3] or match[5]
    return re.sub(r"\d[\d.,]*\d|\d", lambda number: number[0] + power, match[0].rpartition(" ")[0])


def unit_of(number):
    """The value of a printed number, and that of its last digit."""
    scale = 0.01 if number.endswith("%") else 1.0
    mantissa, _, exponent = number.rstrip("%").replace(",", "").partition("e")
    digits = len(mantissa.partition(".")[2])
    return scale * float(number.rstrip("%").replace(",", "")), (
        scale * 10.0 ** (int(exponent or 0) - digits)
    )


def flat(numbers):
    """The numbers, or pairs of numbers, of nested lists and arrays."""
    are_several = isinstance(numbers, list) or (np.ndim(numbers) and not isinstance(numbers, tuple))
    return [part for inner in numbers for part in flat(inner)] if are_several else [numbers]


def check_numbers(text, expected, slack=1e-9):
    """Fails unless the numbers of a text are the expected ones, in order, to half a last digit.

    `expected` may hold lists. A pair is a number and what it may differ by, where the package draws
    by chance; `slack` is the share by which any may differ. An error after ± must have two digits.
    """
    for error in _ERROR.findall(text):
        digits = error.replace(".", "").replace(",", "").lstrip("0")
        assert len(digits) >= 2 or error == "0", f"± {error} in:\n{text}"
    pairs = itertools.zip_longest(numbers_of(text), flat(expected))
    wrong = [
        (n, *pair) for n, pair in enumerate(pairs) if None in pair or not _agrees(*pair, slack)
    ]
    assert not wrong, f"(number, printed, expected): {wrong}\n{text}"


def _agrees(printed, value, slack):
    shown, unit = unit_of(printed)
    value, error = value if isinstance(value, tuple) else (value, slack * abs(value))
    return shown == value or abs(shown - value) <= 0.5 * unit + error
