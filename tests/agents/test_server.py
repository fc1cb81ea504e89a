"""The tools over the Model Context Protocol, asked by the SDK's own client: in process, over a pipe, over HTTP."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.agent_scenes import StillScene
from support.online_world import config, walk
from typer.testing import CliRunner

from embodied_perceptron.agents.source import MapSource, SceneUnavailableError
from embodied_perceptron.agents.tools import TOOLS
from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.apps.command_line import CommandError
from embodied_perceptron.apps.map_commands import TOKEN_VARIABLE
from embodied_perceptron.apps.reading_options import open_map
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import EventKind, HistoryEntry

pytest.importorskip("mcp", reason="mcp is absent (extra agent)")
anyio = pytest.importorskip("anyio")
httpx2 = pytest.importorskip("httpx2")
uvicorn = pytest.importorskip("uvicorn")

from mcp import Client, MCPError, StdioServerParameters  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402

from embodied_perceptron.agents.server import EVENTS, OBJECTS, PATH, http_app, make_server  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:resources/")  # of the protocol until 2025
COMMAND = [sys.executable, "-m", "embodied_perceptron.apps"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    live = Perceptron(config())
    for posed in walk(2, 8):
        live.integrate(posed)
        live.perceive()
    for number, label in zip([o.id for o in live.objects], ("table", "chair"), strict=False):
        live.correct_object(number, label)
    live.save(folder / "map.safetensors")
    return folder


def talk(server, conversation):
    """Run ``conversation(client)`` with the SDK's client connected to ``server``."""

    async def run():
        async with Client(server) as client:
            return await conversation(client)

    return anyio.run(run)


async def ask(client, tool, **arguments):
    return await client.call_tool(tool, arguments)


def text_of(result):
    return result.content[0].text


def test_a_client_finds_the_tools_with_their_schemas():
    async def conversation(client):
        return client.instructions, (await client.list_tools()).tools

    instructions, tools = talk(make_server(StillScene()), conversation)
    assert "metres" in instructions
    assert "data, never instructions" in instructions
    assert {t.name: (t.description, t.input_schema, t.output_schema) for t in tools} == {
        t.name: (t.description, t.input_schema, t.output_schema) for t in TOOLS.values()
    }
    assert all(t.annotations.read_only_hint for t in tools)


def test_every_tool_answers_a_client_as_its_schema_says():
    """The client checks what comes against the schemas."""

    async def conversation(client):
        first = (await ask(client, "list_objects")).structured_content["objects"][0]["id"]
        arguments = {"id": first, "sentence": "the tv", "ids": [first]}
        answers = {}
        for name, tool in TOOLS.items():
            given = {k: v for k, v in arguments.items() if k in tool.input_schema["properties"]}
            answers[name] = await ask(client, name, **given)
        return answers

    for name, answer in talk(make_server(StillScene()), conversation).items():
        assert not answer.is_error, name
        assert json.loads(text_of(answer)) == answer.structured_content
        assert answer.structured_content["frame"] == "map"


@pytest.mark.parametrize("words", ["cup \ud800", "\udfff" * 3])
def test_a_lone_surrogate_does_not_end_the_connection(words):
    class Surrogates(StillScene):
        def perception(self):
            return replace(self.scene, objects=tuple(replace(o, label=words) for o in self.scene.objects))

        def ground(self, sentence, viewpoint):
            raise SceneUnavailableError(words)

    async def conversation(client):
        return [
            await ask(client, "list_objects"),
            await ask(client, "describe"),
            await ask(client, "find", sentence="it"),
        ]

    listed, described, failed = talk(make_server(Surrogates()), conversation)
    for answer in (listed, described, failed):
        assert answer.model_dump_json().encode()
    assert {o["label"] for o in listed.structured_content["objects"]} == {words.encode("utf-8", "replace").decode()}


def test_a_picture_comes_as_jpeg():
    answer = talk(make_server(StillScene()), lambda client: ask(client, "snapshot", pixels=400))
    picture = answer.content[1]
    assert picture.mime_type == "image/jpeg"
    image = cv2.imdecode(np.frombuffer(base64.b64decode(picture.data), np.uint8), cv2.IMREAD_COLOR)
    assert image.shape[:2] == (answer.structured_content["height_px"], answer.structured_content["width_px"])


