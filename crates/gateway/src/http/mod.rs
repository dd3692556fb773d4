//! The public HTTP API: a thin layer on [`cellwright_master::handle::MasterHandle`].
//!
//! The router is built from the table in `cellwright_api::routes`, and everything the table says is
//! checked here before a handler runs: who may call it, which parameters exist, their syntax, how
//! large a body may be. A handler turns a checked call into a read of the state or a command, and
//! decides nothing: authorization and admission are rules of `apply`.
//!
//! Rejected: one extractor type per route. They check the same things at forty places, and their
//! errors are the framework's instead of ours.

pub(crate) mod access;
mod admission_limits;
mod alarms;
mod apply;
mod archive;
pub(crate) mod archived_job;
mod batch;
pub mod blob_peers;
mod blobs;
pub mod bodies;
mod call;
mod change;
mod cluster;
mod console;
mod exec;
mod explain;
mod feed;
mod find;
mod flow_control;
mod internal_routes;
mod jobs;
mod machine_trouble;
mod machines;
pub mod master_services;
mod metrics;
mod missing_packages;
mod names;
pub(crate) mod output;
mod overview;
mod package_holders;
mod pagination;
mod plan;
mod quota_hint;
mod records;
pub mod replica_services;
mod reply;
mod resources;
mod response_body;
mod scale;
mod shapes;
mod snapshot_cache;
mod sql;
mod tokens;
mod unread_body;
mod users;
mod versions;
mod view;
mod warnings;
mod watch;
mod websocket;

pub use console::is_of_console;
pub use reply::error_response;

use axum::Router;
use axum::body::Body;
use axum::extract::RawPathParams;
use axum::extract::rejection::RawPathParamsRejection;
use axum::http::{HeaderValue, Request, Response, header};
use axum::routing::{MethodFilter, MethodRouter};
use call::Call;
use cellwright_api::client::agent::AgentDialler;
use cellwright_api::error::{ApiError, Code, REMOVED};
use cellwright_api::routes::{Method, Operation as O, Route, routes};
use cellwright_cell::blob::BlobLimits;
use cellwright_cell::name::Name;
use cellwright_cell::spec::MAX_TASKS;
use cellwright_master::flow_control::{FairQueue, PermitPool};
use cellwright_master::handle::{Caller, MasterHandle};
use cellwright_master::package_quota::IncomingUploads;
use cellwright_names::Zone;
use cellwright_supervise::failpoint;
use console::Console;
use feed::Feed;
pub use flow_control::FlowConfig;
use flow_control::FlowControl;
use metrics::RequestMetrics;
use overview::OverviewCache;
use replica_services::ReplicaServices;
use snapshot_cache::SnapshotCache;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;
use unread_body::UnreadBody;
use watch::JobDetail;

type ApiResult = Result<Response<Body>, ApiError>;

/// Configuration of the API.
#[derive(Clone, Debug)]
pub struct ApiConfig {
    /// Bytes of one request's body, blobs apart.
    pub body_limit: usize,
    /// Limit of one job's tasks, checked at admission.
    pub tasks_per_job: u32,
    /// Fingerprint of the cell's authority, for join tokens; absent on a `--dev` master.
    pub authority: Option<String>,
    /// Whether clients reach this cell over TLS: decides the scheme of redirects.
    pub tls: bool,
    /// The DNS zone of names.
    pub zone: Zone,
    /// The dialler for agents.
    pub agents: AgentDialler,
    /// Size limits of packages.
    pub package_limits: BlobLimits,
    pub flow: FlowConfig,
}

impl Default for ApiConfig {
    fn default() -> ApiConfig {
        ApiConfig {
            body_limit: 32 << 20,
            tasks_per_job: MAX_TASKS,
            authority: None,
            tls: false,
            zone: Zone::default(),
            agents: AgentDialler::plain(Vec::new()),
            package_limits: BlobLimits::default(),
            flow: FlowConfig::default(),
        }
    }
}

