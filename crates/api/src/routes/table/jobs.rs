//! Routes of jobs and tasks.

use super::*;

pub(super) const ROUTES: &[Route] = &[
    with_query(
        read(O::ListJobs, "/v1/jobs", "jobs", "Jobs, oldest first.", json!(Page<JobView>)),
        &[SELECTOR, USER, JOB_STATE, LIMIT, AFTER],
    ),
    with_body(
        with_response(
            with_errors(
                change(O::SubmitJob, Method::Post, "/v1/jobs", "jobs", "Submit a job."),
                ADMISSION_ERRORS,
            ),
            201,
            json!(Changed),
        ),
        json!(SubmitJob),
    ),
    with_query(
        versioned(with_body(
            with_response(
                with_errors(
                    change(
                        O::ApplyJob,
                        Method::Post,
                        "/v1/apply",
                        "jobs",
                        "Make this job so: submit it if none of its name lives, open a rolling \
                         update if it differs, leave it alone if it is so already. An update that \
                         is complete is closed first. `expect` 0: none lives. While the job is \
                         stopping, details name it as `stopping_job`: ask again when it is over. A \
                         batch job that has ended with this spec stays ended, unless `again`.",
                    ),
                    ADMISSION_ERRORS,
                ),
                200,
                json!(Applied),
            ),
            json!(SubmitJob),
        )),
        &[DRY_RUN, AGAIN],
    ),
    with_errors(read(O::GetJob, JOB, "jobs", "One job.", json!(One<JobView>)), &[C::NoSuchJob]),
    versioned(with_body(
        with_errors(
            change(O::UpdateJob, Method::Put, JOB, "jobs", "Open a rolling update to this spec."),
            ADMISSION_ERRORS,
        ),
        json!(JobSpec),
    )),
    with_query(
        versioned(with_errors(
            change(O::StopJob, Method::Delete, JOB, "jobs", "Stop the job and all its tasks."),
            OWNER_ERRORS,
        )),
        &[NOTICE],
    ),
    with_query(
        versioned(with_errors(
            change(
                O::StopTask,
                Method::Delete,
                TASK,
                "tasks",
                "Stop one task for good; its job goes on without it.",
            ),
            STOP_ERRORS,
        )),
        &[NOTICE],
    ),
    with_query(
        versioned(with_body(
            with_response(
                with_errors(
                    change(
                        O::ResizeJob,
                        Method::Post,
                        "/v1/jobs/{user}/{job}/resize",
                        "jobs",
                        "Change the number of tasks, or what each may use while it runs: only \
                         those that no longer fit where they are move. What is left out stays. An \
                         update that is complete is closed first.",
                    ),
                    ADMISSION_ERRORS,
                ),
                200,
                json!(Applied),
            ),
            json!(JobSize),
        )),
        &[DRY_RUN],
    ),
    with_errors(
        change(
            O::RestartJob,
            Method::Post,
            "/v1/jobs/{user}/{job}/restart",
            "jobs",
            "Restart the tasks that run, where they are and with the spec they have, as many at a \
             time as an update would; `restarting` of the job counts those to come.",
        ),
        OWNER_ERRORS,
    ),
    with_errors(
        change(
            O::RestartTask,
            Method::Post,
            "/v1/jobs/{user}/{job}/tasks/{index}/restart",
            "tasks",
            "Restart one task where it is, as soon as the budget of its job allows.",
        ),
        STOP_ERRORS,
    ),
    with_errors(
        change(
            O::StartFailedTasks,
            Method::Post,
            "/v1/jobs/{user}/{job}/start",
            "jobs",
            "Run the tasks that failed for good again. The job may be over: it goes on then, and \
             is admitted as if it were submitted.",
        ),
        START_ERRORS,
    ),
    with_errors(
        change(
            O::StartTask,
            Method::Post,
            "/v1/jobs/{user}/{job}/tasks/{index}/start",
            "tasks",
            "Run one task again that was stopped or has ended. Its job may be over, too.",
        ),
        START_ERRORS,
    ),
    versioned(with_errors(
        change(
            O::UndoUpdate,
            Method::Post,
            "/v1/jobs/{user}/{job}/undo",
            "jobs",
            "Roll the open update back.",
        ),
        OWNER_ERRORS,
    )),
    versioned(with_errors(
        change(
            O::CloseUpdate,
            Method::Post,
            "/v1/jobs/{user}/{job}/close",
            "jobs",
            "Close the open update; it can no longer be undone.",
        ),
        OWNER_ERRORS,
    )),
    versioned(with_errors(
        change(
            O::PromoteUpdate,
            Method::Post,
            "/v1/jobs/{user}/{job}/promote",
            "jobs",
            "Give the version that canaries try to all tasks.",
        ),
        OWNER_ERRORS,
    )),
    versioned(with_errors(
        change(
            O::FinishUpdate,
            Method::Post,
            "/v1/jobs/{user}/{job}/finish",
            "jobs",
            "Give the job's version to the tasks that its update skipped, also after it was \
             closed. `max_update_disruptions` does not hold for them.",
        ),
        ADMISSION_ERRORS,
    )),
    with_query(
        versioned(with_body(
            with_response(
                with_errors(
                    change(
                        O::RevertJob,
                        Method::Post,
                        "/v1/jobs/{user}/{job}/revert",
                        "jobs",
                        "Open a rolling update to the spec of an earlier version. An update that \
                         is complete is closed first; one that came from that version is undone.",
                    ),
                    ADMISSION_ERRORS,
                ),
                200,
                json!(Applied),
            ),
            json!(RevertJob),
        )),
        &[DRY_RUN],
    ),
    with_errors(
        read(
            O::ListVersions,
            "/v1/jobs/{user}/{job}/versions",
            "jobs",
            "The versions of a job that are kept: when, by whom, and what each changed.",
            json!(One<JobVersions>),
        ),
        &[C::NoSuchJob],
    ),
    with_errors(
        with_query(
            read(
                O::DiffVersions,
                "/v1/jobs/{user}/{job}/diff",
                "jobs",
                "What differs between two versions of a job, field by field.",
                json!(One<VersionDiff>),
            ),
            &[VERSION, AGAINST],
        ),
        &[C::NoSuchJob, C::BadField],
    ),
    with_body(
        with_errors(
            Route {
                method: Method::Post,
                ..read(
                    O::PlanJobs,
                    "/v1/plan",
                    "jobs",
                    "What submitting or updating these jobs, one after the other, would do: the \
                     differences, what happens to which task, where tasks would go, who would be \
                     evicted, what is charged. Nothing changes.",
                    json!(One<PlanView>),
                )
            },
            &[C::NoSuchUser, C::NotOwner],
        ),
        json!(PlanJobs),
    ),
    with_body(
        with_errors(
            Route {
                method: Method::Post,
                ..read(
                    O::Shapes,
                    "/v1/shapes",
                    "jobs",
                    "Which shapes of task find a place as the cell is now, how many of each, and \
                     the largest; or how many more tasks of a job. Nothing changes.",
                    json!(One<ShapesView>),
                )
            },
            &[C::NoSuchJob],
        ),
        json!(ShapesQuery),
    ),
    with_errors(
        read(
            O::ExplainJob,
            "/v1/jobs/{user}/{job}/explain",
            "jobs",
            "Why tasks of a job wait or fail, those alike together.",
            json!(One<JobExplanation>),
        ),
        &[C::NoSuchJob],
    ),
    with_errors(
        read(
            O::GetScale,
            SCALE,
            "jobs",
            "How a job is scaled: who chooses its size, what the rules ask for, and why.",
            json!(One<ScaleView>),
        ),
        &[C::NoSuchJob, C::WrongState],
    ),
    with_body(
        with_errors(
            change(
                O::SetScaleMode,
                Method::Post,
                SCALE,
                "jobs",
                "Say who chooses the size of a scaled job: its owner, or the cell.",
            ),
            &[C::NoSuchJob, C::WrongState],
        ),
        json!(SetScaleMode),
    ),
    with_errors(
        with_query(
            read(O::ListTasks, TASKS, "tasks", "Tasks of a job, by index.", json!(Page<TaskView>)),
            &[TASK_STATE, LIMIT, AFTER],
        ),
        &[C::NoSuchJob],
    ),
    with_errors(
        read(O::GetTask, TASK, "tasks", "One task.", json!(One<TaskView>)),
        &[C::NoSuchJob, C::NoSuchTask],
    ),
    with_errors(
        read(
            O::ExplainTask,
            "/v1/jobs/{user}/{job}/tasks/{index}/explain",
            "tasks",
            "Why a task waits, why it is where it is, or how it ended.",
            json!(One<ExplanationView>),
        ),
        &[C::NoSuchJob, C::NoSuchTask],
    ),
    with_errors(
        with_query(
            with_access(
                with_kind(
                    read(
                        O::ReadOutput,
                        OUTPUT,
                        "tasks",
                        "A piece of what a task wrote, from the machine it is or was on.",
                        json!(OutputPiece),
                    ),
                    RouteKind::Local,
                ),
                Access::SelfOrHasCapability(P::ReadOutput),
            ),
            &[STREAM, ATTEMPT, FROM, LINES, TAIL, SINCE, PARTS],
        ),
        AGENT_ERRORS,
    ),
    with_errors(
        with_query(
            with_access(
                with_kind(
                    read(
                        O::WatchOutput,
                        WATCH_OUTPUT,
                        "tasks",
                        "What a task writes, from one attempt to the next. Events: `output` (a \
                         piece), `silent` (its machine does not answer; tried again), `end` (the \
                         task is dead).",
                        Content::Events(schema::<OutputPiece>),
                    ),
                    RouteKind::Local,
                ),
                Access::SelfOrHasCapability(P::ReadOutput),
            ),
            &[STREAM, ATTEMPT, LINES, TAIL, SINCE, PARTS, OUTPUT_AFTER],
        ),
        AGENT_ERRORS,
    ),
    with_errors(
        with_query(
            with_access(
                with_response(
                    with_kind(
                        change(
                            O::ExecTask,
                            Method::Post,
                            EXEC,
                            "tasks",
                            "Run a command where a task runs. Takes `Upgrade: cell-exec` over \
                             HTTP/1.1; the connection then carries frames: a byte of kind, four of \
                             length, content. Kinds: 0 input or output, 1 problems, 2 end of \
                             input, 3 size of the terminal, 4 signal, 5 exit code, 6 failure.",
                        ),
                        RouteKind::Local,
                    ),
                    101,
                    Content::Bytes,
                ),
                Access::SelfOrHasCapability(P::EnterTasks),
            ),
            &[COMMAND, TERMINAL, TERM],
        ),
        EXEC_ERRORS,
    ),
    with_errors(
        with_query(
            with_access(
                with_response(
                    with_kind(
                        read(
                            O::ExecTaskInPage,
                            EXEC,
                            "tasks",
                            "The same for pages of the master itself: takes a WebSocket of the \
                             protocol `cell-exec`, whose binary messages are the same bytes, cut \
                             anywhere. A token is offered as one more protocol, \
                             `cell-token.ID.SECRET`. What is refused after the caller is known \
                             comes as a frame of kind 6.",
                            Content::Bytes,
                        ),
                        RouteKind::Local,
                    ),
                    101,
                    Content::Bytes,
                ),
                Access::SelfOrHasCapability(P::EnterTasks),
            ),
            &[COMMAND, TERMINAL, TERM],
        ),
        EXEC_ERRORS,
    ),
    with_errors(
        with_query(
            with_access(
                with_response(
                    with_kind(
                        change(
                            O::CopyFiles,
                            Method::Post,
                            COPY,
                            "tasks",
                            "Copy files to or from where a task runs. Takes `Upgrade: cell-exec`, \
                             as a command does; frames of kind 0 are a tar archive of files and \
                             folders below one name, 2 is its end, 1 says what was left out, 5 \
                             that it is done and 6 why not.",
                        ),
                        RouteKind::Local,
                    ),
                    101,
                    Content::Bytes,
                ),
                Access::SelfOrHasCapability(P::EnterTasks),
            ),
            &[DIRECTION, COPY_PATH, COPY_NAME],
        ),
        EXEC_ERRORS,
    ),
    with_errors(
        with_query(
            with_access(
                with_response(
                    with_kind(
                        change(
                            O::ForwardPort,
                            Method::Post,
                            FORWARD,
                            "tasks",
                            "A connection to a port of a task. Takes `Upgrade: cell-exec`, as a \
                             command does; frames of kind 0 are what both sides send, 2 is the \
                             caller's end, 5 the other's and 6 why there is no connection.",
                        ),
                        RouteKind::Local,
                    ),
                    101,
                    Content::Bytes,
                ),
                Access::SelfOrHasCapability(P::EnterTasks),
            ),
            &[PORT],
        ),
        EXEC_ERRORS,
    ),
    with_query(
        with_kind(
            read(
                O::WatchJobs,
                "/v1/watch/jobs",
                "jobs",
                "Jobs as they change. Events: `job` (a job), `gone` (purged; data has its key), \
                 `synced` (what was there has been sent), `reset` (events were missed; all jobs \
                 follow).",
                Content::Events(schema::<JobView>),
            ),
            RouteKind::Local,
        ),
        &[SELECTOR, USER, WATCH_JOBS_AFTER],
    ),
    with_query(
        with_kind(
            read(
                O::WatchJobRows,
                "/v1/watch/job_rows",
                "jobs",
                "The same in short, for those who show many: what a list has of a job, and not its \
                 spec.",
                Content::Events(schema::<JobRow>),
            ),
            RouteKind::Local,
        ),
        &[SELECTOR, USER, WATCH_JOBS_AFTER],
    ),
    with_errors(
        read(
            O::LookUpJob,
            "/v1/names/{user}/{job}",
            "names",
            "Where the healthy tasks of a job are reached.",
            json!(One<NameView>),
        ),
        &[C::NoSuchJob],
    ),
    with_errors(
        with_kind(
            read(
                O::WatchNames,
                "/v1/watch/names/{user}/{job}",
                "names",
                "Where the healthy tasks of a job are reached, now and at every change. Events: \
                 `name` (all of it, as the lookup says), `gone` (the job was purged; the last).",
                Content::Events(schema::<NameView>),
            ),
            RouteKind::Local,
        ),
        &[C::NoSuchJob],
    ),
    with_query(
        read(
            O::PrometheusTargets,
            "/v1/prometheus",
            "names",
            "Ports of healthy tasks, for Prometheus' HTTP service discovery.",
            Content::AnyJson,
        ),
        &[SELECTOR],
    ),
];
