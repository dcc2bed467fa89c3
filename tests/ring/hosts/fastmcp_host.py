"""A host made of fastmcp's client.

Usage: python fastmcp_host.py COMMAND [ARGUMENT...]; it starts the command as its MCP server and obeys the lines on standard
input: {"op":"list"} and {"op":"call","tool":NAME,"arguments":OBJECT}, one JSON answer a line.
"""
import asyncio
import json
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport


async def obey(client, order):
    if order["op"] == "list":
        return {"tools": [tool.name for tool in await client.list_tools()]}
    result = await client.call_tool(order["tool"], order["arguments"], raise_on_error=False)
    return {
        "text": "\n".join(block.text for block in result.content if block.type == "text"),
        "is_error": bool(result.is_error),
        "structured": result.structured_content,
    }


async def main():
    transport = StdioTransport(command=sys.argv[1], args=sys.argv[2:], keep_alive=False)
    async with Client(transport) as client:
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
