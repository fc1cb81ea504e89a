"""The viewer in the browser, of a running node: what a page asks for, answered by the node's own parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from embodied_perceptron.visualization.web import Controls, HealthLine, WebViewer
from embodied_perceptron_ros.node.health import ERROR, OK


def open_web_viewer(node: Any, configured: Any) -> WebViewer:
    """The viewer of a ``PerceptionNode`` that is being activated with its ``ConfiguredMap``; its address is logged.

    Raises as :class:`WebViewer` does: without viser, and where the port is taken.
    """
    parameters, logger = node.parameters, node.get_logger()
    viewer = WebViewer(
        Controls(
            ask=configured.grounding.ask,
            name=configured.services.name_object,
            correct=configured.services.correct_object,
            standing=lambda: configured.grounding.standing,
            health=lambda: health_lines(node, configured),
        ),
        host=parameters.web_host,
        port=parameters.web_port,
        token=parameters.web_token,
        title=node.get_fully_qualified_name(),
        on_error=lambda trace: logger.error(f"the web viewer failed to draw:\n{trace}"),
    )
    logger.info(f"the map is shown at {viewer.url}")
    return viewer


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
