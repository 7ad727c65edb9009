"""The frame of an HTML page: one file, inline style, no script, nothing fetched."""

import html
import os
from collections.abc import Sequence
from pathlib import Path

from keras_calibration._files import write_atomically

STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --faint: #5c6670; --paper: #fff; --line: #c9d0d6;
  --a: #b35c00; --b: #2b69ad; --panel: #f3f5f7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --faint: #a8b0b8; --paper: #16191d;
  --line: #444c55; --a: #f0a552; --b: #7fb4ee; --panel: #22272d; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; } h2, p, li { overflow-wrap: anywhere; }
.verdict { font-size: 1.4rem; font-weight: 600; background: var(--panel); padding: .75rem 1rem;
  border-left: 6px solid var(--b); margin: .5rem 0; } .faint { color: var(--faint); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; width: 100%; }
th, td { text-align: right; padding: .25rem .4rem; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; white-space: pre; vertical-align: top; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere;
  min-width: 7rem; } svg { width: 100%; min-width: 38rem; height: auto; }
svg text { fill: var(--ink); font-size: 13px; }
svg .faint { fill: var(--faint); font-size: 12px; } a { color: var(--b); }
.a { fill: var(--a); stroke: var(--a); } .b { fill: var(--b); stroke: var(--b); }
.hollow { fill: none; stroke-width: 1.5; } .axis { stroke: var(--line); }
.ink { stroke: var(--ink); stroke-width: 2; }
.zero { stroke: var(--faint); stroke-dasharray: 4 3; } .band { fill: var(--line); opacity: .5; }
@media print { :root { color-scheme: light; --ink: #000; --faint: #444; --paper: #fff; --line: #999;
  --a: #b35c00; --b: #2b69ad; --panel: #fff; } body { max-width: none; margin: 0; }
  h2, h3 { break-after: avoid-page; } svg, tr, .verdict { break-inside: avoid-page; }
  .download { display: none; } details::details-content { content-visibility: visible; }
  table { font-size: .7rem; } details table { font-size: .6rem; }
  details td, details th { padding: .15rem .3rem; white-space: normal; overflow-wrap: anywhere; }
  .scroll { overflow: visible; } }
"""


def page(title: str, heading: str, body: str) -> str:
    """A complete page; title and heading are plain text, the body is escaped HTML.

    Example:
        >>> "<script" in page("A", "<script>", "")
        False
    """
    # A second line of defence: were an escape forgotten, the policy would still block scripts.
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{html.escape(heading)}</h1>
{body}
</body></html>
"""


def check_path(path: str | os.PathLike[str], argument: str = "path") -> None:
    """Raises if no page can be written there, before the work that it would show.

    Example:
        >>> check_path("nowhere/page.html", "--html")
        Traceback (most recent call last):
        ...
        ValueError: Argument `--html` must be a file in a folder that exists. Received:
        'nowhere/page.html'. Create the folder first.
    """
    if Path(path).is_dir():
        raise ValueError(
            f"Argument `{argument}` must be a file. Received: {os.fspath(path)!r}, a folder."
        )
    if not Path(path).parent.is_dir():
        raise ValueError(
            f"Argument `{argument}` must be a file in a folder that exists. Received: "
            f"{os.fspath(path)!r}. Create the folder first."
        )


def write(text: str, path: str | os.PathLike[str]) -> None:
    """Writes a page atomically in UTF-8: an older page stays until the new one is complete."""
    check_path(path)
    # UTF-8 cannot encode some names, such as half a surrogate pair.
    write_atomically(Path(path), text.encode("utf-8", "backslashreplace"))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain texts, escaped."""
    header = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{header}</tr></thead>{body}</table></div>'
