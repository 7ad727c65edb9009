"""Offsets of sites: those of sites with few rows are shrunk towards 0."""

import matplotlib.pyplot as plt
import numpy as np

import keras_calibration as kc

generator = np.random.default_rng(0)
num_rows = np.repeat([10, 100, 1000], 10)  # of each site
true = generator.normal(0, 0.7, 30)  # offset of each site
site = np.repeat(np.arange(30), num_rows)
logits = generator.normal(-1, 1, len(site))
labels = generator.random(len(site)) < 1 / (1 + np.exp(-logits - true[site]))
head = kc.layers.FieldBias({"site": 30})
head.fit(logits, labels, {"site": site})

figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
for rows, style in zip((10, 100, 1000), kc.plots.STYLES, strict=False):
    points = {**style, "linestyle": "", "label": f"{rows:,} rows"}
    ax.plot(true[num_rows == rows], head.get_offsets("site")[num_rows == rows], **points)
ax.axline((0, 0), slope=1, linestyle=":", color="gray")
ax.set(xlabel="true offset of a site", ylabel="fitted offset")
ax.legend(frameon=False)
