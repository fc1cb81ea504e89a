"""Kernels of the map, compiled for GPUs that are not there."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from support.volume_frames import needs_warp


@needs_warp
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton, whose wheel has cuobjdump, is absent")
@pytest.mark.parametrize("capability", [87, pytest.param(100, marks=pytest.mark.slow)])
def test_the_kernels_compile_and_stay_in_registers(capability: int) -> None:
    import kernels

    rows = {row["kernel"]: row for row in kernels.warp_kernels(capability)}
    names = {"touch_blocks", "allocate_blocks", "accumulate", "merge", "clear_blocks", "erase_blocks", "rebuild_table"}
    names |= {"list_distances", "retire_blocks", "list_voxels", "pack_voxels", "volume_parts"}
    assert rows.keys() == names | {"find_cells", "locate", "interpolate", "add_to_sites", "find_sites", "site_columns"}
    assert not [row for row in rows.values() if kernels.too_large(row)]


@needs_warp
@pytest.mark.parametrize(
    "module", ["mapping.warp_kernels", "nn.view_kernels", "sparse.site_kernels", "geometry.overlap_kernels"]
)
def test_products_and_sums_are_rounded_one_by_one(tmp_path: Path, module: str) -> None:
    """A fused multiply-add on a GPU would give other last bits than the loops of the CPU."""
    import warp

    compiled = importlib.import_module(f"embodied_perceptron.{module}")
    warp.compile_aot_module(compiled, arch=87, module_dir=tmp_path, use_ptx=True)
    (ptx,) = tmp_path.glob("*.ptx")
    text = ptx.read_text()
    assert "mul.rn.f64" in text
    assert "fma.rn.f64" not in text