/// State shared by all handlers. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    handle: MasterHandle,
    services: Arc<dyn ReplicaServices>,
    config: Arc<ApiConfig>,
    /// Explanations and plans walk the whole cell: one at a time, queued fairly between callers.
    explanation_queue: FairQueue,
    snapshot_cache: Arc<SnapshotCache>,
    /// Each holds a connection to a machine.
    output_readers: PermitPool,
    sessions: PermitPool,
    flow: FlowControl,
    feed: Arc<Feed>,
    overview_cache: Arc<OverviewCache>,
    request_metrics: Arc<RequestMetrics>,
    console: Arc<Console>,
    /// Packages being uploaded.
    incoming: IncomingUploads,
}

impl Api {
    #[must_use]
    pub fn new(handle: MasterHandle, services: Arc<dyn ReplicaServices>, config: ApiConfig) -> Api {
        let flow = config.flow;
        let files = Arc::downgrade(&services);
        handle.set_damage_source(Box::new(move || {
            files.upgrade().map_or_else(Vec::new, |files| files.disk_damage())
        }));
        Api {
            handle,
            services,
            config: Arc::new(config),
            explanation_queue: flow.explanation_queue(),
            snapshot_cache: Arc::default(),
            output_readers: flow.output_reader_permits(),
            sessions: flow.session_permits(),
            flow: FlowControl::new(&flow),
            feed: Arc::default(),
            overview_cache: Arc::default(),
            request_metrics: Arc::default(),
            console: Arc::new(Console::from_environment()),
            incoming: IncomingUploads::default(),
        }
    }

    /// Builds the router: every route of the table with its handler.
    pub fn router(&self) -> Router {
        let mut paths: BTreeMap<&'static str, MethodRouter> = BTreeMap::new();
        let mut methods: BTreeMap<&'static str, Vec<&'static str>> = BTreeMap::new();
        for route in routes() {
            methods.entry(route.path).or_default().push(route.method.as_str());
            let api = self.clone();
            let handler = move |params: Result<RawPathParams, RawPathParamsRejection>,
                                request: Request<Body>| {
                let api = api.clone();
                async move { api.serve(route, params, request).await }
            };
            let on = paths.remove(route.path).unwrap_or_default();
            paths.insert(route.path, on.on(filter(route.method), handler));
        }
        let mut router = Router::new();
        for (path, on) in paths {
            let allowed = methods.remove(path).unwrap_or_default();
            router = router.route(path, on.fallback(move || not_allowed(path, allowed.clone())));
        }
        let router = router.merge(self.internal_router()).merge(self.console.router());
        router.fallback(no_such_route)
    }

    async fn serve(
        &self,
        route: &'static Route,
        params: Result<RawPathParams, RawPathParamsRejection>,
        request: Request<Body>,
    ) -> Response<Body> {
        let target = request.uri().path_and_query().map(ToString::to_string);
        let start = Instant::now();
        let (request, unread) = UnreadBody::split_off(request);
        let response = match self.answer(route, params, request).await {
            Ok(response) => response,
            Err(error) => {
                unread.discard();
                let mut response = error_response(&error);
                let scheme = if self.config.tls { "https" } else { "http" };
                if let (Code::NotLeader, Some(leader)) = (error.code, error.leader())
                    && let Ok(place) = HeaderValue::try_from(format!(
                        "{scheme}://{leader}{}",
                        target.unwrap_or_default()
                    ))
                {
                    response.headers_mut().insert(header::LOCATION, place);
                }
                response
            }
        };
        self.request_metrics.count(route, response.status().as_u16(), start.elapsed());
        response
    }

    async fn answer(
        &self,
        route: &'static Route,
        params: Result<RawPathParams, RawPathParamsRejection>,
        request: Request<Body>,
    ) -> ApiResult {
        failpoint(&format!("handler-{}", route.id()));
        let mut call = Call::new(route, params, request)?;
        self.check_and_audit_admission(&call)?;
        if !is_replica_local(route.operation) && self.handle.is_removed() {
            return Err(removed_replica_error());
        }
        call.check()?;
        let (actor, request_permit) = (call.actor_text(), self.request_permit(&call)?);
        if route.method == Method::Get {
            // The handler does not read it, and its bytes would be held for as long as a stream
            // lasts.
            drop(call.take_body());
        }
        let response = self.dispatch(call).await?;
        self.hold_until_sent(&actor, request_permit, response)
    }

