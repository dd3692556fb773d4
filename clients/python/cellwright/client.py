"""How a cell is reached: its masters, TLS, tokens, repeated calls, pages and watches.

What can be asked is in `operations.py`, which is made from the same table as the server's router.

A call is repeated when that cannot do harm: a read, or a change that carries an idempotency key.
Every change that may carry one gets one. At most one change is on its way under one client number at
a time, so that the numbers of a client reach the log in order; changes made by several threads at
once each take a number of their own.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import os
import re
import secrets
import ssl
import stat
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from .operations import Operations

# Certainly without effect: ask again whatever it was.
PASSING = {"not-leader", "no-leader", "overloaded", "shutting-down", "not-ready"}
# Perhaps with effect: ask again only what may be repeated.
DOUBTFUL = {"no-quorum", "timed-out"}
# A watch says something at least this often, be it nothing new.
SILENCE_S = 40.0
FIRST_PAUSE_S = 0.05
# An election takes about a second: a client that pauses longer makes it two.
LONGEST_PAUSE_S = 0.4
# All masters of the cell, on every answer of one of them.
MASTERS_HEADER = "cell-masters"
MOST_MASTERS = 16
_ADDRESS = re.compile(r"[A-Za-z0-9._:\[\]-]{1,253}:[1-9][0-9]{0,4}")


class CellError(Exception):
    """Anything that keeps a call from being answered."""


class ApiError(CellError):
    """The cell answered, and said no."""

    def __init__(self, status: int, body: dict[str, Any]):
        self.status = status
        self.code: str = body.get("code", "")
        self.message: str = body.get("message", f"status {status} without an explanation")
        self.hint: str | None = body.get("hint")
        self.details: dict[str, Any] = body.get("details") or {}
        hint = f" ({self.hint})" if self.hint else ""
        super().__init__(f"{self.message}{hint} [{self.code or status}]")


class Unreachable(CellError):
    """No master answered in time. If it was a change, it never reached one: nothing was changed."""


class Unknown(CellError):
    """A change was sent and may have happened: look before you repeat it."""


@dataclass(frozen=True)
class Event:
    """One event of a watch. `id` is what to go on after, where the stream has such marks."""

    kind: str
    data: Any
    id: str | None = None


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def error(self) -> ApiError:
        try:
            body = json.loads(self.body)
        except ValueError:
            body = None
        return ApiError(self.status, body if isinstance(body, dict) else {})


class Cell(Operations):
    """A cell, by the addresses of its masters.

    `Cell()` is the cell that the `cell` command would speak to: `CELL_ADDR`, or else the current
    context; credentials that are given are used instead of those found there. All times are in
    seconds. One object serves many threads.
    """

    def __init__(
        self,
        *masters: str,
        token: str | None = None,
        authority: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        attempt_timeout: float = 10.0,
        deadline: float = 30.0,
    ):
        learned: str | None = None
        if not masters:
            settings = _found()
            learned = settings.get("learned")
            masters = tuple(settings.pop("masters"))
            if authority is None:
                authority = settings.get("authority")
            # One identity, whole: a token of the caller's beside a found certificate would be two.
            if token is None and certificate is None and key is None:
                token = settings.get("token")
                certificate, key = settings.get("certificate"), settings.get("key")
        if authority is None and (token or certificate):
            raise CellError("a token or certificate without authority would be told to anyone")
        self._named = [_address(master) for master in masters]
        self._masters = list(self._named)
        # When the log settled the masters that were learned; a later list takes their place.
        self._settled: tuple[int, ...] | None = None
        self._tls = _tls(authority, certificate, key) if authority else None
        self._token = token
        self._attempt_timeout = attempt_timeout
        self._deadline = deadline
        self._leader = self._masters[0]
        self._idle: dict[str, list[http.client.HTTPConnection]] = {}
        self._lanes: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        self._learn(learned)

    @classmethod
    def of_context(cls, name: str | None = None, file: str | Path | None = None, **more: Any) -> Cell:
        """The cell of a context, as `cell user add` and `cell master init` write them."""
        file = Path(file) if file else _contexts_file()
        found = _context(name, file)
        cell = cls(*found.pop("masters"), **found, **more)
        cell._learn(_kept(file, found.get("authority")))
        return cell

    def close(self) -> None:
        """Ends the connections kept for later calls."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def __enter__(self) -> Cell:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pages(self, listing: Any, *names: Any, limit: int = 1000, **filters: Any) -> Iterator[Any]:
        """Every item of a list, page by page: `for job in cell.pages(cell.list_jobs)`."""
        after = None
        while True:
            page = listing(*names, limit=limit, after=after, **filters)
            yield from page["items"]
            after = page.get("next")
            if after is None:
                return

    # What `operations.py` is built on.

    def _call(
        self,
        method: str,
        path: str,
        query: dict[str, Any],
        body: Any = None,
        *,
        expect: int | None = None,
        keyed: bool = False,
        key: str | None = None,
        raw: bool = False,
    ) -> Any:
        headers = self._headers()
        content = None
        if body is not None:
            is_bytes = isinstance(body, (bytes, bytearray))
            content = bytes(body) if is_bytes else json.dumps(body).encode()
            kind = "application/octet-stream" if is_bytes else "application/json"
            headers["content-type"] = kind
        if expect is not None:
            headers["if-match"] = str(expect)
        lane = None
        if keyed:
            lane = None if key else self._take_lane()
            headers["idempotency-key"] = key or f"{lane[0]:016x}-{lane[1]}"
        try:
            repeatable = method == "GET" or keyed
            answer = self._repeat(method, _target(path, query), headers, content, repeatable)
        finally:
            if lane:
                self._give_back(lane)
        if raw:
            return answer.body
        if answer.headers.get_content_type() != "application/json":
            return answer.body.decode()
        return json.loads(answer.body)

    def _watch(self, path: str, query: dict[str, Any], last: str | None) -> Iterator[Event]:
        """Events for ever, from where it was after a break. Ends when the caller stops reading."""
        address, pause = self._leader, FIRST_PAUSE_S
        while True:
            headers = self._headers()
            if last is not None:
                headers["last-event-id"] = last
                query = {name: value for name, value in query.items() if name != "after"}
            connection = self._connect(address, SILENCE_S)
            try:
                connection.request("GET", _target(path, query), headers=headers)
                response = connection.getresponse()
                if response.status != 200:
                    answer = _Answer(response.status, response.headers, response.read(1 << 20))
                    error = answer.error()
                    if error.code not in PASSING | DOUBTFUL:
                        raise error
                    address = self._next_address(address, error)
                else:
                    self._learn(response.headers.get(MASTERS_HEADER))
                    pause = FIRST_PAUSE_S
                    for event in _events(response):
                        last = event.id if event.id is not None else last
                        yield event
                    address = self._other(address)
            except (OSError, http.client.HTTPException):
                address = self._other(address)
            finally:
                connection.close()
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def _headers(self) -> dict[str, str]:
        token = self._token
        if token is None and self._tls is None:
            # An open master may be started after its clients: looked for each time.
            token = _open_token([self._leader, *self._masters])
        return {"authorization": f"Bearer {token}"} if token else {}

    def _repeat(
        self, method: str, target: str, headers: dict[str, str], body: bytes | None, repeatable: bool
    ) -> _Answer:
        until = time.monotonic() + self._deadline
        address, pause, tried = self._leader, FIRST_PAUSE_S, 0
        last: Exception | None = None
        # Whether an attempt may have changed something: the later ones cannot take that back.
        doubt = False
        while tried == 0 or time.monotonic() < until:
            tried += 1
            wait = pause
            try:
                answer = self._once(address, method, target, headers, body, until, repeatable)
            except _Lost as lost:
                if lost.sent and not repeatable:
                    raise Unknown(f"{method} {target}: {lost}") from lost
                doubt |= lost.sent
                last, address = lost, self._other(address)
            else:
                if answer.status < 300:
                    self._leader = address
                    self._learn(answer.headers.get(MASTERS_HEADER))
                    return answer
                error = answer.error()
                again = error.code in PASSING or (repeatable and error.code in DOUBTFUL)
                if not again:
                    raise error
                doubt |= error.code in DOUBTFUL
                last, address = error, self._next_address(address, error)
                wait = _retry_after(answer, error) or pause
            time.sleep(max(0.0, min(wait, until - time.monotonic())))
            pause = min(pause * 2, LONGEST_PAUSE_S)
        if doubt and method != "GET":
            raise Unknown(f"{method} {target}: {last} (tried {tried} times)") from last
        if isinstance(last, ApiError):
            raise last
        raise Unreachable(f"no master answers: {last} (tried {tried} times)") from last

    def _once(
        self,
        address: str,
        method: str,
        target: str,
        headers: dict[str, str],
        body: bytes | None,
        until: float,
        repeatable: bool,
    ) -> _Answer:
        patience = max(0.01, min(self._attempt_timeout, until - time.monotonic()))
        # A kept connection may be one that the server is closing: of a request on it nobody can say
        # whether it was read. So what may be sent only once gets a connection of its own.
        borrow = self._borrow if repeatable else self._connect
        connection = borrow(address, patience)
        sent = False
        try:
            connection.request(method, target, body=body, headers=headers)
            sent = True
            response = connection.getresponse()
            answer = _Answer(response.status, response.headers, response.read())
        except (OSError, http.client.HTTPException) as why:
            connection.close()
            raise _Lost(f"{address}: {why or type(why).__name__}", sent) from why
        if response.will_close:
            connection.close()
        else:
            with self._lock:
                self._idle.setdefault(address, []).append(connection)
        return answer

    def _borrow(self, address: str, patience: float) -> http.client.HTTPConnection:
        with self._lock:
            idle = self._idle.get(address)
            connection = idle.pop() if idle else None
        if connection is None:
            return self._connect(address, patience)
        if connection.sock is not None:
            connection.sock.settimeout(patience)
        return connection

    def _connect(self, address: str, patience: float) -> http.client.HTTPConnection:
        host, port = _split(address)
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=patience)
        return http.client.HTTPSConnection(host, port, timeout=patience, context=self._tls)

    def _next_address(self, address: str, error: ApiError) -> str:
        """The leader if it is one we were told to trust, else another master."""
        leader = error.details.get("leader")
        return leader if leader in self._masters else self._other(address)

    def _other(self, address: str) -> str:
        masters = self._masters
        at = masters.index(address) if address in masters else -1
        return masters[(at + 1) % len(masters)]

    def _learn(self, said: str | None) -> None:
        """Takes the masters that a master names, if it has proved to be one and its list is newer."""
        found = _masters(said) if said and self._tls is not None else None
        if found is None:
            return
        settled, masters = found
        with self._lock:
            if self._settled is None or settled > self._settled:
                self._settled = settled
                self._masters = list(dict.fromkeys(masters + self._named))

    def _take_lane(self) -> tuple[int, int]:
        with self._lock:
            return self._lanes.pop() if self._lanes else (secrets.randbits(64), 0)

    def _give_back(self, lane: tuple[int, int]) -> None:
        with self._lock:
            self._lanes.append((lane[0], lane[1] + 1))