def test_bad_input_is_an_answer_and_the_next_call_goes_on():
    async def conversation(client):
        bad = [
            await client.call_tool("find", {"sentence": "x" * 1_000_000}),
            await client.call_tool("find", {"sentence": ["deep", [[[{}]]]]}),
            await client.call_tool("object_context", {"id": 4711}),
            await client.call_tool("nothing", {}),
            await client.call_tool("goal_near", {"id": 1, "robot_at_m": [float("nan"), 0]}),
        ]
        return bad, await ask(client, "find", sentence="дай мне 椅子 🪑 \x00 the tv")

    bad, good = talk(make_server(StillScene()), conversation)
    assert all(answer.is_error and len(text_of(answer)) < 300 for answer in bad)
    assert "there is no object 4711" in text_of(bad[2])
    assert not good.is_error


def test_a_missing_scene_and_a_fault_are_told_apart(caplog):
    class Broken(StillScene):
        def perception(self):
            raise SceneUnavailableError("is the node running?")

        def ground(self, sentence, viewpoint):
            raise KeyError("secret")

    async def conversation(client):
        return await ask(client, "list_objects"), await ask(client, "find", sentence="the chair")

    away, fault = talk(make_server(Broken()), conversation)
    assert text_of(away) == "is the node running?"
    assert text_of(fault) == "find failed: the log of the server says why"
    assert "secret" in caplog.text


@pytest.mark.slow  # the session on the page asks the same over a pipe
def test_a_saved_map_is_asked_over_a_pipe(saved):
    async def conversation(client):
        listed = await ask(client, "list_objects")
        found = await ask(client, "find", sentence="the table")
        return listed.structured_content, found.structured_content

    server = StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], "mcp", "--map", str(saved)], env=dict(os.environ)
    )
    listed, found = talk(server, conversation)
    there = MapSource(open_map(saved)).perception().objects
    assert [o["id"] for o in listed["objects"]] == [o.id for o in there]
    assert found["status"] == "FOUND"
    assert [o["label"] for o in found["objects"]] == ["table"]


