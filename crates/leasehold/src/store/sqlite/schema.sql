-- The file names its program and its layout from the first commit on, so that a foreign file is told by its header.
PRAGMA application_id = 1279607123;
PRAGMA user_version = 1;

-- One row: when the file was made (nanoseconds since 1970, to tell it from a successor); what was seen last, namely the
-- inode of the file and of its log, each with the time of its birth, and the boot; how often one of them was another
-- than before; and the highest fencing token ever given.
CREATE TABLE meta (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    born       INTEGER NOT NULL,
    place      TEXT    NOT NULL,
    log        TEXT    NOT NULL,
    boot       TEXT    NOT NULL,
    epoch      INTEGER NOT NULL,
    last_token INTEGER NOT NULL
) STRICT;

-- One row for each held key. Times are nanoseconds: `ends` since the boot named by `boot`, the others since 1970.
-- `tie` is 0 = nothing, 1 = the process `tie_id`, 2 = the process group `tie_id`; `tie_start` is the start time of
-- that process in clock ticks since boot, and `tie_pid_namespace` says where its number means anything.
CREATE TABLE leases (
    key               TEXT    PRIMARY KEY,
    owner             BLOB    NOT NULL,
    token             INTEGER NOT NULL,
    boot              TEXT    NOT NULL,
    ends              INTEGER NOT NULL,
    wall_ends         INTEGER NOT NULL,
    tie               INTEGER NOT NULL,
    tie_id            INTEGER,
    tie_start         INTEGER,
    tie_pid_namespace TEXT,
    host              TEXT,
    pid               INTEGER,
    command           TEXT,
    label             TEXT,
    reason            TEXT,
    since             INTEGER NOT NULL,
    renewed           INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
