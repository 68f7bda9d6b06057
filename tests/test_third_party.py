"""Exceptions of other libraries end at the edge that calls them: what comes out is rlenv's own, with the cause kept.

Each library's exception classes are found by looking, so that a release which adds one is a failure here. The library's
own entry is made to raise each of them; nothing of rlenv is replaced.
"""

from __future__ import annotations

import asyncio
import importlib
import resource
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import jinja2
import jsonschema_rs
import orjson
import pydantic
import pytest
import yaml

from rlenv._base.schemas import BoundedValidator
from rlenv._base.strict_json import TooMuchJson, read_json
from rlenv.calls.cache import DiskStore
from rlenv.endpoints import Endpoint
from rlenv.episodes.environment import load
from rlenv.errors import EndpointError, ResourceError, RlenvError, SpecError, ToolFailed, UsageError
from rlenv.language.loader import load_spec
from rlenv.language.templates import TemplateError, as_template, compile_template
from rlenv.language.yamltree import parse_text
from rlenv.messages import Message
from rlenv.resources.base import ResourceContext
from rlenv.rewards.answer import compile_pattern
from rlenv.runs import files as record
from rlenv.tasks.hub import dataset_folder
from rlenv.testing.laws import compiled
from rlenv.testing.tools import call, kept
from rlenv.tokens.vocabulary import ChatTemplate
from tests.support.environments import BASE
from tests.support.exceptions import classes, made


def each(library: str, *modules: str, **keys: Any) -> list[Any]:
    """One parameter for each exception class of a library; one that is skipped where it is not installed."""
    try:
        found = classes(library, *modules)
    except ImportError:
        return [pytest.param(Exception, marks=pytest.mark.skip(reason=f"{library} is not installed"), id=library)]
    return [pytest.param(kind, id=f"{library}.{kind.__qualname__}") for kind in found]


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """What an error came of: those it was raised from, and those it was raised while they were handled."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


def comes_out(
    error: BaseException, wanted: type[BaseException] | tuple[type[BaseException], ...], run: Callable[[], Any]
) -> BaseException:
    """States that `run`, in which a library raises `error`, raises `wanted` because of it."""
    with pytest.raises(wanted) as found:
        run()
    assert any(one is error for one in causes(found.value)), f"{found.value!r} does not say that {error!r} caused it"
    return found.value


# aiohttp: endpoints, and tools that ask a server


class Session:
    """A session of aiohttp whose requests fail."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def close(self) -> None: ...

    def request(self, *_: object, **__: object) -> Session._Request:
        return self._Request(self.error)

    post = request

    class _Request:
        def __init__(self, error: Exception) -> None:
            self.error = error

        async def __aenter__(self) -> None:
            raise self.error

        async def __aexit__(self, *_: object) -> None: ...


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, BaseException], None]:
    """Makes a name of a library raise."""

    def patch(module: str, name: str, error: BaseException) -> None:
        holder = importlib.import_module(module)
        for part in name.split(".")[:-1]:
            holder = getattr(holder, part)
        monkeypatch.setattr(holder, name.split(".")[-1], raising(error))

    return patch


# What a client lets out; the rest is raised where HTTP is served, or is caught below the client.
AIOHTTP = [one for one in each("aiohttp") if issubclass(one.values[0], aiohttp.ClientError)]


