//! Values as people type them, turned into the cell's own. Each says what is allowed.

use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::time::Span;
use cellwright_master::config;
use cellwright_sim::trace::decimal::{Rounding, parse_scaled};

pub fn name(text: &str) -> Result<Name, String> {
    Name::new(text).map_err(|bad| bad.to_string())
}

/// `USER/JOB`.
pub fn job(text: &str) -> Result<JobKey, String> {
    let (user, job) = text.split_once('/').ok_or("allowed: USER/JOB, such as dev/hello")?;
    Ok(JobKey { user: name(user)?, job: name(job)? })
}

/// `5s`, `24h`.
pub fn span(text: &str) -> Result<Span, String> {
    config::duration(text).ok_or_else(|| "allowed: a whole number with ms, s, m, h or d".into())
}

/// `64GiB`.
pub fn size(text: &str) -> Result<u64, String> {
    config::size(text)
        .ok_or_else(|| "allowed: a whole number with B, KiB, MiB, GiB or TiB, as 64GiB".into())
}

/// Cores, `1.5`, to thousandths.
pub fn cores(text: &str) -> Result<u64, String> {
    parse_scaled(text, 3, Rounding::Exact)
        .map_err(|_| "allowed: a number of cores with at most 3 decimals, as 1.5".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_read_or_refused_with_what_is_allowed() {
        assert_eq!((cores("1.5"), size("2GiB")), (Ok(1500), Ok(2 << 30)));
        assert_eq!(span("15m"), Ok(Span::seconds(900)));
        assert_eq!(job("ann/web").map(|key| key.to_string()), Ok("ann/web".into()));
        for wrong in [cores("x").err(), size("2").err(), span("5").err(), job("web").err()] {
            assert!(wrong.is_some_and(|error| error.contains("allowed: ")));
        }
        assert!(job("Ann/web").is_err_and(|error| error.contains("a-z")));
    }
}
