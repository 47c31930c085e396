CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

-- Trie nodes and objects, named by the SHA-256 of their canonical JSON; never changed, never removed.
CREATE TABLE blobs (
    blob_no INTEGER PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,
    kind TEXT NOT NULL CHECK (kind IN ('node', 'object')),
    data BLOB NOT NULL
) STRICT;

CREATE TABLE versions (
    version_no INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    generation INTEGER NOT NULL,
    parents BLOB NOT NULL,
    data BLOB NOT NULL
) STRICT;

-- Which parent of a merge was the session's own head: parents are a set, so only this tells.
CREATE TABLE merges (
    session_id TEXT NOT NULL,
    version BLOB NOT NULL,
    previous BLOB NOT NULL,
    PRIMARY KEY (session_id, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
    session_id TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    fork_session TEXT,
    fork_version BLOB NOT NULL,
    head BLOB NOT NULL,
    root BLOB NOT NULL,
    closed INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    moved_at_ms INTEGER NOT NULL,
    moved_seq INTEGER NOT NULL
) STRICT;
CREATE INDEX sessions_moved ON sessions (moved_seq);

CREATE TABLE journal (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;

CREATE TABLE conflicts (
    record_id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    session_id TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'closed')),
    occurrence INTEGER NOT NULL,
    notice_no INTEGER NOT NULL,
    detected_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    version_id TEXT NOT NULL,
    body TEXT NOT NULL,
    drained_at_ms INTEGER,
    closed_at_ms INTEGER,
    closed_how TEXT
) STRICT;
CREATE INDEX conflicts_queued ON conflicts (kind, notice_no) WHERE drained_at_ms IS NULL AND state = 'open';
CREATE INDEX conflicts_state ON conflicts (kind, state, notice_no);
CREATE INDEX conflicts_session ON conflicts (session_id, state, kind);

-- What a record claims; `anchor` is the place in the graph where the claim can change.
CREATE TABLE claims (
    claim BLOB PRIMARY KEY,
    kind TEXT NOT NULL,
    session_id TEXT NOT NULL,
    anchor TEXT NOT NULL,
    record_id TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'closed')),
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX claims_anchor ON claims (kind, session_id, anchor) WHERE state = 'open';
CREATE INDEX claims_record ON claims (record_id, state);

CREATE TABLE cks_outbox_tasks (
    task_id TEXT PRIMARY KEY,
    task_type TEXT NOT NULL,
    session_id TEXT NOT NULL,
    payload TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('PENDING', 'IN_PROGRESS', 'DEAD')),
    attempts INTEGER NOT NULL,
    next_retry_at INTEGER NOT NULL,
    last_error TEXT,
    claimed_by TEXT,
    claim_token TEXT,
    lease_until INTEGER,
    lease_boot_id TEXT,
    created_at INTEGER NOT NULL,
    dead_at INTEGER,
    dedupe_key TEXT NOT NULL UNIQUE
) STRICT;
CREATE INDEX outbox_due ON cks_outbox_tasks (status, task_type, next_retry_at);

-- When an object, in whatever session, falls due: `temporal` at its valid_until, `provenance` at checked_at.
CREATE TABLE due (
    kind TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    object_hash BLOB NOT NULL,
    object_id TEXT NOT NULL,
    PRIMARY KEY (kind, at_ms, object_hash)
) STRICT, WITHOUT ROWID;

CREATE TABLE sweeps (
    sweeper TEXT PRIMARY KEY,
    cursor_seq INTEGER NOT NULL,
    due_mark_ms INTEGER,
    config TEXT NOT NULL,
    last_run_ms INTEGER,
    last_found INTEGER NOT NULL
) STRICT;

CREATE TABLE sweep_marks (
    sweeper TEXT NOT NULL,
    session_id TEXT NOT NULL,
    version BLOB NOT NULL,
    PRIMARY KEY (sweeper, session_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE leases (
    name TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    until_ms INTEGER NOT NULL,
    boot_id TEXT NOT NULL
) STRICT;

-- Full text of objects by blob_no; filled when a search first needs it, at most once an object.
CREATE VIRTUAL TABLE search USING fts5 (text, content = '', tokenize = 'unicode61 remove_diacritics 2');
