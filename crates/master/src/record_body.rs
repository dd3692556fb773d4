//! What stands in a record of the event and audit logs: the format, then the body in it.
//!
//! A segment outlives the build that began it, and records travel to replicas that lost them, so
//! each says for itself how it is to be read. Rejected: a format for each segment. Builds would
//! have to begin a new one at their first start, and a record on its way would have none.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;

/// Bytes of the format in front.
const FORMAT_LEN: usize = 2;

/// The payload of a record whose body is of this format.
pub(crate) fn seal<T: Serialize>(format: u16, body: &T, room: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(room + FORMAT_LEN);
    bytes.extend_from_slice(&format.to_le_bytes());
    postcard::to_extend(body, bytes).map_err(io::Error::other)
}

/// The body of record `number` of the log in `dir`.
///
/// # Errors
/// When a newer build wrote it, or the bytes are no such body.
pub(crate) fn open<T: DeserializeOwned>(
    dir: &str,
    number: u64,
    newest: u16,
    payload: &[u8],
) -> io::Result<T> {
    check(dir, number, newest, payload)?;
    let bad = |why: postcard::Error| invalid(format!("{dir}: record {number}: {why}"));
    postcard::from_bytes(&payload[FORMAT_LEN..]).map_err(bad)
}

/// The format that a record says it has.
pub(crate) fn format(payload: &[u8]) -> Option<u16> {
    payload.first_chunk::<FORMAT_LEN>().map(|format| u16::from_le_bytes(*format))
}

/// Looks at the format alone.
///
/// # Errors
/// When it is none that this build reads.
pub(crate) fn check(dir: &str, number: u64, newest: u16, payload: &[u8]) -> io::Result<()> {
    let Some(found) = format(payload) else {
        return Err(invalid(format!("{dir}: record {number} is too short to have a format")));
    };
    if found == 0 || found > newest {
        return Err(invalid(format!(
            "{dir}: record {number} is of format {found}; allowed: 1 to {newest}; run the newer \
             build"
        )));
    }
    Ok(())
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_says_its_format_and_a_newer_one_is_refused_by_log_record_and_number() {
        let bytes = seal(1, &vec![7u32], 0).unwrap();
        assert_eq!(open::<Vec<u32>>("events", 12, 1, &bytes).unwrap(), [7]);
        let check = |bytes: &[u8], want: &str| {
            let error = open::<Vec<u32>>("events", 12, 1, bytes).unwrap_err().to_string();
            assert_eq!(error, want);
        };
        let newer = seal(2, &vec![7u32], 0).unwrap();
        check(&newer, "events: record 12 is of format 2; allowed: 1 to 1; run the newer build");
        check(&[1], "events: record 12 is too short to have a format");
    }
}
