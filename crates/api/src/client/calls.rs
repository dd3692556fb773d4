//! One method for each API call, so that callers neither build paths nor repeat types.

use super::{
    ChangeOptions, Client, ClientError, Reply, SessionStream, Watch, encode_query, encode_segment,
};
use crate::exec::{CopyDirection, TerminalSize};
use crate::output::{OutputPiece, OutputQuery};
use crate::types::{
    Applied, AuditView, Batch, BatchAnswer, BatchItem, Changed, ClusterStatus, CronView, EventPage,
    EventView, ExplanationView, FoundView, JobExplanation, JobVersions, JobView, MachinePackages,
    MachineView, MasterStatus, One, Page, PlanJobs, PlanView, ResourceView, RevertJob, ScaleView,
    SetResource, SetScaleMode, ShapesQuery, ShapesView, SqlAnswer, SqlQuery, SubmitJob, TaskView,
    TokenView, UserView, VersionDiff,
};
use cellwright_cell::job_size::JobSize;
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::{JobKey, Name, Token};
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Span;
use hyper::Method;
use std::time::Duration;

/// Masters end a query after half a minute; the rest is for the network.
const SQL_TIMEOUT: Duration = Duration::from_secs(40);

/// Which page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageRequest {
    pub limit: Option<u32>,
    /// The `next` of the previous page.
    pub after: Option<String>,
    pub consistent: bool,
}

impl PageRequest {
    pub(super) fn pairs(&self) -> [(&'static str, Option<String>); 3] {
        [
            ("limit", self.limit.map(|n| n.to_string())),
            ("after", self.after.clone()),
            ("consistent", self.consistent.then(|| "true".to_owned())),
        ]
    }
}

/// Which jobs to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    pub selector: Option<String>,
    pub user: Option<Name>,
    /// `deferred`, `active`, `stopping`, `dead` or `live`.
    pub state: Option<String>,
}

impl JobFilter {
    fn pairs(&self) -> [(&'static str, Option<String>); 3] {
        [
            ("selector", self.selector.clone()),
            ("user", self.user.as_ref().map(ToString::to_string)),
            ("state", self.state.clone()),
        ]
    }
}

fn job_path(job: &JobKey) -> String {
    format!("/v1/jobs/{}/{}", job.user, job.job)
}

const NO_BODY: Option<&()> = None;
type ChangeResult = Result<Reply<Changed>, ClientError>;

/// All of these fail with the cell's error, or when no master answers.
#[allow(clippy::missing_errors_doc)]
impl Client {
    pub async fn jobs(
        &self,
        filter: &JobFilter,
        page: &PageRequest,
    ) -> Result<Reply<Page<JobView>>, ClientError> {
        let pairs = [filter.pairs(), page.pairs()].concat();
        self.get(&format!("/v1/jobs{}", encode_query(&pairs))).await
    }

    pub async fn job(&self, job: &JobKey) -> Result<Reply<One<JobView>>, ClientError> {
        self.get(&job_path(job)).await
    }

    /// The same, with everything that was acknowledged before.
    pub async fn job_now(&self, job: &JobKey) -> Result<Reply<One<JobView>>, ClientError> {
        self.get(&format!("{}?consistent=true", job_path(job))).await
    }

    pub async fn submit_job(&self, owner: Option<&Name>, spec: &JobSpec) -> ChangeResult {
        let body = SubmitJob { owner: owner.cloned(), spec: spec.clone() };
        self.change(Method::POST, "/v1/jobs", Some(&body), &ChangeOptions::default()).await
    }

    /// Applies the job: submits it, updates the live job of its name, or leaves it alone.
    pub async fn apply_job(
        &self,
        owner: Option<&Name>,
        spec: &JobSpec,
        change: &ChangeOptions,
    ) -> Result<Reply<Applied>, ClientError> {
        let body = SubmitJob { owner: owner.cloned(), spec: spec.clone() };
        self.change(Method::POST, "/v1/apply", Some(&body), change).await
    }

    /// As [`Client::apply_job`], and a batch job that has ended with this very spec runs again.
    pub async fn apply_job_again(
        &self,
        owner: Option<&Name>,
        spec: &JobSpec,
        change: &ChangeOptions,
    ) -> Result<Reply<Applied>, ClientError> {
        let body = SubmitJob { owner: owner.cloned(), spec: spec.clone() };
        self.change(Method::POST, "/v1/apply?again=true", Some(&body), change).await
    }

