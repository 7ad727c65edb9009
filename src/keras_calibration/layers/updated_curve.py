"""updated_curve: η after an update, through the line that makes it most like before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from keras_calibration._rows.line import IDENTITY, Line
from keras_calibration._rows.rows import Rows
from keras_calibration._solvers.reference_line import line_to
from keras_calibration.layers.head import Head
from keras_calibration.layers.head_logits import head_logits


def updated_curve(curve: Head | None, rows: Rows, forget: float) -> tuple[np.ndarray, Line, float]:
    """η of the rows after its update, through the line that makes it most like before.

    What the rows say of slope and level would count twice, if η told it too.

    Args:
        curve: η, which is updated if it has a histogram; None for the logit itself.
        rows: The new rows.
        forget: Share of the weight of earlier rows to drop.

    Returns:
        η through the line (n,), the line, and the share of η before that no line explains.
    """
    if curve is None:
        return rows.logits, IDENTITY, 0.0
    if curve.histogram is None:
        return head_logits(curve, rows.logits, {}), IDENTITY, 0.0
    # A line found on the rows of a day would follow bends of η that these rows lie on.
    bins, atoms = curve.histogram.bins, curve.histogram.atoms()
    logits = np.append(bins.inverse(atoms.means), rows.logits)
    weights = np.append((1 - forget) * atoms.weights, rows.row_weights)
    before = head_logits(curve, logits, {})
    curve.update_rows(replace(rows, unit=curve.histogram.unit), forget)
    line, share = line_to(head_logits(curve, logits, {}), before, weights)
    return line(head_logits(curve, rows.logits, {})), line, share
