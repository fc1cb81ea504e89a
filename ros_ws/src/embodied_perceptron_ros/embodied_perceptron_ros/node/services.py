"""Map services: ``~/save_map``, ``~/load_map``, ``~/reset``, ``~/clear_box``, ``~/describe``, ``~/changes``,
``~/name_object``, ``~/correct_object``.

One thread runs them in order; the executor continues to receive images, and fusion pauses only while the map itself is
changed. A refusal is an answer (``success`` false, ``message`` with the reason) and a warning in the log, never an
exception.
"""

from __future__ import annotations

import errno
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError
from concurrent.futures import Future as ThreadFuture
from functools import partial
from typing import Any

import numpy as np
from embodied_perceptron_msgs.srv import ClearBox, CorrectObject, LoadMap, NameObject, SaveMap
from rclpy.callback_groups import ReentrantCallbackGroup
from std_srvs.srv import Trigger

from embodied_perceptron.apps.reading_options import open_map
from embodied_perceptron.language.description import describe
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import GroundingStatus
from embodied_perceptron.scene.changes import compare_maps
from embodied_perceptron_ros.conversion.objects import message_to_box
from embodied_perceptron_ros.conversion.values import pose_to_matrix
from embodied_perceptron_ros.node.map_folder import MapFolder, MapPathError
from embodied_perceptron_ros.node.outputs import find_output_pose
from embodied_perceptron_ros.node.threads import SERVICE_LIMIT_S, BackgroundThread, Watchdog, await_in_executor
from embodied_perceptron_ros.node.transforms import TransformSource

_MAX_WAITING = 16  # calls at a time; each may take seconds
_MAX_CHARACTERS = 500  # of a refusal
_SAVE_LIMIT_S = 12.0  # how long close() waits for a map that is being saved
_MAX_DIGITS = 18  # of an id


def refusal(error: Exception) -> str:
    """One line on why a call was refused; empty for a program error, about which the caller can do nothing.

    Deliberate refusals are ``ValueError``, ``LookupError`` or ``OSError`` with a sentence.
    """
    if isinstance(error, KeyError | IndexError) or not isinstance(error, ValueError | LookupError | OSError):
        return ""
    message = str(error)
    if isinstance(error, OSError) and error.strerror:  # str() would begin with a number
        message = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(message.split())[:_MAX_CHARACTERS]


