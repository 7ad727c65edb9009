"""The site: `./dev docs` builds it into build/docs, without network."""

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from sphinx.util import inspect

import keras_calibration

DOCS = Path(__file__).parent
ROOT = DOCS.parent

project = "keras-calibration"
author = "The keras-calibration authors"
copyright = "The keras-calibration authors, Apache-2.0"
version = release = keras_calibration.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_design",
]
default_role = "code"
exclude_patterns = ["_templates", "reference/README.md"]
templates_path = ["_templates"]
nitpicky = True
nitpick_ignore_regex = [
    # Types of other packages: nothing is fetched to find their pages.
    ("py:.*", r"(?!(keras_calibration|calibration_records)\.).*"),
    # Base classes that are not public, which are named by their module.
    ("py:class", r"keras_calibration\.(_\w+|\w+\.\w+)\.\w+|calibration_records\.[\w.]+"),
]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True
nb_output_stderr = "remove"  # progress bars, and what TensorFlow says of the machine

suppress_warnings = ["myst-nb.lexer"]  # cells that do not run have no language

autosummary_generate = True
autosummary_context = {
    # The programs that draw the picture of the page of their name → its caption.
    "pictures": {
        path.stem: path.read_text("utf-8").split('"""')[1]
        for path in (DOCS / "reference" / "pictures").glob("*.py")
    },
    # A class page lists the members that a user calls: none of these bases of other packages,
    "foreign_bases": "Layer, Metric, Model, Functional, Callback, BaseEstimator, ClassifierMixin, "
    "MetaEstimatorMixin, Operation, KerasSaveable, Enum, tuple, object",
    # none that Keras, scikit-learn or another part of the package calls,
    "not_called": """
        build call compile_from_config compute_loss compute_metrics compute_output_shape
        compute_output_spec from_config get_build_config get_compile_config get_config
        get_metadata_routing get_metrics_result input_spec load_own_variables on_epoch_end
        on_train_begin on_train_end save_own_variables set_fit_request set_partial_fit_request
        set_predict_proba_request set_predict_request set_score_request
        add_weight bins_of calibrate derivatives draw embed encode ensure_built figsize
        blend_of boosted fit_curve fit_histogram fitted_to_sums has_direct_fit has_free_scale
        has_free_shift logit_spread num_posterior_columns posterior posterior_spread shift
        update_sums with_trees
        add_row_count add_rows add_sum add_variable check_ids count_rows
        error has_log_sums has_rolling_loss held_out log_sums moments_of_all_rows next_groups
        as_chosen by_period columns field_ids metrics of_given uses_row_key
        add_sums sum_shapes
    """,
    # and on the page of `Head` alone those that a subclass may define.
    "for_subclasses": """
        assign check_logits draws_by_chance effect_names effects reads fit_of fitted parts
        feature_names follows_time logit_standard_deviation
    """,
    # These do something in a few classes alone.
    "only_in": {
        "finalize": ["Head", "FieldILPS", "NeuralCalibration"],
        "level": ["Head", "FieldBias", "BlendedHead"],
    },
}
for _key in ("not_called", "for_subclasses"):
    autosummary_context[_key] = ", ".join(autosummary_context[_key].split())
autodoc_default_options = {"members": True, "show-inheritance": True, "member-order": "groupwise"}
autodoc_typehints = "none"  # the docstrings name shapes and dtypes
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"  # `fit()`, as the page is that of the class
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Call arguments", "params_style"), ("Reference", "References")]

plot_formats = [("png", 100)]
plot_html_show_formats = False

