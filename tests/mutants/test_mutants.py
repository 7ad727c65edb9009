"""Each known fault is found in `src`; each that is made from a tree applies, and has tests."""

import ast

from mutants.equivalent import EQUIVALENT
from mutants.forked import ROOT
from mutants.generate import faults_of, sample_of
from mutants.known import KNOWN, known_faults
from mutants.sample import ROOMS, room_of, room_tests

SOURCE = '''"""A module of 3 lines."""

ONE: int = 1


class Line:
    """A line."""

    def at(self, x: float = 0.5) -> float:
        """The value at 2."""
        if not x < 1 and self:
            raise ValueError(f"{x + 1} of 7")
        self.x = power(x, 2) - 3
        "é"; self.y = -x
        return x
'''

FAULTS = {
    ("", "constant", "1 → 2"),
    ("", "constant", "0.5 → 1.0"),
    ("Line.at", "and/or", "not x < 1 and self → (not x < 1 or self)"),
    ("Line.at", "dropped not", "not x < 1 → (x < 1)"),
    ("Line.at", "comparison", "x < 1 → (x <= 1)"),
    ("Line.at", "constant", "1 → 2"),
    ("Line.at", "dropped statement", 'raise ValueError(f"{x + 1} of 7") → pass'),
    ("Line.at", "dropped statement", "self.x = power(x, 2) - 3 → pass"),
    ("Line.at", "sign", "power(x, 2) - 3 → (power(x, 2) + 3)"),
    ("Line.at", "dropped term", "power(x, 2) - 3 → (power(x, 2))"),
    ("Line.at", "swapped arguments", "power(x, 2) → (power(2, x))"),
    ("Line.at", "constant", "2 → 3"),
    ("Line.at", "constant", "3 → 4"),
    ("Line.at", "dropped statement", "self.y = -x → pass"),
    ("Line.at", "sign", "-x → (x)"),
}


def test_the_faults_of_a_file(tmp_path):
    path = tmp_path / "line.py"
    path.write_text(SOURCE, "utf-8")
    faults = faults_of(path, tmp_path)
    told = [(fault.place, fault.kind, fault.name.split(": ", 1)[1]) for fault in faults]
    assert len(told) == len(set(told))
    assert set(told) == FAULTS
    for fault in faults:
        changed = fault.apply(SOURCE.encode()).decode()
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))
        assert len(changed) == len(SOURCE) - len(fault.before) + len(fault.after)


def test_a_sample_is_of_all_rooms_and_each_has_tests():
    everything = sample_of(ROOT / "src", 10**6, seed=0)
    names = {fault.name for fault in everything}
    assert len(names) == len(everything) > 10_000
    assert set(EQUIVALENT) <= names, "Its code has changed: delete the entry."
    assert {room_of(fault.path) for fault in everything} == set(ROOMS)
    known = list(known_faults(ROOT / "src"))
    assert len(known) == len(KNOWN)
    for fault in [*known, *everything[:20]]:
        assert compile(fault.apply((ROOT / "src" / fault.path).read_bytes()), "", "exec")
        assert room_tests(fault.path)


def test_a_sample_stays_where_other_code_changes(tmp_path):
    path = tmp_path / "line.py"
    path.write_text(SOURCE, "utf-8")
    before = [fault.name for fault in sample_of(tmp_path, 8, seed=0)]
    assert len(before) == 8
    assert before != [fault.name for fault in sample_of(tmp_path, 8, seed=1)]
    path.write_text(SOURCE.replace("ONE", "\n\nFIRST"), "utf-8")
    assert before == [fault.name for fault in sample_of(tmp_path, 8, seed=0)]
    assert not sample_of(tmp_path, 8, seed=0, folder="other")
