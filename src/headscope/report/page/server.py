"""A folder of runs in the browser, served to this machine only and read-only; pages follow a run while it goes on.

    /            the runs and their files            /all           all runs on one page
    /run/NAME    the page of one run                 /stamp/NAME    says whether it has changed (/stamp: any of them)
    /file/NAME   a file of a run folder

Nothing outside the folder is read: paths are resolved first, links included. A request must name this machine as its
host, so that a page elsewhere whose name points here (DNS rebinding) reads nothing.
"""

from __future__ import annotations

import hashlib
import json
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any, cast
from urllib.parse import quote, unquote, urlsplit

from headscope.errors import HeadscopeError, InputError, SetupError
from headscope.report.figures.titles import TITLES
from headscope.report.page.html import assemble, build_page, place_of, policy
from headscope.report.reading import Reading, plain

ADDRESS = "127.0.0.1"
HOSTS = {"127.0.0.1", "localhost"}
# Kinds of files that a run folder holds; others are not served.
KINDS = {
    ".png": "image/png", ".svg": "image/svg+xml", ".pdf": "application/pdf", ".csv": "text/csv; charset=utf-8",
    ".json": "application/json", ".graphml": "application/xml", ".safetensors": "application/octet-stream",
}  # fmt: skip
# A file that is looked at by itself may style itself, and do nothing else.
FILE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"


class Refused(Exception):
    """A request that is not answered, with its status."""

    def __init__(self, status: HTTPStatus, why: str):
        super().__init__(why)
        self.status = status