@pytest.mark.parametrize("kind", AIOHTTP)
def test_what_aiohttp_raises_is_an_endpoint_error(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    error = made(kind)
    monkeypatch.setattr(aiohttp, "ClientSession", lambda **_: Session(error))

    async def ask() -> None:
        async with kept() as make:
            endpoint = Endpoint(name="writer", base_url="http://h/v1", model="toy", retries=0)
            client = await endpoint.client(make().shared())
            await client.chat([Message("user", "Q")])

    comes_out(error, EndpointError, lambda: asyncio.run(ask()))


@pytest.mark.parametrize("kind", AIOHTTP)
def test_what_aiohttp_raises_is_a_tools_failure(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    error = made(kind)
    monkeypatch.setattr(aiohttp, "ClientSession", lambda **_: Session(error))
    (tool,) = compiled("tools", {"kind": "http", "url": "http://127.0.0.1:9/", "description": "Asks."}, name="ask")

    async def run() -> None:
        async with kept() as make:
            await tool.run({}, make())

    failure = comes_out(error, ToolFailed, lambda: asyncio.run(run()))
    assert "127.0.0.1" not in str(failure)


# The Hugging Face hub


def hub_error(kind: type[Exception]) -> Exception:
    import httpx

    response = httpx.Response(500, request=httpx.Request("GET", "http://h"))
    return made(kind, response=response, request=response.request)


HUB = [*each("huggingface_hub", "huggingface_hub.errors"), *each("httpx")]


@pytest.mark.parametrize("kind", HUB)
def test_what_the_hub_raises_is_a_fault_of_the_dataset(
    kind: type[Exception], fails: Callable[..., None], tmp_path: Path
) -> None:
    error = hub_error(kind)
    for name in ("list_repo_files", "snapshot_download"):
        fails("huggingface_hub", name, error)
    fault = comes_out(error, UsageError, lambda: dataset_folder("org/name", base=tmp_path, revision=None))
    assert "org/name" in str(fault)


# SQLite and DuckDB


@pytest.fixture
def database(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "toys.sqlite")) as raw:
        raw.executescript("CREATE TABLE toy (name TEXT)")
    return tmp_path


def opened(entry: Mapping[str, Any], base: Path) -> Any:
    resource = compiled("resources", entry, name="db", base=base)

    async def run() -> None:
        async with resource.open(ResourceContext()):
            pass

    return asyncio.run(run())


@pytest.mark.parametrize("access", ["copy", "read_only"])
@pytest.mark.parametrize("kind", each("sqlite3"))
def test_what_sqlite_raises_as_it_opens_is_a_resource_error(
    kind: type[Exception], access: str, fails: Callable[..., None], database: Path
) -> None:
    error = made(kind)
    fails("sqlite3", "connect", error)
    entry = {"kind": "sqlite", "path": "toys.sqlite", "access": access}
    comes_out(error, ResourceError, lambda: opened(entry, database))


@pytest.mark.parametrize("kind", each("sqlite3"))
def test_what_sqlite_raises_costs_a_cache_its_file_and_nothing_else(
    kind: type[Exception], fails: Callable[..., None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error = made(kind)
    store = make_store(tmp_path)
    fails("sqlite3", "connect", error)
    assert store.get(b"k") is None
    store.put(b"k", b"v")
    store.close()
    assert len(caplog.records) == 1


def make_store(folder: Path) -> DiskStore:
    return DiskStore(folder / "kept.sqlite", owner="a", max_entries=10, ttl_s=None)


@pytest.fixture
def _own_file_limit() -> Iterator[None]:
    """The engine bounds the files of its process, which is a worker of its own elsewhere."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


DESCRIBE = {"op": "describe", "may_write": False, "max_bytes": 1_000_000}


@pytest.mark.usefixtures("_own_file_limit")
@pytest.mark.parametrize("kind", each("duckdb"))
def test_what_duckdb_raises_as_it_opens_is_a_resource_error(
    kind: type[Exception], fails: Callable[..., None], tmp_path: Path
) -> None:
    from rlenv.resources.sql._duckdb_engine import DuckdbStatements

    error = made(kind)
    (tmp_path / "toys.duckdb").touch()
    fails("duckdb", "connect", error)
    comes_out(
        error, ResourceError, lambda: DuckdbStatements().run({**DESCRIBE, "file": str(tmp_path / "toys.duckdb")}, None)
    )


@pytest.mark.slow(but=6)
@pytest.mark.usefixtures("_own_file_limit")
@pytest.mark.parametrize("kind", each("duckdb"))
def test_what_duckdb_raises_in_a_statement_is_a_failure_of_the_tool_or_the_resource(
    kind: type[Exception], fails: Callable[..., None], tmp_path: Path
) -> None:
    import duckdb

    from rlenv.resources.sql._duckdb_engine import DuckdbStatements

    error = made(kind)
    file = str(tmp_path / "toys.duckdb")
    duckdb.connect(file).close()
    fails("duckdb", "DuckDBPyConnection.execute", error)
    comes_out(error, (ToolFailed, ResourceError), lambda: DuckdbStatements().run({**DESCRIBE, "file": file}, None))


# Jinja: templates of specs, and chat templates


@pytest.mark.parametrize("kind", each("jinja2"))
def test_what_jinja_raises_as_a_template_is_filled_is_a_template_error(kind: type[Exception]) -> None:
    error = made(kind)
    for run in (
        lambda: compile_template("{{ task.f() }}").text(task={"f": raising(error)}),
        lambda: compile_template("{{ task.f() }}").value(task={"f": raising(error)}),
        lambda: as_template("task.f()").value(task={"f": raising(error)}),
    ):
        comes_out(error, TemplateError, run)


@pytest.mark.parametrize("kind", each("jinja2"))
def test_what_jinja_raises_in_a_chat_template_is_said_of_the_template(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = made(kind)
    template = ChatTemplate("{{ f() }}", name="odd", values={"f": raising(error)})
    comes_out(error, RlenvError, lambda: template.render([{"role": "user", "content": "Q"}]))
    monkeypatch.setattr(jinja2.Environment, "from_string", raising(error))
    comes_out(error, RlenvError, lambda: ChatTemplate("{{ f() }}", name="odd", values={}))
    comes_out(error, TemplateError, lambda: compile_template(f"{{{{ {kind.__name__} }}}}"))


# Files: YAML, JSON, parquet

YAML = tuple(
    f"yaml.{name}" for name in "error reader scanner parser composer constructor resolver emitter serializer".split()
)


@pytest.mark.parametrize("kind", each("yaml", *YAML, "yaml.representer"))
def test_what_yaml_raises_is_a_fault_of_the_document(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = made(kind)
    monkeypatch.setattr(yaml.SafeLoader, "check_event", raising(error))
    comes_out(error, SpecError, lambda: parse_text("a: 1", file="a.yaml", base=tmp_path))


@pytest.mark.parametrize("kind", each("orjson"))
def test_what_orjson_raises_says_that_a_text_is_no_json(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = made(kind)
    assert isinstance(error, ValueError)  # what readers of JSON promise to raise
    monkeypatch.setattr(orjson, "loads", raising(error))
    with pytest.raises(ValueError, match=r".") as found:
        read_json(b'{"a": 1}', max_bytes=100)
    assert not isinstance(found.value, TooMuchJson)
    (tmp_path / "env.yaml").write_text("rlenv: 1\nname: toy\ntasks: {train: {path: rows.jsonl}}\n" + TAIL)
    (tmp_path / "rows.jsonl").write_text('{"question": "Q", "answer": 1}\n')
    comes_out(error, SpecError, lambda: load(tmp_path / "env.yaml").tasks("train")[0])


TAIL = "prompt: {user: '{{ task.question }}'}\nrewards: {correct: {kind: rule, rule: numeric_match}}\n"


@pytest.mark.parametrize("kind", each("pyarrow", "pyarrow", "pyarrow.lib"))
def test_what_pyarrow_raises_is_a_fault_of_the_tasks(
    kind: type[Exception], fails: Callable[..., None], tmp_path: Path
) -> None:
    error = made(kind)
    (tmp_path / "rows.parquet").touch()
    (tmp_path / "env.yaml").write_text("rlenv: 1\nname: toy\ntasks: {train: {path: rows.parquet}}\n" + TAIL)
    fails("pyarrow.parquet", "ParquetFile", error)
    environment = load(tmp_path / "env.yaml")
    comes_out(error, SpecError, lambda: environment.tasks("train"))


# Patterns, schemas, models


@pytest.mark.parametrize("kind", each("re2"))
def test_what_re2_raises_is_the_authors_mistake(kind: type[Exception], fails: Callable[..., None]) -> None:
    error = made(kind)
    fails("re2", "compile", error)
    comes_out(error, UsageError, lambda: compile_pattern("never seen before"))


def schema_error(kind: type[Exception]) -> Exception:
    if kind is jsonschema_rs.ValidationError:
        return next(iter(jsonschema_rs.validator_for({"type": "string"}).iter_errors(1)))
    return made(kind)


@pytest.mark.parametrize("kind", each("jsonschema_rs", "jsonschema_rs", "jsonschema_rs.canonical"))
def test_what_jsonschema_raises_says_that_a_schema_is_none(kind: type[Exception], fails: Callable[..., None]) -> None:
    error = schema_error(kind)
    fails("jsonschema_rs", "validator_for", error)
    # Whoever compiles a schema makes a ValueError the fault of its key.
    comes_out(error, ValueError, lambda: BoundedValidator({"type": "object", "title": kind.__name__}))


# A model raises ValidationError alone; the rest of pydantic's is raised as a class is made, which is at import.


@pytest.mark.parametrize(
    "more", ["limits2: 3\n", "resources: {db: {kind: sqlite, access: 1}}\n", "dialect: {says: 1}\n"]
)
def test_what_pydantic_raises_is_a_fault_of_the_spec(more: str, tmp_path: Path) -> None:
    (tmp_path / "env.yaml").write_text(BASE + more)
    with pytest.raises(SpecError) as found:
        load_spec(tmp_path / "env.yaml")
    assert isinstance(found.value.__cause__, pydantic.ValidationError)


def test_what_pydantic_raises_says_that_a_line_is_no_record() -> None:
    with pytest.raises(UsageError) as found:
        record.parse("{}")
    assert isinstance(found.value.__cause__, pydantic.ValidationError)


# MCP


MCP = each("mcp", "mcp", "mcp.shared.exceptions", "mcp.client.streamable_http", "mcp.client.subscriptions")


@pytest.mark.parametrize("kind", [*MCP, *each("httpx2"), *each("anyio")])
def test_what_the_sdk_of_mcp_raises_is_a_failed_call_or_a_server_that_is_down(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcp")
    from rlenv.tools._mcp.server import McpServer, ServerDown, connect

    error = mcp_error(kind)
    monkeypatch.setattr("mcp.client.Client.__aenter__", raising(error))

    async def reach() -> None:
        async with connect(McpServer(name="lab", command=("true",))):
            pass

    comes_out(error, ServerDown, lambda: asyncio.run(reach()))


@pytest.mark.parametrize("kind", [*MCP, *each("httpx2"), *each("anyio")])
def test_what_the_sdk_of_mcp_raises_in_a_call_is_the_servers_failure(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcp")
    from mcp.client import Client
    from mcp.client.session import ClientSession
    from mcp.server.mcpserver import MCPServer

    from rlenv.concurrency.deadline import Expired
    from rlenv.tools._mcp.link import CallFailed, ServerDied, open_pool
    from rlenv.tools._mcp.server import Connection, McpServer

    error = mcp_error(kind)

    @asynccontextmanager
    async def connect(server: McpServer, **_: object) -> AsyncIterator[Connection]:
        async with Client(MCPServer(server.name)) as client:
            monkeypatch.setattr(ClientSession, "send_request", raising(error))
            yield Connection(client, None)

    async def ask() -> None:
        async with open_pool(McpServer("lab"), size=1, connect=connect) as pool:
            await pool.call("echo", {}, deadline=time.monotonic() + 60)

    comes_out(error, (CallFailed, ServerDied, Expired), lambda: asyncio.run(ask()))


def mcp_error(kind: type[Exception]) -> Exception:
    if kind.__module__.startswith("httpx2"):
        import httpx2

        return made(kind, response=None, request=httpx2.Request("GET", "http://h"))
    return made(kind, template="http://{h}")


def test_an_exception_that_nobody_maps_is_an_observation(caplog: pytest.LogCaptureFixture) -> None:
    """The executor's own edge: a library's error inside a tool never ends an episode, nor shows itself to the model."""
    from rlenv.testing.tools import fake_tool

    class Odd(Exception):
        """Of a library that nobody knows."""

    error = Odd("deep inside")
    made_tool = replace(fake_tool("odd", raising(error)), mode="inline")
    result = asyncio.run(call(made_tool, {}))
    assert (result.outcome, result.text) == ("failed", "the tool odd failed")
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].exc_info[1] is error
