"""Numbers that tensors, SQL and NumPy agree upon. Free of Keras, as what the command line loads."""

import numpy as np

# A float32 sigmoid is exactly 1 from a logit of about 17 on. Such a probability is replaced by the
# largest float32 below 1, and an exact 0 by the smallest normal number.
LARGEST_PROBABILITY = float(np.nextafter(np.float32(1), np.float32(0)))
SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)


def largest_probability(dtype: str) -> float:
    """The largest probability below 1 of a dtype; of float32 for all that is narrower.

    A float64 probability above 1 - 6e-8 is then as far from 1 as its mirror image is from 0.

    Example:
        >>> 1 - largest_probability("float64")
        1.1102230246251565e-16
    """
    return float(np.nextafter(1.0, 0.0)) if dtype == "float64" else LARGEST_PROBABILITY


# Largest error of the sum of the probabilities of K classes. A softmax in bfloat16 rounds three
# times: the sum of 1,000 probabilities was off by 0.019.
SUM_TOLERANCE = 0.03
# What is added to the rate of a value in a Field-RCE, as in the paper.
FIELD_RCE_EPSILON = 0.01
# Bins of `solvers.logit_histogram`: within ±INNER_LIMIT of equal width, beyond in proportion.
INNER_LIMIT, BINS_PER_OCTAVE, NUM_OCTAVES = 16, 128, 10
