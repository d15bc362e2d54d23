"""`headscope view`: what it serves, what it refuses, and that it follows a run."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import run_folders
from command import OFFLINE, headscope, process

from headscope.report.page.server import Handler, Viewer
from headscope.runs.run import Run


@pytest.fixture
def runs(tmp_path) -> Path:
    folder = tmp_path / "runs"
    run_folders.heads_run(folder / "heads")
    run_folders.edges_run(folder / "deep" / "edges")
    (folder / "heads" / "curves.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (folder / "heads" / "page.html").write_text("<script>alert(1)</script>")
    (folder / "heads" / ".fit.json").write_text("{}")
    (tmp_path / "secret.json").write_text('{"secret": 1}')
    (folder / "link").symlink_to(tmp_path)
    (folder / "heads" / "link.json").symlink_to(tmp_path / "secret.json")
    return folder


@pytest.fixture
def server(runs) -> Iterator[Viewer]:
    with Viewer(runs, 0) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: Viewer, path: str, *, method: str = "GET", host: str | None = None) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, dict(answer.headers)


def test_what_it_serves(server):
    status, index, headers = ask(server, "/")
    assert status == 200
    assert '"name":"heads"' in index
    assert '"name":"deep/edges"' in index
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    for path in ("/run/heads", "/run/deep/edges", "/all"):
        status, page, _ = ask(server, path)
        assert status == 200
        assert '"curves":[{' in page
    status, svg, headers = ask(server, "/file/heads/curves.svg")
    assert (status, svg[:4]) == (200, "<svg")
    assert "sandbox" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    status, body, headers = ask(server, "/run/heads", method="HEAD")
    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) > 1000


@pytest.mark.parametrize(
    "path",
    [
        "/file/../secret.json", "/file/%2e%2e/secret.json", "/file/heads/..%2f..%2fsecret.json", "/file//etc/passwd",
        "/file/link/secret.json", "/file/heads/link.json", "/run/link", "/run/..", "/stamp/../x",
        "/file/heads/.fit.json",
        "/file/heads/page.html", "/file/heads", "/nothing", "/run/nothing", "/file/%00", "/file/c:%5c..%5c..%5cx",
    ],
)  # fmt: skip
def test_what_it_refuses(server, path):
    status, body, _ = ask(server, path)
    assert status in (403, 404)
    assert "secret" not in body.replace("secret.json", "")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(server, method):
    assert ask(server, "/run/heads", method=method)[0] == 405


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1:1", "127.0.0.1.evil.example", "x"])
def test_other_hosts_are_refused(server, host):
    status, body, _ = ask(server, "/run/heads", host=host)
    assert status == 421
    assert "curves" not in body
    assert ask(server, "/", host=f"localhost:{server.server_port}")[0] == 200


def test_it_listens_on_loopback_only(server):
    assert server.server_address[0] == "127.0.0.1"


def test_a_page_follows_its_run(server, runs):
    stamp = json.loads(ask(server, "/stamp/heads")[1])["stamp"]
    page = ask(server, "/run/heads")[1]
    assert f'"stamp":"{stamp}"' in page
    assert ask(server, "/run/heads")[1] == page
    everything = ask(server, "/stamp")[1]
    run = Run.open(runs / "new", command="heads", settings={"models": ["m"], "tasks": ["ioi"]})
    assert ask(server, "/stamp")[1] != everything
    assert '"state":"going on"' in ask(server, "/run/new")[1]
    before = ask(server, "/stamp/new")[1]
    run.finish()
    assert ask(server, "/stamp/new")[1] != before
    assert '"state":"finished"' in ask(server, "/run/new")[1]
    assert json.loads(ask(server, "/stamp/heads")[1])["stamp"] == stamp


@pytest.mark.parametrize("content", ["[" * 100_000, "{", "[]", '{"command": 3}', "1" * 5000])
def test_one_bad_manifest_does_not_empty_the_list(server, runs, content):
    (runs / "bad").mkdir()
    (runs / "bad" / "manifest.json").write_text(content)
    status, index, _ = ask(server, "/")
    assert status == 200
    assert '"name":"heads"' in index
    assert '"name":"bad"' in index
    for path in ("/all", "/run/bad", "/run/heads"):
        assert ask(server, path)[0] == 200


def test_who_says_nothing_is_not_waited_for(server, monkeypatch):
    monkeypatch.setattr(Handler, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as half_open:
        half_open.sendall(b"GET / HT")
        assert half_open.recv(100) == b""


@pytest.mark.parametrize("first_line", [b"\r\n\r\n", b"\xa0\r\n\r\n", b"\nGET / HTTP/1.0\r\n\r\n"])
def test_a_request_without_words_is_answered(server, first_line: bytes):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as asking:
        asking.sendall(first_line)
        asking.shutdown(socket.SHUT_WR)
        assert b"400" in asking.recv(100)


def test_an_error_in_a_run_is_answered(server, monkeypatch):
    monkeypatch.setattr(server.shelf, "stamp", lambda names: 1 / 0)
    status, body, _ = ask(server, "/stamp")
    assert (status, body) == (500, "ZeroDivisionError: division by zero\n")


def test_the_command(runs):
    """As a process: it says where it is, answers, and ends quietly when it is told to."""
    with subprocess.Popen(
        process("view", runs, "--port", "0"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**OFFLINE, "PYTHONUNBUFFERED": "1"},
    ) as view:  # fmt: skip
        assert view.stdout
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", view.stdout.readline())
        assert found
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=20)
        connection.request("GET", "/stamp")
        assert connection.getresponse().status == 200
        view.send_signal(signal.SIGTERM)
        _, err = view.communicate(timeout=20)
    assert (view.returncode, err) == (0, "")


def test_bad_input_is_told(tmp_path, capfd):
    said = headscope(capfd, "view", tmp_path / "nowhere")
    assert (said.code, "expected a folder" in said.err) == (2, True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = headscope(capfd, "view", tmp_path, "--port", taken.getsockname()[1])
    assert (said.code, "--port" in said.err) == (1, True)
