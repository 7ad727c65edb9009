"""Numbers that tensors, SQL and NumPy agree upon. Free of Keras, as what the command line loads."""

# The least that a probability p, and 1 - p, counts as, in every dtype: 1 minus it is the largest
# float64 below 1. An exact 0 has the logit -36.7, and an exact 1 its mirror image, 36.7. It must be
# the same number at both ends, or labels and probabilities turned round would give another fit; and
# it must not depend on the dtype, or votes fitted in float64 would be served as others in float32.
# A float32 sigmoid is exactly 1 from a logit of about 17 on: with the smallest float32 here, logits
# of 87.3, a few such rows ruin a fit (a model eight times too sure: log loss .498, here .470; by
# its logits .466). Probabilities below 1e-16 count alike.
SMALLEST_PROBABILITY = 2.0**-53

# Largest error of the sum of the probabilities of K classes. A softmax in bfloat16 rounds three
# times: the sum of 1,000 probabilities was off by 0.019.
SUM_TOLERANCE = 0.03
# What is added to the rate of a value in a Field-RCE, as in the paper.
FIELD_RCE_EPSILON = 0.01
# Bins of `_solvers.logit_histogram`: within ±INNER_LIMIT of equal width, beyond in proportion.
INNER_LIMIT, BINS_PER_OCTAVE, NUM_OCTAVES = 16, 128, 10
# Floats hold all whole numbers up to these; two larger ones may be the same float.
EXACT_WHOLE_NUMBERS = {
    "bfloat16": 2**8,
    "float16": 2**11,
    "float32": 2**24,
    "float64": 2**53,
}