class MapServices:
    """The services of a configured node.

    Args:
        node: the ``PerceptionNode``; parameters ``fusion_frame``, ``map_folder`` and ``find_place``.
        perceptron: its map.
        transforms: of the robot.
        on_map_replaced: called after a service changed the map.
        watchdog: limits each call.
    """

    def __init__(
        self,
        node: Any,
        perceptron: Perceptron,
        transforms: TransformSource,
        on_map_replaced: Callable[[], None],
        watchdog: Watchdog,
    ) -> None:
        self._node = node
        self._perceptron = perceptron
        self._watchdog = watchdog
        self._thread = BackgroundThread("map_services")
        self._swapping = threading.Lock()
        self._is_closing = False
        self._transforms = transforms
        self._on_map_replaced = on_map_replaced
        self._map_folder = MapFolder(node.parameters.map_folder)
        self._unfinished = 0
        group = ReentrantCallbackGroup()  # a slow save must not delay the other services
        self._services = [
            node.create_service(kind, f"~/{name}", partial(self._run, name, job), callback_group=group)
            for kind, name, job in (
                (SaveMap, "save_map", self._save),
                (LoadMap, "load_map", self._load),
                (Trigger, "reset", self._reset),
                (Trigger, "describe", self._describe),
                (Trigger, "changes", self._changes),
                (ClearBox, "clear_box", self._clear_box),
                (NameObject, "name_object", self._name_object),
                (CorrectObject, "correct_object", self._correct_object),
            )
        ]

    def close(self) -> None:
        """Finish the running call, refuse waiting ones, destroy the services."""
        self._is_closing = True
        self._thread.close(_SAVE_LIMIT_S)
        for service in self._services:
            self._node.destroy_service(service)
        self._services = []

    async def _run(self, name: str, job: Callable[[Any, Any], str], request: Any, response: Any) -> Any:
        if self._unfinished >= _MAX_WAITING:
            return self._refuse(name, response, f"too many calls of map services wait (more than {_MAX_WAITING})")
        self._unfinished += 1  # calls begin and end in the executor's thread
        future: ThreadFuture[str] = ThreadFuture()
        try:
            self._submit(name, lambda: job(request, response), future)
            await await_in_executor(self._node, future)
        finally:
            self._unfinished -= 1
        try:
            response.message = future.result()
            response.success = True
        except CancelledError:
            self._refuse(name, response, "the node is being cleaned up")
        except Exception as error:
            reason = refusal(error)
            if reason:
                return self._refuse(name, response, reason)
            response.message = "it failed by an internal error; see the node's log"
            self._node.get_logger().error(f"{name} failed:\n{traceback.format_exc()}")
        return response

    def _submit(self, name: str, job: Callable[[], str], future: ThreadFuture[str]) -> None:
        """Queue ``job``; ``future`` gets its result, or the error that it took too long."""
        once = threading.Lock()

        def give_up(message: str) -> None:
            with self._swapping:
                self._thread = self._thread.successor()  # the running job may come back late, or never
            if once.acquire(blocking=False):
                future.set_exception(TimeoutError(message))

        def run() -> None:
            try:
                if self._is_closing:
                    raise CancelledError
                with self._watchdog.watch("service", SERVICE_LIMIT_S, f" {name}", give_up):
                    result = job()
            except BaseException as error:
                if once.acquire(blocking=False):
                    future.set_exception(error)
            else:
                if once.acquire(blocking=False):
                    future.set_result(result)

        with self._swapping:
            self._thread.submit(run)

    def _refuse(self, name: str, response: Any, reason: str) -> Any:
        response.message = reason
        self._node.get_logger().warning(f"{name} refused: {reason}")
        return response

    def _save(self, request: SaveMap.Request, response: SaveMap.Response) -> str:
        path = self._map_folder.to_write(request.path)
        try:
            self._perceptron.save(path)
        except OSError as error:  # its text names the temporary file
            raise MapPathError(f"{path} cannot be written: {error.strerror or error}") from error
        return f"saved {path} ({path.stat().st_size / 2**20:.1f} MiB)"

    def _load(self, request: LoadMap.Request, response: LoadMap.Response) -> str:
        path = self._map_folder.to_read(request.path)
        T_fusion_saved = pose_to_matrix(request.pose)
        find = self._node.parameters.find_place and np.array_equal(T_fusion_saved, np.eye(4))
        reason = self._perceptron.load(path, T_fusion_saved, find_place=find)
        self._on_map_replaced()
        if not find:
            return f"loaded {path}"
        return f"loaded {path}; {reason or 'searching for the place of the robot in it'}"

    def _reset(self, request: Trigger.Request, response: Trigger.Response) -> str:
        self._perceptron.reset()
        self._on_map_replaced()
        return "the map is empty"

    def _describe(self, request: Trigger.Request, response: Trigger.Response) -> str:
        """A description whose ids are those of ``~/boxes``."""
        return describe(self._perceptron.conditioned()).text

    def _changes(self, request: Trigger.Request, response: Trigger.Response) -> str:
        return self.changes_since_loaded()

    def changes_since_loaded(self) -> str:
        """Changes since the loaded map was saved, one a line, coordinates in the map.

        Raises ``ValueError`` if no map was loaded or the robot's place is not known yet, ``OSError`` if the file is
        gone.
        """
        path = self._perceptron.map.loaded_from
        if path is None:
            raise ValueError("no map was loaded: there is nothing to compare with")
        if self._perceptron.place_estimate is not None:
            raise ValueError("the robot's place in the loaded map is not known yet")
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, "the loaded map's file does not exist any more", str(path))
        before = open_map(path).recall()
        return "\n".join(compare_maps(before, self._perceptron.recall()).lines())

    def _clear_box(self, request: ClearBox.Request, response: ClearBox.Response) -> str:
        fusion_frame, newest = self._node.parameters.fusion_frame, self._perceptron.newest_frame
        stamp_ns = newest.frame.stamp_ns if newest else 0
        frame = request.frame_id or fusion_frame
        pose = find_output_pose(self._transforms, fusion_frame, frame, stamp_ns, self._perceptron.T_world_map)
        if isinstance(pose, str):
            raise ValueError(pose)
        response.voxels_removed = self._perceptron.clear_box(message_to_box(request.box, pose.inverse()))
        self._on_map_replaced()
        return f"removed {response.voxels_removed} voxels"

    def _name_object(self, request: NameObject.Request, response: NameObject.Response) -> str:
        number = self._find_object(request.id)
        response.id = str(number)
        return self.name_object(number, request.name)

    def _correct_object(self, request: CorrectObject.Request, response: CorrectObject.Response) -> str:
        number = self._find_object(request.id)
        response.id = str(number)
        return self.correct_object(number, request.label, request.not_there)

    def name_object(self, number: int, name: str) -> str:
        """Name an object and return a message. Raises as :meth:`Perceptron.name_object`."""
        item = self._perceptron.name_object(number, name)
        self._on_map_replaced()
        if not item.user_name:
            return f"the name of {item.label} {item.id} is removed"
        return f"{item.label} {item.id} is named {item.user_name!r}"

    def correct_object(self, number: int, label: str, not_there: bool) -> str:
        """Correct an object and return a message. Raises as :meth:`Perceptron.correct_object`."""
        item = self._perceptron.correct_object(number, label, not_there)
        self._on_map_replaced()
        return f"there is no {item.label} {item.id}" if not_there else f"object {item.id} is a {item.label}"

    def _find_object(self, text: str) -> int:
        """The id in ``text``, or that of the single object that the sentence ``text`` describes."""
        if not text.strip():
            raise ValueError("the id is empty: give the number of an object, or a sentence that describes one")
        if text.strip().isdecimal():
            if len(text.strip()) > _MAX_DIGITS:
                raise LookupError(f"there is no object {text.strip()[:_MAX_DIGITS]}...")
            return int(text)
        answer = self._perceptron.ground(text)
        if answer.status != GroundingStatus.FOUND or (answer.count or 1) > 1:
            raise LookupError(
                f"{answer.text[:80]!r} describes no single object ({answer.status.name}): {answer.reason}"
            )
        if not answer.candidates[0].id:
            raise LookupError(f"{answer.text[:80]!r} describes something that is not an object of the map yet")
        return answer.candidates[0].id