    /// What [`Client::apply_job`] would do; nothing is changed.
    pub async fn dry_run_job(
        &self,
        owner: Option<&Name>,
        spec: &JobSpec,
        change: &ChangeOptions,
    ) -> Result<Reply<Applied>, ClientError> {
        let body = SubmitJob { owner: owner.cloned(), spec: spec.clone() };
        self.change(Method::POST, "/v1/apply?dry_run=true", Some(&body), change).await
    }

    pub async fn update_job(
        &self,
        owner: &Name,
        spec: &JobSpec,
        change: &ChangeOptions,
    ) -> ChangeResult {
        let path = format!("/v1/jobs/{owner}/{}", spec.name);
        self.change(Method::PUT, &path, Some(spec), change).await
    }

    /// Changes what `size` names, and leaves the rest of the job as it is.
    pub async fn resize_job(
        &self,
        job: &JobKey,
        size: &JobSize,
        change: &ChangeOptions,
    ) -> Result<Reply<Applied>, ClientError> {
        let path = format!("{}/resize", job_path(job));
        self.change(Method::POST, &path, Some(size), change).await
    }

    pub async fn stop_job(&self, job: &JobKey, change: &ChangeOptions) -> ChangeResult {
        self.change(Method::DELETE, &job_path(job), NO_BODY, change).await
    }

    pub async fn stop_task(
        &self,
        job: &JobKey,
        index: u32,
        change: &ChangeOptions,
    ) -> ChangeResult {
        self.change(Method::DELETE, &format!("{}/tasks/{index}", job_path(job)), NO_BODY, change)
            .await
    }

    /// As [`Client::stop_job`], or with an index as [`Client::stop_task`], with at most this
    /// notice; it shortens that of tasks that are stopping.
    pub async fn stop_within(
        &self,
        job: &JobKey,
        index: Option<u32>,
        notice: Span,
        change: &ChangeOptions,
    ) -> ChangeResult {
        let task = index.map_or_else(String::new, |index| format!("/tasks/{index}"));
        let path = format!("{}{task}?notice={}", job_path(job), notice.0);
        self.change(Method::DELETE, &path, NO_BODY, change).await
    }

    /// Restarts the tasks that run, or the one of this index, as budgets allow.
    pub async fn restart_job(
        &self,
        job: &JobKey,
        index: Option<u32>,
        change: &ChangeOptions,
    ) -> ChangeResult {
        let task = index.map_or_else(String::new, |index| format!("/tasks/{index}"));
        self.change(Method::POST, &format!("{}{task}/restart", job_path(job)), NO_BODY, change)
            .await
    }

    /// Runs a task again that was stopped or has ended.
    pub async fn start_task(
        &self,
        job: &JobKey,
        index: u32,
        change: &ChangeOptions,
    ) -> ChangeResult {
        let path = format!("{}/tasks/{index}/start", job_path(job));
        self.change(Method::POST, &path, NO_BODY, change).await
    }

    /// Runs the tasks again that failed for good.
    pub async fn start_failed_tasks(&self, job: &JobKey, change: &ChangeOptions) -> ChangeResult {
        self.change(Method::POST, &format!("{}/start", job_path(job)), NO_BODY, change).await
    }

    pub async fn undo_update(&self, job: &JobKey, change: &ChangeOptions) -> ChangeResult {
        self.change(Method::POST, &format!("{}/undo", job_path(job)), NO_BODY, change).await
    }

    pub async fn close_update(&self, job: &JobKey, change: &ChangeOptions) -> ChangeResult {
        self.change(Method::POST, &format!("{}/close", job_path(job)), NO_BODY, change).await
    }

    /// Gives the version that canaries try to all tasks.
    pub async fn promote_update(&self, job: &JobKey, change: &ChangeOptions) -> ChangeResult {
        self.change(Method::POST, &format!("{}/promote", job_path(job)), NO_BODY, change).await
    }

    /// Gives the job's version to the tasks that its update skipped.
    pub async fn finish_update(&self, job: &JobKey, change: &ChangeOptions) -> ChangeResult {
        self.change(Method::POST, &format!("{}/finish", job_path(job)), NO_BODY, change).await
    }

