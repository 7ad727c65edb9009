r"""How often do single runs of an image classifier show the better of two networks?

    ./dev run python examples/calibrated_metric/images.py --folder FOLDER       as in the paper
    ./dev run python examples/calibrated_metric/images.py --rows 3000 --held-out 5000 \
        --shrink 2 --width 8 --epochs 2 --seeds 4                               a try

Section 5.4 of Fan et al., *Calibration-then-Calculation* (a version of arXiv 2401.16692): ResNet-18
is compared with ResNet-34, 101 and 152 and with DenseNet-121, by the log loss and by the calibrated
one, whose correction is a temperature. The defaults are the paper's: all of CIFAR-10, 200 epochs,
60 seeds. Rate, schedule, penalty, batches and augmentation are those of the code that the paper
uses. That is for a GPU: **it was not run here.**

In the paper, the better network is the one with the lower error rate; that table comes second,
after the one where the log loss decides, as in our other studies. FOLDER has CIFAR-10 in its binary
version; by default, the sample in $KERAS_CALIBRATION_DATA or ../shared/data is read.
"""

import argparse
import dataclasses
import functools
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

sys.path.append(str(Path(__file__).parents[1]))
from densenet import densenet
from pairs import Pair, PairRow, markdown_accuracies, markdown_losses, pair_rows
from resnet import resnet

from data_folder import data_root

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
    Pair("depth", "resnet18", "resnet34"): "LL 13.5, CLL 56.7",
    Pair("depth", "resnet18", "resnet101"): "LL 5.6, CLL 74.7",
    Pair("depth", "resnet18", "resnet152"): "LL 8.1, CLL 87.4",
    Pair("architecture", "resnet18", "densenet121"): "LL 51.5, CLL 85.2",
}
PAIRS = tuple(PUBLISHED)
L2 = 2.5e-4  # a weight decay of 5e-4 in the gradient
LEARNING_RATE = 0.1


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A network and how it is trained.

    Args:
        blocks: Blocks of each stage of a ResNet, or layers of each block of a DenseNet.
        kind: `"basic"` or `"bottleneck"` for the blocks of a ResNet, or `"dense"`.
        width: Channels of the first stage; a DenseNet has half of it as its growth rate.
        batch_size: Images of a batch.
        epochs: Number of epochs.
    """

    blocks: tuple[int, ...]
    kind: str = "basic"
    width: int = 64
    batch_size: int = 128
    epochs: int = 200


PIPELINES = {
    "resnet18": Pipeline((2, 2, 2, 2)),
    "resnet34": Pipeline((3, 4, 6, 3)),
    "resnet101": Pipeline((3, 4, 23, 3), "bottleneck"),
    "resnet152": Pipeline((3, 8, 36, 3), "bottleneck"),
    "densenet121": Pipeline((6, 12, 24, 16), "dense"),
}


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
    pipelines = {
        name: dataclasses.replace(PIPELINES[name], width=arguments.width, epochs=arguments.epochs)
        for name in arguments.pipelines
    }
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
    settings = {"rows": len(train.labels), "image_shape": list(image_shape)}
    for number, (name, pipeline) in enumerate(pipelines.items(), start=1):
        print(f"{name} ({number} of {len(pipelines)})")
        keras_calibration.seeds.train(
            functools.partial(build_model, pipeline, image_shape, len(train.labels)),
            tuple(train),
            ledger=ledger,
            pipeline=name,
            seeds=range(arguments.seeds),
            epochs=pipeline.epochs,
            batch_size=pipeline.batch_size,
            validation_data=tuple(held_out),
            engine="loop",
            configuration={**dataclasses.asdict(pipeline), **settings},
        )
    for title, rows in tables(ledger).items():
        published = PUBLISHED if "error rate" in title else None
        print(f"\n{title}\n\n{markdown_accuracies(rows, published)}")
    if rows := rows_of(ledger):
        print(f"\n{markdown_losses(rows)}")
    print(f"Runs: {ledger.path}")


def parse_arguments() -> argparse.Namespace:
    """The command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--folder", type=Path, default=data_root(), help="folder of the data folders")
    add("--seeds", type=int, default=60, help="of each network (default: %(default)s)")
    add("--pipelines", nargs="+", choices=PIPELINES, default=list(PIPELINES), help="(default: all)")
    add("--rows", type=int, default=50_000, help="images to train on (default: %(default)s)")
    add("--held-out", type=int, default=10_000, help="images (default: %(default)s)")
    add("--shrink", type=int, default=1, help="factor for the images (default: %(default)s)")
    add("--width", type=int, default=64, help="of the first stage (default: %(default)s)")
    add("--epochs", type=int, default=200, help="(default: %(default)s)")
    add("--output", type=Path, default=Path("output"), help="folder for the ledger")
    return parser.parse_args()


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
    pipeline: Pipeline, image_shape: tuple[int, int, int], num_rows: int
) -> keras.Model:
    """The compiled network of a pipeline, from pixels to logits."""
    if pipeline.kind == "dense":
        rate = pipeline.width // 2
        network = densenet(
            image_shape, NUM_CLASSES, blocks=pipeline.blocks, growth_rate=rate, l2=L2
        )
    else:
        network = resnet(
            image_shape,
            NUM_CLASSES,
            blocks=pipeline.blocks,
            bottleneck=pipeline.kind == "bottleneck",
            width=pipeline.width,
            l2=L2,
        )
    model = keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Rescaling(1 / 127.5, offset=-1.0),
            keras.layers.RandomFlip("horizontal"),
            keras.layers.RandomTranslation(0.125, 0.125, fill_mode="constant"),
            network,
        ]
    )
    num_steps = pipeline.epochs * -(-num_rows // pipeline.batch_size)
    schedule = keras.optimizers.schedules.CosineDecay(LEARNING_RATE, num_steps)
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
