"""How often do single runs of an image classifier show the better of two pipelines?

    ./dev run python examples/calibrated_metric/images.py                    small CIFAR-10

Section 5.4 of Fan et al., *Calibration-then-Calculation* (a version of arXiv 2401.16692): a ResNet
is compared with ResNets of other sizes and a DenseNet by the log loss and by the calibrated one,
whose correction is a temperature. Here pipelines also differ in dropout, L2 penalty, batch
normalization and learning rate.

**Not tested here.** The paper trains ResNet-18 to 152 and DenseNet-121 for 200 epochs on all 50,000
images of CIFAR-10. Its claims come from the over-confidence of such networks. The defaults of this
script, two epochs on 3,000 images of 16 × 16 pixels, only try the program out.
`examples/papers_data.py` has the command for the data in full; its ResNets have the three stages
that He et al. use for CIFAR-10, not the four wider ones of ResNet-18.

In the paper, the better pipeline is the one with the lower error rate; that table comes second,
after the one where the log loss decides, as in our other studies.

The data are read from $KERAS_CALIBRATION_DATA, or else from ../shared/data.
"""

import argparse
import dataclasses
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from numpy.typing import NDArray

import keras_calibration.seeds
from keras_calibration.metrics import CalibratedCategoricalLogLoss
from keras_calibration.seeds import Ledger

ROOT = Path(__file__).parents[2]
sys.path.append(str(Path(__file__).parent))
from configurations import markdown_configurations  # noqa: E402
from densenet import densenet  # noqa: E402
from pairs import (  # noqa: E402
    Pair,
    PairRow,
    markdown_accuracies,
    markdown_losses,
    pair_rows,
)
from resnet import resnet  # noqa: E402

NUM_CLASSES = 10
BINARY = "cifar-10-batches-bin"
BINARY_FILES = {"train": "data_batch_*.bin", "test": "test_batch.bin"}
PLAIN = "val_log_loss"
CALIBRATED = {
    "papers' calibrated": "val_papers_calibrated_log_loss",
    "ours, cross-fitted": "val_calibrated_log_loss",
}
# As in the paper: the error rate decides which pipeline is better.
BY_ERROR_RATE = {"log loss": "val_log_loss", **CALIBRATED}
# The pairs of the paper's table 7, with the two accuracies published.
PUBLISHED = {
    Pair("depth", "base", "deeper"): "LL 13.5, CLL 56.7 (ResNet-18, 34)",
    Pair("depth", "base", "much_deeper"): "LL 5.6, CLL 74.7 (ResNet-18, 101)",
    Pair("depth", "base", "deepest"): "LL 8.1, CLL 87.4 (ResNet-18, 152)",
    Pair("architecture", "base", "densenet"): "LL 51.5, CLL 85.2 (ResNet-18, DenseNet-121)",
}
PAIRS = (
    *PUBLISHED,
    Pair("width", "base", "wider"),
    Pair("dropout", "base", "dropout"),
    Pair("L2 penalty", "base", "l2"),
    Pair("batch normalization", "base", "no_batch_normalization"),
    Pair("learning rate", "base", "half_learning_rate"),
)


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A network and how it is trained.

    Args:
        depth: Layers of the ResNet, 6n + 2.
        width: Channels of its first stage.
        growth_rate: Growth rate of a DenseNet-BC of depth + 2 layers instead; 0 for the ResNet.
        batch_normalization: Whether the ResNet has batch normalization.
        dropout: Dropout rate before the last layer; in a DenseNet, after each convolution.
        l2: Weight of the L2 penalty.
        learning_rate: Learning rate at the start; it falls to 0 as a cosine.
        batch_size: Images of a batch.
        epochs: Number of epochs.
    """

    depth: int = 8
    width: int = 8
    growth_rate: int = 0
    batch_normalization: bool = True
    dropout: float = 0.0
    l2: float = 0.0
    learning_rate: float = 0.1
    batch_size: int = 128
    epochs: int = 2


class Images(NamedTuple):
    """Images with their classes.

    Args:
        pixels: From 0 to 255, uint8 `(num_images, height, width, channels)`.
        labels: Class numbers, shape `(num_images,)`.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.uint8]