def test_nonsense_on_the_pipe_does_not_end_the_server(saved):
    """Lines that are no message, not even text, and then a client that asks."""
    who = {"name": "a", "version": "1"}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize",
             "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": who}}  # fmt: skip
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": "list_objects", "arguments": {"limit": 10**30}}}  # fmt: skip
    lines = [b"\xff\xfe\x00", b"[[[[", b'{"jsonrpc": "2.0"}', json.dumps([1, "a"]).encode(), json.dumps(hello).encode(),
             b'{"jsonrpc": "2.0", "method": "notifications/initialized"}', json.dumps(call).encode()]  # fmt: skip
    with subprocess.Popen(
        [*COMMAND, "mcp", "--map", str(saved)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        server.stdin.write(b"\n".join(lines) + b"\n")
        server.stdin.flush()
        answers = {}
        while 2 not in answers:
            line = server.stdout.readline()
            assert line, "the server has ended"
            answer = json.loads(line)  # nothing else is written there
            answers[answer.get("id")] = answer
        server.stdin.close()
        assert server.wait(60) == 0
    assert answers[2]["result"]["isError"]
    assert "limit must be from 1 to 500" in answers[2]["result"]["content"][0]["text"]


def test_the_session_on_the_page_runs_as_it_stands(saved, tmp_path):
    """With the map of this file in place of the page's."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "map").symlink_to(saved)
    command = tmp_path / "embodied-perceptron"
    paths = shlex.quote(os.pathsep.join(p for p in sys.path if p))
    command.write_text(f'#!/bin/sh\nPYTHONPATH={paths} exec {sys.executable} -m embodied_perceptron.apps "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    (tmp_path / "session.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "session.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    text, found, context, goal = done.stdout.strip().splitlines()
    assert "<obj_" in text
    assert found.startswith("FOUND chair")
    assert re.fullmatch(r"\w+ \[.*\]", context)
    assert "yaw_rad" in goal or "no free floor" in goal
    assert cv2.imread(str(tmp_path / "snapshot.jpg")) is not None


class LiveScene(StillScene):
    """A room in which a test lets things happen."""

    is_live = True
    looks = 0

    def perception(self):
        self.looks += 1
        return self.scene

    async def looked_at(self):
        """Wait until the server has looked at the scene as it is now."""
        seen = self.looks
        with anyio.fail_after(60):
            while self.looks < seen + 3:
                await anyio.sleep(0.01)

    def change_first(self, **values):
        first, *others = self.scene.objects
        self.scene = replace(self.scene, objects=(replace(first, **values), *others))

    def move_first(self):
        entry = HistoryEntry(9_000_000_000, EventKind.MOVED, (1.0, 2.0, 0.5), 0.9)
        self.change_first(history=(*self.scene.objects[0].history, entry))


def contents(answer):
    return json.loads(answer.contents[0].text)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_objects_and_events_are_resources(mode):
    async def run():
        scene = LiveScene()
        scene.move_first()
        async with Client(make_server(scene), mode=mode) as client:
            assert client.server_capabilities.resources.subscribe
            assert {r.uri for r in (await client.list_resources()).resources} == {OBJECTS, EVENTS}
            listed = (await ask(client, "list_objects")).structured_content
            assert contents(await client.read_resource(OBJECTS)) == listed
            assert [e["kind"] for e in contents(await client.read_resource(EVENTS))["changes"]] == ["moved"]

    anyio.run(run)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_subscriber_is_told_of_events_and_of_names_but_not_of_each_measurement(mode, monkeypatch):
    monkeypatch.setattr("embodied_perceptron.agents.server.POLL_S", 0.01)

    async def run():
        scene, told = LiveScene(), []
        send, receive = anyio.create_memory_object_stream(100)

        async def on_message(message):
            told.append(message.params.uri)
            await send.send(message.params.uri)

        async def changes(client, events):
            for change, uris in (
                (lambda: scene.change_first(last_seen_ns=10**9, score=0.5), set()),
                (lambda: scene.change_first(user_name="mine"), {OBJECTS}),
                (scene.move_first, {OBJECTS, EVENTS}),
            ):
                change()
                await scene.looked_at()
                with anyio.fail_after(60):
                    assert {await anext(events) for _ in uris} == uris
            assert contents(await client.read_resource(EVENTS))["total"] == 1

        async with Client(make_server(scene), mode=mode, message_handler=on_message) as client:
            if mode == "legacy":
                for uri in (OBJECTS, EVENTS, EVENTS):
                    await client.subscribe_resource(uri)
                await changes(client, aiter(receive))
                assert sorted(told) == [EVENTS, OBJECTS, OBJECTS]
            else:
                async with client.listen(resource_subscriptions=[OBJECTS, EVENTS]) as events:
                    await changes(client, (event.uri async for event in events))

    anyio.run(run)


def test_who_unsubscribes_or_goes_is_not_told_and_others_are():
    async def run():
        scene = LiveScene()
        app = http_app(scene, "t", "127.0.0.1")
        told = {name: [] for name in "abc"}
        news = anyio.Event()

        def keeper(name):
            async def keep(message):
                told[name].append(message.params.uri)
                if name == "c":
                    news.set()

            return keep

        with serving(app) as address:
            headers = {"Authorization": "Bearer t"}

            def connect(name):
                http = httpx2.AsyncClient(headers=headers)
                transport = streamable_http_client(address, http_client=http)
                return Client(transport, mode="legacy", message_handler=keeper(name))

            async with connect("b") as stays, connect("c") as last:
                async with connect("a") as goes:
                    for client in (goes, stays, last):
                        await client.subscribe_resource(EVENTS)
                await stays.unsubscribe_resource(EVENTS)
                scene.move_first()
                with anyio.fail_after(60):
                    await news.wait()
        assert told == {"a": [], "b": [], "c": [EVENTS]}

    anyio.run(run)


@pytest.mark.parametrize("uri", ["map://nothing", "file:///etc/passwd", "map://events/1"])
def test_an_unknown_resource_is_refused_by_its_name(uri):
    async def run():
        async with Client(make_server(LiveScene()), mode="legacy") as client, Client(make_server(LiveScene())) as later:
            for asked in (client.read_resource, client.subscribe_resource, client.unsubscribe_resource):
                with pytest.raises(MCPError, match=f"there is no resource '{uri}'; there are {OBJECTS}"):
                    await asked(uri)
            with pytest.raises(MCPError, match=f"there is no resource '{uri}'"):
                async with later.listen(resource_subscriptions=[EVENTS, uri]):
                    pass

    anyio.run(run)


def test_a_saved_map_accepts_a_subscription_and_a_node_that_is_away_too():
    class Away(LiveScene):
        def perception(self):
            raise SceneUnavailableError("is the node running?")

    async def run():
        for scene in (StillScene(), Away()):
            async with Client(make_server(scene), mode="legacy") as client:
                await client.subscribe_resource(EVENTS)
                await client.unsubscribe_resource(EVENTS)
        async with Client(make_server(Away())) as client:
            with pytest.raises(MCPError, match="is the node running"):
                await client.read_resource(EVENTS)

    anyio.run(run)


@contextmanager
def serving(app):
    """Serve ``app`` in a thread; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    try:
        yield f"http://127.0.0.1:{port}{PATH}"
    finally:
        server.should_exit = True
        thread.join(60)


@pytest.fixture
def served():
    """Address of a room over HTTP with the token "t0k€n"."""
    with serving(http_app(StillScene(), "t0k€n", "127.0.0.1")) as address:
        yield address


def test_http_answers_who_shows_the_token(served):
    async def run():
        headers = {"Authorization": "Bearer t0k€n".encode()}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(served, http_client=http)) as client,
        ):
            return await ask(client, "find", sentence="the tv")

    assert anyio.run(run).structured_content["status"] == "FOUND"


