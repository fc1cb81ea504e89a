"""Live views of the node: Rerun (a window or a file), or a page in the browser. An error never stops the node."""

from __future__ import annotations

import threading
import traceback
from typing import Any

from embodied_perceptron.results import Grounding, Perception
from embodied_perceptron.visualization.rerun import RerunRecorder
from embodied_perceptron.visualization.web import Controls, HealthLine, WebViewer
from embodied_perceptron_ros.node.health import ERROR, OK

_PORTS = 20  # ports to try
_LAST_PORT = 65535


class LiveViewer:
    """Shows perceptions and answers in Rerun; thread-safe. It closes at its first error.

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
        """Show a perception and its image."""

        def record(recorder: RerunRecorder) -> None:
            source = perception.source
            if source is not None and source.frame.stamp_ns != self._last_frame_ns:
                self._last_frame_ns = source.frame.stamp_ns
                recorder.log_frame(source)
            recorder.log_perception(perception)

        self._record(record)

    def answer(self, grounding: Grounding) -> None:
        """Show an answer."""
        self._record(lambda recorder: recorder.log_grounding(grounding))

    def close(self) -> None:
        """Write all data and close."""
        with self._lock:
            if self._recorder is not None:
                self._recorder.close()
                self._recorder = None

    def _record(self, record: Any) -> None:
        with self._lock:
            if self._recorder is None:
                return
            try:
                record(self._recorder)
            except Exception:
                self._logger.error(f"the viewer failed and is closed:\n{traceback.format_exc()}")
                self._recorder = None


def open_viewer(node: Any, configured: Any) -> LiveViewer | WebViewer | None:
    """The viewer that the parameter ``viewer`` selects; None, and an error in the log, if it cannot be opened.

    Args:
        node: the ``PerceptionNode``.
        configured: its ``ConfiguredMap``.
    """
    if node.parameters.viewer == "web":
        return open_web_viewer(node, configured)
    try:
        return LiveViewer(node.parameters.viewer_file, node.get_logger())
    except Exception as error:
        node.get_logger().error(f"there is no viewer: {error}")
        return None


def open_web_viewer(node: Any, configured: Any) -> WebViewer | None:
    """Open the browser's viewer on the first free port from ``web_port`` on, and log its address."""
    parameters, logger = node.parameters, node.get_logger()
    wanted = parameters.web_port
    ports = [0] if wanted == 0 else [port for port in range(wanted, wanted + _PORTS) if port <= _LAST_PORT]
    controls = Controls(
        ask=configured.grounding.ask,
        name=configured.services.name_object,
        correct=configured.services.correct_object,
        standing=lambda: configured.grounding.standing,
        health=lambda: health_lines(node, configured),
    )
    for port in ports:
        try:
            viewer = WebViewer(
                controls,
                host=parameters.web_host,
                port=port,
                token=parameters.web_token,
                title=node.get_fully_qualified_name(),
                on_error=lambda trace: logger.error(f"the web viewer failed to draw:\n{trace}"),
            )
        except OSError as error:
            taken = error
            continue
        except Exception as error:  # viser is missing, or the token is bad
            logger.error(f"there is no web viewer: {error}")
            return None
        if port != wanted:
            logger.warning(f"port {wanted} (parameter web_port) is taken: {taken.strerror or taken}")
        logger.info(f"the map is shown at {viewer.url}")
        return viewer
    where = f"{parameters.web_host}, ports {ports[0]} to {ports[-1]} (parameters web_host, web_port)"
    logger.error(f"there is no web viewer: cannot listen on {where}: {taken.strerror or taken}")
    return None


def health_lines(node: Any, configured: Any) -> list[HealthLine]:
    """The node's counts and current problems, for the page."""
    counts = configured.inbox.counts
    frames = f"{counts.fused} frames fused, {sum(counts.dropped.values())} dropped, {counts.pending} waiting"
    problems = [
        HealthLine("error" if level >= ERROR else "warn", area, message)
        for level, area, message in node.health.problems()
        if level > OK
    ]
    return [HealthLine("ok", "node", frames), *problems]