def main() -> None:
    """Trains the runs that are missing in the ledger, then prints the tables."""
    arguments = parse_arguments()
    pipelines = choose_pipelines(arguments)
    train, held_out = (
        Images(shrink(images.pixels, arguments.shrink), images.labels)
        for images in read_cifar10(arguments.folder, arguments.rows, arguments.held_out)
    )
    image_shape = train.pixels.shape[1:]
    print(
        f"CIFAR-10: {len(train.labels):,} images to train on, {len(held_out.labels):,} "
        f"held out, of shape {image_shape}; {len(pipelines)} pipelines × {arguments.seeds} seeds"
    )
    ledger = Ledger(arguments.output / "images" / "cifar10")
    settings = {
        "rows": len(train.labels),
        "image_shape": list(image_shape),
        "augment": arguments.augment,
    }
    for number, (name, pipeline) in enumerate(pipelines.items(), start=1):
        print(f"{name} ({number} of {len(pipelines)})")
        keras_calibration.seeds.train(
            functools.partial(
                build_model, pipeline, image_shape, len(train.labels), arguments.augment
            ),
            tuple(train),
            ledger=ledger,
            pipeline=name,
            seeds=range(arguments.seeds),
            epochs=pipeline.epochs,
            batch_size=pipeline.batch_size,
            validation_data=tuple(held_out),
            configuration={**dataclasses.asdict(pipeline), **settings},
        )
    print(markdown_configurations(ledger))
    for title, rows in tables(ledger).items():
        published = PUBLISHED if "error rate" in title else None
        print(f"\n{title}\n\n{markdown_accuracies(rows, published)}")
    if rows := rows_of(ledger):
        print(f"\n{markdown_losses(rows)}")
    print(f"Runs: {ledger.path}")


def parse_arguments() -> argparse.Namespace:
    """The command-line arguments."""
    data = Path(os.environ.get("KERAS_CALIBRATION_DATA", ROOT.parent / "shared" / "data"))
    base = Pipeline()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--folder", type=Path, default=data, help="folder of the data folders")
    add("--seeds", type=int, default=20, help="of each pipeline (default: %(default)s)")
    add("--pipelines", nargs="+", help="some of them (default: all)")
    add("--rows", type=int, default=3000, help="images to train on (default: %(default)s)")
    add("--held-out", type=int, default=5000, help="images (default: %(default)s)")
    add("--shrink", type=int, default=2, help="factor for the images (default: %(default)s)")
    add("--depth", type=int, default=base.depth, help="default: %(default)s")
    add("--width", type=int, default=base.width, help="default: %(default)s")
    add("--batch-size", type=int, default=base.batch_size, help="default: %(default)s")
    add("--epochs", type=int, default=base.epochs, help="default: %(default)s")
    add("--augment", action="store_true", help="shift and flip the images at random")
    add("--output", type=Path, default=Path("output"), help="folder for the ledger")
    return parser.parse_args()


def choose_pipelines(arguments: argparse.Namespace) -> dict[str, Pipeline]:
    """The base and its variants, by name."""
    base = Pipeline(
        depth=arguments.depth,
        width=arguments.width,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
    )
    change = dataclasses.replace
    pipelines = {
        "base": base,
        "deeper": change(base, depth=base.depth + 6),
        "much_deeper": change(base, depth=base.depth + 12),
        "deepest": change(base, depth=base.depth + 18),
        "wider": change(base, width=base.width * 2),
        "densenet": change(base, growth_rate=base.width),
        "dropout": change(base, dropout=0.2),
        "l2": change(base, l2=5e-4),
        "no_batch_normalization": change(base, batch_normalization=False),
        "half_learning_rate": change(base, learning_rate=base.learning_rate / 2),
    }
    names = arguments.pipelines or list(pipelines)
    if unknown := set(names) - set(pipelines):
        raise SystemExit(f"No pipelines {sorted(unknown)}: expected some of {list(pipelines)}.")
    return {name: pipelines[name] for name in names}


def read_cifar10(folder: Path, num_train: int, num_held_out: int) -> list[Images]:
    """Images of the training file and of the test file, each in a fixed random order.

    The folder has CIFAR-10 in full, in its binary version (`cifar-10-batches-bin`), or the sample
    `cifar10_jpeg_30k`.
    """
    import tensorflow as tf

    parts = []
    for name, num_images in (("train", num_train), ("test", num_held_out)):
        if (folder / BINARY).is_dir():
            images = read_binary(sorted((folder / BINARY).glob(BINARY_FILES[name])))
            chosen = chosen_images(len(images.labels), num_images)
            parts.append(Images(*(values[chosen] for values in images)))
            continue
        with np.load(folder / "cifar10_jpeg_30k" / f"{name}.npz") as file:
            jpeg, offsets, labels = file["jpeg"], file["offsets"], file["label"]
        chosen = chosen_images(len(labels), num_images)
        bar = keras.utils.Progbar(len(chosen), unit_name="image", interval=1.0)
        pixels = []
        for number in chosen:
            image = jpeg[offsets[number] : offsets[number + 1]].tobytes()
            pixels.append(tf.io.decode_jpeg(image, channels=3).numpy())
            bar.add(1)
        parts.append(Images(np.stack(pixels), labels[chosen]))
    return parts


