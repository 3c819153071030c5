"""A small Hub on this machine: the endpoints that huggingface_hub needs to make, fill, list and read repositories.

Speaks HTTP as the Hub does, so that the real client runs against it. Every file is a regular one (no LFS, no Xet).
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

TOKEN = "hf_local_test"  # not a secret: it opens only this server
USER = "someone"


@dataclass(frozen=True)
class Commit:
    """One commit: its message, and the repository's files after it."""

    message: str
    files: dict[str, bytes]
    added: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    @property
    def sha(self) -> str:
        digest = hashlib.sha1(self.message.encode())
        for path, content in sorted(self.files.items()):
            digest.update(path.encode() + b"\0" + hashlib.sha1(content).digest())
        return digest.hexdigest()


def first_commits() -> dict[str, list[Commit]]:
    return {"main": [Commit("initial commit", {".gitattributes": b""})]}


@dataclass
class Repository:
    """The branches of one repository, each a list of commits, and its settings."""

    settings: dict[str, Any] = field(default_factory=dict)
    branches: dict[str, list[Commit]] = field(default_factory=first_commits)

    def at(self, revision: str) -> Commit | None:
        """Return the commit that a branch or a sha names."""
        if revision in self.branches:
            return self.branches[revision][-1]
        return next((each for commits in self.branches.values() for each in commits if each.sha == revision), None)


