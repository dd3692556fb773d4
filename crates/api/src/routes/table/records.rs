//! Records, replicas, content, and the service itself.

use super::*;

pub(super) const ROUTES: &[Route] = &[
    with(
        fails(
            of_kind(
                read(
                    O::ListEvents,
                    "/v1/events",
                    "records",
                    "What changed, oldest first.",
                    json!(EventPage),
                ),
                Kind::Local,
            ),
            &[C::Gone],
        ),
        &[AFTER_EVENT, LIMIT],
    ),
    fails(
        takes(
            of_kind(
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
                Kind::Local,
            ),
            json!(SqlQuery),
        ),
        &[C::BadSql, C::SlowSql, C::NotReady],
    ),
    with(
        fails(
            of_kind(
                read(
                    O::WatchEvents,
                    "/v1/watch/events",
                    "records",
                    "What changes, as it happens. Events: `event`; `reset` when some were missed.",
                    Content::Events(schema::<EventView>),
                ),
                Kind::Local,
            ),
            &[C::Gone],
        ),
        &[WATCH_AFTER],
    ),
    only(
        with(
            of_kind(
                read(
                    O::ListAudit,
                    "/v1/audit",
                    "records",
                    "Who asked for what, and what became of it, oldest first.",
                    json!(Page<AuditView>),
                ),
                Kind::Local,
            ),
            &[AFTER_EVENT, LIMIT],
        ),
        HOLDER,
    ),
    only(
        of_kind(
            read(
                O::ListCheckpoints,
                "/v1/checkpoints",
                "records",
                "Saved pictures of the state on this replica.",
                json!(Page<CheckpointView>),
            ),
            Kind::Local,
        ),
        Access::Known,
    ),
    only(
        answers(
            of_kind(
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
                Kind::Local,
            ),
            201,
            json!(One<CheckpointView>),
        ),
        Access::Holder(P::ManageMachines),
    ),
    of_kind(
        read(
            O::MasterStatus,
            "/v1/masters",
            "masters",
            "The replicas, as this one sees them.",
            json!(MasterStatus),
        ),
        Kind::Local,
    ),
    needs(
        only(
            fails(
                takes(
                    of_kind(
                        change(
                            O::AddMaster,
                            Method::Post,
                            "/v1/masters",
                            "masters",
                            "Add a replica that runs; it votes once it has caught up.",
                        ),
                        Kind::Make,
                    ),
                    json!(AddMaster),
                ),
                &[C::Exists, C::NoSuchReplica, C::WrongState],
            ),
            Access::Holder(P::ManageMachines),
        ),
        P::ManageMachines,
    ),
    needs(
        only(
            fails(
                takes(
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
            Access::Holder(P::ManageUsers),
        ),
        P::ManageUsers,
    ),
    needs(
        only(
            fails(
                of_kind(
                    change(
                        O::RemoveMaster,
                        Method::Delete,
                        "/v1/masters/{replica}",
                        "masters",
                        "Remove a replica.",
                    ),
                    Kind::Make,
                ),
                &[C::NoSuchReplica, C::WrongState],
            ),
            Access::Holder(P::ManageMachines),
        ),
        P::ManageMachines,
    ),
    with(
        read(O::ListBlobs, "/v1/blobs", "blobs", "Stored content.", json!(Page<BlobView>)),
        &[LIMIT, AFTER],
    ),
    takes(
        fails(
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
    of_kind(
        fails(read(O::GetBlob, BLOB, "blobs", "The content.", Content::Bytes), &[C::NoSuchBlob]),
        Kind::Local,
    ),
    fails(
        change(O::RemoveBlob, Method::Delete, BLOB, "blobs", "Forget content no job names."),
        &[C::NoSuchBlob, C::WrongState],
    ),
    of_kind(
        read(O::OpenApi, "/v1/openapi.json", "service", "This document.", Content::Document),
        Kind::Local,
    ),
    of_kind(
        read(O::Metrics, "/metrics", "service", "Prometheus metrics.", Content::Text),
        Kind::Local,
    ),
    only(
        of_kind(
            fails(
                read(O::Health, "/healthz", "service", "The process answers.", Content::Text),
                &[C::NotReady],
            ),
            Kind::Local,
        ),
        Access::Open,
    ),
    only(
        of_kind(
            fails(
                read(
                    O::Ready,
                    "/readyz",
                    "service",
                    "The replica knows a leader and has applied what it knows of.",
                    Content::Text,
                ),
                &[C::NotReady],
            ),
            Kind::Local,
        ),
        Access::Open,
    ),
];
