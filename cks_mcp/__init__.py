"""The MCP server: tools, resources and the programs around the runtime."""