class HubServer:
    """The server; use it in a `with` block.

    Attributes:
        repositories: by id.
        requests: method and path of every request, in order.
        tokens: the tokens that were sent.
        fails_commits: how the next commits are answered: a status, or None for as they should be.
        gate: commits wait for it; set at the start.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.tokens: list[str | None] = []
        self.fails_commits: int | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def files(self, repo_id: str, revision: str = "main") -> list[str]:
        """Return the paths in a repository, but for the one every repository starts with."""
        commit = self.repositories[repo_id].at(revision)
        assert commit is not None
        return sorted(path for path in commit.files if path != ".gitattributes")

    def content(self, repo_id: str, path: str, revision: str = "main") -> bytes:
        commit = self.repositories[repo_id].at(revision)
        assert commit is not None
        return commit.files[path]

    def messages(self, repo_id: str, revision: str = "main") -> list[str]:
        """Return the messages of the commits that clients made, the first one first."""
        return [each.message for each in self.repositories[repo_id].branches[revision][1:]]

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Refused(Exception):
    def __init__(self, status: int, code: str = "", **body: Any) -> None:
        super().__init__(code)
        self.status, self.code, self.body = status, code, body


def _handler_of(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.hub = hub
    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urllib.parse.urlsplit(self.path)
        path = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        bearer = self.headers.get("Authorization")
        with self.hub.lock:
            self.hub.requests.append(f"{self.command} {url.path}")
            self.hub.tokens.append(None if bearer is None else bearer.removeprefix("Bearer "))
        try:
            if path[0] == "api":
                query = dict(urllib.parse.parse_qsl(url.query))
                self._send(200, json.dumps(self._api(path[1:], body, query)).encode())
            elif len(path) > 4 and path[2] == "resolve":
                self._resolve("/".join(path[:2]), path[3], "/".join(path[4:]))
            else:
                raise _Refused(404)
        except _Refused as refused:
            self._send(refused.status, json.dumps(refused.body).encode(), {"X-Error-Code": refused.code})

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _api(self, path: list[str], body: bytes, query: dict[str, str]) -> Any:
        match path:
            case ["validate-yaml"]:
                return {"errors": [], "warnings": []}
            case ["whoami-v2"]:
                self._check_token()
                return {"type": "user", "name": USER, "orgs": [], "auth": {"accessToken": {"role": "write"}}}
            case ["repos", "create"]:
                return self._create(json.loads(body))
            case ["models"]:
                found = [name for name in self.hub.repositories if name.startswith(query.get("author", ""))]
                return [self._describe(name, "main") for name in sorted(found)]
            case ["models", owner, name]:
                return self._describe(f"{owner}/{name}", "main")
            case ["models", owner, name, "revision", revision]:
                return self._describe(f"{owner}/{name}", revision)
            case ["models", owner, name, "tree", revision, *folder]:
                return self._tree(self._commit(f"{owner}/{name}", revision), "/".join(folder))
            case ["models", owner, name, action, *rest]:
                self._check_token()
                return self._write(f"{owner}/{name}", action, rest[0] if rest else "", body)
        raise _Refused(404, "RepoNotFound")

    def _check_token(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise _Refused(401, error="Invalid credentials in Authorization header")

    def _repository(self, repo_id: str) -> Repository:
        if repo_id not in self.hub.repositories:
            raise _Refused(404, "RepoNotFound", error="Repository not found")
        return self.hub.repositories[repo_id]

    def _commit(self, repo_id: str, revision: str) -> Commit:
        commit = self._repository(repo_id).at(revision)
        if commit is None:
            raise _Refused(404, "RevisionNotFound", error="Invalid rev id")
        return commit

    def _create(self, wanted: dict[str, Any]) -> dict[str, str]:
        self._check_token()
        repo_id = f"{wanted.get('organization') or USER}/{wanted['name']}"
        url = {"url": f"{self.hub.url}/{repo_id}"}
        with self.hub.lock:
            if repo_id in self.hub.repositories:
                raise _Refused(409, **url)
            self.hub.repositories[repo_id] = Repository({"visibility": wanted.get("visibility")})
        return url

    def _describe(self, repo_id: str, revision: str) -> dict[str, Any]:
        commit = self._commit(repo_id, revision)
        return {
            "_id": "0",
            "id": repo_id,
            "sha": commit.sha,
            "private": self._repository(repo_id).settings.get("visibility") == "private",
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": [{"rfilename": path} for path in sorted(commit.files)],
        }

    def _tree(self, commit: Commit, folder: str) -> list[dict[str, Any]]:
        prefix = f"{folder}/" if folder else ""
        return [
            {"type": "file", "path": path, "size": len(content), "oid": _git_oid(content)}
            for path, content in sorted(commit.files.items())
            if path.startswith(prefix)
        ]

    def _write(self, repo_id: str, action: str, revision: str, body: bytes) -> Any:
        repository = self._repository(repo_id)
        if action == "settings":
            repository.settings.update(json.loads(body))
            return {}
        if action == "branch":
            if revision in repository.branches:
                raise _Refused(409, error="Reference already exists")
            repository.branches[revision] = [repository.branches["main"][0]]
            return {}
        if action == "preupload":
            files = self._commit(repo_id, revision).files
            return {
                "files": [
                    {
                        "path": each["path"],
                        "uploadMode": "regular",
                        "shouldIgnore": False,
                        "oid": _git_oid(files[each["path"]]) if each["path"] in files else None,
                    }
                    for each in json.loads(body)["files"]
                ]
            }
        if action == "commit":
            return self._add_commit(repo_id, revision, [json.loads(line) for line in body.splitlines()])
        raise _Refused(404)

    def _add_commit(self, repo_id: str, revision: str, operations: list[dict[str, Any]]) -> dict[str, Any]:
        self.hub.gate.wait(30)
        if self.hub.fails_commits is not None:
            raise _Refused(self.hub.fails_commits, error="This Hub fails on request")
        with self.hub.lock:
            files = dict(self._commit(repo_id, revision).files)
            message, added, deleted = "", [], []
            for operation in operations:
                value = operation["value"]
                match operation["key"]:
                    case "header":
                        message = value["summary"]
                    case "file":
                        files[value["path"]] = base64.b64decode(value["content"])
                        added.append(value["path"])
                    case "deletedFile":
                        del files[value["path"]]
                        deleted.append(value["path"])
                    case other:
                        raise _Refused(400, error=f"{other} is not supported here")
            commit = Commit(message, files, tuple(added), tuple(deleted))
            self._repository(repo_id).branches[revision].append(commit)
        return {"commitUrl": f"{self.hub.url}/{repo_id}/commit/{commit.sha}", "commitOid": commit.sha}

    def _resolve(self, repo_id: str, revision: str, path: str) -> None:
        commit = self._commit(repo_id, revision)
        known = {"X-Repo-Commit": commit.sha}
        if path not in commit.files:
            self._send(404, b"{}", {**known, "X-Error-Code": "EntryNotFound"})
            return
        content = commit.files[path]
        self._send(200, content, {**known, "ETag": f'"{_git_oid(content)}"', "Content-Type": "text/plain"})


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
