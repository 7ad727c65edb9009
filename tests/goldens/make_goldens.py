"""Writes the goldens anew, with the code as it is:

    ./dev run python tests/goldens/make_goldens.py

Only where values change on purpose; the commit says which, and why.
"""

import json
import sys
import tempfile
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
import goldens
from every_head import HEADS


def main():
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        goldens.write_files(folder)
        goldens.pack(folder)
        found = {
            "environment": goldens.environment(),
            "fits": {name: goldens.fits(name) for name in HEADS},
            "calibrations": goldens.calibrations(),
            "files": goldens.outputs_of_files(folder),
            "refreshed": goldens.refreshed(folder),
            "signatures": goldens.signatures(),
        }
    goldens.FILE.write_text(json.dumps(found, indent=0, ensure_ascii=False), encoding="utf-8")
    print(f"Wrote {goldens.FILE} and {goldens.ARCHIVE}.")


if __name__ == "__main__":
    main()