    /// Goes back to an earlier version; with `dry_run`, says what that would do.
    pub async fn revert_job(
        &self,
        job: &JobKey,
        version: u32,
        dry_run: bool,
        change: &ChangeOptions,
    ) -> Result<Reply<Applied>, ClientError> {
        let query = if dry_run { "?dry_run=true" } else { "" };
        let path = format!("{}/revert{query}", job_path(job));
        self.change(Method::POST, &path, Some(&RevertJob { version }), change).await
    }

    /// The versions of a job that are kept, oldest first.
    pub async fn versions(&self, job: &JobKey) -> Result<Reply<One<JobVersions>>, ClientError> {
        self.get(&format!("{}/versions", job_path(job))).await
    }

    /// What differs between two versions of a job; left out: its version now, and the one before.
    pub async fn diff_versions(
        &self,
        job: &JobKey,
        version: Option<u32>,
        against: Option<u32>,
    ) -> Result<Reply<One<VersionDiff>>, ClientError> {
        let query = encode_query(&[
            ("version", version.map(|version| version.to_string())),
            ("against", against.map(|version| version.to_string())),
        ]);
        self.get(&format!("{}/diff{query}", job_path(job))).await
    }

    pub async fn tasks(
        &self,
        job: &JobKey,
        page: &PageRequest,
    ) -> Result<Reply<Page<TaskView>>, ClientError> {
        self.get(&format!("{}/tasks{}", job_path(job), encode_query(&page.pairs()))).await
    }

    pub async fn task(
        &self,
        job: &JobKey,
        index: u32,
    ) -> Result<Reply<One<TaskView>>, ClientError> {
        self.get(&format!("{}/tasks/{index}", job_path(job))).await
    }

    pub async fn output(
        &self,
        job: &JobKey,
        index: u32,
        query: &OutputQuery,
    ) -> Result<Reply<OutputPiece>, ClientError> {
        let query = encode_query(&query.pairs());
        self.get(&format!("{}/tasks/{index}/output{query}", job_path(job))).await
    }

    /// Events `output`, `silent` and `end`, from one attempt to the next.
    #[must_use]
    pub fn watch_output(
        &self,
        job: &JobKey,
        index: u32,
        query: &OutputQuery,
    ) -> Watch<OutputPiece> {
        let query = encode_query(&query.pairs());
        self.watch(&format!("/v1/watch/output/{}/{}/{index}{query}", job.user, job.job), None)
    }

    /// Runs a command where a task runs; frames travel on the returned connection.
    pub async fn exec(
        &self,
        job: &JobKey,
        index: u32,
        command: &[String],
        terminal: Option<(TerminalSize, String)>,
    ) -> Result<SessionStream, ClientError> {
        let words = serde_json::to_string(command)
            .map_err(|error| ClientError::InvalidConfig(error.to_string()))?;
        let (size, term) = terminal.unzip();
        let query = encode_query(&[
            ("command", Some(words)),
            ("terminal", size.map(|size| size.to_string())),
            ("term", term.filter(|term| !term.is_empty())),
        ]);
        self.session(&format!("{}/tasks/{index}/exec{query}", job_path(job))).await
    }

    /// Copies files to or from a task; frames travel on the returned connection.
    pub async fn copy_files(
        &self,
        job: &JobKey,
        index: u32,
        direction: CopyDirection,
        path: &str,
        name: Option<&str>,
    ) -> Result<SessionStream, ClientError> {
        let query = encode_query(&[
            ("direction", Some(direction.name().to_owned())),
            ("path", Some(path.to_owned())),
            ("name", name.map(str::to_owned)),
        ]);
        self.session(&format!("{}/tasks/{index}/copy{query}", job_path(job))).await
    }

    /// A connection to a port of a task; frames travel on it.
    pub async fn forward_port(
        &self,
        job: &JobKey,
        index: u32,
        port: u16,
    ) -> Result<SessionStream, ClientError> {
        self.session(&format!("{}/tasks/{index}/forward?port={port}", job_path(job))).await
    }

    pub async fn explain(
        &self,
        job: &JobKey,
        index: u32,
    ) -> Result<Reply<One<ExplanationView>>, ClientError> {
        self.get(&format!("{}/tasks/{index}/explain", job_path(job))).await
    }

    pub async fn explain_job(
        &self,
        job: &JobKey,
    ) -> Result<Reply<One<JobExplanation>>, ClientError> {
        self.get(&format!("{}/explain", job_path(job))).await
    }

