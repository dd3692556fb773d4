//! Machines, and the resources applications make up on them.

use super::*;

pub(super) const ROUTES: &[Route] = &[
    with(
        read(
            O::ListMachines,
            "/v1/machines",
            "machines",
            "Machines, oldest first.",
            json!(Page<MachineView>),
        ),
        &[SELECTOR, MACHINE_STATUS, LIMIT, AFTER],
    ),
    needs(
        takes(
            answers(
                fails(
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
    fails(
        read(O::GetMachine, MACHINE, "machines", "One machine.", json!(One<MachineView>)),
        &[C::NoSuchMachine],
    ),
    with(
        fails(
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
    only(
        fails(
            of_kind(
                read(
                    O::GetMachinePackages,
                    "/v1/machines/{machine}/packages",
                    "machines",
                    "The packages of a machine and who gave them, asked of its agent.",
                    json!(MachinePackages),
                ),
                Kind::Local,
            ),
            &[C::NoSuchMachine, C::WrongState, C::AgentSilent, C::Overloaded],
        ),
        Access::Holder(P::ManageMachines),
    ),
    needs(
        versioned(takes(
            fails(
                change(O::UpdateMachine, Method::Put, MACHINE, "machines", "Change a machine."),
                &[C::NoSuchMachine, C::WrongState],
            ),
            json!(MachineSpec),
        )),
        P::ManageMachines,
    ),
    needs(
        with(
            versioned(fails(
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
    needs(
        versioned(fails(
            change(
                O::StartDrain,
                Method::Post,
                "/v1/machines/{machine}/drain",
                "machines",
                "Move everything away, within the jobs' budgets, and place nothing new.",
            ),
            &[C::NoSuchMachine],
        )),
        P::ManageMachines,
    ),
    needs(
        versioned(fails(
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
    with(
        read(
            O::ListResources,
            "/v1/resources",
            "resources",
            "Resources applications made up.",
            json!(Page<ResourceView>),
        ),
        &[USER, LIMIT, AFTER],
    ),
    fails(
        read(O::GetResource, RESOURCE, "resources", "One resource.", json!(One<ResourceView>)),
        &[C::NoSuchResource],
    ),
    takes(
        fails(
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
    fails(
        change(
            O::DeleteResource,
            Method::Delete,
            RESOURCE,
            "resources",
            "Remove a resource everywhere; holders stay.",
        ),
        &[C::ForeignNamespace, C::NoSuchResource],
    ),
    with(
        read(
            O::ClusterStatus,
            "/v1/cluster_status",
            "cluster",
            "Capacity and what is available, node by node, and which nodes failed.",
            json!(ClusterStatus),
        ),
        &[SUMMARY],
    ),
    of_kind(
        read(
            O::ListAlarms,
            "/v1/alarms",
            "cluster",
            "What a person should look at: machines nobody hears, clocks that are apart, disks \
             that are full or damaged, no leader. The leader knows of all of it, other replicas \
             of themselves.",
            json!(Alarms),
        ),
        Kind::Local,
    ),
    with(
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
    of_kind(
        read(
            O::WatchOverview,
            "/v1/watch/overview",
            "cluster",
            "The picture, then what changes in it, at most once a second. Events: `overview`.",
            Content::Events(schema::<Overview>),
        ),
        Kind::Local,
    ),
    takes(
        answers(
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
