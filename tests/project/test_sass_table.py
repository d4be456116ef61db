"""The table of hot CUDA kernels (tools/sass_table.py): parsing and comparing machine code."""

import importlib
import os
import sys

import pytest

from support.paths import ROOT

DUMP = """
 Function _Z1fPf:
  REG:36 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:752 TEXTURE:0 SURFACE:0 SAMPLER:0
\t\tFunction : _Z1fPf
        /*0000*/                   LDC R1, c[0x0][0x28] ;        /* 0x00000a00ff017b82 */
                                                                 /* 0x000fe20000000800 */
        /*0010*/              @!P0 EXIT ;                        /* 0x0 */
        /*0020*/                   LDG.E R5, desc[UR4][R2.64] ;  /* 0x0 */
        /*0030*/                   LDG.E.128.CONSTANT R8, desc[UR4][R2.64] ;  /* 0x0 */
        /*0040*/                   STL [R1], R4 ;                /* 0x0 */
        /*0050*/                   FADD R8, R8, R4 ;             /* 0x0 */
        /*0060*/                   STG.E.64 desc[UR4][R2.64], R8 ;  /* 0x0 */
        /*0070*/               @P0 BRA 0x30 ;                    /* 0x0 */
        /*0080*/                   LDG.E.U16 R5, desc[UR4][R2.64] ;  /* 0x0 */
        /*0090*/               @P1 BRA 0x80 ;                    /* 0x0 */
        /*00a0*/              @!P1 BRA 0x20 ;                    /* 0x0 */
        /*00b0*/                   BRA 0xb0;                     /* 0x0 */
"""


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(sys, "path", [os.path.join(ROOT, "tools"), *sys.path])
    return importlib.import_module("sass_table")


def test_hot_loop_is_parsed_and_compared(table):
    usage, code = table.parse(DUMP)
    assert usage == {"_Z1fPf": (36, 1024)}
    assert [one.name for one in table.hot_loop(code["_Z1fPf"])] == [
        *("LDG.E.128.CONSTANT", "STL", "FADD", "STG.E.64", "BRA")
    ]
    row = table.row(("f.cu", "f<int>", 256, 4), *usage["_Z1fPf"], code["_Z1fPf"])
    assert row[2:] == ("256", "4", "36", "48", "1", "1024", "1.2", "16.0", "8.0")

    before, nvcc = table.read(table.written([row], "2026-01-01", "13.0"))
    assert (before, nvcc) == ([row], "13.0")
    assert not table.worse([row], before)
    assert not table.worse([row._replace(instructions="1.3", warps="64")], before)
    for change in (
        *({"instructions": "1.4"}, {"warps": "40"}, {"spills": "2"}, {"load": "8.0"}),
        *({"store": "4.0"}, {"kernel": "`g`"}),
    ):
        assert table.worse([row._replace(**change)], before)


def test_kernel_names_are_demangled(table):
    name = "void (anonymous namespace)::pool<a, (kind)0, b<c> >((anonymous namespace)::t<a>, int)"
    assert table.demangled(name) == "pool<a, (kind)0, b<c> >"


def test_miscompiled_clamps_are_detected(table):
    lines = [
        "\t\tFunction : _Z1fPf",
        "        /*0250*/                   VIMNMX.RELU R2, PT, PT, R18, 0x4, PT ;",
        "        /*0260*/                   VIADDMNMX.RELU R28, R29, -R176.reuse, 0x20, PT ;",
        "\t\tFunction : _Z1gPf",
        "        /*0250*/                   VIMNMX.RELU R2, P2, P2, R18.reuse, 0x4, PT ;",
    ]
    assert table.wrong_clamps("\n".join(lines)) == ["_Z1gPf"]
