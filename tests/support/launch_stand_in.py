"""A stand-in for ``launch`` and ``launch_ros``, which come with a ROS installation only: what a launch file describes
is kept as plain values, so that its logic runs here. Names and signatures are those of the real packages."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Described:
    """Whatever a launch file makes: its kind, and the arguments that it got."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.args, self.options = args, options

    def __getitem__(self, name: str) -> Any:
        return self.options[name]


KINDS = {
    "launch": ("LaunchContext", "LaunchDescription", "LaunchDescriptionEntity"),
    "launch.actions": (
        *("DeclareLaunchArgument", "EmitEvent", "ExecuteProcess", "IncludeLaunchDescription", "LogInfo"),
        *("OpaqueFunction", "RegisterEventHandler", "SetEnvironmentVariable"),
    ),
    "launch.event_handlers": ("OnProcessExit",),
    "launch.events": ("Shutdown",),
    "launch.events.process": ("ProcessExited",),
    "launch.launch_description_sources": ("PythonLaunchDescriptionSource",),
    "launch_ros": (),
    "launch_ros.actions": ("Node",),
}


class LaunchConfiguration:
    """The value of an argument, once there is a context."""

    def __init__(self, name: str) -> None:
        self._name = name

    def perform(self, context: SimpleNamespace) -> str:
        return context.launch_configurations[self._name]


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the stand-in importable for one test."""
    for name, kinds in {**KINDS, "launch.substitutions": ()}.items():
        module = ModuleType(name)
        for kind in kinds:
            setattr(module, kind, type(kind, (Described,), {}))
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["launch.substitutions"].LaunchConfiguration = LaunchConfiguration  # type: ignore[attr-defined]


def start(path: Path, arguments: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The actions that a launch file describes for ``arguments``, typed as ``name:=value``; its own defaults for the
    others."""
    install(monkeypatch)
    spec = importlib.util.spec_from_file_location(path.name.split(".")[0] + "_described", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    values = {name: default for name, default, _ in module.ARGUMENTS if default is not None}
    context = SimpleNamespace(launch_configurations={**values, **arguments}, environment={})
    context.argv = [f"{name}:={value}" for name, value in arguments.items()]
    actions: Callable[[Any], list[Any]] = module.start
    return actions(context)


def only(actions: list[Any], kind: str, **options: Any) -> Any:
    """The one action of that kind, with these options."""
    found = [a for a in actions if type(a).__name__ == kind and all(a.options.get(k) == v for k, v in options.items())]
    assert len(found) == 1, (kind, options, [type(a).__name__ for a in actions])
    return found[0]
