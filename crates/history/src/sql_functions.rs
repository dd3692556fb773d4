//! SQL functions beside SQLite's own: codes as the words that every command uses for them, and
//! percentiles.

mod percentile;

use cellwright_cell::words::{self, CodedEvent};
use rusqlite::Connection;
use rusqlite::functions::{Context, FunctionFlags};

/// The functions with their arguments and descriptions, for `cell sql --tables` and the guide.
pub const FUNCTIONS: [(&str, &str); 5] = [
    (
        "event_words(object, event, machine, reason, exit_class, exit_code, detail)",
        "a row of events in a sentence, as `cell events` says it",
    ),
    ("reason_words(reason)", "the reason of an event, as `cell events` says it"),
    ("ended_words(exit_class, exit_code)", "how a task ended, as `cell status` says it"),
    ("percentile(x, p)", "of a group: the smallest x that p percent of all do not exceed"),
    (
        "percentile(x, p, weight)",
        "the same where a row counts by its weight, as how long it was so",
    ),
];

/// Registers them with the connection.
pub(crate) fn register(db: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_INNOCUOUS;
    db.create_scalar_function(c"reason_words", 1, flags, |call: &Context<'_>| {
        let code: Option<String> = call.get(0)?;
        Ok(code.map(|code| words::reason_coded(&code).to_owned()))
    })?;
    db.create_scalar_function(c"ended_words", 2, flags, |call: &Context<'_>| {
        let (class, number): (Option<String>, Option<i64>) = (call.get(0)?, call.get(1)?);
        Ok(class.map(|class| words::ended_coded(&class, number)))
    })?;
    db.create_scalar_function(c"event_words", 7, flags, reason_sentence)?;
    percentile::register(db, flags)
}

/// `NULL` where there is no object or event, as with the others.
fn reason_sentence(call: &Context<'_>) -> rusqlite::Result<Option<String>> {
    let column_text = |at: usize| call.get::<Option<String>>(at);
    let (Some(object), Some(event)) = (column_text(0)?, column_text(1)?) else { return Ok(None) };
    let (machine, reason, exit_class, detail) =
        (column_text(2)?, column_text(3)?, column_text(4)?, column_text(6)?);
    Ok(Some(words::event_coded(&CodedEvent {
        object: &object,
        event: &event,
        machine: machine.as_deref(),
        reason: reason.as_deref().unwrap_or_default(),
        exit_class: exit_class.as_deref(),
        exit_code: call.get(5)?,
        detail: detail.as_deref(),
    })))
}
