"""Numbers shared by tensors, SQL and NumPy. Without Keras, which the command line must not load."""

# Smallest value of a probability p, and of 1 - p, in every dtype: 1 minus it is the largest float64
# below 1. An exact 0 has the logit -36.7, and an exact 1 has 36.7. Both ends must be the same, or
# swapping labels and probabilities would give another fit. It must not depend on the dtype, or
# votes fitted in float64 would change when served in float32. A float32 sigmoid is exactly 1 for
# logits above about 17. If it had a logit of 87.3, from the smallest float32, a few such rows would
# ruin a fit: for a model eight times over-confident, the log loss is 0.498, with this value 0.470,
# and with the exact logits 0.466. All probabilities below 1e-16 count alike.
SMALLEST_PROBABILITY = 2.0**-53

# Largest error of the sum of the probabilities of K classes. A softmax in bfloat16 rounds three
# times: the sum of 1,000 probabilities was off by 0.019.
SUM_TOLERANCE = 0.03
# Added to the rate of a field value in a Field-RCE, as in the paper.
FIELD_RCE_EPSILON = 0.01
# Bins of `_solvers.logit_histogram`: within ±INNER_LIMIT of equal width, beyond in proportion.
INNER_LIMIT, BINS_PER_OCTAVE, NUM_OCTAVES = 16, 128, 10
# Floats hold all whole numbers up to these exactly; two larger ones may be the same float.
EXACT_WHOLE_NUMBERS = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "float64": 2**53}
