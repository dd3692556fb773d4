//! Users, their tokens and periodic jobs.

use super::*;

pub(super) const ROUTES: &[Route] = &[
    with(
        read(O::ListUsers, "/v1/users", "users", "Users, oldest first.", json!(Page<UserView>)),
        &[LIMIT, AFTER],
    ),
    needs(
        takes(
            answers(
                fails(
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
    fails(read(O::GetUser, A_USER, "users", "One user.", json!(One<UserView>)), &[C::NoSuchUser]),
    needs(
        versioned(fails(
            change(O::RemoveUser, Method::Delete, A_USER, "users", "Remove a user without jobs."),
            &[C::WrongState],
        )),
        P::ManageUsers,
    ),
    needs(
        versioned(takes(
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
    needs(
        versioned(takes(
            fails(
                change(O::SetQuota, Method::Put, QUOTA, "users", "Grant quota in one band."),
                &[C::QuotaOversold],
            ),
            json!(Quota),
        )),
        P::ManageUsers,
    ),
    needs(
        versioned(change(
            O::RemoveQuota,
            Method::Delete,
            QUOTA,
            "users",
            "Take the quota of one band away.",
        )),
        P::ManageUsers,
    ),
    only(
        fails(
            with(
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
        OWN,
    ),
    takes(
        answers(
            of_kind(
                fails(
                    change(
                        O::AddUserToken,
                        Method::Post,
                        TOKENS,
                        "tokens",
                        "Make a token for a user; shown once.",
                    ),
                    &[C::BadField],
                ),
                Kind::Make,
            ),
            201,
            json!(NewToken),
        ),
        json!(AddUserToken),
    ),
    only(
        with(
            read(
                O::ListTokens,
                "/v1/tokens",
                "tokens",
                "All tokens, without their secrets.",
                json!(Page<TokenView>),
            ),
            &[LIMIT, AFTER],
        ),
        HOLDER,
    ),
    needs(
        takes(
            answers(
                of_kind(
                    fails(
                        change(
                            O::AddJoinToken,
                            Method::Post,
                            "/v1/tokens/join",
                            "tokens",
                            "Make a token with which one agent or replica joins once; shown once.",
                        ),
                        &[C::WrongState],
                    ),
                    Kind::Make,
                ),
                201,
                json!(NewToken),
            ),
            json!(AddJoinToken),
        ),
        P::ManageUsers,
    ),
    fails(
        change(
            O::RevokeToken,
            Method::Delete,
            "/v1/tokens/{token}",
            "tokens",
            "Make a token worthless.",
        ),
        &[C::NoSuchToken],
    ),
    needs(
        takes(
            fails(
                change(
                    O::Dismiss,
                    Method::Post,
                    "/v1/dismissals",
                    "tokens",
                    "Stop listening to an agent, replica or scheduler until it joins again.",
                ),
                &[C::WrongState],
            ),
            json!(Dismiss),
        ),
        P::ManageUsers,
    ),
    with(
        read(O::ListCrons, "/v1/crons", "crons", "Crons, oldest first.", json!(Page<CronView>)),
        &[USER, LIMIT, AFTER],
    ),
    fails(read(O::GetCron, CRON, "crons", "One cron.", json!(One<CronView>)), &[C::NoSuchCron]),
    versioned(takes(
        fails(
            change(O::SetCron, Method::Put, CRON, "crons", "Create or change a cron."),
            &[C::NotOwner],
        ),
        json!(CronSpec),
    )),
    versioned(fails(
        change(O::RemoveCron, Method::Delete, CRON, "crons", "Remove a cron; its jobs stay."),
        &[C::NotOwner, C::NoSuchCron],
    )),
];