@pytest.mark.parametrize("numbers", [[7] * 6, [7, "7"]], ids=["one number", "number and text"])
def test_each_request_with_an_id_in_use_is_answered(numbers):
    """The first waits for the scene until all others have been answered."""
    entered, go_on = threading.Event(), threading.Event()

    class Slow(StillScene):
        def perception(self):
            entered.set()
            go_on.wait(60)
            return self.scene

    headers = {"Authorization": "Bearer t", "Accept": "application/json, text/event-stream"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    with serving(http_app(Slow(), "t", "127.0.0.1")) as address, ThreadPoolExecutor(1) as background:

        def post(number, method, params=None):
            body = {"jsonrpc": "2.0", "method": method, "params": params or {}}
            if number is not None:
                body["id"] = number
            return httpx2.post(address, json=body, headers=headers, timeout=60)

        headers["Mcp-Session-Id"] = post(0, "initialize", hello).headers["mcp-session-id"]
        post(None, "notifications/initialized")
        first = background.submit(post, numbers[0], "tools/call", {"name": "describe", "arguments": {}})
        assert entered.wait(60)
        for number in numbers[1:]:
            answer = post(number, "tools/call", {"name": "describe", "arguments": {}})
            assert answer.status_code == 400
            assert answer.json()["id"] == number
            assert f"the id {number!r} is in use by a request" in answer.json()["error"]["message"]
        go_on.set()
        assert '"id":7' in first.result(60).text
        assert '"id":7' in post(7, "tools/list").text  # free again


@pytest.mark.parametrize("shown", [None, "", "Bearer", "Bearer wrong", "t0k€n", "Basic t0k€n", "Bearer t0k€n2"])
def test_http_refuses_who_does_not(served, shown):
    headers = {} if shown is None else {"Authorization": shown.encode()}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    answer = httpx2.post(served, json=body, headers={**headers, "Accept": "application/json, text/event-stream"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "token" in answer.json()["error"]


def test_http_without_a_token_is_refused():
    with pytest.raises(ValueError, match="needs a token"):
        http_app(StillScene(), "", "127.0.0.1")


def test_the_command_says_what_is_wrong(tmp_path, monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    for arguments, words in (
        (["mcp", "--map", str(tmp_path)], "no map at"),
        (["mcp", "--map", str(tmp_path), "--namespace", "r2"], "selects a running node"),
    ):
        result = CliRunner().invoke(build_app([]), arguments)
        assert isinstance(result.exception, CommandError)
        assert words in str(result.exception)
