"""The viewer in the browser, of a running node: what a page asks for, answered by the node's own parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from embodied_perceptron.visualization.web import Controls, HealthLine, WebViewer
from embodied_perceptron_ros.node.health import ERROR, OK

_PORTS = 20  # that are tried
_LAST_PORT = 65535


def open_web_viewer(node: Any, configured: Any) -> WebViewer | None:
    """The viewer of a ``PerceptionNode`` that is being activated with its ``ConfiguredMap``; its address is logged.

    Where its port is taken (by another robot's viewer, say) it is the next free one. None, and an error in the log,
    where there can be none: a viewer never keeps a robot from perceiving.
    """
    parameters, logger = node.parameters, node.get_logger()
    wanted = parameters.web_port
    ports = [0] if wanted == 0 else [port for port in range(wanted, wanted + _PORTS) if port <= _LAST_PORT]
    for port in ports:
        try:
            viewer = _open(node, configured, port)
        except OSError as error:
            taken = error
            continue
        except Exception as error:  # without viser, or a token that is none
            logger.error(f"there is no web viewer: {error}")
            return None
        if port != wanted:
            logger.warning(f"port {wanted} (parameter web_port) is taken: {taken.strerror or taken}")
        logger.info(f"the map is shown at {viewer.url}")
        return viewer
    where = f"{parameters.web_host}, ports {ports[0]} to {ports[-1]} (parameters web_host, web_port)"
    logger.error(f"there is no web viewer: cannot listen on {where}: {taken.strerror or taken}")
    return None


def _open(node: Any, configured: Any, port: int) -> WebViewer:
    parameters, logger = node.parameters, node.get_logger()
    return WebViewer(
        Controls(
            ask=configured.grounding.ask,
            name=configured.services.name_object,
            correct=configured.services.correct_object,
            standing=lambda: configured.grounding.standing,
            health=lambda: health_lines(node, configured),
        ),
        host=parameters.web_host,
        port=port,
        token=parameters.web_token,
        title=node.get_fully_qualified_name(),
        on_error=lambda trace: logger.error(f"the web viewer failed to draw:\n{trace}"),
    )


def health_lines(node: Any, configured: Any) -> list[HealthLine]:
    """The node's counts, and every problem that lasts."""
    counts = configured.inbox.counts
    frames = f"{counts.fused} frames fused, {sum(counts.dropped.values())} dropped, {counts.pending} on their way"
    return [HealthLine("ok", "node", frames), *problem_lines(node.health.problems())]


def problem_lines(problems: Iterable[tuple[bytes, str, str]]) -> list[HealthLine]:
    """Conditions as lines for a page; those that are none are left out."""
    return [
        HealthLine("error" if level >= ERROR else "warn", area, message)
        for level, area, message in problems
        if level > OK
    ]
