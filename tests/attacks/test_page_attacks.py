"""Pages and files under attack: hostile text in every place of a page, and programs in files."""

import ast
import html.parser
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.special
from calibration_records.pages.comparison_page import report_html
from calibration_records.pages.monitor_page import page_html

import keras_calibration as kc
from keras_calibration.seeds import Ledger, compare

pytestmark = pytest.mark.slow

OWN = "document.documentElement.setAttribute('data-owned',1)"
# Each of them breaks out of some place: text, an attribute, a title, a style, an SVG picture, JSON.
HOSTILE = [
    f"<script>{OWN}</script>",
    f'"><img src=x onerror="{OWN}">',
    f"'><img src=x onerror='{OWN.replace(chr(39), chr(34))}'>",
    f"</title><script>{OWN}</script>",
    f"</style><script>{OWN}</script>",
    f"</text></svg><script>{OWN}</script>",
    f"--><script>{OWN}</script><!--",
    f"]]><script>{OWN}</script><![CDATA[",
    f'<svg onload="{OWN}">',
    f'<details open ontoggle="{OWN}">',
    f'<iframe srcdoc="<script>parent.{OWN}</script>"></iframe>',
    f'<a href="javascript:{OWN}" autofocus onfocus="{OWN}">a</a>',
    f"javascript:{OWN}",
    "<meta http-equiv=refresh content='0;url=data:text/html,owned'>",
    "<base href='//example.invalid/'><link rel=stylesheet href=x>",
    "&lt;script&gt;&#x3c;script&#62;",
    "\x00\x01\x1b[31m\u2028\u202e\ufeff",
    "%3Cscript%3E\\u003cscript\\u003e",
]
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "h4", "p", "ul", "li"),
    *("section", "div", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"),
    *("i", "span"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "style", "open"),
}


class Page(html.parser.HTMLParser):
    """The tags, attributes and texts of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts = set(), [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)


def comparison_page(folder):
    """A report in which each text that a user can choose is hostile."""
    pages = []
    for number in range(0, len(HOSTILE), 2):
        a, b = HOSTILE[number : number + 2]
        runs = Ledger(folder / f"runs {number}")
        metrics = ("val_loss", f"val_{a}", f"{b}")
        for seed in range(4):
            for pipeline in (a, b):
                values = {name: [0.5 + 0.01 * seed + 0.1 * (pipeline == b)] for name in metrics}
                record = {"pipeline": pipeline, "seed": seed, "status": "finished", "epochs": [0]}
                texts = {"configuration": {a: [b]}, "initial_weights": b}
                runs.append({**record, **texts, "metrics": values, "versions": {a: b}})
        pages.append(compare(runs, a, b, metric=f"val_{a}", directions={f"val_{a}": "min"}))
    return report_html(pages)


def scored_log(num_rows, **columns):
    days = np.array(["2026-03-01", "2026-03-02"])[np.arange(num_rows) % 2]
    return pa.table({"timestamp": days, **columns})


def monitor_page(folder):
    """Hostile names and values of fields."""
    rng = np.random.default_rng(0)
    probability = rng.uniform(0.1, 0.9, 3600)
    words = np.array(HOSTILE)[rng.integers(0, len(HOSTILE), 3600)]
    # All labels of some values are wrong, so that the alerts name them.
    label = np.where(words < HOSTILE[3], 1, rng.random(3600) < probability).astype(int)
    fields = {name: words for name in HOSTILE[:3]}
    path = folder / "log.parquet"
    table = scored_log(3600, probability=probability, label=label, **fields)
    pyarrow.parquet.write_table(table, path)
    return page_html(kc.monitor(path, fields=list(fields), verbose=0))


def class_page(folder):
    """Hostile names of classes."""
    rng = np.random.default_rng(0)
    names = HOSTILE[:4]
    p = scipy.special.softmax(rng.normal(size=(3000, 4)), axis=1)
    label = (p.cumsum(axis=1) > rng.random((3000, 1))).argmax(axis=1)
    label[::2] = 0
    path = folder / "classes.parquet"
    table = scored_log(3000, label=label, **dict(zip(names, p.T, strict=True)))
    pyarrow.parquet.write_table(table, path)
    return page_html(kc.monitor(path, probability=names, verbose=0))


PAGES = {"comparison": comparison_page, "monitor": monitor_page, "classes": class_page}


@pytest.fixture(scope="module", params=PAGES)
def page(request, tmp_path_factory):
    return PAGES[request.param](tmp_path_factory.mktemp("page"))


def test_hostile_text_is_text(page):
    """In the whole page there are no tags and attributes but those that pages are made of."""
    parsed = Page(page)
    assert parsed.tags <= TAGS
    assert {name for name, _ in parsed.attributes} <= ATTRIBUTES
    styles = [value for name, value in parsed.attributes if name == "style"]
    assert all(re.fullmatch(r"((left|right|--\w+):-?[\d.]+%;?)+", style) for style in styles)
    text = "".join(parsed.texts)
    assert HOSTILE[0] in text  # Shown as it is, not left out.
    assert "default-src 'none'" in page


def browser():
    """A browser that can be run without a window; None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome", "microsoft-edge")
    found = [os.environ.get("KERAS_CALIBRATION_BROWSER"), *map(shutil.which, names)]
    return next(filter(None, found), None)


