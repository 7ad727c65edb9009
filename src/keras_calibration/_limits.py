"""Numbers that tensors, SQL and NumPy agree upon. Free of Keras, as what the command line loads."""

import numpy as np

# The least that a probability p, and 1 - p, counts as: the smallest normal float32, in every dtype.
# An exact 0 has the logit -87.3, and an exact 1 its mirror image, 87.3. It must be the same number
# at both ends, or labels and probabilities turned round would give another fit; it must not be
# larger, or 0 would lie above the small probabilities that every dtype holds; and it must not
# depend on the dtype, or votes fitted in float64 would be served as others in float32. The price: a
# float32 sigmoid is exactly 1 from a logit of about 17 on. What it was is lost, pass logits.
SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)
# The largest below 1, in float64: 1 minus a share of it is still positive.
LARGEST_PROBABILITY = float(np.nextafter(1.0, 0.0))

# Largest error of the sum of the probabilities of K classes. A softmax in bfloat16 rounds three
# times: the sum of 1,000 probabilities was off by 0.019.
SUM_TOLERANCE = 0.03
# What is added to the rate of a value in a Field-RCE, as in the paper.
FIELD_RCE_EPSILON = 0.01
# Bins of `solvers.logit_histogram`: within ±INNER_LIMIT of equal width, beyond in proportion.
INNER_LIMIT, BINS_PER_OCTAVE, NUM_OCTAVES = 16, 128, 10
