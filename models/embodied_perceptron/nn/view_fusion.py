"""Multi-view fusion: average the image features of all views that see a voxel.

Training and streaming share the arithmetic. :func:`fuse_views` sums over views in order;
``mapping.image_features.StreamingFusion`` keeps the same sums per voxel and updates them when voxels or views change.
Both add the same terms in the same order for each voxel, so they agree bit for bit; in another order of views they
agree to rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from embodied_perceptron.geometry.compute_path import launch, runs_compiled
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import Intrinsics, check_transform, invert_transform, site_coordinates
from embodied_perceptron.nn.official import CORRECTED, Conventions
from embodied_perceptron.sparse.sites import Sites, empty_row

# --------------------------------------------------------------------------------------------------------------------
# compiled loops for the CPU, which release the interpreter's lock


class CompiledView(NamedTuple):
    """A view as input of the compiled loops.

    Attributes:
        P: the 12 numbers of the (3, 4) projection to pixels of the (image_h, image_w) input, row by row.
        image_h, image_w, h, w: sizes of the input and of the feature map.
        depth: (H, W) float32 metres, 0 = unknown; a point more than ``margin`` behind it is hidden.
        margin: metres; negative = no occlusion test.
        min_depth: points nearer to the camera are not visible.
    """

    P: tuple[float, ...]
    image_h: int
    image_w: int
    h: int
    w: int
    depth: NDArray[np.float32]
    margin: float
    min_depth: float


@njit(cache=True, nogil=True)
def visible_cells(
    points: NDArray[np.float64],
    view: CompiledView,
    rows: NDArray[np.int64],
    cells: NDArray[np.int64],
) -> int:
    """Find the (N, 3) points that a view sees, and the cell of its flattened feature map for each.

    The operations are those of :func:`_sample_by_tensors`, so results agree to the bit.

    Args:
        points: world metres.
        rows, cells: (N,) outputs, filled up to the returned count.
    """
    P, depth = view.P, view.depth
    count = 0
    for i in range(len(points)):
        x, y, z = points[i, 0], points[i, 1], points[i, 2]
        behind = x * P[8] + y * P[9] + z * P[10] + P[11]
        if not behind > view.min_depth:
            continue
        u = x * P[0] + y * P[1] + z * P[2] + P[3]
        v = x * P[4] + y * P[5] + z * P[6] + P[7]
        if u < -behind or u > view.image_w * behind or v < -behind or v > view.image_h * behind:
            continue  # conservative test without a division
        u /= behind
        v /= behind
        if not (u >= -0.5 and u < view.image_w - 0.5 and v >= -0.5 and v < view.image_h - 0.5):
            continue
        if view.margin >= 0:
            measured = np.float64(depth[_at(v, view.image_h, depth.shape[0]), _at(u, view.image_w, depth.shape[1])])
            if measured > 0 and behind > measured + view.margin:
                continue
        rows[count] = i
        cells[count] = _at(v, view.image_h, view.h) * view.w + _at(u, view.image_w, view.w)
        count += 1
    return count


@njit(cache=True, nogil=True)
def accumulate_fp16(
    points: NDArray[np.float64],
    subset: NDArray[np.int64],
    view: CompiledView,
    features: NDArray[np.uint16],
    total: NDArray[np.float32],
    count: NDArray[np.int32],
) -> None:
    """:func:`visible_cells`, and add the features of the cells to the sums.

    Args:
        subset: (N,) rows of the sums for the points; empty = the points in order.
        features: (h * w, C) the bits of 16-bit floats.
        total, count: (M, C) and (M,) sums and number of views, changed in place.
    """
    rows, cells = np.empty(len(points), np.int64), np.empty(len(points), np.int64)
    for k in range(visible_cells(points, view, rows, cells)):
        row = subset[rows[k]] if len(subset) else rows[k]
        count[row] += 1
        for c in range(total.shape[1]):
            total[row, c] += _as_float(features[cells[k], c])


@njit(cache=True, nogil=True)
def _as_float(half: np.uint16) -> np.float32:
    """Convert the bits of a 16-bit float to a 32-bit float, exactly: shift the exponent and correct its bias."""
    bits = ((half & np.uint32(0x7FFF)) << np.uint32(13)) | ((half & np.uint32(0x8000)) << np.uint32(16))
    if half & np.uint32(0x7C00) == np.uint32(0x7C00):  # infinity or NaN
        bits |= np.uint32(0x7F800000)
    value: np.float32 = np.uint32(bits).view(np.float32) * np.float32(2.0**112)
    return value


@njit(cache=True, nogil=True)
def _at(pixel: float, size: int, cells: int) -> int:
    """Index of the cell of a pixel coordinate, of ``cells`` cells that cover ``size`` pixels."""
    return min(max(int(np.floor((pixel + 0.5) * (cells / size))), 0), cells - 1)


# --------------------------------------------------------------------------------------------------------------------
# views, sampling, averaging

MIN_DEPTH_M = 1e-3
_NO_DEPTH = np.zeros((1, 1), np.float32)
_ALL_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class ViewSamplingConfig:
    """Sampling of views at the nearest cell of their feature maps.

    Attributes:
        occlusion_margin_m: a voxel is hidden in a view when its centre lies behind the measured depth by more than this
            plus half the voxel's diagonal; None = no test. With unknown depth the voxel counts as visible.
        conventions: positions of voxels in their cells, and whether views are masked.
    """

    occlusion_margin_m: float | None = None
    conventions: Conventions = CORRECTED

    def __post_init__(self) -> None:
        if self.occlusion_margin_m is not None and not self.occlusion_margin_m >= 0:
            raise ValueError(f"occlusion_margin_m must not be negative, got {self.occlusion_margin_m}")
        if self.conventions.unmasked_views and self.occlusion_margin_m is not None:
            raise ValueError("occlusion_margin_m must be None with unmasked views (official behaviour)")


@dataclass(frozen=True, eq=False)
class View:
    """The features of one image and its camera.

    Attributes:
        projection: (3, 4) float64, world metres -> (u z, v z, z); u, v are pixels of the encoder's input, integers at
            pixel centres.
        image_size: (h, w) of the encoder's input.
        levels: feature maps (h_l, w_l, C_l), channels last, finest first; each covers the whole image.
        depth_m: (H, W) canonical depth of the same field of view, of any resolution, for the occlusion test, or None.

    Raises ``ValueError`` when a shape does not fit.
    """

    projection: torch.Tensor
    image_size: tuple[int, int]
    levels: tuple[torch.Tensor, ...]
    depth_m: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.projection.shape != (3, 4) or self.projection.dtype != torch.float64:
            raise ValueError(f"projection must be (3, 4) float64, got {tuple(self.projection.shape)}")
        if min(self.image_size) < 1:
            raise ValueError(f"image_size must be positive, got {self.image_size}")
        for i, level in enumerate(self.levels):
            if level.ndim != 3 or 0 in level.shape:
                raise ValueError(f"level {i} must be a non-empty (h, w, C) map, got {tuple(level.shape)}")
        if self.depth_m is not None and (self.depth_m.ndim != 2 or 0 in self.depth_m.shape):
            raise ValueError(f"depth_m must be a non-empty (H, W) image, got {tuple(self.depth_m.shape)}")


def view_projection(
    T_world_camera: NDArray[np.float64], intrinsics: Intrinsics, image_size: tuple[int, int]
) -> torch.Tensor:
    """(3, 4) float64 projection from the world to pixels of the image after its resize to ``image_size`` = (h, w).

    Raises ``ValueError`` for a pose that is not rigid.
    """
    h, w = image_size
    sx, sy = w / intrinsics.width, h / intrinsics.height
    # pixel centres: u' = (u + 0.5) sx - 0.5
    K = np.array(
        [
            [intrinsics.fx * sx, 0.0, (intrinsics.cx + 0.5) * sx - 0.5],
            [0.0, intrinsics.fy * sy, (intrinsics.cy + 0.5) * sy - 0.5],
            [0.0, 0.0, 1.0],
        ]
    )
    T_camera_world = invert_transform(check_transform(T_world_camera, "T_world_camera"))
    return torch.from_numpy(K @ T_camera_world[:3])


def site_radius(stride: int, voxel_size_m: float) -> float:
    """Half the diagonal of a cell, metres."""
    return 0.5 * stride * voxel_size_m * 3**0.5


@dataclass(frozen=True, eq=False)
class _Sample:
    """Contribution of one view: ``feats`` (M, C) to the sums of ``rows`` (M,), and 1 to the counts of ``seen`` (K,)."""

    rows: torch.Tensor
    feats: torch.Tensor
    seen: torch.Tensor


def _project(projections: torch.Tensor, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(..., 3, 4) projections, (N, 3) -> u, v, depth, each (..., N) float64.

    Not a matrix product, whose order of summation depends on its size: the result of a point must not depend on the
    other points.
    """
    P = projections.to(points.device)[..., None]
    x, y, z = points.unbind(dim=1)
    rows = [x * P[..., i, 0, :] + y * P[..., i, 1, :] + z * P[..., i, 2, :] + P[..., i, 3, :] for i in range(3)]
    safe = rows[2].clamp(min=MIN_DEPTH_M)
    return rows[0] / safe, rows[1] / safe, rows[2]


