"""Line: scales and shifts logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Line:
    """The line `a l + c`, with which a fit turns scores into logits (`_solvers.reference_line`).

    Example:
        >>> line = Line(2.0, 1.0)
        >>> line(np.array([0.0, 1.0])), line.inverse(np.array([1.0, 3.0]))
        (array([1., 3.]), array([0., 1.]))
        >>> line.then(Line(10.0))
        Line(scale=20.0, shift=10.0)
    """

    scale: float = 1.0
    shift: float = 0.0

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        """`a l + c`."""
        return self.scale * logits + self.shift

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """The logits l with `a l + c` equal to these values."""
        return (values - self.shift) / self.scale

    def then(self, line: Line) -> Line:
        """The composition of two lines: first this line, then `line`."""
        return Line(line.scale * self.scale, line.scale * self.shift + line.shift)


IDENTITY = Line()