class Shelf:
    """The runs below a folder: where they are, whether they have changed, and their pages."""

    def __init__(self, root: Path):
        self.root = root.resolve()
        self._pages: dict[str, tuple[str, bytes]] = {}
        self._lock = Lock()

    def inside(self, name: str) -> Path:
        """The path of that name below the folder, links followed; refused if that leads outside."""
        if "\0" in name or any(part.startswith(".") for part in Path(name).parts if part != "."):
            raise Refused(HTTPStatus.FORBIDDEN, "hidden files and .. are not served")
        try:
            path = (self.root / name.strip("/")).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise Refused(HTTPStatus.NOT_FOUND, "that is no name of a file") from error
        if not path.is_relative_to(self.root):
            raise Refused(HTTPStatus.FORBIDDEN, "that lies outside the folder")
        return path

    def run(self, name: str) -> Path:
        path = self.inside(name)
        if not (path / "manifest.json").is_file() or not self._holds(path / "manifest.json"):
            raise Refused(HTTPStatus.NOT_FOUND, "no run of that name")
        return path

    def runs(self) -> list[str]:
        """Names of the runs: the folder itself, and those up to two levels below."""
        folders = [path.parent for depth in ("", "*/", "*/*/") for path in self.root.glob(f"{depth}manifest.json")]
        visible = [p for p in folders if not any(part.startswith(".") for part in p.relative_to(self.root).parts)]
        whole = [path for path in visible if self._holds(path / "manifest.json")]
        return [path.relative_to(self.root).as_posix() for path in sorted(whole, key=place_of)]

    def _holds(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.root)

    def stamp(self, names: list[str]) -> str:
        """Changes whenever a manifest does; a manifest changes with every file that is finished."""
        facts = []
        for name in names:
            try:
                status = (self.root / name / "manifest.json").stat()
                facts.append((name, status.st_mtime_ns, status.st_size))
            except OSError:
                facts.append((name, 0, 0))
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def page(self, address: str) -> bytes:
        """The page of an address: "" is the list, "all" every run, otherwise one."""
        names = [address.removeprefix("run/")] if address.startswith("run/") else self.runs()
        stamp = self.stamp(names)
        with self._lock:
            known = self._pages.get(address)
            if known is None or known[0] != stamp:
                known = (stamp, self._build(address, names, stamp).encode())
                self._pages[address] = known
        return known[1]

    def _build(self, address: str, names: list[str], stamp: str) -> str:
        live = f"/stamp/{quote(names[0])}" if address.startswith("run/") else "/stamp"
        about: dict[str, Any] = {"live": live, "stamp": stamp}
        if address == "":
            rows = [self._row(name) for name in names]
            data = {"title": self.root.name, "titles": TITLES, "runs": [], "extra": None, "index": rows}
            return assemble(data | about)
        folders = [self.run(name) for name in names]
        if not folders:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no run yet")
        return build_page(folders, within=self.root, **about)

    def _row(self, name: str) -> dict[str, Any]:
        run = Reading(self.root / name, within=self.root)
        files = [file for file in map(str, run.manifest["files"]) if Path(file).suffix in KINDS and "/" not in file]
        prefix = "" if name == "." else f"{name}/"
        return plain(
            {
                "name": self.root.name if name == "." else name, "address": f"/run/{quote(name)}", "state": run.state,
                "command": run.manifest["command"], "notes": run.notes, "manifest": run.manifest,
                "files": [{"name": file, "address": f"/file/{quote(prefix + file)}"} for file in files],
            }
        )  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; refuses everything else."""

    server_version = "Headscope"
    sys_version = ""
    # Seconds for each read and write; whoever says nothing for longer is not waited for.
    timeout = 20
    raw_requestline: bytes

    @property
    def viewer(self) -> Viewer:
        return cast(Viewer, self.server)

    def parse_request(self) -> bool:
        # (The library hangs up on a first line without words.)
        if self.raw_requestline.decode("iso-8859-1").split():
            return super().parse_request()
        self.requestline, self.request_version, self.command = "", "HTTP/1.0", ""
        self.send_error(HTTPStatus.BAD_REQUEST, "No request")
        return False

    def do_GET(self) -> None:
        try:
            self._refuse_strangers()
            self._answer(unquote(urlsplit(self.path).path))
        except Refused as refused:
            self._send(
                f"{refused.status.phrase}: {refused}.\n".encode(), "text/plain; charset=utf-8", status=refused.status
            )
        except (ConnectionError, TimeoutError):
            raise
        # Whatever a run folder makes go wrong, whoever asked is told.
        except Exception as error:
            said = str(error) if isinstance(error, HeadscopeError) else f"{type(error).__name__}: {error}"
            status = HTTPStatus.NOT_FOUND if isinstance(error, OSError) else HTTPStatus.INTERNAL_SERVER_ERROR
            self._send(f"{said}\n".encode(errors="replace"), "text/plain; charset=utf-8", status=status)

    do_HEAD = do_GET

    def _not_allowed(self) -> None:
        status = HTTPStatus.METHOD_NOT_ALLOWED
        self._send(b"Only GET and HEAD: nothing here can be changed.\n", "text/plain", status=status, Allow="GET, HEAD")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_CONNECT = do_TRACE = _not_allowed

    def _refuse_strangers(self) -> None:
        allowed = {f"{host}:{self.viewer.server_port}" for host in HOSTS}
        if self.headers.get("Host", "").lower() not in allowed:
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST, "this server answers to 127.0.0.1 and localhost only")

    def _answer(self, path: str) -> None:
        shelf, name = self.viewer.shelf, path.removeprefix("/")
        if name in ("", "all") or name.startswith("run/"):
            if name.startswith("run/"):
                shelf.run(name.removeprefix("run/"))
            self._send(shelf.page(name.rstrip("/")), "text/html; charset=utf-8", policy(live=True))
        elif name == "stamp":
            self._send_json({"stamp": shelf.stamp(shelf.runs())})
        elif name.startswith("stamp/"):
            run = shelf.run(name.removeprefix("stamp/"))
            self._send_json({"stamp": shelf.stamp([run.relative_to(shelf.root).as_posix()])})
        elif name.startswith("file/"):
            file = shelf.inside(name.removeprefix("file/"))
            if not file.is_file() or file.suffix not in KINDS:
                raise Refused(HTTPStatus.NOT_FOUND, "no such file")
            self._send(file.read_bytes(), KINDS[file.suffix], FILE_POLICY)
        else:
            raise Refused(HTTPStatus.NOT_FOUND, "no such page")

    def _send_json(self, value: Any) -> None:
        self._send(json.dumps(value).encode(), "application/json")

    def _send(
        self, body: bytes, kind: str, rules: str = "default-src 'none'", *, status: HTTPStatus = HTTPStatus.OK,
        **headers: str,
    ) -> None:  # fmt: skip
        self.send_response(status)
        about = {
            "Content-Type": kind, "Content-Length": str(len(body)), "Content-Security-Policy": rules,
            "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store", **headers,
        }  # fmt: skip
        for name, value in about.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: whoever looks at the page looks at the page."""


class Viewer(ThreadingHTTPServer):
    """The server of one folder, on this machine's own address."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int):
        if not folder.is_dir():
            raise InputError(f"{folder} is {'a file' if folder.exists() else 'not there'}; expected a folder of runs.")
        self.shelf = Shelf(folder)
        try:
            super().__init__((ADDRESS, port), Handler)
        except (OSError, OverflowError) as error:
            raise SetupError(
                f"Port {port} cannot be used: {error}. Give another --port; 0 takes any free one."
            ) from error

    @property
    def address(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has gone in the middle of an answer is nobody's error."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)
