//! Routes of events, history, replicas, content, and the service itself.

use super::*;

pub(super) const ROUTES: &[Route] = &[
    with_query(
        with_errors(
            with_kind(
                read(
                    O::ListEvents,
                    "/v1/events",
                    "records",
                    "What changed, oldest first.",
                    json!(EventPage),
                ),
                RouteKind::Local,
            ),
            &[C::Gone],
        ),
        &[AFTER_EVENT, LIMIT],
    ),
    with_errors(
        with_body(
            with_kind(
                Route {
                    method: Method::Post,
                    ..read(
                        O::Sql,
                        "/v1/sql",
                        "records",
                        "One SELECT over the cell's history of events and usage.",
                        json!(SqlAnswer),
                    )
                },
                RouteKind::Local,
            ),
            json!(SqlQuery),
        ),
        &[C::BadSql, C::SlowSql, C::NotReady],
    ),
    with_query(
        with_errors(
            with_kind(
                read(
                    O::WatchEvents,
                    "/v1/watch/events",
                    "records",
                    "What changes, as it happens. Events: `event`; `reset` when some were missed.",
                    Content::Events(schema::<EventView>),
                ),
                RouteKind::Local,
            ),
            &[C::Gone],
        ),
        &[WATCH_AFTER],
    ),
    with_access(
        with_query(
            with_kind(
                read(
                    O::ListAudit,
                    "/v1/audit",
                    "records",
                    "Who asked for what, and what became of it, oldest first.",
                    json!(Page<AuditView>),
                ),
                RouteKind::Local,
            ),
            &[AFTER_EVENT, LIMIT],
        ),
        MANAGES_USERS,
    ),
    with_access(
        with_kind(
            read(
                O::ListCheckpoints,
                "/v1/checkpoints",
                "records",
                "Saved pictures of the state on this replica.",
                json!(Page<CheckpointView>),
            ),
            RouteKind::Local,
        ),
        Access::Authenticated,
    ),
    with_access(
        with_response(
            with_kind(
                Route {
                    method: Method::Post,
                    ..read(
                        O::SaveCheckpoint,
                        "/v1/checkpoints",
                        "records",
                        "Save a picture of the state on this replica.",
                        json!(One<CheckpointView>),
                    )
                },
                RouteKind::Local,
            ),
            201,
            json!(One<CheckpointView>),
        ),
        Access::HasCapability(P::ManageMachines),
    ),
    with_kind(
        read(
            O::MasterStatus,
            "/v1/masters",
            "masters",
            "The replicas, as this one sees them.",
            json!(MasterStatus),
        ),
        RouteKind::Local,
    ),
    with_capability(
        with_access(
            with_errors(
                with_body(
                    with_kind(
                        change(
                            O::AddMaster,
                            Method::Post,
                            "/v1/masters",
                            "masters",
                            "Add a replica that runs; it votes once it has caught up.",
                        ),
                        RouteKind::Create,
                    ),
                    json!(AddMaster),
                ),
                &[C::Exists, C::NoSuchReplica, C::WrongState],
            ),
            Access::HasCapability(P::ManageMachines),
        ),
        P::ManageMachines,
    ),
    with_capability(
        with_access(
            with_errors(
                with_body(
                    change(
                        O::ConfirmMaster,
                        Method::Post,
                        "/v1/masters/confirm",
                        "masters",
                        "Let a replica that waits have the authority's key, by its fingerprint.",
                    ),
                    json!(ConfirmMaster),
                ),
                &[C::BadField, C::WrongState],
            ),
            Access::HasCapability(P::ManageUsers),
        ),
        P::ManageUsers,
    ),
    with_capability(
        with_access(
            with_errors(
                with_kind(
                    change(
                        O::RemoveMaster,
                        Method::Delete,
                        "/v1/masters/{replica}",
                        "masters",
                        "Remove a replica.",
                    ),
                    RouteKind::Create,
                ),
                &[C::NoSuchReplica, C::WrongState],
            ),
            Access::HasCapability(P::ManageMachines),
        ),
        P::ManageMachines,
    ),
    with_query(
        read(O::ListBlobs, "/v1/blobs", "blobs", "Stored content.", json!(Page<BlobView>)),
        &[LIMIT, AFTER],
    ),
    with_body(
        with_errors(
            change(
                O::PutBlob,
                Method::Put,
                BLOB,
                "blobs",
                "Store content on a majority of the replicas.",
            ),
            &[C::BadField],
        ),
        Content::Bytes,
    ),
    with_kind(
        with_errors(
            read(O::GetBlob, BLOB, "blobs", "The content.", Content::Bytes),
            &[C::NoSuchBlob],
        ),
        RouteKind::Local,
    ),
    with_errors(
        change(O::RemoveBlob, Method::Delete, BLOB, "blobs", "Forget content no job names."),
        &[C::NoSuchBlob, C::WrongState],
    ),
    with_kind(
        read(O::OpenApi, "/v1/openapi.json", "service", "This document.", Content::AnyJson),
        RouteKind::Local,
    ),
    with_kind(
        read(O::Metrics, "/metrics", "service", "Prometheus metrics.", Content::Text),
        RouteKind::Local,
    ),
    with_access(
        with_kind(
            with_errors(
                read(O::Health, "/healthz", "service", "The process answers.", Content::Text),
                &[C::NotReady],
            ),
            RouteKind::Local,
        ),
        Access::Open,
    ),
    with_access(
        with_kind(
            with_errors(
                read(
                    O::Ready,
                    "/readyz",
                    "service",
                    "The replica knows a leader and has applied what it knows of.",
                    Content::Text,
                ),
                &[C::NotReady],
            ),
            RouteKind::Local,
        ),
        Access::Open,
    ),
];