    async fn dispatch(&self, call: Call) -> ApiResult {
        match call.route.operation {
            O::ListJobs => self.list_jobs(call).await,
            O::SubmitJob => self.submit_job(call).await,
            O::ApplyJob => self.apply_job(call).await,
            O::GetJob => self.get_job(call).await,
            O::UpdateJob => self.update_job(call).await,
            O::StopJob => self.stop_job(call).await,
            O::StopTask => self.stop_task(call).await,
            O::ResizeJob => self.resize_job(call).await,
            O::RestartJob => self.restart_job(call).await,
            O::RestartTask => self.restart_task(call).await,
            O::StartFailedTasks => self.start_failed_tasks(call).await,
            O::StartTask => self.start_task(call).await,
            O::UndoUpdate => self.undo_update(call).await,
            O::CloseUpdate => self.close_update(call).await,
            O::PromoteUpdate => self.promote_update(call).await,
            O::FinishUpdate => self.finish_update(call).await,
            O::RevertJob => self.revert_job(call).await,
            O::ListVersions => self.list_versions(call).await,
            O::DiffVersions => self.diff_versions(call).await,
            O::PlanJobs => self.plan_jobs(call).await,
            O::Shapes => self.shapes(call).await,
            O::ExplainJob => self.explain_job(call).await,
            O::GetScale => self.get_scale(call).await,
            O::SetScaleMode => self.set_scale_mode(call).await,
            O::ListTasks => self.list_tasks(call).await,
            O::GetTask => self.get_task(call).await,
            O::ExplainTask => self.explain_task(call).await,
            O::ReadOutput => self.read_output(call).await,
            O::WatchOutput => self.watch_output(call).await,
            O::ExecTask | O::CopyFiles | O::ForwardPort => self.exec_task(call).await,
            O::ExecTaskInPage => self.exec_task_in_page(call).await,
            O::WatchJobs => self.watch_jobs(call, JobDetail::Full).await,
            O::WatchJobRows => self.watch_jobs(call, JobDetail::Row).await,
            O::LookUpJob => self.look_up_job(call).await,
            O::WatchNames => self.watch_names(call).await,
            O::PrometheusTargets => self.prometheus_targets(call).await,
            O::ListMachines => self.list_machines(call).await,
            O::AddMachine => self.add_machine(call).await,
            O::ListMachineTasks => self.list_machine_tasks(call).await,
            O::GetMachinePackages => self.machine_packages(call).await,
            O::GetMachine => self.get_machine(call).await,
            O::UpdateMachine => self.update_machine(call).await,
            O::RemoveMachine => self.remove_machine(call).await,
            O::StartDrain => self.drain(call, true).await,
            O::StopDrain => self.drain(call, false).await,
            _ => self.dispatch_more(call).await,
        }
    }