class _Lost(Exception):
    def __init__(self, why: str, sent: bool):
        super().__init__(why)
        self.sent = sent


def _target(path: str, query: dict[str, Any]) -> str:
    def text(value: Any) -> str:
        return ("true" if value else "false") if isinstance(value, bool) else str(value)

    said = {name: text(value) for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(said)}" if said else path


def _retry_after(answer: _Answer, error: ApiError) -> float | None:
    told = error.details.get("retry_after_ms")
    if isinstance(told, (int, float)):
        return told / 1000
    header = answer.headers.get("retry-after", "")
    return float(header) if header.isdigit() else None


def _events(response: http.client.HTTPResponse) -> Iterator[Event]:
    kind, ident, data = "message", None, []
    while line := response.readline():
        text = line.decode().rstrip("\r\n")
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if not text:
            if data:
                yield Event(kind, json.loads("\n".join(data)), ident)
            kind, ident, data = "message", None, []
        elif name == "event":
            kind = value
        elif name == "id":
            ident = value
        elif name == "data":
            data.append(value)


def _address(text: str) -> str:
    """`HOST:PORT`, also from an address with a scheme."""
    if "//" in text:
        text = urlsplit(text).netloc
    _split(text)
    return text


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise CellError(f"master {address!r}: wanted HOST:PORT")
    return host.strip("[]"), int(port)


