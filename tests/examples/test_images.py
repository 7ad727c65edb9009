"""The study of images: reading, metrics, and the whole of it on generated images."""

import gzip
import importlib.util
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from keras_calibration.seeds import Ledger

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "calibrated_metric" / "images.py"


@pytest.fixture(scope="module")
def images():
    specification = importlib.util.spec_from_file_location("images", EXAMPLE)
    module = importlib.util.module_from_spec(specification)
    sys.modules["images"] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Generated images in the files of both data sets: the brightness tells the class."""
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
    (folder / "mnist_63k").mkdir()
    for name, num_images in (("train", 60_000), ("t10k-first3k", 3000)):
        labels = rng.integers(0, 10, num_images).astype(np.uint8)
        pixels = np.repeat(25 * labels + 5, 28 * 28).astype(np.uint8)
        for kind, header, values in (("images-idx3", 16, pixels), ("labels-idx1", 8, labels)):
            path = folder / "mnist_63k" / f"{name}-{kind}-ubyte.gz"
            with gzip.open(path, "wb", compresslevel=1) as file:
                file.write(bytes(header) + values.tobytes())
    return folder


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_images_have_their_labels(images, folder, name):
    read = getattr(images, f"read_{name}")
    train, held_out = read(folder, 90, 60)
    shape = (8, 8, 3) if name == "cifar10" else (28, 28, 1)
    assert train.pixels.shape == (90, *shape)
    assert held_out.pixels.shape == (60, *shape)
    for part in (train, held_out):
        brightness = part.pixels.mean(axis=(1, 2, 3))
        np.testing.assert_allclose(brightness, 25.0 * part.labels + 5, atol=2)
        assert len(set(part.labels)) == 10
        # Not in the order of the file.
        assert np.any(np.diff(part.labels.astype(int)) < 0)
    with pytest.raises(SystemExit, match="--rows and --held-out"):
        read(folder, 90, 20_000)


def test_images_shrink_to_means(images):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 6, 4, 2)).astype(np.uint8)
    found = images.shrink(pixels, 2)
    for i, y, x, c in np.ndindex(3, 3, 2, 2):
        square = pixels[i, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2, c]
        assert found[i, y, x, c] == np.rint(square.mean())
    with pytest.raises(SystemExit, match="divides 6 and 4"):
        images.shrink(pixels, 4)


def test_the_error_rate_is_one_minus_the_accuracy(images):
    rng = np.random.default_rng(0)
    labels, logits = rng.integers(0, 4, 50), rng.normal(size=(50, 4)).astype("float32")
    found = np.asarray(images.error(labels, logits))
    np.testing.assert_array_equal(found, np.argmax(logits, axis=1) != labels)


def test_the_clock_starts_with_reset_state(images):
    clock = images.Seconds()
    time.sleep(0.02)
    first = clock.result()
    clock.update_state([0], [1])
    assert 0.02 <= first <= clock.result() < 5
    clock.reset_state()
    assert clock.result() < first


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_pipelines_differ_in_what_they_say(images, monkeypatch, name):
    monkeypatch.setattr(sys, "argv", ["images.py", "--depth", "8", "--width", "2"])
    pipelines = images.choose_pipelines(images.parse_arguments())
    shape = (8, 8, 3) if name == "cifar10" else (7, 7, 1)
    sizes = {}
    for pipeline_name in ("base", "deeper", "wider", "densenet", "no_batch_normalization"):
        model = images.build_model(pipelines[pipeline_name], shape, 100, augment=True)
        sizes[pipeline_name] = model.count_params()
        flips = any("flip" in layer.name for layer in model.layers)
        assert flips == (name == "cifar10")
    assert len(set(sizes.values())) == len(sizes)
    assert sizes["base"] < min(sizes["deeper"], sizes["wider"])
    # Every pair compares two pipelines that exist.
    assert {name for pair in images.PAIRS for name in pair[1:]} == set(pipelines)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_the_whole_study_and_its_continuation(images, folder, tmp_path, monkeypatch, capsys):
    arguments = ["images.py", "--folder", str(folder), "--output", str(tmp_path)]
    arguments += ["--rows", "100", "--held-out", "80", "--depth", "8", "--width", "2"]
    arguments += ["--batch-size", "20", "--epochs", "1", "--pipelines", "base", "dropout"]

    def run(*others):
        monkeypatch.setattr(sys, "argv", [*arguments, *others])
        images.main()
        return capsys.readouterr().out

    assert "100 images to train on, 80 held out, of shape (4, 4, 3)" in run("--seeds", "2")
    ledger = Ledger(tmp_path / "images" / "cifar10")
    runs = ledger.runs(status="finished")
    assert {(run["pipeline"], run["seed"]) for run in runs} == {
        (name, seed) for name in ("base", "dropout") for seed in range(2)
    }
    for run_record in runs:
        metrics = run_record["metrics"]
        assert len(metrics["val_calibrated_log_loss"]) == 1
        assert 0 <= metrics["val_error_rate"][-1] <= 1
        assert 0 < metrics["seconds"][0] < 60
    # Finished seeds are not trained again.
    output = run("--seeds", "2")
    assert "2 of 2 seeds are in the ledger" in output
    assert "The better pipeline has the lower mean error rate" in output
    assert len(ledger) == 4
    text = images.markdown(ledger)
    assert text.count("\n| dropout |") == 4
    assert "`dropout`: dropout 0.2" in text
