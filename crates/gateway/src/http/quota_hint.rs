//! Quota hints: how much quota would have to be granted for this very request to be admitted. A
//! rejection names only the first dimension that is short, so the rest is computed beside the log,
//! where a wrong number costs a second try and no replay.

use cellwright_cell::command::Command;
use cellwright_cell::job::Job;
use cellwright_cell::name::JobKey;
use cellwright_cell::priority::Band;
use cellwright_cell::quota::User;
use cellwright_cell::reason::Rejection;
use cellwright_cell::resource::{Dimension, Resources, Shortfall};
use cellwright_cell::state::State;
use cellwright_cell::time::Time;

/// What a new job requests in all dimensions; for an update only the rejection says it.
pub(super) fn requested_resources(state: &State, command: &Command) -> Option<Resources> {
    let least_charge = state.bounds().least_charge;
    match command {
        Command::SubmitJob { spec, .. } => Some(spec.total_charge(least_charge)),
        Command::ApplyJob { owner, spec, .. } => {
            let key = JobKey { user: owner.clone(), job: spec.name.clone() };
            let old = state.job_named(&key).and_then(|id| state.jobs().get(id));
            old.is_none_or(Job::is_dead).then(|| spec.total_charge(least_charge))
        }
        _ => None,
    }
}

/// `None` where the obstacle is not quota.
pub(super) fn hint(
    state: &State,
    rejection: &Rejection,
    requested: Option<Resources>,
    now: Time,
) -> Option<String> {
    let Rejection::QuotaExceeded { user: name, band, shortfall } = rejection else { return None };
    let id = state.user_named(name)?;
    let user = state.users().get(id)?;
    let charged = state.user_load(id).and_then(|load| load.charged.get(band).copied());
    let more = missing_options(
        user.granted(*band, now),
        charged.unwrap_or_default(),
        requested,
        shortfall,
    );
    Some(format!(
        "ask for less, or for more: cell quota set {name} {}{more}{}",
        band.as_str(),
        validity_options(user, *band, now)
    ))
}

/// The command-line options that grant what is missing.
fn missing_options(
    granted: Resources,
    charged: Resources,
    requested: Option<Resources>,
    short: &Shortfall,
) -> String {
    let needed = |dimension: Dimension| match requested {
        Some(requested) => charged.get(dimension).saturating_add(requested.get(dimension)),
        // Part of the grant is used by other jobs; where nothing is left it may be more.
        None if dimension != short.dimension => 0,
        None if short.available > 0 => (granted.get(dimension)
            - short.available.min(granted.get(dimension)))
        .saturating_add(short.requested),
        None => charged.get(dimension).saturating_add(short.requested),
    };
    let missing =
        Dimension::ALL.into_iter().filter(|dimension| needed(*dimension) > granted.get(*dimension));
    missing
        .map(|dimension| {
            format!(" --{} {}", dimension.as_str(), format_amount(dimension, needed(dimension)))
        })
        .collect()
}

/// For a quota that is not valid now, also the option for its validity.
fn validity_options(user: &User, band: Band, now: Time) -> &'static str {
    match user.quota.get(&band) {
        Some(quota) if quota.until <= now => " --until 30d",
        Some(quota) if quota.from > now => " --from 0s",
        _ => "",
    }
}

/// The exact amount, as the command line takes it.
fn format_amount(dimension: Dimension, amount: u64) -> String {
    if dimension == Dimension::Cpu {
        let text = format!("{}.{:03}", amount / 1000, amount % 1000);
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];
    let whole = units.iter().find(|(_, shift)| amount.is_multiple_of(1 << shift));
    whole.map(|(unit, shift)| format!("{}{unit}", amount >> shift)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_is_to_be_granted_as_is_charged_and_asked_together() {
        let granted = Resources { cpu: 1000, ram: 1 << 30, ..Resources::ZERO };
        let charged = Resources { cpu: 250, ..Resources::ZERO };
        let short = |dimension, requested, available| Shortfall { dimension, requested, available };
        let disk = short(Dimension::Disk, 1 << 30, 0);
        let job = Resources { cpu: 100, ram: 1, disk: 1 << 30, disk_rate: 0 };
        assert_eq!(missing_options(granted, charged, Some(job), &disk), " --disk 1GiB");
        let large = Resources { cpu: 1500, ram: (1 << 30) + 1024, ..job };
        let cpu = short(Dimension::Cpu, 1500, 750);
        let all = " --cpu 1.75 --ram 1048577KiB --disk 1GiB";
        assert_eq!(missing_options(granted, charged, Some(large), &cpu), all);
        // An update of a job, which is charged already: other jobs hold 150.
        let cpu = short(Dimension::Cpu, 3000, 850);
        assert_eq!(missing_options(granted, charged, None, &cpu), " --cpu 3.15");
    }
}
