"""The curve that ILPS fits to scores that are too sure."""

import matplotlib.pyplot as plt
import numpy as np

import keras_calibration as kc

generator = np.random.default_rng(0)
logits = generator.normal(-1, 2, 20_000)
labels = generator.random(20_000) < 1 / (1 + np.exp(-np.clip(0.6 * logits, -1.5, 1)))
head = kc.layers.ILPS()
head.fit(logits, labels)

figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
ax.plot(*head.curve(), marker=".", label="the curve and its knots")
ax.axline((0, 0), slope=1, linestyle=":", color="gray", label="no change")
ax.set(xlabel="logit", ylabel="calibrated logit", ylim=(-5, 5))
ax.legend(frameon=False)
