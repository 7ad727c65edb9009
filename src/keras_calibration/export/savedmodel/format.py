"""SavedModelFormat: what an export and a refresh of a SavedModel have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_calibration.export.provenance import describe_files, write_provenance
from keras_calibration.export.publish import Format, Request
from keras_calibration.export.savedmodel.files import EXTRA
from keras_calibration.export.verification import Outputs, run_savedmodel


class SavedModelFormat(Format):
    """A SavedModel with its provenance in `assets.extra`.

    Attributes:
        verify: Where it is run: see `export_savedmodel`.
        rows_are: What the rows of the comparison are, for the provenance.
    """

    kind = "SavedModel"
    verify: str
    rows_are: str

    def run(self, path: Path, requests: Sequence[Request]) -> list[Outputs]:
        """Runs it with TensorFlow alone."""
        given = [(request.signature, request.inputs) for request in requests]
        answers = run_savedmodel(path, given, self.verify)
        self._num_rows = len(answers[0]["probability"])
        return answers

    def sign(self, path: Path, differences: Mapping[str, float]) -> None:
        """Writes the provenance, with the hash of the files and the differences."""
        verification = {
            "in": self.verify,
            "num_rows": self._num_rows,
            "rows": self.rows_are,
            "largest_differences": differences,
        }
        told = {**self.provenance(), **describe_files(path), "verification": verification}
        write_provenance(path / EXTRA, told)

    def provenance(self) -> dict[str, Any]:
        """What is told of it, but for the files and the comparison."""
        raise NotImplementedError
