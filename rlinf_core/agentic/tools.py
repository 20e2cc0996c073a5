"""Tools that tasks share: full-text search, and the tools of an MCP server."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import re
import sqlite3
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Annotated, Any

from pydantic import Field

from rlinf_core.agentic.environment import Tool, ToolError
from rlinf_core.core.errors import RlinfError, escape_ascii


class SearchIndex:
    """Documents in memory, ranked by BM25 (SQLite FTS5)."""

    def __init__(self, documents: Sequence[str]) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._lock = threading.Lock()
        self._database.execute("CREATE VIRTUAL TABLE documents USING fts5(text)")
        self._database.executemany(
            "INSERT INTO documents VALUES (?)", [(text,) for text in documents]
        )

    def tool(self, name: str = "search") -> Tool:
        """Return the index as a tool."""
        return Tool.of(self.search, name)

    def search(
        self,
        query: Annotated[str, Field(min_length=1, max_length=400)],
        limit: Annotated[int, Field(ge=1, le=10)] = 3,
    ) -> str:
        """Find documents by words.

        Args:
            query: words; a document that has more of them comes first
            limit: number of documents
        """
        words = re.findall(r"\w+", query)[:32]
        if not words:
            return "no document"
        terms = " OR ".join(f'"{word}"' for word in words)
        with self._lock:
            rows = self._database.execute(
                "SELECT text FROM documents WHERE documents MATCH ? ORDER BY rank, rowid LIMIT ?",
                (terms, limit),
            ).fetchall()
        return "\n".join(text for (text,) in rows) or "no document"


class MCPTools:
    """The tools of an MCP server (Model Context Protocol), a child process that speaks over pipes.

    Use it as a context manager. The server is a program of the user's choice and runs with the
    user's rights: it is not a jail.
    """

    def __init__(
        self,
        command: str,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Set up the client; the context manager starts the server.

        Args:
            command: the command that starts the server
            args: arguments of the command
            env: its environment variables; a small default set if None
            timeout_s: for the start, and for each call
        """
        self.command = command
        self.args = list(args)
        self.env = env
        self.timeout_s = timeout_s
        self.tools: list[Tool] = []

    def __enter__(self) -> MCPTools:
        if importlib.util.find_spec("mcp") is None:
            raise RlinfError("MCP tools: expected the package mcp, got none. Run: pip install mcp")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._ready: Future[list[Tool]] = Future()
        self._session = self._submit(self._serve())
        try:
            self.tools = self._ready.result(self.timeout_s)
        except BaseException as error:
            self.__exit__()
            raise RlinfError(
                f"MCP server '{escape_ascii(self.command)}': expected its tools within "
                f"{self.timeout_s:g} s, got {type(error).__name__}: {escape_ascii(error)}"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_end"):
            self._loop.call_soon_threadsafe(self._end.set)
        else:
            self._session.cancel()
        with contextlib.suppress(BaseException):  # an error at the server's end does not concern us
            self._session.result(5.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _serve(self) -> None:
        """Hold the session open in one task, as MCP's client requires."""
        from mcp import ClientSession, StdioServerParameters
        from mcp.client.stdio import stdio_client

        self._end = asyncio.Event()
        try:
            async with AsyncExitStack() as stack:
                server = StdioServerParameters(
                    command=self.command,
                    args=self.args,
                    env=dict(self.env) if self.env is not None else None,
                )
                read, write = await stack.enter_async_context(stdio_client(server))
                self._client = await stack.enter_async_context(ClientSession(read, write))
                await self._client.initialize()
                listed = await self._client.list_tools()
                self._ready.set_result([self._tool(tool) for tool in listed.tools])
                await self._end.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise

    def _tool(self, described: Any) -> Tool:
        schema = getattr(described, "inputSchema", None) or getattr(described, "input_schema", {})

        def call(**arguments: Any) -> str:
            try:
                result = self._submit(self._client.call_tool(described.name, arguments)).result(
                    self.timeout_s
                )
            except Exception as error:
                raise ToolError(f"{described.name}: {type(error).__name__}: {error}") from error
            text = "\n".join(getattr(part, "text", f"[{part.type}]") for part in result.content)
            if getattr(result, "isError", None) or getattr(result, "is_error", False):
                raise ToolError(text)
            return text

        return Tool(
            described.name, described.description or "", json.loads(json.dumps(schema)), call
        )