    /// How a job is scaled, and what the rules say now.
    pub async fn scale(&self, job: &JobKey) -> Result<Reply<One<ScaleView>>, ClientError> {
        self.get(&format!("{}/scale", job_path(job))).await
    }

    /// Hands the size of a scaled job to its owner, or back to the cell.
    pub async fn set_scale_mode(
        &self,
        job: &JobKey,
        manual: bool,
        change: &ChangeOptions,
    ) -> ChangeResult {
        let body = SetScaleMode { manual };
        self.change(Method::POST, &format!("{}/scale", job_path(job)), Some(&body), change).await
    }

    /// What submitting or updating these jobs would do, by a snapshot that is up to date.
    pub async fn plan(&self, jobs: &PlanJobs) -> Result<Reply<One<PlanView>>, ClientError> {
        self.query("/v1/plan?consistent=true", jobs).await
    }

    /// Which task shapes can be placed now.
    pub async fn shapes(&self, query: &ShapesQuery) -> Result<Reply<One<ShapesView>>, ClientError> {
        self.query("/v1/shapes", query).await
    }

    #[must_use]
    pub fn watch_jobs(&self, filter: &JobFilter, after: Option<String>) -> Watch<JobView> {
        let [selector, user, _] = filter.pairs();
        self.watch(&format!("/v1/watch/jobs{}", encode_query(&[selector, user])), after)
    }

    #[must_use]
    pub fn watch_events(&self, after: Option<String>) -> Watch<EventView> {
        self.watch("/v1/watch/events", after)
    }

    pub async fn machines(
        &self,
        page: &PageRequest,
    ) -> Result<Reply<Page<MachineView>>, ClientError> {
        self.get(&format!("/v1/machines{}", encode_query(&page.pairs()))).await
    }

    pub async fn machine(&self, name: &Name) -> Result<Reply<One<MachineView>>, ClientError> {
        self.get(&format!("/v1/machines/{name}")).await
    }

    /// What is bound to a machine.
    pub async fn machine_tasks(
        &self,
        name: &Name,
        page: &PageRequest,
    ) -> Result<Reply<Page<TaskView>>, ClientError> {
        self.get(&format!("/v1/machines/{name}/tasks{}", encode_query(&page.pairs()))).await
    }

    pub async fn machine_packages(
        &self,
        name: &Name,
    ) -> Result<Reply<MachinePackages>, ClientError> {
        self.get(&format!("/v1/machines/{name}/packages")).await
    }

    pub async fn add_machine(&self, spec: &MachineSpec) -> ChangeResult {
        self.change(Method::POST, "/v1/machines", Some(spec), &ChangeOptions::default()).await
    }

    pub async fn update_machine(&self, spec: &MachineSpec, change: &ChangeOptions) -> ChangeResult {
        self.change(Method::PUT, &format!("/v1/machines/{}", spec.name), Some(spec), change).await
    }

    /// `force`: also while tasks run on it; they end at once.
    pub async fn remove_machine(
        &self,
        name: &Name,
        force: bool,
        change: &ChangeOptions,
    ) -> ChangeResult {
        let query = if force { "?force=true" } else { "" };
        self.change(Method::DELETE, &format!("/v1/machines/{name}{query}"), NO_BODY, change).await
    }

    /// `on`: start draining; otherwise stop.
    pub async fn drain_machine(
        &self,
        name: &Name,
        on: bool,
        change: &ChangeOptions,
    ) -> ChangeResult {
        let verb = if on { "drain" } else { "undrain" };
        self.change(Method::POST, &format!("/v1/machines/{name}/{verb}"), NO_BODY, change).await
    }

    /// Drains a machine; after `within`, whatever is still there ends at once.
    pub async fn drain_machine_within(
        &self,
        name: &Name,
        within: Span,
        change: &ChangeOptions,
    ) -> ChangeResult {
        let path = format!("/v1/machines/{name}/drain?within={}", within.0);
        self.change(Method::POST, &path, NO_BODY, change).await
    }

    pub async fn users(&self, page: &PageRequest) -> Result<Reply<Page<UserView>>, ClientError> {
        self.get(&format!("/v1/users{}", encode_query(&page.pairs()))).await
    }

    pub async fn user(&self, name: &Name) -> Result<Reply<One<UserView>>, ClientError> {
        self.get(&format!("/v1/users/{name}")).await
    }

