//! The configuration keys of a master, their meaning and their defaults. The default file is this
//! table printed.

/// One configuration key.
pub(super) struct Key {
    pub name: &'static str,
    /// Its text in the default file; empty when there is no default and it must be given.
    pub default: &'static str,
    /// Lines of explanation.
    pub about: &'static str,
}

const fn key(name: &'static str, default: &'static str, about: &'static str) -> Key {
    Key { name, default, about }
}

pub(super) const KEYS: &[Key] = &[
    key("cell", "", "Name of the cell. All replicas and agents of a cell agree on it."),
    key("name", "", "Name of this replica, unique in the cell."),
    key(
        "id",
        "1",
        "Number of this replica in the replicated log. Never used again, not even by\n\
                    the same host after its disk was lost.",
    ),
    key("data_dir", "\"/var/lib/cellwright/master\"", "Log, snapshots, events, keys and packages."),
    key("listen", "\"0.0.0.0:7070\"", "Address and port to listen on."),
    key("advertise", "", "host:port at which clients, agents and other replicas reach this one."),
    key(
        "dns_listen",
        "\"off\"",
        "Address and port to answer DNS on, UDP and TCP, or \"off\". Every replica\n\
                                  that answers, answers for the whole cell.",
    ),
    key("names_suffix", "\"cell.internal\"", "What names of tasks end with, after the cell's."),
    key("supervise_scheduler", "true", "Start a scheduler beside this master and keep it running."),
    key("poll_interval", "\"5s\"", "How often each agent is polled."),
    key("missed_polls", "3", "Missed polls after which a machine counts as down."),
    key(
        "down_per_minute",
        "\"5%\"",
        "Most machines declared down in a minute: a number, or a share of the cell,\n\
                                 of which 6 is the least. Nothing at all is moved while more\n\
                                 than half of the machines look dead.",
    ),
    key(
        "clock_skew_alarm",
        "\"5s\"",
        "How far the clock of a master, machine or scheduler may be from the cell's,\n\
                                which is the one in the middle of its masters', without alarm.",
    ),
    key(
        "reclaim",
        "\"medium\"",
        "How much of what tasks reserve and do not use is lent to batch: \"baseline\"\n\
                                  (little), \"medium\" or \"aggressive\".",
    ),
    key("reclaim_warm_up", "\"5m\"", "How long after its start a task reserves all of its limits."),
    key("reclaim_speed", "1", "How many times as fast as usual reservations follow usage down."),
    key(
        "task_certificate_lifetime",
        "\"1h\"",
        "How long the certificate of a task is good; it is renewed at half of that.",
    ),
    key("keep_dead_jobs", "\"24h\"", "How long jobs stay visible after their end."),
    key("keep_events", "\"30d\"", "How long the feed of events reaches back, at most ..."),
    key("events_size", "\"2GiB\"", "... and how much of the disk it may take."),
    key(
        "history_recent",
        "\"28d\"",
        "How long events and usage stay in the database of history; older days are\n\
                                   kept as Parquet files.",
    ),
    key("keep_history", "\"400d\"", "How long history reaches back, at most ..."),
    key("history_size", "\"8GiB\"", "... and how much of the disk it may take."),
    key("keep_audit", "\"365d\"", "How long the audit log reaches back, at most ..."),
    key("audit_size", "\"1GiB\"", "... and how much of the disk it may take."),
    key(
        "audit_size_user",
        "\"64MiB\"",
        "Of that, what the requests of one user may take; what is more is counted.",
    ),
    key(
        "archive",
        "\"off\"",
        "Where jobs that ended, logs and history are kept for good: \"off\", or\n\
                              { folder = \"/srv/archive\" }, the same folder for all masters, or\n\
                              { s3 = { endpoint = \"https://s3.example\", bucket = \"cells\",\n\
                              credentials = \"/etc/cellwright/s3\" } }. All masters say the same.",
    ),
    key(
        "archive_wait",
        "\"7d\"",
        "How much longer than keep_dead_jobs and keep_history what is not archived yet\n\
                              waits for an archive that cannot be written.",
    ),
    key("keep_archived_jobs", "\"forever\"", "How long the archive keeps jobs, ..."),
    key("keep_archived_logs", "\"forever\"", "... logs, ..."),
    key("keep_archived_history", "\"forever\"", "... and days of history."),
    key("body_limit", "\"8MiB\"", "Largest body of a request, packages apart."),
    key("tasks_per_job", "100000", "Most tasks in one job."),
    key("blob_limit", "\"4GiB\"", "Largest package that can be uploaded."),
    key(
        "package_quota_user",
        "\"16GiB\"",
        "Most bytes of packages that one user may have, and ...",
    ),
    key("package_quota_cell", "\"128GiB\"", "... that all users may have together."),
    key(
        "disk_reserve",
        "\"512MiB\"",
        "Writes are refused while less than this is free on the disk\n\
                                      of data_dir, and packages while less than twice this is;\n\
                                      reading and removing go on. A leader hands over before.",
    ),
    key(
        "heartbeat",
        "\"75ms\"",
        "Time between two signs of life of the leading master. The others elect another\n\
                             after four to five of them in silence: raise it where masters are\n\
                             far apart or short of processor time.",
    ),
    key("snapshot_entries", "50000", "Entries of the log between two snapshots."),
    key("checkpoint_interval", "\"1h\"", "How often a checkpoint is saved, and ..."),
    key("checkpoints", "24", "... how many of them are kept."),
    key("connections", "32768", "Most connections at once, over all clients and agents."),
    key("connections_per_identity", "256", "Most connections of one user or part of the cell."),
    key(
        "streams",
        "4096",
        "Most streams (watches) at once on one replica, over all callers, and ...",
    ),
    key("streams_per_user", "64", "... of one user; more are refused until others end."),
    key("stream_timeout", "\"60s\"", "A stream that nobody reads for so long is ended."),
    key("requests", "8192", "Most requests under way at once on one replica, and ..."),
    key("requests_per_user", "256", "... of one user."),
    key(
        "body_bytes",
        "\"512MiB\"",
        "Most bytes of bodies, and of answers on their way, in memory at once, and ...",
    ),
    key("body_bytes_per_user", "\"64MiB\"", "... of one user."),
    key("body_timeout", "\"10s\"", "A body that stands still for so long is cut off."),
    key("body_rate", "\"16KiB\"", "Bytes a second that a body has to come with, on average."),
    key("report_limit", "\"4MiB\"", "Largest report of an agent."),
    key("output_readers", "1024", "Most readers of tasks' output at once on one replica, and ..."),
    key("output_readers_per_user", "128", "... of one user."),
    key("sessions", "256", "Most sessions in tasks at once through one replica, and ..."),
    key("sessions_per_user", "32", "... of one user."),
    key("questions_per_user", "16", "Plans and explanations that one user may have in line."),
    key("sql_queries", "4", "Queries of history that are worked on at once, and ..."),
    key("sql_queries_per_user", "1", "... of one user: callers take turns."),
    key("sql_waiting_per_user", "16", "Queries that one user may have in line."),
    key("sql_time", "\"30s\"", "Longest a query may take."),
    key(
        "least_charge_cpu",
        "10",
        "Quota counts every task as asking for at least this, in thousandths of a\n\
                                core. This and what follows the leading master says for the cell.",
    ),
    key("least_charge_ram", "\"16MiB\"", "The same for memory."),
    key(
        "jobs_per_user",
        "10000",
        "Jobs on record of one user; of those that ended the oldest make way.",
    ),
    key("tasks_per_user", "200000", "Tasks of all these jobs."),
    key("spec_bytes_per_user", "\"64MiB\"", "Bytes of what one user's jobs are written as."),
    key(
        "versions_per_job",
        "10",
        "Versions of a job on record; older ones make way, but for those in use.",
    ),
    key("crons_per_user", "1000", "Periodic jobs of one user."),
    key("tokens_per_user", "64", "Tokens of one user."),
    key("resources_per_user", "256", "Ephemeral resources of one user."),
    key("packages_per_user", "1000", "Packages that one user has uploaded."),
    key(
        "answer_bytes_per_user",
        "\"1MiB\"",
        "Bytes of answers kept for a user's repeated requests; the oldest go first.",
    ),
    key(
        "tasks_per_machine",
        "1000",
        "Tasks of all users that one machine holds, whatever they ask for.",
    ),
    key(
        "notice_best_effort",
        "\"2m\"",
        "Longest notice of a best-effort task that is told to stop; then it is killed,\n\
                                  whatever its job asks for.",
    ),
    key("notice_batch", "\"2m\"", "The same for batch."),
    key("notice_production", "\"1h\"", "The same for production."),
    key("notice_monitoring", "\"1h\"", "The same for monitoring."),
    key(
        "default_disk",
        "\"0B\"",
        "Disk of a task that says nothing of it, charged like any other; 0B: none.",
    ),
];
