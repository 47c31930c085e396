-- Bodies of documents, named by the SHA-256 of their bytes; never changed, never removed.
CREATE TABLE document_bodies (
    body_no INTEGER PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,
    data BLOB NOT NULL
) STRICT;

-- Each version names the hash of the one before it; an archived one is a marker that keeps the last body's hash.
CREATE TABLE document_versions (
    path TEXT NOT NULL,
    version INTEGER NOT NULL CHECK (version > 0),
    previous BLOB,
    content BLOB NOT NULL,
    author TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    archived INTEGER NOT NULL,
    hash BLOB NOT NULL,
    PRIMARY KEY (path, version)
) STRICT, WITHOUT ROWID;

-- Where each document stands.
CREATE TABLE documents (
    path TEXT PRIMARY KEY,
    version INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
