//! The errors of all masters for a call that none of them answered, combined into one. The last
//! error alone misleads: a replica that was removed says only that, while another says why nothing
//! can be done. It also loses information: a leader that had a change in its log when it lost its
//! majority says afterwards only that there is no leader, and the change takes effect once a
//! majority is back.

use super::ClientError;
use super::outcome::is_from_removed_replica;
use crate::error::{ApiError, Code, IN_DOUBT};

const START_REPLICAS_HINT: &str =
    "start the replicas that do not answer; which they are: cell master status";

const MAY_TAKE_EFFECT: &str = "it may have taken effect, or may yet when a majority is back";

#[derive(Debug, Default)]
pub(super) struct AttemptErrors {
    /// The last error of each master, by address, the latest at the end.
    errors: Vec<(String, ClientError)>,
    /// Whether the call is a change.
    is_change: bool,
    /// Whether some master may have taken the change into its log.
    in_doubt: bool,
}

impl AttemptErrors {
    pub fn new(is_change: bool) -> AttemptErrors {
        AttemptErrors { is_change, ..AttemptErrors::default() }
    }

    /// Whether a master may have received the call and could not say so.
    pub fn mark_in_doubt(&mut self, is_sent: bool) {
        self.in_doubt |= is_sent && self.is_change;
    }

    pub fn record(&mut self, address: String, error: ClientError) {
        self.mark_in_doubt(lacks_majority(&error));
        let errors = &mut self.errors;
        let before = errors.iter().position(|(known, _)| *known == address);
        let before = before.map(|at| errors.remove(at).1);
        // A master that has given a reason is not replaced by its later failure to answer.
        let is_silent = matches!(error, ClientError::Unreachable { .. });
        let error = before.filter(|old| is_silent && old.api().is_some()).unwrap_or(error);
        errors.push((address, error));
    }

    /// An error that ends the call by itself.
    pub fn into_final(mut self, error: ClientError) -> ClientError {
        self.mark_in_doubt(lacks_majority(&error));
        // A decision of the cell is final, whatever was received before.
        if lacks_majority(&error) && self.in_doubt { with_in_doubt(error) } else { error }
    }

    /// All errors as one: the cause, the master that reported it, what the others said, and whether
    /// the change may take effect all the same.
    pub fn into_error(self, tried: u32) -> ClientError {
        let in_doubt = self.in_doubt;
        let error = self.into_cause(tried);
        if in_doubt { with_in_doubt(error) } else { error }
    }

    fn into_cause(mut self, tried: u32) -> ClientError {
        let is_removed = self.errors.iter().any(|(_, error)| is_from_removed_replica(error));
        let is_silent = self.errors.iter().all(|(_, error)| error.api().is_none());
        if is_silent || self.errors.len() == 1 && !is_removed {
            let last = self.errors.pop().map(|(_, error)| error);
            return last.unwrap_or(ClientError::Unreachable { tried, last: "not asked".into() });
        }
        self.errors
            .sort_by(|(a, one), (b, other)| (cause_rank(one), a).cmp(&(cause_rank(other), b)));
        let descriptions: Vec<String> =
            self.errors.iter().map(|(at, error)| describe(at, error)).collect();
        let mut remaining = self.errors.into_iter();
        match remaining.next() {
            Some((_, error)) if is_from_removed_replica(&error) => match error {
                ClientError::Api(error) => {
                    ClientError::Api(ApiError { message: descriptions.join("; "), ..error })
                }
                other => other,
            },
            Some((at, ClientError::Api(error))) => {
                let cause = format!("{}, says {at}", error.message);
                let message = [&[cause], &descriptions[1..]].concat().join("; ");
                let hint = match error.code {
                    Code::NoQuorum | Code::NoLeader => START_REPLICAS_HINT.into(),
                    _ => error.hint,
                };
                ClientError::Api(ApiError { message, hint, ..error })
            }
            _ => ClientError::Unreachable { tried, last: descriptions.join("; ") },
        }
    }
}

/// Whether the error is a missing majority, or a missing answer of one. `no-leader` is said only of
/// what was never proposed.
fn lacks_majority(error: &ClientError) -> bool {
    matches!(error.code(), Some(Code::NoQuorum | Code::TimedOut))
}

fn with_in_doubt(error: ClientError) -> ClientError {
    match error {
        ClientError::Api(error) => {
            let message = format!("{}; {MAY_TAKE_EFFECT}", error.message);
            ClientError::Api(ApiError { message, ..error.with(IN_DOUBT, true) })
        }
        ClientError::Unreachable { last, .. } => ClientError::Unknown(last),
        other => other,
    }
}