def _tls(authority: str, certificate: str | None, key: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority)
    if (certificate is None) != (key is None):
        raise CellError("certificate and key belong together; one is missing")
    if certificate and key:
        # The library takes these from a file alone; its mode is 0600 and it is gone at once.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(f"{certificate}\n{key}\n")
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _masters(said: str) -> tuple[tuple[int, ...], list[str]] | None:
    """`ERA.TERM.INDEX HOST:PORT,...`; nothing where it is anything else."""
    version, _, listed = said.partition(" ")
    masters = listed.split(",")
    parts = version.split(".")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts) or len(masters) > MOST_MASTERS:
        return None
    if not all(_ADDRESS.fullmatch(master) for master in masters):
        return None
    return tuple(map(int, parts)), masters


def _kept(contexts: Path, authority: str | None) -> str | None:
    """What the `cell` command has learned of the masters of a context's cell."""
    if authority is None:
        return None
    first = authority.partition("-----END CERTIFICATE-----")
    try:
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert("".join(first[:2]).strip())).hexdigest()
        kept = tomllib.loads(contexts.with_suffix(".masters.toml").read_text())
        said = kept["cells"][digest]["masters"] if kept.get("version", 1) == 1 else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return said if isinstance(said, str) else None


def _contexts_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "cellwright" / "contexts.toml"