    /// Operations that are about neither jobs nor machines. A test calls each route, so none is
    /// forgotten.
    async fn dispatch_more(&self, call: Call) -> ApiResult {
        match call.route.operation {
            O::ListUsers => self.list_users(call).await,
            O::AddUser => self.add_user(call).await,
            O::GetUser => self.get_user(call).await,
            O::RemoveUser => self.remove_user(call).await,
            O::SetCapabilities => self.set_capabilities(call).await,
            O::SetQuota => self.set_quota(call).await,
            O::RemoveQuota => self.remove_quota(call).await,
            O::ListUserTokens | O::ListTokens => self.list_tokens(call).await,
            O::AddUserToken => self.add_user_token(call).await,
            O::AddJoinToken => self.add_join_token(call).await,
            O::RevokeToken => self.revoke_token(call).await,
            O::RevokePart => self.revoke(call).await,
            O::ListCrons => self.list_crons(call).await,
            O::GetCron => self.get_cron(call).await,
            O::SetCron => self.set_cron(call).await,
            O::RemoveCron => self.remove_cron(call).await,
            O::RunCron => self.run_cron(call).await,
            O::ListResources => self.list_resources(call).await,
            O::GetResource => self.get_resource(call).await,
            O::SetResource => self.set_resource(call).await,
            O::DeleteResource => self.delete_resource(call).await,
            O::ClusterStatus => self.cluster_status(call).await,
            O::ListAlarms => self.list_alarms(call).await,
            O::Find => self.find(call).await,
            O::Overview => self.overview(call).await,
            O::WatchOverview => self.watch_overview(call).await,
            O::Batch => self.batch(call).await,
            O::Sql => self.sql(call).await,
            O::ListEvents => self.list_events(call).await,
            O::WatchEvents => self.watch_events(call).await,
            O::ListAudit => self.list_audit(call).await,
            O::ListCheckpoints => self.list_checkpoints(call).await,
            O::SaveCheckpoint => self.save_checkpoint(call).await,
            O::MasterStatus => self.master_status(call).await,
            O::AddMaster => self.add_master(call).await,
            O::RemoveMaster => self.remove_master(call).await,
            O::ConfirmMaster => self.confirm_master(call).await,
            O::ListBlobs => self.list_blobs(call).await,
            O::PutBlob => self.put_blob(call).await,
            O::GetBlob => self.get_blob(call).await,
            O::RemoveBlob => self.remove_blob(call).await,
            O::OpenApi => Ok(reply::document(&call)),
            O::Metrics => self.metrics(call).await,
            O::Health => self.health(call).await,
            O::Ready => self.ready(call).await,
            O::GetArchive => self.get_archive(call).await,
            O::ListArchivedJobs => self.list_archived_jobs(call).await,
            O::GetArchivedJob => self.get_archived_job(call).await,
            O::ListArchivedLogs => self.list_archived_logs(call).await,
            O::GetArchivedLog => self.get_archived_log(call).await,
            O::ListArchivedDays => self.list_archived_days(call).await,
            O::RestoreHistory => self.restore_history(call).await,
            _ => Err(ApiError::new(Code::Internal, "nobody answers this route")),
        }
    }
}

impl Api {
    /// Checks whether the caller is admitted at all; a rejection is audited.
    fn check_and_audit_admission(&self, call: &Call) -> Result<(), ApiError> {
        self.check_admitted(call).inspect_err(|error| {
            self.write_audit(call, call.route.method.as_str(), call.path(), error.code.as_str());
        })
    }

    /// Writes an audit line for an action that does not go through the replicated log; returns
    /// whether it was written.
    fn write_audit(&self, call: &Call, command: &str, object: &str, verdict: &str) -> bool {
        let actor = call.actor_text();
        let audit = &self.handle.replicated().records.audit;
        let written =
            audit.append_unlogged(self.handle.log_time(), &actor, command, object, verdict);
        if let Err(error) = &written {
            tracing::error!(%error, actor, command, object, "a request was not taken down");
        }
        written.is_ok()
    }
}

/// Operations about the replica itself, answered whether it belongs to a cell or not.
fn is_replica_local(operation: O) -> bool {
    matches!(operation, O::MasterStatus | O::Metrics | O::Health | O::Ready | O::OpenApi)
}

/// The error of a removed replica to every caller. Its copy of the state is outdated, and callers
/// could not tell; a replica that is not a member yet answers the same.
fn removed_replica_error() -> ApiError {
    let message = "this replica was removed from the cell, or is not taken in yet";
    ApiError::new(Code::NotReady, message).with(REMOVED, true).hint(
        "ask another master: cell master status there says who they are; stop this one, and let \
         it join again on an empty data_dir",
    )
}

/// The user, if the caller is one.
fn user_of(caller: &Caller) -> Option<&Name> {
    caller.user()
}

fn filter(method: Method) -> MethodFilter {
    match method {
        Method::Get => MethodFilter::GET,
        Method::Post => MethodFilter::POST,
        Method::Put => MethodFilter::PUT,
        Method::Delete => MethodFilter::DELETE,
    }
}

async fn not_allowed(path: &'static str, allowed: Vec<&'static str>) -> Response<Body> {
    let methods = allowed.join(", ");
    let message = format!("{path} takes {methods}");
    let error = ApiError::new(Code::MethodNotAllowed, message).with("allowed", allowed);
    let mut response = error_response(&error);
    if let Ok(value) = HeaderValue::try_from(methods) {
        response.headers_mut().insert(header::ALLOW, value);
    }
    response
}

async fn no_such_route(request: Request<Body>) -> Response<Body> {
    let path: String = request.uri().path().chars().take(200).collect();
    error_response(&ApiError::new(Code::NoSuchRoute, format!("there is no route {path}")))
}