    pub async fn resource(
        &self,
        namespace: &Token,
        name: &Token,
    ) -> Result<Reply<One<ResourceView>>, ClientError> {
        self.get(&resource_path(namespace, name)).await
    }

    pub async fn set_resource(
        &self,
        namespace: &Token,
        name: &Token,
        set: &SetResource,
    ) -> ChangeResult {
        let path = resource_path(namespace, name);
        self.change(Method::PUT, &path, Some(set), &ChangeOptions::default()).await
    }

    pub async fn delete_resource(&self, namespace: &Token, name: &Token) -> ChangeResult {
        let path = resource_path(namespace, name);
        self.change(Method::DELETE, &path, NO_BODY, &ChangeOptions::default()).await
    }

    pub async fn cluster_status(&self) -> Result<Reply<ClusterStatus>, ClientError> {
        self.get("/v1/cluster_status").await
    }

    /// Totals only, no nodes.
    pub async fn cluster_summary(&self) -> Result<Reply<ClusterStatus>, ClientError> {
        self.get("/v1/cluster_status?summary=true").await
    }

    /// What a name, or its beginning, can refer to. A replica that is behind would take an older
    /// job for the last one, so the leader answers this.
    pub async fn find(&self, name: &str) -> Result<Reply<Page<FoundView>>, ClientError> {
        let is_last = name.split('/').next() == Some("last");
        let consistent = is_last.then(|| "true".to_owned());
        let query = encode_query(&[("name", Some(name.to_owned())), ("consistent", consistent)]);
        self.get(&format!("/v1/find{query}")).await
    }

    /// The closest match for a name that nothing has.
    pub async fn nearest_name(&self, name: &str) -> Result<Option<FoundView>, ClientError> {
        let near = Some("true".to_owned());
        let query = encode_query(&[("name", Some(name.to_owned())), ("near", near)]);
        let found: Reply<Page<FoundView>> = self.get(&format!("/v1/find{query}")).await?;
        Ok(found.value.items.into_iter().next())
    }

    pub async fn crons(&self, page: &PageRequest) -> Result<Reply<Page<CronView>>, ClientError> {
        self.get(&format!("/v1/crons{}", encode_query(&page.pairs()))).await
    }

    /// Submits a run of a periodic job now; the last run of the cron is that one then.
    pub async fn run_cron(&self, cron: &JobKey, change: &ChangeOptions) -> ChangeResult {
        let path = format!("/v1/crons/{}/{}/run", cron.user, cron.job);
        self.change(Method::POST, &path, NO_BODY, change).await
    }

    pub async fn cron(&self, cron: &JobKey) -> Result<Reply<One<CronView>>, ClientError> {
        self.get(&format!("/v1/crons/{}/{}", cron.user, cron.job)).await
    }

    pub async fn tokens(&self, page: &PageRequest) -> Result<Reply<Page<TokenView>>, ClientError> {
        self.get(&format!("/v1/tokens{}", encode_query(&page.pairs()))).await
    }

    pub async fn audit(&self, page: &PageRequest) -> Result<Reply<Page<AuditView>>, ClientError> {
        self.get(&format!("/v1/audit{}", encode_query(&page.pairs()[..2]))).await
    }

    pub async fn master_status(&self) -> Result<Reply<MasterStatus>, ClientError> {
        self.get("/v1/masters").await
    }

    pub async fn batch(&self, items: Vec<BatchItem>) -> Result<Reply<BatchAnswer>, ClientError> {
        self.change(Method::POST, "/v1/batch", Some(&Batch { items }), &ChangeOptions::default())
            .await
    }

    pub async fn sql(&self, query: &SqlQuery) -> Result<Reply<SqlAnswer>, ClientError> {
        self.query_within("/v1/sql", query, SQL_TIMEOUT).await
    }

    pub async fn events(
        &self,
        after: Option<String>,
        limit: u32,
    ) -> Result<Reply<EventPage>, ClientError> {
        let query = encode_query(&[("after", after), ("limit", Some(limit.to_string()))]);
        self.get(&format!("/v1/events{query}")).await
    }
}

fn resource_path(namespace: &Token, name: &Token) -> String {
    let (namespace, name) = (namespace.as_str(), name.as_str());
    format!("/v1/resources/{}/{}", encode_segment(namespace), encode_segment(name))
}
