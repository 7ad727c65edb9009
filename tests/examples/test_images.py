"""The study of images: reading, metrics, and the whole of it on generated images."""

import sys

import images
import numpy as np
import pytest
from densenet import densenet

from keras_calibration.seeds import Ledger

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("resnet18", 11_173_962),
        ("resnet34", 21_282_122),
        ("resnet101", 42_512_970),
        ("resnet152", 58_156_618),
        ("densenet121", 6_956_298),
    ],
)
def test_networks_have_the_published_numbers_of_parameters(name, number):
    """Those of github.com/kuangliu/pytorch-cifar, which the paper uses."""
    model = images.build_model(images.PIPELINES[name], (32, 32, 3), 50_000)
    assert sum(int(np.prod(weight.shape)) for weight in model.trainable_weights) == number


def test_a_densenet_bc_has_the_parameters_of_its_paper():
    model = densenet((32, 32, 3), 10, blocks=(16, 16, 16), growth_rate=12)
    assert sum(int(np.prod(weight.shape)) for weight in model.trainable_weights) == 769_162


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Generated images in the files of CIFAR-10: the brightness tells the class."""
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    (folder / "cifar10_jpeg_30k").mkdir()
    for name, num_images in (("train", 120), ("test", 80)):
        labels = np.sort(rng.integers(0, 10, num_images)).astype(np.uint8)
        files = []
        for label in labels:
            pixels = np.full((8, 8, 3), 25 * label + 5, np.uint8)
            files.append(np.frombuffer(tf.io.encode_jpeg(pixels).numpy(), np.uint8))
        np.savez(
            folder / "cifar10_jpeg_30k" / f"{name}.npz",
            jpeg=np.concatenate(files),
            offsets=np.cumsum([0, *map(len, files)]),
            label=labels,
        )
    return folder


def test_binary_files_of_cifar_10_are_read(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(30, dtype=np.uint8) % 10
    rows = np.concatenate([labels[:, None], pixels.reshape(30, -1)], axis=1)
    folder = tmp_path / images.BINARY
    folder.mkdir()
    rows[:10].tofile(folder / "data_batch_1.bin")
    rows[10:20].tofile(folder / "data_batch_2.bin")
    rows[20:].tofile(folder / "test_batch.bin")
    train, held_out = images.read_cifar10(tmp_path, 20, 10)
    assert sorted(train.labels) == sorted(labels[:20])
    order = images.chosen_images(20, 20)
    np.testing.assert_array_equal(train.pixels, pixels[order].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(held_out.labels, labels[20:][images.chosen_images(10, 10)])


@pytest.mark.tensorflow
def test_the_whole_study(folder, tmp_path, monkeypatch, capsys):
    arguments = ["images.py", "--folder", str(folder), "--output", str(tmp_path)]
    arguments += ["--rows", "100", "--held-out", "80", "--shrink", "2", "--width", "2"]
    tiny = {"resnet18": images.Pipeline((1,)), "densenet121": images.Pipeline((1,), "dense")}
    monkeypatch.setattr(images, "PIPELINES", tiny)
    monkeypatch.setattr(sys, "argv", [*arguments, "--epochs", "1", "--seeds", "2"])
    images.main()
    output = capsys.readouterr().out
    assert "100 images to train on, 80 held out, of shape (4, 4, 3)" in output
    assert "The better pipeline has the lower mean error rate" in output
    ledger = Ledger(tmp_path / "images" / "cifar10")
    runs = ledger.runs(status="finished")
    assert {(run["pipeline"], run["seed"]) for run in runs} == {
        (name, seed) for name in tiny for seed in range(2)
    }
    for run_record in runs:
        metrics = run_record["metrics"]
        assert len(metrics["val_calibrated_log_loss"]) == 1
        assert 0 <= metrics["val_error_rate"][-1] <= 1
    assert output.count("\n| densenet121 ") == 1
