//! Granting prod quota never sells more than the cell has, at any time. After losing machines the
//! cell may be oversold; a grant that only shrinks is then still possible.

use super::{Check, Step, violation};
use crate::command::Command;
use crate::quota::Quota;
use crate::resource::Resources;
use crate::state::State;
use crate::time::Time;

const NAME: &str = "prod_quota_sold";

pub(super) fn check(step: &Step<'_>) -> Check {
    let Some((Command::SetQuota { user, band, .. }, Ok(_))) = step.only_command() else {
        return Ok(());
    };
    if !band.is_prod() {
        return Ok(());
    }
    let quota = |state: &State| {
        let id = state.user_named(user)?;
        state.users.get(id)?.quota.get(band).copied()
    };
    let (old, new) = (quota(step.before), quota(step.after));
    let Some(new) = new else { return Ok(()) };
    if old.is_some_and(|old| shrinks(&old, &new)) {
        return Ok(());
    }
    let starts = prod_quotas(step.after).map(|quota| quota.from).collect::<Vec<Time>>();
    for at in starts.into_iter().filter(|at| new.is_valid_at(*at)) {
        let sold = prod_quotas(step.after)
            .filter(|quota| quota.is_valid_at(at))
            .fold(Resources::ZERO, |sum, quota| sum.plus(quota.amount));
        if let Some(excess) = sold.first_excess(step.after.capacity()) {
            let detail = format!("prod quota sold at {}: {excess}", at.0);
            return Err(violation(NAME, user, detail));
        }
    }
    Ok(())
}

fn shrinks(old: &Quota, new: &Quota) -> bool {
    new.amount.within(old.amount) && new.from >= old.from && new.until <= old.until
}

fn prod_quotas(state: &State) -> impl Iterator<Item = Quota> {
    state.users.iter().flat_map(|(_, user)| {
        user.quota.iter().filter(|(band, _)| band.is_prod()).map(|(_, quota)| *quota)
    })
}