html_theme = "pydata_sphinx_theme"
html_title = "keras-calibration"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_sidebars = {"index": [], "glossary": [], "changelog": []}
html_theme_options = {
    "logo": {"text": "keras-calibration"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "collapse_navigation": True,
    "show_prev_next": False,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

# Pages of the site whose text lies elsewhere in the repository: each holds one `include`.
INCLUDED = {
    "benchmarks/README.md": "benchmarks",
    "examples/RESULTS.md": "papers/results",
    "examples/TABLES.md": "papers/tables",
    "examples/HYPOTHESES.md": "papers/hypotheses",
    "examples/field_aware_calibration/README.md": "papers/field_aware_calibration",
    "examples/calibrated_metric/README.md": "papers/calibrated_metric",
    "savedmodels/README.md": "savedmodels",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
    "README.md": "index",
}


def include_files(app: Sphinx, docname: str, source: list[str]) -> None:
    """Puts included files into their pages; links to such a file lead to its page."""
    page = app.env.doc2path(docname)
    if page.suffix != ".md":
        return
    source[0] = re.sub(
        r"^```\{include\} (\S+)\n```$",
        lambda match: _with_links(docname, (page.parent / match[1]).resolve()),
        _with_links(docname, page, source[0]),
        flags=re.MULTILINE,
    )


def _with_links(docname: str, file: Path, text: str | None = None) -> str:
    """The text of a file with its relative links as seen from a page."""

    def link(match: re.Match[str]) -> str:
        target, mark, anchor = match[1].partition("#")
        path = (file.parent / target).resolve() if target else file
        return f"]({_relative(docname, path)}{mark}{anchor})"

    return re.sub(r"\]\((?![a-z]+:)([\w./-]+(?:#\S+?)?)\)", link, text or file.read_text("utf-8"))


def _relative(docname: str, path: Path) -> str:
    """The path as seen from a page; that of the page which includes it, if there is one."""
    page = INCLUDED.get(path.relative_to(ROOT).as_posix())
    path = path if page is None else DOCS / f"{page}.md"
    return Path(os.path.relpath(path, (DOCS / docname).parent)).as_posix()


def link_names(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Makes every `name` of the package, in pages and docstrings, a link to its reference."""
    for literal in list(doctree.findall(nodes.literal)):
        page = _reference_page(literal.astext())
        if page in (None, docname) or _is_linked(literal):
            continue
        uri = app.builder.get_relative_uri(docname, page)
        literal.replace_self(nodes.reference("", "", literal.deepcopy(), internal=True, refuri=uri))


def _reference_page(text: str) -> str | None:
    """The page of `ILPS`, `kc.layers.ILPS(…)` or `ILPS.fit`; None for what is not public."""
    name = re.sub(r"^(kc|keras_calibration|calibration_records)\.", "", text.partition("(")[0])
    pages = _reference_pages()
    return pages.get(name) or pages.get(name.rpartition(".")[0])


@cache
def _reference_pages() -> dict[str, str]:
    """The pages of all public names, by `room.Name`, and by `Name` where that is no plain word."""
    pages = {}
    for file in (DOCS / "reference").glob("*.rst"):
        listed = r"^   ~?((?:keras_calibration|calibration_records)\.([\w.]+))$"
        for path, name in re.findall(listed, file.read_text("utf-8"), re.M):
            short = name.rpartition(".")[2]
            keys = [name, short] if re.search("[A-Z_]", short) else [name]
            pages.update(dict.fromkeys(keys, f"reference/generated/{path}"))
    return pages


def signature_of_class(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str, returned: str
) -> tuple[str, str] | None:
    """The signature of a class from `__init__`, which Keras hides behind a `__new__`."""
    if what != "class" or value.__init__ is object.__init__ or not signature.startswith("(*args"):
        return None
    of_constructor = inspect.signature(value.__init__, bound_method=True)
    return inspect.stringify_signature(of_constructor, show_annotation=False), ""


class NoPlot(Directive):
    """The directive `plot` of a draft, which runs no programs."""

    required_arguments, has_content = 1, True

    def run(self) -> list[nodes.Node]:
        """Draws nothing."""
        return []


def _is_linked(node: nodes.Node) -> bool:
    parent = node.parent
    while parent is not None:
        if isinstance(parent, nodes.reference | nodes.title):
            return True
        parent = parent.parent
    return False


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the functions above to the build."""
    if app.config.nb_execution_mode == "off":
        app.add_directive("plot", NoPlot)
    else:
        app.setup_extension("matplotlib.sphinxext.plot_directive")
    app.connect("source-read", include_files)
    app.connect("doctree-resolved", link_names)
    app.connect("autodoc-process-signature", signature_of_class)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
