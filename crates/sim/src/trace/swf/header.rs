//! The comments at the top of a log: `; Name: value`, continued by indented lines.

use crate::trace::decimal::parse_whole;
use crate::trace::problem::FieldProblem;

/// Header fields, as far as they could be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwfHeader {
    /// Every field in file order, repeated ones (`Note`, `Queue`) included; texts without a name
    /// before them continue the field above.
    pub fields: Vec<(String, String)>,
    pub max_jobs: Option<u64>,
    pub max_records: Option<u64>,
    pub max_nodes: Option<u64>,
    pub max_procs: Option<u64>,
    /// Seconds since 1970 of time 0.
    pub unix_start_time: Option<u64>,
}

impl SwfHeader {
    /// Value of the first field of that name.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Adds one comment, without its `;`.
    pub(super) fn add(&mut self, comment: &str) -> Result<(), FieldProblem> {
        let Some((name, value)) = parse_field(comment) else {
            let text = comment.trim();
            if let (Some((_, value)), false) = (self.fields.last_mut(), text.is_empty()) {
                value.push('\n');
                value.push_str(text);
            }
            return Ok(());
        };
        self.fields.push((name.to_owned(), value.to_owned()));
        match name {
            "MaxJobs" => self.max_jobs = Some(whole("MaxJobs", value)?),
            "MaxRecords" => self.max_records = Some(whole("MaxRecords", value)?),
            "MaxNodes" => self.max_nodes = Some(whole("MaxNodes", value)?),
            "MaxProcs" => self.max_procs = Some(whole("MaxProcs", value)?),
            "UnixStartTime" => self.unix_start_time = Some(whole("UnixStartTime", value)?),
            _ => {}
        }
        Ok(())
    }
}

/// Name and value, if the comment has the form of a field: one word right after the `;` and one
/// blank at most, then a colon.
fn parse_field(comment: &str) -> Option<(&str, &str)> {
    let text = comment.strip_prefix(' ').unwrap_or(comment);
    let (name, value) = text.split_once(':')?;
    let is_word = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_word.then_some((name, value.trim()))
}

/// A number, which some logs follow with a remark in parentheses.
fn whole(field: &'static str, value: &str) -> Result<u64, FieldProblem> {
    let number = value.split_whitespace().next().unwrap_or("");
    parse_whole(number).map_err(|_| FieldProblem::new(field, value, "a whole number from 0 on"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_repeat_continue_and_are_typed_where_they_count() {
        let mut header = SwfHeader::default();
        for line in [" MaxProcs: 128 (of 140)", " Note: one", "       two", "", " Note: http://x"] {
            header.add(line).expect(line);
        }
        assert_eq!(header.max_procs, Some(128));
        assert_eq!(header.field("Note"), Some("one\ntwo"));
        assert_eq!(header.fields.len(), 3);
        let problem = header.add(" MaxJobs: many").expect_err("not a number");
        assert_eq!((problem.field, problem.value.as_str()), ("MaxJobs", "many"));
    }
}
