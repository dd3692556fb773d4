//! Handlers for users, their quota, and their periodic jobs.

use super::call::Call;
use super::{Api, ApiResult, reply, view};
use cellwright_api::error::ApiError;
use cellwright_api::types::{AddUser, SetCapabilities};
use cellwright_cell::command::Command;
use cellwright_cell::cron::{self, CronSpec};
use cellwright_cell::name::JobKey;
use cellwright_cell::priority::Band;
use cellwright_cell::quota::Quota;
use cellwright_cell::reason::Rejection;

impl Call {
    fn band(&self) -> Result<Band, ApiError> {
        let text = self.text("band");
        let read = serde_json::from_value(serde_json::Value::from(text));
        read.map_err(|e| ApiError::parameter("band", text, &e.to_string()))
    }

    fn cron(&self) -> Result<JobKey, ApiError> {
        Ok(JobKey { user: self.name("user")?, job: self.name("cron")? })
    }
}

impl Api {
    pub(super) async fn list_users(&self, call: Call) -> ApiResult {
        let (view, consistent) = call.view(self).await?;
        let state = &view.state;
        let rows = state.users().iter().map(|(id, _)| (u64::from(id.0), id));
        let page = call.page('u', (view.index, consistent), rows, |id| view::user(state, id))?;
        reply::page(&call, &page)
    }

    pub(super) async fn get_user(&self, call: Call) -> ApiResult {
        let name = call.name("user")?;
        let (view, consistent) = call.view(self).await?;
        let id = view.state.user_named(&name);
        let user = id.and_then(|id| view::user(&view.state, id));
        let user = user.ok_or_else(|| ApiError::from(Rejection::NoSuchUser(name)))?;
        reply::one(&call, view.index, consistent, user)
    }

    pub(super) async fn add_user(&self, mut call: Call) -> ApiResult {
        let AddUser { name } = call.json(self).await?;
        self.change(&call, Command::AddUser { name }).await
    }

    pub(super) async fn remove_user(&self, call: Call) -> ApiResult {
        let (name, expect) = (call.name("user")?, call.expect()?);
        self.change(&call, Command::RemoveUser { name, expect }).await
    }

    pub(super) async fn set_capabilities(&self, mut call: Call) -> ApiResult {
        let SetCapabilities { capabilities } = call.json(self).await?;
        let (user, expect) = (call.name("user")?, call.expect()?);
        self.change(&call, Command::SetCapabilities { user, capabilities, expect }).await
    }

    pub(super) async fn set_quota(&self, mut call: Call) -> ApiResult {
        let quota: Quota = call.json(self).await?;
        self.quota(call, Some(quota)).await
    }

    pub(super) async fn remove_quota(&self, call: Call) -> ApiResult {
        self.quota(call, None).await
    }

    async fn quota(&self, call: Call, quota: Option<Quota>) -> ApiResult {
        let (user, band, expect) = (call.name("user")?, call.band()?, call.expect()?);
        self.change(&call, Command::SetQuota { user, band, quota, expect }).await
    }

    pub(super) async fn list_crons(&self, call: Call) -> ApiResult {
        let (view, consistent) = call.view(self).await?;
        let state = &view.state;
        let user = call.query("user");
        let rows = state.crons().iter().filter(|(_, row)| {
            let owner = state.users().get(row.user).map_or("", |owner| owner.name.as_str());
            user.is_none_or(|user| owner == user)
        });
        let rows = rows.map(|(id, row)| (u64::from(id.0), row));
        let viewer = call.viewer()?;
        let show = |row| view::cron(state, &viewer, row);
        let page = call.page('c', (view.index, consistent), rows, show)?;
        reply::page(&call, &page)
    }

    pub(super) async fn get_cron(&self, call: Call) -> ApiResult {
        let key = call.cron()?;
        let (view, consistent) = call.view(self).await?;
        let row = view.state.cron_named(&key).and_then(|id| view.state.crons().get(id));
        let viewer = call.viewer()?;
        let cron = row.and_then(|row| view::cron(&view.state, &viewer, row));
        let cron = cron.ok_or_else(|| ApiError::from(Rejection::NoSuchCron(key)))?;
        reply::one(&call, view.index, consistent, cron)
    }

    pub(super) async fn set_cron(&self, mut call: Call) -> ApiResult {
        let spec: CronSpec = call.json(self).await?;
        let JobKey { user: owner, job } = call.cron()?;
        if spec.name != job {
            let allowed = format!("{job}, as in the path");
            return Err(ApiError::field("name", spec.name.as_str(), &allowed));
        }
        let expect = call.expect()?;
        self.change(&call, cron::Command::Set { owner, spec: Box::new(spec), expect }.into()).await
    }

    pub(super) async fn remove_cron(&self, call: Call) -> ApiResult {
        let (cron, expect) = (call.cron()?, call.expect()?);
        self.change(&call, cron::Command::Remove { cron, expect }.into()).await
    }

    pub(super) async fn run_cron(&self, call: Call) -> ApiResult {
        let cron = call.cron()?;
        self.change(&call, cron::Command::Run { cron }.into()).await
    }
}