def read_binary(files: Sequence[Path]) -> Images:
    """The images of binary files: a byte for the class, then 32 × 32 pixels of each colour."""
    rows = np.concatenate([np.fromfile(file, np.uint8) for file in files]).reshape(-1, 3073)
    return Images(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0])


def chosen_images(num_images: int, num_chosen: int) -> NDArray[np.int64]:
    """The numbers of the images used, in an order that is the same for all runs."""
    if not 0 < num_chosen <= num_images:
        raise SystemExit(
            f"Pass --rows and --held-out within the data: there are {num_images:,} images, not "
            f"{num_chosen:,}."
        )
    return np.random.default_rng(0).permutation(num_images)[:num_chosen]


def shrink(pixels: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    """Replaces squares of `factor` × `factor` pixels by their mean."""
    num_images, height, width, channels = pixels.shape
    if factor < 1 or height % factor or width % factor:
        raise SystemExit(f"Pass a --shrink that divides {height} and {width}, not {factor}.")
    shape = (num_images, height // factor, factor, width // factor, factor, channels)
    return np.rint(pixels.reshape(shape).mean(axis=(2, 4))).astype(np.uint8)


def build_model(
    pipeline: Pipeline, image_shape: tuple[int, int, int], num_rows: int, augment: bool
) -> keras.Model:
    """The compiled network of a pipeline, from pixels to logits."""
    layers = [keras.Input(image_shape), keras.layers.Rescaling(1 / 127.5, offset=-1.0)]
    if augment:
        layers.append(keras.layers.RandomFlip("horizontal"))
        layers.append(keras.layers.RandomTranslation(0.125, 0.125, fill_mode="constant"))
    if pipeline.growth_rate:
        network = densenet(
            image_shape,
            NUM_CLASSES,
            depth=pipeline.depth + 2,
            growth_rate=pipeline.growth_rate,
            dropout=pipeline.dropout,
            l2=pipeline.l2,
        )
    else:
        network = resnet(
            image_shape,
            NUM_CLASSES,
            depth=pipeline.depth,
            width=pipeline.width,
            batch_normalization=pipeline.batch_normalization,
            dropout=pipeline.dropout,
            l2=pipeline.l2,
        )
    model = keras.Sequential([*layers, network])
    num_steps = pipeline.epochs * -(-num_rows // pipeline.batch_size)
    schedule = keras.optimizers.schedules.CosineDecay(pipeline.learning_rate, num_steps)
    model.compile(
        keras.optimizers.SGD(schedule, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[
            keras.metrics.SparseCategoricalCrossentropy(name="log_loss", from_logits=True),
            CalibratedCategoricalLogLoss(from_logits=True, name="calibrated_log_loss"),
            CalibratedCategoricalLogLoss(
                bias_fraction=0.2, from_logits=True, name="papers_calibrated_log_loss"
            ),
            keras.metrics.MeanMetricWrapper(error, name="error_rate"),
        ],
    )
    return model


def error(labels: Any, logits: Any) -> Any:
    """1 for each image with a wrong prediction, else 0."""
    return 1.0 - keras.metrics.sparse_categorical_accuracy(labels, logits)


def rows_of(ledger: Ledger) -> list[PairRow]:
    """The rows of all pairs in a ledger of this study, where the log loss decides."""
    return pair_rows(ledger, PAIRS, plain=PLAIN, calibrated=CALIBRATED)


def tables(ledger: Ledger) -> dict[str, list[PairRow]]:
    """Title → rows of the table, by the log loss and, as in the paper, by the error rate."""
    return {
        "The better pipeline has the lower mean log loss.": rows_of(ledger),
        "The better pipeline has the lower mean error rate, as in the paper.": pair_rows(
            ledger, PAIRS, plain="val_error_rate", calibrated=BY_ERROR_RATE
        ),
    }


if __name__ == "__main__":
    main()