def _visible(
    view: View, u: torch.Tensor, v: torch.Tensor, depth: torch.Tensor, config: ViewSamplingConfig, radius_m: float
) -> torch.Tensor:
    """(N,) bool: in front of the camera, in frame, and not hidden."""
    h, w = view.image_size
    if config.conventions.unmasked_views:
        return (u > 0) & (u < w) & (v > 0) & (v < h) & (depth > 0)
    seen = (u >= -0.5) & (u < w - 0.5) & (v >= -0.5) & (v < h - 0.5) & (depth > MIN_DEPTH_M)
    if config.occlusion_margin_m is None:
        return seen
    if view.depth_m is None:
        raise ValueError("the occlusion test needs the depth image of every view")
    image = view.depth_m
    rows = seen.nonzero()[:, 0]
    column = _cell(u[rows], w, image.shape[1])
    row = _cell(v[rows], h, image.shape[0])
    measured = image[row, column].double()  # 0 = unknown
    hidden = (measured > 0) & (depth[rows] > measured + (config.occlusion_margin_m + radius_m))
    return seen.index_put((rows[hidden],), torch.zeros((), dtype=torch.bool, device=seen.device))


def _cell(pixel: torch.Tensor, size: int, cells: int) -> torch.Tensor:
    """Index of the cell of a pixel coordinate, of ``cells`` cells that cover ``size`` pixels."""
    return torch.floor((pixel + 0.5) * (cells / size)).long().clamp_(0, cells - 1)