def _open_token(masters: list[str]) -> str | None:
    """The token of an open master (`cell dev`) of this account: in a file named after its address,
    which the master locks while it runs. Without that lock another account may listen there."""
    uid = os.geteuid()
    run = Path(f"/run/user/{uid}")
    try:
        is_own = run.is_dir() and run.stat().st_uid == uid
    except OSError:
        is_own = False
    folder = run / "cellwright" if is_own else Path(f"/tmp/cellwright-{uid}")
    for master in masters:
        name, _, port = master.rpartition(":")
        for address in ("127.0.0.1", "[::1]") if name == "localhost" else (name,):
            try:
                opened = os.open(folder / f"{address}:{port}", os.O_RDONLY | os.O_NOFOLLOW)
            except OSError:
                continue
            with os.fdopen(opened) as file:
                found = os.fstat(opened)
                if found.st_uid != uid or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                    continue
                try:
                    fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return file.read(256).strip()
    return None


def _found() -> dict[str, Any]:
    address = os.environ.get("CELL_ADDR")
    if address:
        return {"masters": [part.strip() for part in address.split(",")]}
    found = _context(None, _contexts_file())
    found["learned"] = _kept(_contexts_file(), found.get("authority"))
    return found


def _context(name: str | None, file: Path) -> dict[str, Any]:
    try:
        mode = file.stat().st_mode
        contexts = tomllib.loads(file.read_text())
    except FileNotFoundError as why:
        raise CellError(f"{file} is not there, and CELL_ADDR names no master") from why
    except ValueError as why:
        raise CellError(f"{file}: {why}") from why
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        readable = stat.S_IMODE(mode)
        raise CellError(f"{file} can be read by others (mode {readable:o}) and holds tokens: chmod 600 it")
    version = contexts.get("version", 1)
    if version != 1:
        raise CellError(f"{file} is of version {version}; allowed: 1; take the newer client")
    known = contexts.get("contexts", {})
    name = name or contexts.get("current")
    if name is None or name not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise CellError(f"there is no context {name!r}; known: {listed}")
    return dict(known[name])
