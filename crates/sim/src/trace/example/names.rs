//! Names and lists inside a field.

use crate::trace::problem::FieldProblem;
use crate::trace::table::Fields;

const ALLOWED_NAME: &str = "1 to 63 characters a-z, 0-9 and -, not starting or ending with -";
const ALLOWED_TOKEN: &str = "1 to 128 printable ASCII characters without blanks , ; | = and \"";

/// A name that is safe in host names and paths.
pub(super) fn name(fields: &Fields<'_>, column: usize) -> Result<String, FieldProblem> {
    let text = fields.text(column).unwrap_or("");
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = (1..=63).contains(&text.len())
        && text.bytes().all(is_inner)
        && !text.starts_with('-')
        && !text.ends_with('-');
    if is_name { Ok(text.to_owned()) } else { Err(fields.problem(column, ALLOWED_NAME)) }
}

/// Whether a text can be an attribute, a value, a model or a package.
pub(super) fn is_token(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && !b",;|=\"".contains(&byte);
    (1..=128).contains(&text.len()) && text.bytes().all(is_allowed)
}

pub(super) fn token(fields: &Fields<'_>, column: usize) -> Result<String, FieldProblem> {
    match fields.text(column) {
        Some(text) if is_token(text) => Ok(text.to_owned()),
        _ => Err(fields.problem(column, ALLOWED_TOKEN)),
    }
}

/// The parts of a list, separated by `;`; blanks around a part are ignored.
pub(super) fn list<'a>(fields: &Fields<'a>, column: usize) -> impl Iterator<Item = &'a str> {
    fields.text(column).into_iter().flat_map(|text| text.split(';')).map(str::trim)
}

/// A list of tokens, each once.
pub(super) fn tokens(fields: &Fields<'_>, column: usize) -> Result<Vec<String>, FieldProblem> {
    let mut found: Vec<String> = Vec::new();
    for part in list(fields, column) {
        if !is_token(part) || found.iter().any(|known| known == part) {
            return Err(fields.problem(column, "different names with ; between them"));
        }
        found.push(part.to_owned());
    }
    Ok(found)
}
