"""SQL: the ports, the bodies behind them, the schema, and one module of statements per table."""
