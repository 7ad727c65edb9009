"""What all tests share."""

import collections
import ctypes
import gc
import importlib.metadata
import os
import pathlib
import sys
import tempfile

import hypothesis
import pytest

# Read when TensorFlow and Matplotlib are first imported, hence before any test module.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# On a GPU, JAX would round the factors of matrix products to ten bits.
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "float32")
if (
    os.environ.get("KERAS_BACKEND") == "jax"
    and "JAX_COMPILATION_CACHE_DIR" not in os.environ
    # Up to 0.5.3 at least, JAX aborts on what it finds there.
    and tuple(map(int, importlib.metadata.version("jax").split(".")[:2])) >= (0, 10)
):
    # JAX compiles a loop outside of `jit` at every call: from the second one on, it finds it here.
    jax_cache = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = jax_cache.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"


def pytest_configure(config):
    """Draws Hypothesis' examples anew only where the slow tests run too.

    A change must not fail for an example that it has nothing to do with. No test fails for a
    machine that is busy either, or for the first example that compiles.
    """
    hypothesis.settings.register_profile(
        "keras_calibration",
        deadline=None,
        derandomize=config.option.markexpr == "not slow",
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("keras_calibration")


def pytest_collection_modifyitems(items):
    """Marks the cases that `./dev test` leaves out, and skips what another backend lacks."""
    import keras

    num_cases = collections.Counter()
    for item in items:
        if marker := item.get_closest_marker("quick_cases"):
            (most,) = marker.args
            num_cases[item.parent.nodeid, item.originalname] += 1
            if num_cases[item.parent.nodeid, item.originalname] > most:
                item.add_marker(pytest.mark.slow)
    if (backend := keras.backend.backend()) != "tensorflow":
        skip = pytest.mark.skip(reason=f"About TensorFlow itself; the backend is {backend}.")
        for item in items:
            if item.get_closest_marker("tensorflow"):
                item.add_marker(skip)


def pytest_collection_finish():
    """Keeps Python's collector from what was imported, which stays, and lets it run less often.

    Tracing makes many objects, few of which are garbage.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


# A worker may grow by this much before it lets go what its tests have traced, which takes seconds.
_GROWTH = 250 * 2**20
_kept = 0


def _resident_bytes():
    """The memory of this process; without bound where Linux does not tell."""
    try:
        num_pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("inf")
    return num_pages * os.sysconf("SC_PAGE_SIZE")


def _let_go():
    """Ends the graphs and compiled programs of the tests so far."""
    global _kept
    import keras

    keras.backend.clear_session()
    if keras.backend.backend() == "jax":
        import jax

        jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        # The C library keeps freed memory for itself otherwise.
        ctypes.CDLL(None).malloc_trim(0)
    _kept = _resident_bytes()


@pytest.fixture(scope="session", autouse=True)
def _exports_run_in_this_process():
    """Leaves out the seconds of a new process with TensorFlow alone, which one test is of."""
    from keras_calibration.export import verification

    verification.in_new_process = False


@pytest.fixture(scope="module", autouse=True)
def _what_modules_traced_is_let_go():
    yield
    if _resident_bytes() >= _kept + _GROWTH:
        _let_go()


@pytest.fixture(autouse=True)
def _what_many_tests_of_a_module_traced_is_let_go():
    yield
    if _kept + 6 * _GROWTH <= _resident_bytes() < float("inf"):
        _let_go()


@pytest.fixture
def mixed_bfloat16():
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy(before)


@pytest.fixture(scope="session")
def data_root() -> pathlib.Path:
    """The folder of real data; tests that need it are skipped where there is none."""
    setting = os.environ.get("KERAS_CALIBRATION_DATA")
    beside = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
    root = pathlib.Path(setting) if setting else beside
    if root.is_dir():
        return root
    if setting:
        pytest.fail(f"KERAS_CALIBRATION_DATA is {setting}, which is no folder.")
    pytest.skip(
        "No real data at ../shared/data beside the checkout: set KERAS_CALIBRATION_DATA to the "
        "path of a copy to run this test."
    )
