//! Functions beside SQLite's own: codes in the words that every command uses for them.

use cellwright_cell::render;
use rusqlite::Connection;
use rusqlite::functions::{Context, FunctionFlags};

/// The functions with their arguments and what they say, for `cell sql --tables` and the guide.
pub const FUNCTIONS: [(&str, &str); 2] = [
    ("reason_words(reason)", "the reason of an event, as `cell events` says it"),
    ("ended_words(exit_class, exit_code)", "how a task ended, as `cell status` says it"),
];

/// Makes them known to the connection.
pub(crate) fn add(db: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_INNOCUOUS;
    db.create_scalar_function(c"reason_words", 1, flags, |call: &Context<'_>| {
        let code: Option<String> = call.get(0)?;
        Ok(code.map(|code| render::reason_coded(&code).to_owned()))
    })?;
    db.create_scalar_function(c"ended_words", 2, flags, |call: &Context<'_>| {
        let (class, number): (Option<String>, Option<i64>) = (call.get(0)?, call.get(1)?);
        Ok(class.map(|class| render::ended_coded(&class, number)))
    })
}