def _is_compiled(points: torch.Tensor, config: ViewSamplingConfig) -> bool:
    """Whether compiled loops support this sampling."""
    return runs_compiled(points) and points.dtype == torch.float64 and not config.conventions.unmasked_views


def sample_view(view: View, level: int, points: torch.Tensor, config: ViewSamplingConfig, radius_m: float) -> _Sample:
    if not _is_compiled(points, config):
        return _sample_by_tensors(view, level, points, config, radius_m)
    rows, cells = _visible_cells(view, level, points, config, radius_m)
    sites, found = torch.from_numpy(rows), torch.from_numpy(cells)
    return _Sample(sites, view.levels[level].flatten(0, 1)[found], sites)


def visible_features(
    view: View, level: int, points: torch.Tensor, config: ViewSamplingConfig, radius_m: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """:func:`sample_view` in host memory, by compiled loops: rows of the (N, 3) points that the view sees, and (S, C)
    features there."""
    if config.conventions.unmasked_views:
        sample = _sample_by_tensors(view, level, points, config, radius_m)
        return sample.rows.numpy(), sample.feats.float().numpy()
    rows, cells = _visible_cells(view, level, points, config, radius_m)
    features = view.levels[level].numpy()
    return rows, features.reshape(-1, features.shape[2])[cells].astype(np.float32)


def _visible_cells(
    view: View, level: int, points: torch.Tensor, config: ViewSamplingConfig, radius_m: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows, cells = np.empty(len(points), np.int64), np.empty(len(points), np.int64)
    seen = visible_cells(points.contiguous().numpy(), _compiled_view(view, level, config, radius_m), rows, cells)
    return rows[:seen], cells[:seen]


def _compiled_view(view: View, level: int, config: ViewSamplingConfig, radius_m: float) -> CompiledView:
    if config.occlusion_margin_m is not None and view.depth_m is None:
        raise ValueError("the occlusion test needs the depth image of every view")
    depth, margin_m = _NO_DEPTH, -1.0  # not tested
    if view.depth_m is not None and config.occlusion_margin_m is not None:
        depth, margin_m = view.depth_m.float().contiguous().numpy(), config.occlusion_margin_m + radius_m
    h, w = view.levels[level].shape[:2]
    return CompiledView(
        tuple(view.projection.numpy().ravel().tolist()), *view.image_size, h, w, depth, margin_m, MIN_DEPTH_M
    )


def _sample_by_tensors(
    view: View, level: int, points: torch.Tensor, config: ViewSamplingConfig, radius_m: float
) -> _Sample:
    """:func:`sample_view` on any device."""
    u, v, depth = _project(view.projection, points)
    seen = _visible(view, u, v, depth, config, radius_m)
    feature_map = view.levels[level]
    h, w = feature_map.shape[:2]
    image_h, image_w = view.image_size
    flat = feature_map.reshape(h * w, -1)
    if not config.conventions.unmasked_views:
        rows = seen.nonzero()[:, 0]
        index = _cell(v[rows], image_h, h) * w + _cell(u[rows], image_w, w)
        return _Sample(rows, flat[index], rows)
    # the released code aligns corners and samples invalid points too (zeros outside)
    x, y = torch.round(u / image_w * (w - 1)), torch.round(v / image_h * (h - 1))  # half to even, as grid sampling
    rows = ((x >= 0) & (x < w) & (y >= 0) & (y < h)).nonzero()[:, 0]
    index = y[rows].long() * w + x[rows].long()
    return _Sample(rows, flat[index], seen.nonzero()[:, 0])


def mean_over_views(total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Average; zero where no view sees the voxel, even if the official behaviour has summed features there."""
    return torch.where(count[:, None] > 0, total / count.clamp(min=1)[:, None], 0.0)


def fuse_views(
    points: torch.Tensor,
    views: Sequence[View],
    level: int,
    channels: int,
    config: ViewSamplingConfig,
    radius_m: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Average of the views' features at each point; differentiable in the feature maps.

    Args:
        points: (N, 3) float64 world positions.
        views: any number, summed in this order.
        level: which feature map.
        channels: C.
        radius_m: half the diagonal of the voxels, for the occlusion test.

    Returns (N, C) features, zero where no view sees the point, and the (N,) int32 number of views that see it.
    """
    if stacks := stacked(views, [level], config):
        spans = [Span(0, len(points), radius_m)]
        totals, count = read_stacks(points, spans, stacks, config)
        _check_channels(totals[0], level, channels)
        return totals[0] / count.clamp(min=1)[:, None], count
    total = torch.zeros(len(points), channels, device=points.device)
    count = torch.zeros(len(points), dtype=torch.int32, device=points.device)
    for view in views:
        add_view(total, count, None, points, view, level, config, radius_m)
    return mean_over_views(total, count), count


def add_view(
    total: torch.Tensor, count: torch.Tensor, subset: torch.Tensor | None, points: torch.Tensor, view: View, level: int,
    config: ViewSamplingConfig, radius_m: float,
) -> None:  # fmt: skip
    """Add one view to the sums in place; ``subset``: rows of the sums for ``points`` (None = all)."""
    feature_map = view.levels[level]
    _check_channels(feature_map, level, total.shape[1])
    halves = feature_map.dtype == torch.float16 and not feature_map.requires_grad
    if halves and total.dtype == torch.float32 and _is_compiled(points, config):
        features = feature_map.flatten(0, 1).view(torch.int16).contiguous().numpy().view(np.uint16)
        rows_of = _ALL_ROWS if subset is None else subset.numpy()
        data = _compiled_view(view, level, config, radius_m)
        accumulate_fp16(points.contiguous().numpy(), rows_of, data, features, total.numpy(), count.numpy())
        return
    sample = sample_view(view, level, points, config, radius_m)
    rows, seen = sample.rows, sample.seen
    if subset is not None:
        rows, seen = subset[rows], subset[seen]
    total.index_add_(0, rows, sample.feats.to(total.dtype))
    count.index_add_(0, seen, torch.ones_like(seen, dtype=count.dtype))


def _check_channels(features: torch.Tensor, level: int, channels: int) -> None:
    if features.shape[-1] != channels:
        raise ValueError(f"level {level} has {features.shape[-1]} channels, expected {channels}")


# --------------------------------------------------------------------------------------------------------------------
# all views and levels at once, for devices, where launches and synchronisation cost more than arithmetic

_PAIRS = 1 << 21  # pairs of a site and a view that are computed together: 150 MB
_TABLE_NUMBERS = 1 << 25  # feature values of views that are read together: 128 MB


class Span(NamedTuple):
    """The points of one level: rows [first, end), and half the diagonal of their cells in metres."""

    first: int
    end: int
    radius_m: float


@dataclass(frozen=True, eq=False)
class ViewStack:
    """Views of one shape, stacked on one device.

    Attributes:
        projections: (3, 4, V) float64.
        image_size: (h, w).
        depth_m: (V, H, W), or None without occlusion test.
        tables: per level (V * h * w + 1, C) float32 features, the last row zeros.
        shapes: per level (h, w).
    """

    projections: torch.Tensor
    image_size: tuple[int, int]
    depth_m: torch.Tensor | None
    tables: tuple[torch.Tensor, ...]
    shapes: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return self.projections.shape[2]


def stacked(views: Sequence[View], levels: Sequence[int], config: ViewSamplingConfig) -> list[ViewStack]:
    """The views in order, as many together as memory allows; [] when :func:`read_stacks` does not support them: on the
    CPU, without views, with several shapes, or with unmasked views."""
    if not views or config.conventions.unmasked_views:
        return []
    if runs_compiled(*(views[0].levels[i] for i in levels)):
        return []
    tested = config.occlusion_margin_m is not None
    shapes = {(v.image_size, *(v.levels[i].shape for i in levels), v.depth_m.shape if tested and v.depth_m is not None
               else None) for v in views}  # fmt: skip
    if len(shapes) > 1 or (tested and views[0].depth_m is None):
        return []
    maps = [views[0].levels[i] for i in levels]
    together = max(_TABLE_NUMBERS // sum(m.numel() for m in maps), 1)
    stacks = []
    for start in range(0, len(views), together):
        some = views[start : start + together]
        tables = []
        for i, like in zip(levels, maps, strict=True):
            rows = [v.levels[i].flatten(0, 1) for v in some]
            tables.append(torch.cat([*rows, empty_row(like.shape[2], like.dtype, like.device)]).float())
        projections = torch.stack([v.projection for v in some], -1).to(maps[0].device)
        depth_m = torch.stack([d.float() for v in some if (d := v.depth_m) is not None]) if tested else None
        shape = tuple((m.shape[0], m.shape[1]) for m in maps)
        stacks.append(ViewStack(projections, some[0].image_size, depth_m, tuple(tables), shape))
    return stacks


def read_stacks(
    points: torch.Tensor,
    spans: Sequence[Span],
    stacks: Sequence[ViewStack],
    config: ViewSamplingConfig,
    mean: bool = False,
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Sum the features of all views at all points in the order of the views: equal to the bit to :func:`add_view` view
    by view, without synchronising. Differentiable in the feature maps.

    Args:
        points: (N, 3) float64 world positions; spans: per level of the stacks its points, in order.
        stacks: of :func:`stacked`, at least one.
        mean: averages instead of sums; only for a single stack.

    Returns (M, C) sums per level, and the (N,) int32 number of views that see each point.
    """
    together = max(_PAIRS // max(len(stack) for stack in stacks), 1)
    parts: list[list[torch.Tensor]] = [[] for _ in spans]
    counts = []
    for start in range(0, max(len(points), 1), together):
        end = min(start + together, len(points))
        inside = [Span(max(s.first, start) - start, max(min(s.end, end) - start, 0), s.radius_m) for s in spans]
        inside = [Span(min(s.first, s.end), s.end, s.radius_m) for s in inside]
        some: list[torch.Tensor] | None = None
        seen = torch.zeros(end - start, dtype=torch.int32, device=points.device)
        for stack in stacks:
            some = _read_stack(points[start:end], inside, stack, config, some, seen, "mean" if mean else "sum")
        assert some is not None
        for part, read in zip(parts, some, strict=True):
            part.append(read)
        counts.append(seen)
    return [p[0] if len(p) == 1 else torch.cat(p) for p in parts], counts[0] if len(counts) == 1 else torch.cat(counts)


def _read_stack(
    points: torch.Tensor,
    spans: Sequence[Span],
    stack: ViewStack,
    config: ViewSamplingConfig,
    before: Sequence[torch.Tensor] | None,
    seen: torch.Tensor,
    mode: Literal["sum", "mean"],
) -> list[torch.Tensor]:
    """:func:`read_stacks` of one stack; ``before``: sums of previous stacks, to which it adds; ``seen`` (N,) is raised
    by the number of views that see each point."""
    from embodied_perceptron.nn import view_kernels

    device, (image_h, image_w), views = points.device, stack.image_size, len(stack)
    numbers = [
        (span.end, w / image_w, h / image_h, w, h, len(table) - 1, span.radius_m)
        for (h, w), table, span in zip(stack.shapes, stack.tables, spans, strict=True)
    ]
    by_level = torch.tensor(numbers, dtype=torch.float64).to(device, non_blocking=True)
    margin_m = -1.0 if config.occlusion_margin_m is None or stack.depth_m is None else config.occlusion_margin_m
    depth_m = stack.tables[0].detach()[None] if stack.depth_m is None else stack.depth_m
    index = torch.empty(len(points), views, dtype=torch.int64, device=device)  # rows of the tables
    launch(
        view_kernels.find_cells, (len(points), views), points.contiguous(), by_level, stack.projections, depth_m,
        margin_m, MIN_DEPTH_M, float(image_w), float(image_h), index, seen,
    )  # fmt: skip
    terms = views if before is None else views + 1
    firsts = torch.arange(0, max(s.end - s.first for s in spans) * terms, terms, device=device)
    totals = []
    for i, (span, table) in enumerate(zip(spans, stack.tables, strict=True)):
        rows, empty = index[span.first : span.end], len(table) - 1
        if before is not None:  # as first term
            own_rows = torch.arange(len(table), len(table) + len(rows), device=device)
            rows, table = torch.cat([own_rows[:, None], rows], 1), torch.cat([table, before[i]])
        # adds the terms of a row in order, without invisible ones
        totals.append(
            functional.embedding_bag(rows.flatten(), table, firsts[: len(rows)], mode=mode, padding_idx=empty)
        )
    return totals


@runtime_checkable
class LevelsLookup(Protocol):
    """A lookup that reads all levels together, faster than one by one."""

    def levels(self, sites: Sequence[Sites]) -> list[torch.Tensor]:
        """``self(i, sites[i])`` of every level."""
        ...


def read_levels(
    lookup: LevelsLookup | Callable[[int, Sites], torch.Tensor], sites: Sequence[Sites]
) -> list[torch.Tensor]:
    """``lookup(i, sites[i])`` of every level without autocast, which would project points in half precision and does
    not support features stored as float16."""
    with torch.autocast(sites[0].device.type, enabled=False):
        if isinstance(lookup, LevelsLookup):
            return lookup.levels(sites)
        return [lookup(i, s) for i, s in enumerate(sites)]


def mean_at_levels(
    sites: Sequence[Sites],
    rows: Sequence[tuple[int, int]],
    stacks: Sequence[ViewStack],
    voxel_size_m: float,
    config: ViewSamplingConfig,
) -> list[torch.Tensor]:
    """Averages over the views of the stacks at a range of rows of the sites of each level."""
    keys = [s.keys[first:end] for s, (first, end) in zip(sites, rows, strict=True)]
    ends = itertools.accumulate((len(k) for k in keys), initial=0)
    spans = [
        Span(first, end, site_radius(s.stride, voxel_size_m))
        for s, (first, end) in zip(sites, itertools.pairwise(ends), strict=True)
    ]
    coords = site_coordinates(torch.cat(keys))
    inside = config.conventions.point_in_cell
    each = [[s.end - s.first, inside * level.stride] for s, level in zip(spans, sites, strict=True)]
    table = torch.tensor(each, dtype=torch.float64).to(coords.device, non_blocking=True)
    into_cell = table[:, 1:].repeat_interleave(table[:, 0].long(), 0, output_size=len(coords))
    points = (coords.double() + into_cell) * voxel_size_m
    if len(stacks) == 1:
        return read_stacks(points, spans, stacks, config, mean=True)[0]
    totals, count = read_stacks(points, spans, stacks, config)
    share = count.clamp(min=1)[:, None]
    return [total / share[s.first : s.end] for total, s in zip(totals, spans, strict=True)]


class ViewLookup:
    """Isomorphic fusion of a batch: ``lookup(level, sites)`` -> (N, C_level) averages.

    Args:
        views: views of each sample of the batch.
        channels: C of each image level.
        voxel_size_m: edge length of a voxel of stride 1.

    Raises ``ValueError`` for sites of another batch size.
    """

    def __init__(
        self,
        views: Sequence[Sequence[View]],
        channels: Sequence[int],
        voxel_size_m: float,
        config: ViewSamplingConfig,
    ) -> None:
        self._views, self._channels, self._voxel_size_m, self._config = views, channels, voxel_size_m, config

    def __call__(self, level: int, sites: Sites) -> torch.Tensor:
        self._check(sites)
        points = self._config.conventions.site_points(sites, self._voxel_size_m)
        radius = site_radius(sites.stride, self._voxel_size_m)
        parts = [
            fuse_views(points[start:end], seen, level, self._channels[level], self._config, radius)[0]
            for seen, (start, end) in zip(self._views, itertools.pairwise(sites.bounds), strict=True)
        ]
        return torch.cat(parts)

    def levels(self, sites: Sequence[Sites]) -> list[torch.Tensor]:
        """See :class:`LevelsLookup`."""
        stacks = [stacked(views, range(len(sites)), self._config) for views in self._views]
        if not stacks or not all(stacks):
            return [self(i, s) for i, s in enumerate(sites)]
        for s in sites:
            self._check(s)
        parts = [
            mean_at_levels(
                sites, [(s.bounds[b], s.bounds[b + 1]) for s in sites], own, self._voxel_size_m, self._config
            )
            for b, own in enumerate(stacks)
        ]
        return [p[0] if len(p) == 1 else torch.cat(p) for p in zip(*parts, strict=True)]

    def _check(self, sites: Sites) -> None:
        if len(self._views) != sites.batch_size:
            raise ValueError(f"need views for {sites.batch_size} samples, got {len(self._views)}")
