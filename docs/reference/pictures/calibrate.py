"""The pictures of a report: before and after, for all rows and by site."""

import keras
import matplotlib.pyplot as plt

import keras_calibration as kc

keras.utils.set_random_seed(0)
log = kc.datasets.generate_click_log(20_000)
names = ("hour", "site_id")
train, development = log.part("train", names), log.part("development", names)
inputs = {name: keras.Input((), dtype="int32", name=name) for name in names}
hour = keras.layers.Embedding(24, 4)(inputs["hour"])
base = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hour))
base.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
base.fit(*train, batch_size=64, verbose=0)
model = kc.calibrate(base, *development, fields=["site_id"], methods="quick", verbose=0)

figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
model.report.plot("reliability", axes[0])
model.report.plot("site_id", axes[1])