def tree_in_browser(text, folder):
    """The page after its scripts have run, without the policy that forbids them."""
    if browser() is None:
        pytest.skip("No Chromium, Chrome or Edge; $KERAS_CALIBRATION_BROWSER may name one.")
    policy = '<meta http-equiv="Content-Security-Policy"'
    file = folder / "page.html"
    file.write_text(text.replace(policy, '<meta name="off"'), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=3000", "--dump-dom"]
    command = [browser(), *options, file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return Page(done.stdout)


def test_a_browser_runs_no_hostile_text(page, tmp_path):
    tree = tree_in_browser(page, tmp_path)
    assert "data-owned" not in dict(tree.attributes)
    assert tree.tags <= TAGS
    assert {name for name, _ in tree.attributes} <= ATTRIBUTES


@pytest.mark.slow
@pytest.mark.parametrize("text", [t for t in HOSTILE if OWN in t and "javascript" not in t])
def test_a_browser_runs_hostile_text_that_is_not_escaped(text, tmp_path):
    """So that the test above can fail."""
    close = "</title>" if "title" in text else "</style>" if "style" in text else ""
    start = {"</title>": "<title>", "</style>": "<style>"}.get(close, "<p>")
    tree = tree_in_browser(f"<!doctype html><html>{start}{text}", tmp_path)
    if text.startswith("'>"):
        tree = tree_in_browser(f"<!doctype html><p title='{text}'>", tmp_path)
    assert "data-owned" in dict(tree.attributes)


SOURCE = Path(kc.__file__).parents[1]
PACKAGES = ("keras_calibration", "calibration_records")
# Calls that run what a file or a user's text says.
FORBIDDEN = {
    *("eval", "exec", "compile", "__import__", "input", "breakpoint"),
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "pickle.dump", "pickle.dumps"),
    *("cloudpickle.load", "cloudpickle.dump", "cloudpickle.dumps", "cloudpickle.Pickler"),
    *("marshal.loads", "shelve.open", "dill.loads", "cloudpickle.loads", "joblib.load"),
    *("yaml.load", "runpy.run_path", "runpy.run_module", "importlib.import_module"),
    *("enable_unsafe_deserialization", "keras.config.enable_unsafe_deserialization"),
}
OPTIONS = (("shell", True), ("allow_pickle", True), ("safe_mode", False))
ALLOWED = {
    # The task of the processes that this one starts, in a new folder that only this user can open.
    ("keras_calibration/seeds/loky_workers.py", "cloudpickle.Pickler"),
    ("keras_calibration/seeds/loky_workers.py", "pickle.Unpickler"),
    # Copies a layer that is in memory.
    ("keras_calibration/layers/network_trainer.py", "keras.saving.deserialize_keras_object"),
}


def dotted(node):
    """The name of what is called: `a.b.c`, or empty for anything but a name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def unsafe_calls(text):
    """Line and dotted name of each call, or base class, that runs what it is given."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            bases = [name for base in node.bases if (name := dotted(base)) in FORBIDDEN]
            found += [(node.lineno, name) for name in bases]
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            options = [
                (option.arg, option.value.value)
                for option in node.keywords
                if isinstance(option.value, ast.Constant)
            ]
            if name in FORBIDDEN or any(option in OPTIONS for option in options):
                found.append((node.lineno, name))
    return found


def test_no_module_runs_what_a_file_says():
    found = {
        (path.relative_to(SOURCE).as_posix(), name): line
        for package in PACKAGES
        for path in (SOURCE / package).rglob("*.py")
        for line, name in unsafe_calls(path.read_text(encoding="utf-8"))
    }
    assert set(found) - ALLOWED == set()
    assert ALLOWED <= set(found)


def test_the_search_for_unsafe_calls_finds_them():
    text = "eval('1')\nos.system('ls')\nnp.load(f, allow_pickle=True)\nnp.load(f)\nrun('ls')\n"
    text += "class Reader(pickle.Unpickler):\n    pass\n"
    expected = [(1, "eval"), (2, "os.system"), (3, "np.load"), (6, "pickle.Unpickler")]
    assert sorted(unsafe_calls(text)) == expected


@pytest.mark.parametrize("document", sorted(Path(__file__).parents[2].glob("docs/*.md")), ids=str)
def test_no_page_teaches_to_load_pickles(document):
    assert not re.search(
        r"pickle\.loads?\(|allow_pickle=True|safe_mode=False", document.read_text()
    )
