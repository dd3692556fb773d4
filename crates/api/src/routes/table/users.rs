//! Routes of users, their tokens and periodic jobs.

use super::*;

pub(super) const ROUTES: &[Route] = &[
    with_query(
        read(O::ListUsers, "/v1/users", "users", "Users, oldest first.", json!(Page<UserView>)),
        &[LIMIT, AFTER],
    ),
    with_capability(
        with_body(
            with_response(
                with_errors(
                    change(O::AddUser, Method::Post, "/v1/users", "users", "Add a user."),
                    &[C::Exists],
                ),
                201,
                json!(Changed),
            ),
            json!(AddUser),
        ),
        P::ManageUsers,
    ),
    with_errors(
        read(O::GetUser, USER_PATH, "users", "One user.", json!(One<UserView>)),
        &[C::NoSuchUser],
    ),
    with_capability(
        versioned(with_errors(
            change(
                O::RemoveUser,
                Method::Delete,
                USER_PATH,
                "users",
                "Remove a user without jobs.",
            ),
            &[C::WrongState],
        )),
        P::ManageUsers,
    ),
    with_capability(
        versioned(with_body(
            change(
                O::SetCapabilities,
                Method::Put,
                "/v1/users/{user}/capabilities",
                "users",
                "Say what a user may do.",
            ),
            json!(SetCapabilities),
        )),
        P::ManageUsers,
    ),
    with_capability(
        versioned(with_body(
            with_errors(
                change(O::SetQuota, Method::Put, QUOTA, "users", "Grant quota in one band."),
                &[C::QuotaOversold],
            ),
            json!(Quota),
        )),
        P::ManageUsers,
    ),
    with_capability(
        versioned(change(
            O::RemoveQuota,
            Method::Delete,
            QUOTA,
            "users",
            "Take the quota of one band away.",
        )),
        P::ManageUsers,
    ),
    with_access(
        with_errors(
            with_query(
                read(
                    O::ListUserTokens,
                    TOKENS,
                    "tokens",
                    "Tokens of a user, without their secrets.",
                    json!(Page<TokenView>),
                ),
                &[LIMIT, AFTER],
            ),
            &[C::NoSuchUser],
        ),
        SELF_OR_MANAGES_USERS,
    ),
    with_body(
        with_response(
            with_kind(
                with_errors(
                    change(
                        O::AddUserToken,
                        Method::Post,
                        TOKENS,
                        "tokens",
                        "Make a token for a user; shown once.",
                    ),
                    &[C::BadField],
                ),
                RouteKind::Create,
            ),
            201,
            json!(NewToken),
        ),
        json!(AddUserToken),
    ),
    with_access(
        with_query(
            read(
                O::ListTokens,
                "/v1/tokens",
                "tokens",
                "All tokens, without their secrets.",
                json!(Page<TokenView>),
            ),
            &[LIMIT, AFTER],
        ),
        MANAGES_USERS,
    ),
    with_capability(
        with_body(
            with_response(
                with_kind(
                    with_errors(
                        change(
                            O::AddJoinToken,
                            Method::Post,
                            "/v1/tokens/join",
                            "tokens",
                            "Make a token with which one agent or replica joins once; shown once.",
                        ),
                        &[C::WrongState],
                    ),
                    RouteKind::Create,
                ),
                201,
                json!(NewToken),
            ),
            json!(AddJoinToken),
        ),
        P::ManageUsers,
    ),
    with_errors(
        change(
            O::RevokeToken,
            Method::Delete,
            "/v1/tokens/{token}",
            "tokens",
            "Make a token worthless.",
        ),
        &[C::NoSuchToken],
    ),
    with_capability(
        with_body(
            with_errors(
                change(
                    O::RevokePart,
                    Method::Post,
                    "/v1/revocations",
                    "tokens",
                    "Stop listening to an agent, replica or scheduler until it joins again.",
                ),
                &[C::WrongState],
            ),
            json!(PartRevocation),
        ),
        P::ManageUsers,
    ),
    with_query(
        read(O::ListCrons, "/v1/crons", "crons", "Crons, oldest first.", json!(Page<CronView>)),
        &[USER, LIMIT, AFTER],
    ),
    with_errors(
        read(O::GetCron, CRON, "crons", "One cron.", json!(One<CronView>)),
        &[C::NoSuchCron],
    ),
    versioned(with_body(
        with_errors(
            change(O::SetCron, Method::Put, CRON, "crons", "Create or change a cron."),
            &[C::NotOwner],
        ),
        json!(CronSpec),
    )),
    versioned(with_errors(
        change(O::RemoveCron, Method::Delete, CRON, "crons", "Remove a cron; its jobs stay."),
        &[C::NotOwner, C::NoSuchCron],
    )),
    with_errors(
        change(
            O::RunCron,
            Method::Post,
            "/v1/crons/{user}/{cron}/run",
            "crons",
            "Start a run now, also of a cron that is paused. It counts among the runs: as many are \
             kept, and with `overlap: skip` there is none while the last goes on.",
        ),
        &[C::NotOwner, C::NoSuchCron, C::WrongState, C::QuotaExceeded],
    ),
];
