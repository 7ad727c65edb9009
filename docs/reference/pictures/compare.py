"""The picture of a comparison: the runs of two pipelines, and their difference."""

import tempfile

import numpy as np
import pandas as pd

import keras_calibration as kc

generator = np.random.default_rng(0)
runs = pd.DataFrame({"pipeline": np.repeat(["old", "new"], 10), "seed": np.tile(range(10), 2)})
means = np.repeat([0.300, 0.299], 10)
runs["val_calibrated_log_loss"] = generator.normal(means, 0.001)
with tempfile.TemporaryDirectory() as folder:
    ledger = kc.seeds.Ledger.from_frame(runs, folder)
    kc.seeds.compare(ledger, "old", "new").plot()