/// The nearer to the cause, the lower. Errors that may have had an effect come before those that
/// certainly had none.
fn cause_rank(error: &ClientError) -> u8 {
    match error.code() {
        _ if is_from_removed_replica(error) => 6,
        Some(Code::NoQuorum) => 0,
        Some(Code::TimedOut) => 1,
        Some(Code::NotLeader) => 4,
        Some(Code::NoLeader) => 2,
        Some(_) => 3,
        None => 5,
    }
}

fn describe(address: &str, error: &ClientError) -> String {
    let message = match error {
        ClientError::Api(error) => error.message.clone(),
        ClientError::Unreachable { last, .. } => last.clone(),
        other => other.to_string(),
    };
    let bare = message.strip_prefix(address).unwrap_or(&message);
    format!("{address}: {}", bare.trim_start_matches([':', ' ']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::REMOVED;

    fn api(code: Code, message: &str) -> ClientError {
        ClientError::Api(ApiError::new(code, message))
    }

    fn removed() -> ClientError {
        let error = ApiError::new(Code::NotReady, "this replica was removed from the cell");
        ClientError::Api(error.with(REMOVED, true).hint("ask another"))
    }

    fn refused(address: &str) -> ClientError {
        let last = format!("{address}: cannot connect: refused");
        ClientError::Unreachable { tried: 1, last }
    }

    fn combined(errors: Vec<(&str, ClientError)>) -> ClientError {
        let mut all = AttemptErrors::default();
        errors.into_iter().for_each(|(address, error)| all.record(address.to_owned(), error));
        all.into_error(9)
    }

    #[test]
    fn the_cause_comes_first_and_each_master_is_named_with_its_words() {
        let message = combined(vec![
            ("m1:1", api(Code::NoQuorum, "no majority answers")),
            ("m2:1", refused("m2:1")),
            ("m1:1", refused("m1:1")),
            ("m3:1", removed()),
        ]);
        let error = message.api().unwrap();
        assert_eq!(
            error.message,
            "no majority answers, says m1:1; m2:1: cannot connect: refused; \
             m3:1: this replica was removed from the cell"
        );
        assert_eq!((error.code, error.hint.as_str()), (Code::NoQuorum, START_REPLICAS_HINT));
    }

    #[test]
    fn a_change_that_a_leader_may_have_taken_is_in_doubt_whatever_is_said_later() {
        let after_attempts = |is_change| {
            let mut all = AttemptErrors::new(is_change);
            all.record("m1:1".into(), api(Code::TimedOut, "no quorum has answered"));
            all.record("m1:1".into(), refused("m1:1"));
            all.record("m2:1".into(), refused("m2:1"));
            all.into_error(9)
        };
        let error = after_attempts(true);
        assert!(error.is_in_doubt(), "{error}");
        assert!(error.to_string().contains(MAY_TAKE_EFFECT), "{error}");
        let read = after_attempts(false);
        assert!(!read.is_in_doubt() && !read.to_string().contains(MAY_TAKE_EFFECT), "{read}");
        let busy = AttemptErrors::new(true).into_final(api(Code::NotAllowed, "no"));
        assert!(!busy.is_in_doubt(), "{busy}");
        let mut lost = AttemptErrors::new(true);
        lost.mark_in_doubt(true);
        lost.record("m1:1".into(), refused("m1:1"));
        assert!(matches!(lost.into_error(2), ClientError::Unknown(_)));
    }

    #[test]
    fn one_that_was_removed_is_named_and_is_no_cause_where_others_are_away() {
        let words = "m3:1: this replica was removed from the cell";
        assert_eq!(combined(vec![("m3:1", removed())]).api().unwrap().message, words);
        let message = combined(vec![("m1:1", refused("m1:1")), ("m3:1", removed())]).to_string();
        let expected = format!("no master answers: m1:1: cannot connect: refused; {words} (tried");
        assert!(message.starts_with(&expected), "{message}");
    }

    #[test]
    fn where_nobody_answers_or_one_is_asked_the_last_word_is_all() {
        let message =
            combined(vec![("m1:1", refused("m1:1")), ("m2:1", refused("m2:1"))]).to_string();
        assert!(message.contains("m2:1") && !message.contains("m1:1"), "{message}");
        let busy = combined(vec![("m1:1", api(Code::Overloaded, "busy"))]);
        assert_eq!(busy.api().unwrap().message, "busy");
    }
}
