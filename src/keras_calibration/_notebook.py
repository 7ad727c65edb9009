"""Reports in a notebook: the text that `print` shows, instead of the repr of every number."""

import html


class ShownAsText:
    """Base class of reports whose notebook cell shows `str(report)`.

    Example:
        >>> class Report(ShownAsText):
        ...     def __str__(self):
        ...         return "site = <b>"
        >>> Report()._repr_html_()
        '<pre>site = &lt;b&gt;</pre>'
    """

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
