"""Image features of the map: encoded once for each keyframe, and averaged per level at the sites of the network.

They are a pure function of the keyframes, their poses and the network. Map files do not hold them: after loading a map
or releasing the accelerator they are computed again. A corrected pose does not require encoding the image again.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.compute_path import runs_compiled
from embodied_perceptron.geometry.manhattan import WORLD, ManhattanFrame
from embodied_perceptron.mapping.devices import forget_memory, is_device_fault
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.mapping.voxels import HostCopy
from embodied_perceptron.nn.view_fusion import (
    View,
    ViewSamplingConfig,
    ViewStack,
    add_view,
    mean_at_levels,
    mean_over_views,
    sample_view,
    site_radius,
    stacked,
    view_projection,
    visible_features,
)
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron.sparse.sites import Sites

LOOK_CHANNELS = 64  # of :meth:`ImageFeatures.look`


class ImageFeatures:
    """Features of the keyframes' images, and their averages at sites.

    :meth:`view` is thread-safe: the first thread encodes an image, others wait for it. :meth:`views` and :meth:`lookup`
    are for one thread.

    Args:
        encode: features of one frame (:meth:`Predictor.view`).
        channels: C of each image level.
        site_size_m: edge of a site of stride 1.
        sampling: of views at sites.
        device: of the sums.
    """

    def __init__(
        self,
        encode: Callable[[PosedFrame], View],
        channels: Sequence[int],
        site_size_m: float,
        sampling: ViewSamplingConfig,
        device: str | torch.device = "cpu",
    ) -> None:
        self._encode = encode
        self._channels, self._site_size_m, self._sampling = tuple(channels), site_size_m, sampling
        self._device = device
        self._lock = threading.Lock()  # of the two fields below; not held during encoding
        # weak keys: features are freed with their keyframe; each with the pose of its view
        self._encoded: WeakKeyDictionary[RgbdFrame, Future[tuple[View, NDArray[np.float64]]]] = WeakKeyDictionary()
        self.encoded = 0  # number of images so far
        self._on_host: WeakKeyDictionary[View, HostCopy | View] = WeakKeyDictionary()
        self._prefetching = threading.Lock()
        self._released = False
        self._start_on(WORLD)

    def __len__(self) -> int:
        return len(self._encoded)

    @property
    def nbytes(self) -> int:
        """Memory of the features and depth images of all keyframes."""
        with self._lock:
            views = [f.result()[0] for f in self._encoded.values() if f.done()]
        tensors = [t for v in views for t in (*v.levels, v.depth_m) if t is not None]
        return sum(t.numel() * t.element_size() for t in tensors)

    # ------------------------------------------------------------------------------------------------------ keyframes

    def prefetch(self, keyframe: Keyframe) -> None:
        """Encode a new keyframe ahead; does nothing while released, and when the device fails."""
        with self._prefetching:
            if self._released:
                return
            try:
                view = self.view(keyframe)
                if not runs_compiled(view.levels[0]):
                    self._on_host.setdefault(view, self._sent(view))
            except RuntimeError as error:
                if not is_device_fault(error):
                    raise
                forget_memory()

    def view(self, keyframe: Keyframe) -> View:
        """Features of one keyframe; the same object as long as its pose stays."""
        frame, T_world_camera = keyframe.frame, keyframe.T_world_camera
        with self._lock:
            future = self._encoded.get(frame)
            mine = future is None
            if future is None:
                future = self._encoded[frame] = Future()
        if mine:
            self._fill(future, keyframe)
        try:
            view, T_world_view = future.result()
        except CancelledError:  # the thread that encoded it failed
            return self.view(keyframe)
        if T_world_view is T_world_camera or np.array_equal(T_world_view, T_world_camera):
            return view
        view = dataclasses.replace(view, projection=view_projection(T_world_camera, frame.intrinsics, view.image_size))
        moved: Future[tuple[View, NDArray[np.float64]]] = Future()
        moved.set_result((view, T_world_camera))
        with self._lock:
            if self._encoded.get(frame) is future:  # not cleared or moved meanwhile
                self._encoded[frame] = moved
        return view

    def _fill(self, future: Future[tuple[View, NDArray[np.float64]]], keyframe: Keyframe) -> None:
        """Encode the keyframe's image into its entry; after a failure the next caller tries again."""
        try:
            view = self._encode(PosedFrame(keyframe.frame, keyframe.T_world_camera))
        except BaseException:
            with self._lock:
                if self._encoded.get(keyframe.frame) is future:
                    del self._encoded[keyframe.frame]
            future.cancel()  # not set_exception: the traceback would keep memory of the accelerator
            raise
        with self._lock:
            self.encoded += 1
        future.set_result((view, keyframe.T_world_camera))

    # ----------------------------------------------------------------------------------------------- features at sites

    def views(self, keyframes: Sequence[Keyframe], manhattan: ManhattanFrame = WORLD) -> list[View]:
        """Features of keyframes, in order, projected from ``manhattan``; the same objects as long as it stays."""
        if manhattan != self._manhattan:
            self._start_on(manhattan)
        views = [self.view(keyframe) for keyframe in keyframes]
        if manhattan.yaw_rad == 0:
            return views
        T = torch.from_numpy(manhattan.T_world_manhattan)
        for view in views:
            if view not in self._turned:
                self._turned[view] = dataclasses.replace(view, projection=view.projection @ T)
        return [self._turned[view] for view in views]

    def lookup(self, keyframes: Sequence[Keyframe], manhattan: ManhattanFrame = WORLD) -> StreamingLookup:
        """Averages over ``keyframes`` at sites in ``manhattan``; valid until the next call.

        The sums are updated incrementally as long as the frame stays.
        """
        views = self.views(keyframes, manhattan)
        self._sums.views = views
        return self._sums

    def at(self, points_m: NDArray[np.float64], keyframes: Sequence[Keyframe], level: int = 0) -> NDArray[np.float32]:
        """(N, C) float32 averages over ``keyframes`` at (N, 3) points; NaN where none sees the point. Thread-safe.

        Raises ``ValueError`` for points of another shape, and a level that the encoder does not have.
        """
        points = np.array(points_m, np.float64)
        if points.ndim != 2 or points.shape[1] != 3:
            raise ValueError(f"points_m must be (N, 3), got {points.shape}")
        if not 0 <= level < len(self._channels):
            raise ValueError(f"level must be in [0, {len(self._channels) - 1}], got {level}")
        places = torch.from_numpy(points).to(self._device)
        total = torch.zeros(len(points), self._channels[level], device=self._device)
        count = torch.zeros(len(points), dtype=torch.int32, device=self._device)
        radius_m = site_radius(1, self._site_size_m)
        with torch.no_grad():
            for keyframe in keyframes:
                add_view(total, count, None, places, self.view(keyframe), level, self._sampling, radius_m)
            mean = torch.where(count[:, None] > 0, mean_over_views(total, count), torch.nan)
        found: NDArray[np.float32] = mean.cpu().numpy()
        return found

    def look(self, points_m: NDArray[np.float64], keyframe: Keyframe) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Features of (N, 3) points in one keyframe: (N, :data:`LOOK_CHANNELS`) of the levels that together have at
        most so many channels, coarsest first, padded with zeros; and (N,) whether the keyframe sees them."""
        view, points = self._host_view(self.view(keyframe)), torch.from_numpy(points_m)
        radius_m, start = site_radius(1, self._site_size_m), 0
        features, seen = np.zeros((len(points), LOOK_CHANNELS), np.float32), np.zeros(len(points), np.bool_)
        for level in reversed(range(self._first_coarse, len(self._channels))):
            end = start + self._channels[level]
            rows, features[rows, start:end] = visible_features(view, level, points, self._sampling, radius_m)
            seen[rows] = True
            start = end
        return features, seen

    @property
    def _first_coarse(self) -> int:
        """The finest level of :meth:`look`."""
        return len(self._channels) - int((np.cumsum(self._channels[::-1]) <= LOOK_CHANNELS).sum())

    def _coarse(self, view: View) -> list[torch.Tensor]:
        """What :meth:`look` reads, where many small objects look at it: it is copied to the host in one transfer."""
        return [t for t in (*view.levels[self._first_coarse :], view.depth_m) if t is not None]

    def _sent(self, view: View) -> HostCopy:
        return HostCopy(torch.cat([t.float().flatten() for t in self._coarse(view)]))

    def _host_view(self, view: View) -> View:
        """The view with :meth:`_coarse` in host memory."""
        if runs_compiled(view.levels[0]):
            return view
        known = self._on_host.get(view) or self._sent(view)
        if isinstance(known, HostCopy):
            there = self._coarse(view)
            parts = torch.split(known.read(), [t.numel() for t in there])
            here = [part.view(t.shape) for part, t in zip(parts, there, strict=True)]
            depth_m = None if view.depth_m is None else here.pop()
            levels = (*view.levels[: self._first_coarse], *here)
            known = self._on_host[view] = dataclasses.replace(view, levels=levels, depth_m=depth_m)
        return known

    def _start_on(self, manhattan: ManhattanFrame) -> None:
        self._manhattan = manhattan
        self._sums = StreamingLookup(self._channels, self._site_size_m, self._sampling, self._device)
        self._turned = WeakKeyDictionary[View, View]()

    # --------------------------------------------------------------------------------------------------------- memory

    def clear(self) -> None:
        """Drop all features and sums; they are computed again on demand."""
        with self._lock:
            self._encoded.clear()
        self._start_on(WORLD)

    def use_cpu(self) -> None:
        """Drop everything and compute on the CPU from now on."""
        self._device = "cpu"
        self.clear()

    def release(self) -> None:
        """Drop everything and do not prefetch until :meth:`resume`; waits for a prefetch in progress."""
        with self._prefetching:
            self._released = True
        self.clear()

    def resume(self) -> None:
        """Allow prefetching again."""
        self._released = False


class StreamingFusion:
    """Incremental averages of one level of image features over a growing map.

    Equal to :func:`fuse_views` over the current sites and views, bit for bit. :meth:`update` computes the changes only:
    a new view is added to the sites it sees, a new site is summed over all views, and after a view was dropped or
    corrected the sites that it had seen are summed again.
    """

    def __init__(
        self,
        level: int,
        channels: int,
        voxel_size_m: float,
        config: ViewSamplingConfig,
        device: str | torch.device = "cpu",
    ) -> None:
        self.level = level
        self.config = config
        self.voxel_size_m = voxel_size_m
        self._keys = torch.empty(0, dtype=torch.int64, device=device)
        self._points = torch.empty(0, 3, dtype=torch.float64, device=device)
        self._total = torch.zeros(0, channels, device=device)
        self._count = torch.zeros(0, dtype=torch.int32, device=device)
        self._views: list[View] = []

    @property
    def features(self) -> torch.Tensor:
        """(N, C) averages, in the order of the last update's sites."""
        return mean_over_views(self._total, self._count)

    @property
    def counts(self) -> torch.Tensor:
        """(N,) int32 number of views that see each site."""
        return self._count

    @torch.no_grad()
    def update(self, sites: Sites, views: Sequence[View]) -> None:
        """Update the sums for these sites (of one sample) and views (compared by identity).

        Raises ``ValueError`` for more than one sample.
        """
        if sites.batch_size != 1:
            raise ValueError(f"streaming fusion serves one map, got {sites.batch_size} samples")
        radius = site_radius(sites.stride, self.voxel_size_m)
        added, stale_views = self._compare(views)
        # old sites whose sums include a dropped view, or lack a view inserted before the last kept one
        stale = torch.zeros(len(self._keys), dtype=torch.bool, device=self._keys.device)
        for view in stale_views:
            sample = sample_view(view, self.level, self._points, self.config, radius)
            stale[sample.rows] = True
            stale[sample.seen] = True
        points, fresh = self._move_to(sites, stale)
        filled = fresh.nonzero()[:, 0]
        if len(filled):
            self._total[filled] = 0.0
            self._count[filled] = 0
            places = points[filled]
            for view in views:
                add_view(self._total, self._count, filled, places, view, self.level, self.config, radius)
        kept = (~fresh).nonzero()[:, 0]
        if len(kept):
            places = points[kept]
            for view in added:
                add_view(self._total, self._count, kept, places, view, self.level, self.config, radius)
        self._views = list(views)

    def _compare(self, views: Sequence[View]) -> tuple[list[View], list[View]]:
        """Views to add to the sums, and views whose sites must be summed again."""
        old = {id(v): i for i, v in enumerate(self._views)}
        kept = [old[id(v)] for v in views if id(v) in old]
        if kept != sorted(set(kept)):  # the order changed, or a view is there twice
            return list(views), list(self._views)
        last_kept = max((j for j, v in enumerate(views) if id(v) in old), default=-1)
        gone = [v for i, v in enumerate(self._views) if i not in set(kept)]
        inserted = [v for v in views[: last_kept + 1] if id(v) not in old]
        if last_kept < 0:
            return list(views), gone
        return list(views[last_kept + 1 :]), gone + inserted

    def _move_to(self, sites: Sites, stale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Carry the sums over to new sites; returns their (N, 3) points and the (N,) mask of rows to sum again."""
        if torch.equal(sites.keys, self._keys):
            return self._points, stale
        fresh = torch.ones(len(sites), dtype=torch.bool, device=self._keys.device)
        total = torch.zeros(len(sites), self._total.shape[1], device=self._keys.device)
        count = torch.zeros(len(sites), dtype=torch.int32, device=self._keys.device)
        rows = sites.find(self._keys)
        survivors = (rows >= 0).nonzero()[:, 0]
        rows = rows[survivors]
        fresh[rows] = stale[survivors]
        total[rows] = self._total[survivors]
        count[rows] = self._count[survivors]
        self._keys, self._total, self._count = sites.keys, total, count
        self._points = self.config.conventions.site_points(sites, self.voxel_size_m)
        return self._points, fresh


class StreamingLookup:
    """Lookup of image features over a live map: one :class:`StreamingFusion` for each image level and site stride. On a
    device, where finding the changes costs more than summing, all levels are summed at once, without memory.

    Attributes:
        views: input of the next calls; assign a new list when keyframes are added, dropped or corrected.
    """

    def __init__(
        self,
        channels: Sequence[int],
        voxel_size_m: float,
        config: ViewSamplingConfig,
        device: str | torch.device = "cpu",
    ) -> None:
        self.views: Sequence[View] = ()
        self._channels = tuple(channels)
        self._voxel_size_m = voxel_size_m
        self._config = config
        self._device = device
        self._states: dict[tuple[int, int], StreamingFusion] = {}
        self._stacked: tuple[tuple[View, ...], list[ViewStack]] = (), []

    def __call__(self, level: int, sites: Sites) -> torch.Tensor:
        """(N, C_level) averages over ``views`` at the sites (of one sample)."""
        key = (level, sites.stride)
        if key not in self._states:
            channels = self._channels[level]
            self._states[key] = StreamingFusion(level, channels, self._voxel_size_m, self._config, self._device)
        self._states[key].update(sites, self.views)
        return self._states[key].features

    def levels(self, sites: Sequence[Sites]) -> list[torch.Tensor]:
        """See :class:`~embodied_perceptron.nn.view_fusion.LevelsLookup`."""
        stacks = self._stacks(len(sites))
        if not stacks:
            return [self(i, s) for i, s in enumerate(sites)]
        return mean_at_levels(sites, [(0, len(s)) for s in sites], stacks, self._voxel_size_m, self._config)

    def _stacks(self, levels: int) -> list[ViewStack]:
        """Stacks of the views, kept as long as the views stay."""
        of, stacks = self._stacked
        views = tuple(self.views)
        if of != views:  # compared by identity: views have no other equality
            stacks = stacked(views, range(levels), self._config)
            self._stacked = views, stacks
        return stacks
