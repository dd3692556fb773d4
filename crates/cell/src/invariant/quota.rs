//! Nothing is admitted beyond quota: a submission, update or resize never leaves more charged than
//! granted, unless it charges less than before. Excess caused by a cut or an expiry is flagged.
//!
//! Flags are updated when a charge or a grant changes and by an expiry command, so between a
//! quota's end and the next update a flag may lag behind the clock, never behind a command.

use super::{Check, Step, violation};
use crate::command::Command;
use crate::id::UserId;
use crate::priority::Band;
use crate::quota::{Quota, User};
use crate::resource::Resources;
use crate::state::State;
use crate::time::Time;

const NAME: &str = "quota";

fn charged(state: &State, user: UserId, band: Band) -> Resources {
    state.user_load(user).and_then(|load| load.charged.get(&band)).copied().unwrap_or_default()
}

pub(super) fn check(state: &State) -> Check {
    for (id, user) in state.users.iter() {
        for band in Band::ALL {
            let charged = charged(state, id, band);
            let flagged = user.exceeded.contains(&band);
            let quota = user.quota.get(&band);
            let amount = quota.map_or(Resources::ZERO, |quota| quota.amount);
            let always = quota.is_none_or(|q| q.from == Time::ZERO && q.until > state.now);
            let wrong = if charged.within(amount) {
                // Within the amount, so flagged only if it was not granted at that time.
                flagged && (always || charged.is_zero())
            } else {
                !flagged
            };
            if wrong {
                let detail = format!("{band}: charged {charged:?} of {quota:?}, flagged {flagged}");
                return Err(violation(NAME, &user.name, detail));
            }
        }
    }
    Ok(())
}

pub(super) fn check_step(step: &Step<'_>) -> Check {
    let Some((command, Ok(_))) = step.only_command() else { return Ok(()) };
    match command {
        _ if step.is_repeated() => Ok(()),
        Command::SubmitJob { .. }
        | Command::UpdateJob { .. }
        | Command::ResizeJob { .. }
        | Command::StartTasks { .. }
        | Command::ResizeLimits { .. }
        | Command::MatchMachines { .. }
        | Command::ApplyJob { .. } => {
            each(step.after, |id, user, band| admitted(step, id, user, band))
        }
        Command::Expire => each(step.after, |id, user, band| up_to_date(step, id, user, band)),
        _ => Ok(()),
    }
}

fn each(state: &State, mut check: impl FnMut(UserId, &User, Band) -> Check) -> Check {
    state
        .users
        .iter()
        .try_for_each(|(id, user)| Band::ALL.into_iter().try_for_each(|band| check(id, user, band)))
}

fn admitted(step: &Step<'_>, id: UserId, user: &User, band: Band) -> Check {
    let granted = user
        .quota
        .get(&band)
        .filter(|quota: &&Quota| quota.from <= step.after.now && step.after.now < quota.until)
        .map_or(Resources::ZERO, |quota| quota.amount);
    let (before, after) = (charged(step.before, id, band), charged(step.after, id, band));
    // If the charge did not rise nothing was admitted.
    match after.first_excess(granted.max(before)) {
        Some(excess) => Err(violation(NAME, &user.name, format!("admitted in {band}: {excess}"))),
        None => Ok(()),
    }
}

fn up_to_date(step: &Step<'_>, id: UserId, user: &User, band: Band) -> Check {
    let now = step.after.now;
    let valid = user.quota.get(&band).filter(|quota| quota.from <= now && now < quota.until);
    let granted = valid.map_or(Resources::ZERO, |quota| quota.amount);
    let charged = charged(step.after, id, band);
    let (exceeds, flagged) = (!charged.within(granted), user.exceeded.contains(&band));
    if exceeds == flagged {
        Ok(())
    } else {
        let detail = format!("{band}: charged {charged:?}, granted {granted:?}, {flagged}");
        Err(violation(NAME, &user.name, detail))
    }
}
