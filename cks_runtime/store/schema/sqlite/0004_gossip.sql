-- Heads that other replicas hold and that ours does not descend from (maximal ones only). A row that names the
-- session's own head tells which replica put it forward; without one that was this replica.
CREATE TABLE remote_heads (
    session_id TEXT NOT NULL,
    head BLOB NOT NULL,
    holder TEXT NOT NULL,
    -- replicas under whose names the line is read while it is in conflict, the holder first; JSON
    names TEXT NOT NULL,
    -- the open conflict that the head is part of
    record_id TEXT,
    PRIMARY KEY (session_id, head)
) STRICT, WITHOUT ROWID;
CREATE INDEX remote_heads_lines ON remote_heads (session_id) WHERE record_id IS NOT NULL;

-- Versions kept as history only: their heads are neither taken nor merged.
CREATE TABLE refused_versions (
    version BLOB PRIMARY KEY,
    diagnostics TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Replicas that were heard of, for all processes of this database.
CREATE TABLE gossip_peers (
    replica_id TEXT PRIMARY KEY,
    address TEXT,
    heard_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
