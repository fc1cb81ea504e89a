"""Image features of the keyframes: made once per image, kept as long as the keyframe is, remade when they are missing.

They are a pure function of the keyframe and the network. So a map needs no second file for them: after loading a map,
or after the accelerator was given back, they are computed again from the images. A corrected pose moves where features
lie, not what they are: the image is not encoded again.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.nn.view_fusion import View, view_projection
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame


class KeyframeFeatureCache:
    """See the module docstring. Any number of threads may ask; an image is encoded by the first, others wait for it.

    Args:
        encode: makes the features of one frame (:meth:`Predictor.view`).
    """

    def __init__(self, encode: Callable[[PosedFrame], View]) -> None:
        self._encode = encode
        self._lock = threading.Lock()  # of the dictionaries; never held while an image is encoded
        self._making: dict[int, threading.Lock] = {}
        # weak keys: features go when their keyframe goes
        self._of_frame: WeakKeyDictionary[RgbdFrame, tuple[View, NDArray[np.float64]]] = WeakKeyDictionary()
        self._of_keyframe: WeakKeyDictionary[Keyframe, View] = WeakKeyDictionary()
        self._clears = 0
        self.encoded = 0

    def __len__(self) -> int:
        return len(self._of_frame)

    @property
    def nbytes(self) -> int:
        """Memory of all features and depth images kept here."""
        with self._lock:
            views = [view for view, _ in self._of_frame.values()]
        tensors = [t for v in views for t in (*v.levels, v.depth_m) if t is not None]
        return sum(t.numel() * t.element_size() for t in tensors)

    def view(self, keyframe: Keyframe) -> View:
        """The features of one keyframe; the same object each time."""
        with self._lock:
            known, clears = self._of_keyframe.get(keyframe), self._clears
        if known is not None:
            return known
        encoded, T_world_camera = self._pyramid(keyframe)
        if not np.array_equal(T_world_camera, keyframe.T_world_camera):
            P = view_projection(keyframe.T_world_camera, keyframe.frame.intrinsics, encoded.image_size)
            encoded = dataclasses.replace(encoded, projection=P)
        with self._lock:
            if clears != self._clears:  # forgotten meanwhile
                return encoded
            return self._of_keyframe.setdefault(keyframe, encoded)

    def views(self, keyframes: Sequence[Keyframe]) -> list[View]:
        """The features of all, in their order."""
        return [self.view(keyframe) for keyframe in keyframes]

    def clear(self) -> None:
        """Forget all; they can be made again."""
        with self._lock:
            self._of_frame.clear()
            self._of_keyframe.clear()
            self._clears += 1

    def _pyramid(self, keyframe: Keyframe) -> tuple[View, NDArray[np.float64]]:
        """What was made of the keyframe's image, and at which pose."""
        frame = keyframe.frame
        with self._lock:
            maker = self._making.setdefault(id(frame), threading.Lock())
        with maker:
            try:
                with self._lock:
                    known, clears = self._of_frame.get(frame), self._clears
                if known is None:
                    known = self._encode(PosedFrame(frame, keyframe.T_world_camera)), keyframe.T_world_camera
                    with self._lock:
                        self.encoded += 1
                        if clears == self._clears:
                            self._of_frame[frame] = known
                return known
            finally:
                with self._lock:
                    self._making.pop(id(frame), None)
