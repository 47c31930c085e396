-- Worker processes on this database: each writes its row at every beat and takes it away when it ends cleanly.
CREATE TABLE agents (
    owner TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    started_at_ms INTEGER NOT NULL,
    beat_at_ms INTEGER NOT NULL,
    interval_ms INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;
