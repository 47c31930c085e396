-- A claim looks for what is due and for leases that ended; what is dead or not due must cost it nothing.
DROP INDEX outbox_due;
CREATE INDEX outbox_waiting ON cks_outbox_tasks (task_type, next_retry_at, created_at) WHERE status = 'PENDING';
CREATE INDEX outbox_waiting_session ON cks_outbox_tasks (session_id, task_type, next_retry_at) WHERE status = 'PENDING';
CREATE INDEX outbox_leased ON cks_outbox_tasks (lease_boot_id, lease_until, task_type, session_id)
    WHERE status = 'IN_PROGRESS';
CREATE INDEX outbox_dead ON cks_outbox_tasks (created_at, task_id) WHERE status = 'DEAD';
CREATE INDEX outbox_dead_type ON cks_outbox_tasks (task_type, created_at, task_id) WHERE status = 'DEAD';
CREATE INDEX outbox_dead_session ON cks_outbox_tasks (session_id, created_at, task_id) WHERE status = 'DEAD';

-- How long the running lease was taken for: one that ends later than now + this is over.
ALTER TABLE cks_outbox_tasks ADD COLUMN lease_ms INTEGER;

-- The last holder of each of the last 100,000 tasks that left the queue: its `complete` is answered with success
-- also when the answer was lost, or when the conflict closed first; any other claim of the task is stale.
-- Read only where a token fits no task, newest first: an index would cost every completion more than it saves.
CREATE TABLE outbox_settled (
    settled_no INTEGER PRIMARY KEY,
    task_id TEXT NOT NULL,
    claim_token TEXT NOT NULL
) STRICT;
CREATE TRIGGER outbox_settle AFTER DELETE ON cks_outbox_tasks BEGIN
    INSERT INTO outbox_settled (task_id, claim_token) VALUES (old.task_id, coalesce(old.claim_token, ''));
    DELETE FROM outbox_settled WHERE settled_no <= last_insert_rowid() - 100000;
END;
