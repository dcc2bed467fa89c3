"""A host made of the official Python SDK, of the generation that is installed beside it (1.x or 2.x).

Usage: python python_sdk.py COMMAND [ARGUMENT...]; it starts the command as its MCP server and obeys the lines on standard
input: {"op":"list"} and {"op":"call","tool":NAME,"arguments":OBJECT}, one JSON answer a line.
"""
import asyncio
import contextlib
import json
import sys

import mcp
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


@contextlib.asynccontextmanager
async def connected(argv):
    """1.x has a session over a pair of streams; 2.x puts a client over the same transport, and asks differently."""
    transport = stdio_client(StdioServerParameters(command=argv[0], args=argv[1:]))
    if hasattr(mcp, "Client"):
        async with mcp.Client(transport) as client:
            yield client
        return
    async with transport as (read, write):
        async with ClientSession(read, write) as session:
            await session.initialize()
            yield session


def either(thing, snake, camel):
    """The two generations spell a field differently."""
    return getattr(thing, snake) if hasattr(thing, snake) else getattr(thing, camel)


async def obey(client, order):
    if order["op"] == "list":
        listed = await client.list_tools()
        return {"tools": [tool.name for tool in listed.tools]}
    result = await client.call_tool(order["tool"], order["arguments"])
    return {
        "text": "\n".join(block.text for block in result.content if block.type == "text"),
        "is_error": bool(either(result, "is_error", "isError")),
        "structured": either(result, "structured_content", "structuredContent"),
    }


async def main():
    async with connected(sys.argv[1:]) as client:
        while True:
            line = await asyncio.to_thread(sys.stdin.readline)
            if not line:
                return
            try:
                answer = await obey(client, json.loads(line))
            except Exception as error:
                answer = {"failure": "%s: %s" % (type(error).__name__, error)}
            print(json.dumps(answer), flush=True)


asyncio.run(main())
