"""Kernels compiled for GPUs that are not there: registers, spills and shared memory of every variant.

    python benchmarks/kernels.py            # table, and out/bench/kernels.json; a minute
    python benchmarks/kernels.py --quick    # sm_87 and sm_90, the convolution in two precisions

Compiles for sm_80 (A100), 87 (Jetson Orin), 90 (H100) and 100 (B200), and fails (exit code 1) where a variant spills or
needs more than 168 registers: three blocks of 128 threads must fit a multiprocessor. The sparse convolution is compiled
by Triton, whose wheel brings ptxas and cuobjdump; the kernels of the map, views, sites and boxes by Warp. ``missing``
names a compiler that is not installed, and its kernels are left out.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _report as report

ARCHITECTURES = (80, 87, 90, 100)
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
MOST_REGISTERS = 168
CHANNELS = {"aligned": 64, "ragged": 70, "long": 64}  # of a convolution
Row = dict[str, Any]


def triton_variant(capability: int, precision: str, kind: str) -> tuple[Row, str]:
    """Resources of one variant of the sparse convolution, and its PTX."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from embodied_perceptron.sparse import triton_kernels

    kernel, channels = triton_kernels._gather_multiply, CHANNELS[kind]
    tile = triton_kernels.tile(capability, precision, channels, channels, 1 << 31 if kind == "long" else 1)
    constants = {
        "column_stride": 1, "HAS_BIAS": True, "HAS_PLUS": True, "THEN": "elu",
        "PRECISION": "tf32" if precision == "tf32" else "ieee", "WIDEN": False, "LONG": tile.long,
        "ROWS": triton_kernels._ROWS, "IN": tile.channels, "OUT": tile.outputs,
    }  # fmt: skip
    dtype = "fp32" if precision == "tf32" else precision
    tensors = dict.fromkeys(("feats", "weights", "bias", "plus", "out"), f"*{dtype}") | {"sources": "*i32"}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else tensors.get(name, "i32") for name in names}
    # what Triton finds at run time: arrays start at multiples of 16 bytes
    multiples = (*(n for n in tensors if n != "sources"), *(() if kind == "ragged" else ("channels", "outputs")))
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in multiples}
    source = ASTSource(kernel, signature, {(names.index(n),): v for n, v in constants.items()}, aligned)
    options = {"num_warps": tile.warps, "num_stages": 2}
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    (usage,) = resources(built.asm["cubin"]).values()
    usage["shared_bytes"] = built.metadata.shared  # Triton asks for it at the launch
    return {"kernel": f"gather_multiply {kind}", "sm": capability, "precision": precision, **usage}, built.asm["ptx"]


def warp_kernels(capability: int) -> list[Row]:
    """Resources of every kernel of the map, of network input, of view sampling, of sites and of boxes."""
    import warp

    from embodied_perceptron.geometry import overlap_kernels
    from embodied_perceptron.mapping import export_kernels, warp_kernels
    from embodied_perceptron.nn import view_kernels
    from embodied_perceptron.sparse import site_kernels

    found: dict[str, Row] = {}
    for module in (warp_kernels, export_kernels, view_kernels, site_kernels, overlap_kernels):
        with tempfile.TemporaryDirectory() as folder:
            warp.compile_aot_module(module, arch=capability, module_dir=folder, use_ptx=False)
            (cubin,) = Path(folder).glob("*.cubin")
            found |= resources(cubin.read_bytes())
    # Warp appends a hash and "_cuda_kernel_forward" to the name
    return [{"kernel": name.rsplit("_", 4)[0], "sm": capability, "precision": "", **row} for name, row in found.items()]


def resources(cubin: bytes) -> dict[str, Row]:
    """Registers of a thread, bytes of its stack (spills), and shared memory of a block, of each kernel of a binary."""
    import triton

    dump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(dump), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Function (\S+?):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", text)
    if not found:
        raise RuntimeError(f"cuobjdump names no kernel:\n{text[:1000]}")
    return {n: {"registers": int(r), "spill_bytes": int(s), "shared_bytes": int(m)} for n, r, s, m in found}


def too_large(row: Row) -> bool:
    """Whether a variant spills or needs too many registers."""
    return bool(row["spill_bytes"] > 0 or row["registers"] > MOST_REGISTERS)


def variants(quick: bool, missing: list[str]) -> Iterator[Row]:
    for capability in (87, 90) if quick else ARCHITECTURES:
        if "warp" not in missing:
            yield from warp_kernels(capability)
        for precision in ("fp32", "fp16") if quick else PRECISIONS:
            for kind in ("aligned", "ragged") if quick else CHANNELS:
                yield triton_variant(capability, precision, kind)[0]


def main() -> int:
    options = report.parse(report.parser(__doc__))
    missing = [name for name in ("triton", "warp") if importlib.util.find_spec(name) is None]
    rows = [] if "triton" in missing else list(variants(options.quick, missing))
    report.show("kernels", rows)
    failed = [row for row in rows if too_large(row)]
    for row in failed:
        print(f"{row['kernel']} for sm_{row['sm']} {row['precision']} spills or needs too many registers: {row}")
    if missing:
        print(f"left out, for {', '.join(missing)} is not installed: pip install triton warp-lang")
    figures = {
        "variants": len(rows),
        "too_large": len(failed),
        "most_registers": max((row["registers"] for row in rows), default=None),
        "missing": ", ".join(missing),
        "kernels": rows,
    }
    report.write(options, figures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
