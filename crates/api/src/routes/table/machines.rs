//! Routes of machines, and of resources that applications define on them.

use super::*;

pub(super) const ROUTES: &[Route] = &[
    with_query(
        read(
            O::ListMachines,
            "/v1/machines",
            "machines",
            "Machines, oldest first.",
            json!(Page<MachineView>),
        ),
        &[SELECTOR, MACHINE_STATUS, LIMIT, AFTER],
    ),
    with_capability(
        with_body(
            with_response(
                with_errors(
                    change(
                        O::AddMachine,
                        Method::Post,
                        "/v1/machines",
                        "machines",
                        "Add a machine.",
                    ),
                    &[C::Exists],
                ),
                201,
                json!(Changed),
            ),
            json!(MachineSpec),
        ),
        P::ManageMachines,
    ),
    with_errors(
        read(O::GetMachine, MACHINE, "machines", "One machine.", json!(One<MachineView>)),
        &[C::NoSuchMachine],
    ),
    with_query(
        with_errors(
            read(
                O::ListMachineTasks,
                "/v1/machines/{machine}/tasks",
                "machines",
                "What is bound to a machine, what is on its way out too.",
                json!(Page<TaskView>),
            ),
            &[C::NoSuchMachine],
        ),
        &[LIMIT, AFTER],
    ),
    with_access(
        with_errors(
            with_kind(
                read(
                    O::GetMachinePackages,
                    "/v1/machines/{machine}/packages",
                    "machines",
                    "The packages of a machine and who gave them, asked of its agent.",
                    json!(MachinePackages),
                ),
                RouteKind::Local,
            ),
            &[C::NoSuchMachine, C::WrongState, C::AgentSilent, C::Overloaded],
        ),
        Access::HasCapability(P::ManageMachines),
    ),
    with_capability(
        versioned(with_body(
            with_errors(
                change(O::UpdateMachine, Method::Put, MACHINE, "machines", "Change a machine."),
                &[C::NoSuchMachine, C::WrongState],
            ),
            json!(MachineSpec),
        )),
        P::ManageMachines,
    ),
    with_capability(
        with_query(
            versioned(with_errors(
                change(
                    O::RemoveMachine,
                    Method::Delete,
                    MACHINE,
                    "machines",
                    "Remove a machine. Refused while it is up with tasks on it, unless forced.",
                ),
                &[C::NoSuchMachine, C::WrongState],
            )),
            &[FORCE],
        ),
        P::ManageMachines,
    ),
    with_capability(
        with_query(
            versioned(with_errors(
                change(
                    O::StartDrain,
                    Method::Post,
                    "/v1/machines/{machine}/drain",
                    "machines",
                    "Move everything away, within the jobs' budgets, and place nothing new.",
                ),
                &[C::NoSuchMachine],
            )),
            &[WITHIN],
        ),
        P::ManageMachines,
    ),
    with_capability(
        versioned(with_errors(
            change(
                O::StopDrain,
                Method::Post,
                "/v1/machines/{machine}/undrain",
                "machines",
                "Let the machine take work again.",
            ),
            &[C::NoSuchMachine],
        )),
        P::ManageMachines,
    ),
    with_query(
        read(
            O::ListResources,
            "/v1/resources",
            "resources",
            "Resources applications made up.",
            json!(Page<ResourceView>),
        ),
        &[USER, LIMIT, AFTER],
    ),
    with_errors(
        read(O::GetResource, RESOURCE, "resources", "One resource.", json!(One<ResourceView>)),
        &[C::NoSuchResource],
    ),
    with_body(
        with_errors(
            change(
                O::SetResource,
                Method::Put,
                RESOURCE,
                "resources",
                "Create, change or renew a resource on chosen nodes.",
            ),
            &[C::WrongActor, C::ForeignNamespace, C::NoSuchMachine, C::TooFewNodes],
        ),
        json!(SetResource),
    ),
    with_errors(
        change(
            O::DeleteResource,
            Method::Delete,
            RESOURCE,
            "resources",
            "Remove a resource everywhere; holders stay.",
        ),
        &[C::ForeignNamespace, C::NoSuchResource],
    ),
    with_query(
        read(
            O::ClusterStatus,
            "/v1/cluster_status",
            "cluster",
            "Capacity and what is available, node by node, and which nodes failed.",
            json!(ClusterStatus),
        ),
        &[SUMMARY],
    ),
    with_kind(
        read(
            O::ListAlarms,
            "/v1/alarms",
            "cluster",
            "What a person should look at: machines nobody hears, clocks that are apart, disks \
             that are full or damaged, no leader. Whichever replica is asked asks the leader and \
             the others.",
            json!(Alarms),
        ),
        RouteKind::Local,
    ),
    with_query(
        read(
            O::Find,
            "/v1/find",
            "cluster",
            "What a name can mean: what is called so, or else what begins so; 50 at most.",
            json!(Page<FoundView>),
        ),
        &[FIND_NAME, NEAR],
    ),
    read(
        O::Overview,
        "/v1/overview",
        "cluster",
        "The whole cell in one small picture: a column for each property of its machines.",
        json!(Overview),
    ),
    with_kind(
        read(
            O::WatchOverview,
            "/v1/watch/overview",
            "cluster",
            "The picture, then what changes in it, at most once a second. Events: `overview`.",
            Content::Events(schema::<Overview>),
        ),
        RouteKind::Local,
    ),
    with_body(
        with_response(
            change(
                O::Batch,
                Method::Post,
                "/v1/batch",
                "cluster",
                "Many changes in one call, a verdict for each.",
            ),
            200,
            json!(BatchAnswer),
        ),
        json!(Batch),
    ),
];
