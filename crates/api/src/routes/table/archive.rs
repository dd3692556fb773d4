//! Routes of the archive.

use super::*;

const AFTER_OBJECT: Parameter = Parameter {
    name: "after",
    about: "The `next` of the page before.",
    value_type: ParameterType::Text(512),
};
const SUBMITTED: Parameter = Parameter {
    name: "submitted",
    about: "When the job was submitted, in milliseconds since 1970. Left out: the last one of that \
            name.",
    value_type: ParameterType::Integer { min: 0, max: u64::MAX },
};
const ARCHIVE_ERRORS: &[C] = &[C::NoArchive, C::ArchiveAway];
const OBJECT_ERRORS: &[C] = &[C::NoArchive, C::ArchiveAway, C::NotArchived];

pub(super) const ROUTES: &[Route] = &[
    read(
        O::GetArchive,
        "/v1/archive",
        "archive",
        "How the archive is doing. The leading master knows: ask with `consistent`.",
        json!(One<ArchiveStatus>),
    ),
    with_query(
        with_errors(
            with_kind(
                read(
                    O::ListArchivedJobs,
                    "/v1/archive/jobs",
                    "archive",
                    "Jobs of the archive by owner and name: one's own, and those of others for \
                     users with read_specs.",
                    json!(Page<ArchivedJobRow>),
                ),
                RouteKind::Local,
            ),
            &[C::NoArchive, C::ArchiveAway, C::NotAllowed, C::NoSuchUser],
        ),
        &[USER, LIMIT, AFTER_OBJECT],
    ),
    with_query(
        with_errors(
            with_access(
                with_kind(
                    read(
                        O::GetArchivedJob,
                        "/v1/archive/jobs/{user}/{job}",
                        "archive",
                        "A job of the archive: its spec, its versions, and how its tasks ended.",
                        json!(ArchivedJob),
                    ),
                    RouteKind::Local,
                ),
                Access::SelfOrHasCapability(P::ReadSpecs),
            ),
            OBJECT_ERRORS,
        ),
        &[SUBMITTED],
    ),
    with_query(
        with_errors(
            with_access(
                with_kind(
                    read(
                        O::ListArchivedLogs,
                        "/v1/archive/logs/{user}/{job}",
                        "archive",
                        "Whose output of a job is in the archive, by task and attempt.",
                        json!(Page<ArchivedLogRow>),
                    ),
                    RouteKind::Local,
                ),
                Access::SelfOrHasCapability(P::ReadOutput),
            ),
            ARCHIVE_ERRORS,
        ),
        &[LIMIT, AFTER_OBJECT],
    ),
    with_query(
        with_errors(
            with_access(
                with_kind(
                    read(
                        O::GetArchivedLog,
                        "/v1/archive/logs/{user}/{job}/{index}",
                        "archive",
                        "What a task wrote, from the archive: gzip of lines of JSON, of which the \
                         first says whose it is, and the others are the parts of the output.",
                        Content::Bytes,
                    ),
                    RouteKind::Local,
                ),
                Access::SelfOrHasCapability(P::ReadOutput),
            ),
            OBJECT_ERRORS,
        ),
        &[SUBMITTED, ATTEMPT],
    ),
    with_query(
        with_errors(
            with_kind(
                read(
                    O::ListArchivedDays,
                    "/v1/archive/history",
                    "archive",
                    "Days of history in the archive, by table.",
                    json!(Page<ArchivedDay>),
                ),
                RouteKind::Local,
            ),
            ARCHIVE_ERRORS,
        ),
        &[LIMIT, AFTER_OBJECT],
    ),
    with_access(
        with_errors(
            with_body(
                with_kind(
                    Route {
                        method: Method::Post,
                        ..read(
                            O::RestoreHistory,
                            "/v1/archive/history/restore",
                            "archive",
                            "Have the tables of `sql` hold days of the archive again, for a while.",
                            json!(RestoredHistory),
                        )
                    },
                    RouteKind::Local,
                ),
                json!(RestoreHistory),
            ),
            &[C::NoArchive, C::ArchiveAway, C::NotArchived],
        ),
        Access::HasCapability(P::ManageMachines),
    ),
];
