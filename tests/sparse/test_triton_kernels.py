"""The fused convolution, in Triton's interpreter on the CPU, against the operations of torch; and what happens where it
cannot be compiled."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys

import pytest
import torch

from embodied_perceptron.sparse import engine
from embodied_perceptron.sparse.sites import KernelMap

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # read by Triton when a kernel is defined
WITHOUT_TRITON = importlib.util.find_spec("triton") is None


def problem(
    n_in: int, n_out: int, size: int, channels: int, outputs: int, dtype: torch.dtype, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, kernel, sources (whole tiles without a neighbour among them), bias."""
    g = torch.Generator().manual_seed(seed)
    sources = torch.randint(0, n_in + 1, (n_out, size), generator=g, dtype=torch.int32)
    sources[: n_out // 2, ::2] = n_in
    feats, kernel = torch.randn(n_in, channels, generator=g), torch.randn(size, channels, outputs, generator=g)
    return feats.to(dtype), kernel.to(dtype), sources, torch.randn(1, outputs, generator=g).to(dtype)


def exact(feats: torch.Tensor, kernel: torch.Tensor, sources: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    padded = torch.cat([feats, feats.new_zeros(1, feats.shape[1])]).double()
    out = torch.einsum("nkc,kco->no", padded[sources.long()], kernel.double())
    return out if bias is None else out + bias.double()


@pytest.mark.skipif(WITHOUT_TRITON, reason="Triton is not installed: torch for the CPU comes without")
def test_in_the_interpreter() -> None:
    """Triton reads the variable when a kernel is defined: a process of its own."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", __file__, "-q", "-x", "-p", "no:cacheprovider", "-k", "interpreted"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert "skipped" not in done.stdout


@pytest.mark.skipif(WITHOUT_TRITON or not INTERPRETED, reason="see test_in_the_interpreter")
class TestInterpreted:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize(
        ("n_in", "n_out", "size", "channels", "outputs"),
        [
            (200, 150, 27, 16, 24),
            (70, 64, 8, 3, 70),
            (5, 3, 1, 100, 1),
            (70, 9, 3, 96, 80),
            (1, 1, 27, 1, 1),
            (50, 0, 27, 4, 4),
        ],
    )
    def test_interpreted_equals_the_definition(
        self, n_in: int, n_out: int, size: int, channels: int, outputs: int, dtype: torch.dtype
    ) -> None:
        from embodied_perceptron.sparse.triton_kernels import gather_multiply

        feats, kernel, sources, bias = problem(n_in, n_out, size, channels, outputs, dtype)
        plus = torch.randn(n_out, outputs, generator=torch.Generator().manual_seed(2)).to(dtype)
        for b, p, then in ((bias, None, ""), (None, plus, "relu"), (bias, plus, "elu")):
            got, expected = gather_multiply(feats, kernel, sources, b, p, then), exact(feats, kernel, sources, b)
            expected = engine.finished(expected, None if p is None else p.double(), then)
            assert got.dtype == dtype
            assert got.shape == (n_out, outputs)
            # sums are kept in float32: what is lost is the rounding of the result
            scale = expected.abs().max().item() if n_out else 1.0
            lost = scale * max(2 * torch.finfo(dtype).eps, 1e-6)
            torch.testing.assert_close(got.double(), expected, rtol=0, atol=lost)

    def test_interpreted_offsets_of_64_bits_give_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from embodied_perceptron.sparse import triton_kernels

        feats, kernel, sources, bias = problem(90, 70, 27, 16, 24, torch.float32)
        short = triton_kernels.gather_multiply(feats, kernel, sources, bias)
        choose = triton_kernels.tile
        monkeypatch.setattr(triton_kernels, "tile", lambda *a: choose(*a[:-1], 1 << 31))
        torch.testing.assert_close(triton_kernels.gather_multiply(feats, kernel, sources, bias), short)

    def test_interpreted_sources_may_be_columns_of_a_larger_map(self) -> None:
        from embodied_perceptron.sparse.triton_kernels import gather_multiply

        feats, kernel, sources, _ = problem(40, 30, 27, 8, 8, torch.float32)
        part = sources[3:20, 13:14]
        torch.testing.assert_close(
            gather_multiply(feats, kernel[13:14], part).double(),
            exact(feats, kernel[13:14], part, None),
            atol=1e-5,
            rtol=1e-5,
        )

    def test_interpreted_engine_gives_values_and_gradients_of_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        feats, kernel, _, bias = problem(60, 50, 27, 8, 12, torch.float32)
        g = torch.Generator().manual_seed(1)  # within one offset no row occurs twice
        columns = [torch.randperm(60, generator=g)[:50] for _ in range(27)]
        kernel_map = KernelMap(60, 50, None, sources=torch.stack(columns, 1).to(torch.int32))
        results = []
        for fused_one in (True, False):
            monkeypatch.setattr(engine, "_triton_serves", lambda _, it=fused_one: it)
            inputs = [x.clone().requires_grad_() for x in (feats, kernel, bias)]
            out = engine._WholeConvolution.apply(inputs[0], inputs[1], kernel_map, inputs[2])
            out.square().sum().backward()
            results.append((out.detach(), *(x.grad for x in inputs)))
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-5)
        assert not engine._triton_faults


def test_what_does_not_compile_is_said_once_and_computed_by_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    feats, kernel, sources, bias = problem(30, 20, 27, 4, 6, torch.float32)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(engine, "_triton_installed", lambda: True)
    monkeypatch.setitem(sys.modules, "embodied_perceptron.sparse.triton_kernels", None)  # its import fails
    monkeypatch.setattr(engine, "_triton_faults", [])
    assert engine._triton_serves(feats)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            out = engine._multiply_gathered(feats, kernel, sources, bias)
            torch.testing.assert_close(out.double(), exact(feats, kernel, sources, bias), atol=1e-4, rtol=1e-5)
    assert len(engine._triton_faults) == 1
    assert len(caplog.records) == 1
    assert "torch operations compute" in caplog.text
    assert not engine._triton_serves(feats)


def test_a_device_that_fails_is_no_fault_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernels:
        @staticmethod
        def gather_multiply(*_: object) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setitem(sys.modules, "embodied_perceptron.sparse.triton_kernels", Kernels)
    monkeypatch.setattr("embodied_perceptron.sparse.triton_kernels", Kernels, raising=False)
    feats, kernel, sources, bias = problem(30, 20, 27, 4, 6, torch.float32)
    monkeypatch.setattr(engine, "_triton_faults", [])
    with pytest.raises(torch.OutOfMemoryError):
        engine._triton_multiply(feats, kernel, sources, bias)
    assert not engine._triton_faults


def test_only_where_it_computes() -> None:
    assert not engine._triton_serves(torch.zeros(1, 1, dtype=torch.float64))
    if not INTERPRETED:
        assert not engine._triton_serves(torch.zeros(1, 1))


@pytest.mark.skipif(WITHOUT_TRITON or INTERPRETED, reason="Triton is not installed: torch for the CPU comes without")
@pytest.mark.parametrize(("capability", "precision"), [(87, "fp32"), (87, "fp16"), (90, "tf32"), (90, "bf16")])
@pytest.mark.parametrize("kind", ["aligned", "ragged"])
def test_sums_stay_in_registers_on_cards_that_are_not_there(capability: int, precision: str, kind: str) -> None:
    """In machine code, with the tensor cores' instructions where a precision has them; ``benchmarks/kernels.py``
    compiles all variants."""
    import kernels

    row, ptx = kernels.triton_variant(capability, precision, kind)
    assert not kernels.too_large(row), row
    assert row["registers"] > 16
    assert row["shared_bytes"] <= 99 * 1024  # that the least of these cards gives a block
    assert ("mma" in ptx) == (precision != "fp32")


@pytest.mark.parametrize(("registers", "spill", "fails"), [(168, 0, False), (169, 0, True), (32, 8, True)])
def test_a_spill_or_too_many_registers_fail(registers: int, spill: int, fails: bool) -> None:
    import kernels

    assert kernels.too_large({"registers": registers, "spill_bytes": spill}) == fails


@pytest.mark.skipif(WITHOUT_TRITON, reason="Triton is not installed: torch for the CPU comes without")
@pytest.mark.parametrize("capability", [70, 75, 80, 86, 87, 89, 90, 100, 103, 120])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_every_card_has_a_tile_of_the_table(capability: int, precision: str) -> None:
    from embodied_perceptron.sparse.triton_kernels import CHANNELS, tile

    listed = max((c for c in CHANNELS if c <= capability), default=80)
    wide = tile(capability, precision, 256, 256, 1 << 20)
    assert wide == tile(listed, precision, 256, 256, 1 << 20)
    assert (wide.outputs, wide.warps, wide.long) == (64, 4, False)
    assert tile(capability, precision, 3, 1, 1)[:3] == (16, 16, 8)  # the least that a tensor core multiplies
    # offsets of 32 bits reach elements below 2^31
    assert not tile(capability, precision, 64, 64, (1 << 31) - 1).long
    assert tile(capability, precision, 64, 64, 1 << 31).long
