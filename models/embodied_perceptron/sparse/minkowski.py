"""Sparse layers computed by MinkowskiEngine 0.5.4, where it is installed (``make minkowski`` builds it).

MinkowskiEngine gets the input and output sites of a layer from this package, finds the pairs and multiplies. Its
coordinate maps keep the order of insertion, so features need no reordering.
"""

from __future__ import annotations

from typing import Any

import MinkowskiEngine as ME  # noqa: N817
import torch
from MinkowskiEngineBackend._C import ConvolutionMode

from embodied_perceptron.sparse.sites import Sites


class MinkowskiEngineAdapter:
    """Implements :class:`embodied_perceptron.sparse.sites.Engine`."""

    name = "minkowski"

    def convolve(
        self,
        feats: torch.Tensor,
        kernel: torch.Tensor,
        in_sites: Sites,
        out_sites: Sites,
        kernel_size: int,
        crowded: bool | torch.Tensor = False,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        manager, transposed = _manager(in_sites), out_sites.stride < in_sites.stride
        function = ME.MinkowskiConvolutionTransposeFunction if transposed else ME.MinkowskiConvolutionFunction
        coarse, fine = (in_sites, out_sites) if transposed else (out_sites, in_sites)
        result: torch.Tensor = function.apply(
            feats,
            kernel,
            _generator(kernel_size, coarse.stride // fine.stride),
            ConvolutionMode.DEFAULT,
            _map_key(in_sites, manager),
            _map_key(out_sites, manager),
            manager,
        )
        return result if bias is None else result + bias

    def max_pool(self, feats: torch.Tensor, in_sites: Sites, out_sites: Sites, kernel_size: int) -> torch.Tensor:
        manager = _manager(in_sites)
        stride = out_sites.stride // in_sites.stride
        result: torch.Tensor = ME.MinkowskiLocalPoolingFunction.apply(
            feats,
            ME.PoolingMode.LOCAL_MAX_POOLING,
            _generator(kernel_size, stride),
            _map_key(in_sites, manager),
            _map_key(out_sites, manager),
            manager,
        )
        if kernel_size < stride:  # output sites without input are undefined in MinkowskiEngine
            reached = torch.zeros(len(out_sites), 1, dtype=torch.bool, device=feats.device)
            for _, out_rows in in_sites.kernel_map(out_sites, kernel_size).pairs:
                reached[out_rows] = True
            result = torch.where(reached, result, 0.0)
        return result


def supports(device_type: str) -> bool:
    """Whether this build supports the device type."""
    return device_type == "cpu" or (device_type == "cuda" and bool(ME.is_cuda_available()))


def _generator(kernel_size: int, stride: int) -> Any:
    return ME.KernelGenerator(kernel_size=kernel_size, stride=stride, dilation=1, dimension=3)


def _manager(sites: Sites) -> Any:
    """The coordinate manager of all sites derived from one input."""
    if "minkowski" not in sites.engine_shared:
        kind = ME.CoordinateMapType.CPU if sites.device.type == "cpu" else ME.CoordinateMapType.CUDA
        sites.engine_shared["minkowski"] = ME.CoordinateManager(D=3, coordinate_map_type=kind)
    return sites.engine_shared["minkowski"]


def _map_key(sites: Sites, manager: Any) -> Any:
    """Key of the sites in the manager; inserts them at first use."""
    if sites.engine_state is not None and sites.engine_state[0] is manager:
        return sites.engine_state[1]
    rows = torch.cat([sites.samples[:, None], sites.coords], dim=1).to(torch.int32)
    name = f"sites{manager.__dict__.setdefault('inserted_sites', 0)}"
    manager.inserted_sites += 1
    key, (unique_rows, _) = manager.insert_and_map(rows, sites.stride, name)
    # an empty or identity map means that rows keep their order, which the features require
    if len(unique_rows) and not torch.equal(unique_rows.cpu(), torch.arange(len(sites), dtype=unique_rows.dtype)):
        raise RuntimeError(f"MinkowskiEngine reordered {len(sites)} sites")
    sites.engine_state = (manager, key)
    return key
