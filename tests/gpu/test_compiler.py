"""What is read of an optimised program and of a GPU's description."""

import pytest

from gpu.compiler import SPECS, Kernel, architecture, read_program

PROGRAM = """HloModule jit_f, is_scheduled=true

%fused_add (p.1: f32[1000]) -> f32[1000] {
  %p.1 = f32[1000]{0} parameter(0)
  ROOT %add.1 = f32[1000]{0} add(%p.1, %p.1)
}

%body (state: (s32[], f32[1000])) -> (s32[], f32[1000]) {
  %state = (s32[], f32[1000]{0}) parameter(0)
  %rows = f32[1000]{0} get-tuple-element(%state), index=1
  %step = s32[] get-tuple-element(%state), index=0
  %twice = f32[1000]{0} fusion(%rows), kind=kLoop, calls=%fused_add
  ROOT %next = (s32[], f32[1000]{0}) tuple(%step, %twice)
}

%condition (state: (s32[], f32[1000])) -> pred[] {
  %state = (s32[], f32[1000]{0}) parameter(0)
  ROOT %goes_on = pred[] constant(false)
}

%cheap (x: f32[1000]) -> f32[1000] {
  ROOT %x = f32[1000]{0} parameter(0)
}

%dear (y: f32[1000]) -> f32[1000] {
  %y = f32[1000]{0} parameter(0)
  ROOT %sorted = f32[1000]{0} sort(%y), dimensions={0}
}

ENTRY %main (a: bf16[1000], b: f32[1000]) -> (f32[1000], bf16[1000]) {
  %a = bf16[1000]{0} parameter(0)
  %b = f32[1000]{0} parameter(1)
  %pair = (f32[1000]{0}, /*index=1*/bf16[1000]{0}) fusion(%a, %b, %b), kind=kLoop, calls=%fused_add
  %first = f32[1000]{0} get-tuple-element(%pair), index=0
  %zero = s32[] constant(0)
  %start = (s32[], f32[1000]{0}) tuple(%zero, %first)
  %loop = (s32[], f32[1000]{0}) while(%start), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"3"}}
  %of_loop = f32[1000]{0} get-tuple-element(%loop), index=1
  %choice = f32[1000]{0} conditional(%zero, %of_loop, %of_loop), branch_computations={%cheap, %dear}
  %second = bf16[1000]{0} get-tuple-element(%pair), index=1
  ROOT %result = (f32[1000]{0}, bf16[1000]{0}) tuple(%choice, %second)
}
"""


def test_kernels_and_bytes_of_a_program():
    program = read_program(PROGRAM)
    pair = Kernel("pair", "fusion", 2000 + 4000 + 4000 + 2000)
    twice = Kernel("twice", "fusion", 4000 + 4000)
    assert program.kernels == (pair, twice, twice, twice)
    assert program.num_bytes == 12_000 + 3 * 8_000
    assert {"while", "sort", "conditional"} <= program.kinds
    assert program.over_rows(10_000) == [pair]


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.txtpb")), ids=lambda path: path.stem)
def test_gpus_are_described(path):
    assert architecture(path.stem) in ("sm_80", "sm_90a", "sm_100a")
