"""Numbers that tensors, SQL and NumPy agree upon. Free of Keras, as what the command line loads."""

import numpy as np

# A float32 sigmoid is exactly 1 from a logit of about 17 on. Such a probability is replaced by the
# largest float32 below 1, and an exact 0 by the smallest normal number.
LARGEST_PROBABILITY = float(np.nextafter(np.float32(1), np.float32(0)))
SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)
# Largest error of the sum of the probabilities of K classes. A softmax in bfloat16 rounds three
# times: the sum of 1,000 probabilities was off by 0.019.
SUM_TOLERANCE = 0.03
# What is added to the rate of a value in a Field-RCE, as in the paper.
FIELD_RCE_EPSILON = 0.01
# Bins of `solvers.logit_histogram`: within ±INNER_LIMIT of equal width, beyond in proportion.
INNER_LIMIT, BINS_PER_OCTAVE, NUM_OCTAVES = 16, 128, 10
