"""What the node sees and answers, shown by Rerun while it happens: a window, or a file."""

from __future__ import annotations

import threading
import traceback
from typing import Any

from embodied_perceptron.results import Grounding, Perception
from embodied_perceptron.visualization.rerun import RerunRecorder


class LiveViewer:
    """A recorder that may be told from several threads and that never harms the node: a viewer that fails is left.

    Args:
        path: file to write; empty opens a window.
        logger: of the node.

    Raises ``ViewerUnavailableError`` without the Rerun SDK, ``OSError`` for a file that cannot be written.
    """

    def __init__(self, path: str, logger: Any) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._last_frame_ns = -1
        self._recorder: RerunRecorder | None = RerunRecorder(path or None)

    def show(self, perception: Perception) -> None:
        """One perception, and the image that it is of."""

        def tell(recorder: RerunRecorder) -> None:
            source = perception.source
            if source is not None and source.frame.stamp_ns != self._last_frame_ns:
                self._last_frame_ns = source.frame.stamp_ns
                recorder.log_frame(source)
            recorder.log_perception(perception)

        self._tell(tell)

    def answer(self, grounding: Grounding) -> None:
        """One answer."""
        self._tell(lambda recorder: recorder.log_grounding(grounding))

    def close(self) -> None:
        """Write everything out."""
        with self._lock:
            if self._recorder is not None:
                self._recorder.close()
                self._recorder = None

    def _tell(self, what: Any) -> None:
        with self._lock:
            if self._recorder is None:
                return
            try:
                what(self._recorder)
            except Exception:
                self._logger.error(f"the viewer failed and is left:\n{traceback.format_exc()}")
                self._recorder = None
