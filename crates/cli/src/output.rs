//! Writes results to stdout in the requested output format, once for all commands.
//!
//! A command provides two things: its result as a table, and its result as a value. What becomes of
//! the value (JSON, YAML, one line per item, or the names alone) is decided here. The format is a
//! property of the whole process, as colours are, since a process prints one result; so no command
//! can forget a format. Rejected: a match on six formats in every command, which is how commands
//! come to differ.

mod yaml;

use crate::failure::Failure;
use crate::sanitize::{ColourPolicy, escape_in_json, sanitize};
use crate::table;
use cellwright_lang::to_source::mark_milli_cores;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgMatches, Command};
use serde::Serialize;
use serde_json::Value;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

/// Which of the two representations a command has to produce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A table for people.
    Table,
    /// The value, for programs, in whichever format was chosen.
    Json,
}

/// All output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    Table,
    /// A table of any width, with more columns.
    Wide,
    Json,
    Yaml,
    /// Names alone, one per line.
    Name,
    /// One JSON object per line.
    Jsonl,
}

/// The values of `-o`.
pub const OUTPUT_FORMATS: [&str; 6] = ["table", "wide", "json", "yaml", "name", "jsonl"];
/// The environment variable that names the format where `-o` does not.
pub const OUTPUT_ENV: &str = "CELL_OUTPUT";

static CHOSEN_FORMAT: OnceLock<OutputFormat> = OnceLock::new();

impl OutputFormat {
    fn from_name(text: &str) -> Option<OutputFormat> {
        Some(match text {
            "table" => OutputFormat::Table,
            "wide" => OutputFormat::Wide,
            "json" => OutputFormat::Json,
            "yaml" => OutputFormat::Yaml,
            "name" => OutputFormat::Name,
            "jsonl" => OutputFormat::Jsonl,
            _ => return None,
        })
    }

    fn output(self) -> Output {
        match self {
            OutputFormat::Table | OutputFormat::Wide => Output::Table,
            OutputFormat::Json | OutputFormat::Yaml | OutputFormat::Name | OutputFormat::Jsonl => {
                Output::Json
            }
        }
    }
}

/// The format of this process; JSON if a command prints a value without `-o`.
fn chosen_format() -> OutputFormat {
    CHOSEN_FORMAT.get().copied().unwrap_or(OutputFormat::Json)
}

/// Whether tables may be wider than a terminal.
pub fn is_wide() -> bool {
    CHOSEN_FORMAT.get() == Some(&OutputFormat::Wide)
}

/// The parser of `-o`: rejects unknown formats, and returns which representation is needed.
pub fn format_parser() -> impl TypedValueParser<Value = Output> {
    PossibleValuesParser::new(OUTPUT_FORMATS)
        .map(|text| OutputFormat::from_name(&text).map_or(Output::Table, OutputFormat::output))
}

/// The same commands with the format from the environment as default instead of a table.
pub fn with_default_format(command: Command, form: &str) -> Result<Command, Failure> {
    let Some(form) = OUTPUT_FORMATS.iter().find(|known| **known == form) else {
        return Err(Failure::Usage {
            message: format!("{OUTPUT_ENV} is {form:?}; allowed: {}", OUTPUT_FORMATS.join(", ")),
            next: format!("{OUTPUT_ENV}=table, or take it out of the environment"),
        });
    };
    Ok(set_default_format(command, form))
}

fn set_default_format(command: Command, form: &'static str) -> Command {
    let is_form = |arg: &clap::Arg| {
        let values = arg.get_possible_values();
        // A command may have more formats of its own.
        OUTPUT_FORMATS.iter().all(|form| values.iter().any(|value| value.get_name() == *form))
    };
    command
        .mut_args(|arg| if is_form(&arg) { arg.default_value(form) } else { arg })
        .mut_subcommands(|inner| set_default_format(inner, form))
}

/// Takes the format from the parsed arguments of the innermost command.
pub fn choose_format(matches: &ArgMatches) {
    let mut current = matches;
    loop {
        let given_format =
            current.try_get_raw("output").ok().flatten().and_then(|mut values| values.next());
        if let Some(form) =
            given_format.and_then(|text| OutputFormat::from_name(&text.to_string_lossy()))
        {
            // Set only once, since there is one command line.
            let _ = CHOSEN_FORMAT.set(form);
        }
        match current.subcommand() {
            Some((_, inner)) => current = inner,
            None => return,
        }
    }
}

/// Writes to stdout; terminal control sequences in the text are made visible.
pub fn print(text: &str) -> Result<(), Failure> {
    print_sanitized(text, ColourPolicy::OwnColours)
}

/// Writes the output of a program: unchanged to a pipe; to a terminal with its colours but no other
/// control sequences.
pub fn print_output(text: &str) -> Result<(), Failure> {
    print_sanitized(text, ColourPolicy::AnyColours)
}

fn print_sanitized(text: &str, colours: ColourPolicy) -> Result<(), Failure> {
    if io::stdout().is_terminal() { print_raw(&sanitize(text, colours)) } else { print_raw(text) }
}

/// Writes to stdout unchanged, for intended terminal control sequences. A reader that closed the
/// pipe is not an error of ours.
pub fn print_raw(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let result = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    result.map_err(|source| match source.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Write { what: "the result".into(), source },
    })
}

/// Writes sentences and tables for people to stdout, wrapped to the width of a terminal.
pub fn print_prose(text: &str) -> Result<(), Failure> {
    print(&table::wrap_prose(text))
}

/// Tells a person something in addition to the result, such as that it is empty: on stderr, wrapped
/// on a terminal and on one line for programs.
pub fn print_notice(text: &str) {
    if io::stderr().is_terminal() {
        print_stderr(&table::wrap_prose(text))
    } else {
        print_stderr(&format!("{text}\n"))
    }
}

/// Writes to stderr; terminal control sequences in the text are made visible. Write errors are
/// ignored.
pub fn print_stderr(text: &str) {
    let sanitized = if io::stderr().is_terminal() {
        sanitize(text, ColourPolicy::OwnColours)
    } else {
        text.into()
    };
    let _ = io::stderr().lock().write_all(sanitized.as_bytes());
}

/// Prints a line to stderr like `eprintln!`, through [`print_stderr`].
macro_rules! note {
    ($($format:tt)*) => {
        $crate::output::print_stderr(&format!("{}\n", format_args!($($format)*)))
    };
}
pub(crate) use note;

/// Writes a value in the chosen format for programs; `names` are the names of its items.
pub fn print_named(value: &impl Serialize, names: &[String]) -> Result<(), Failure> {
    match chosen_format() {
        OutputFormat::Name => {
            print(&names.iter().map(|name| format!("{name}\n")).collect::<String>())
        }
        _ => print_json(value),
    }
}

/// Writes a value in the chosen format for programs.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&render_value(&to_printed(value)?, chosen_format())?)
}

/// The value as programs read it. What it has of specs is also what job files take.
fn to_printed(value: &impl Serialize) -> Result<Value, Failure> {
    let mut value = serde_json::to_value(value)
        .map_err(|error| Failure::from_error(&error, "the same command with -o table"))?;
    mark_milli_cores(&mut value);
    Ok(value)
}

/// A stream of values that are printed as they arrive. JSON and YAML still form one list, so that
/// any parser of documents reads it; an endless stream cannot close its list, so it is written as
/// lines.
#[derive(Debug)]
pub struct ItemStream {
    format: OutputFormat,
    is_endless: bool,
    printed: u64,
}

impl ItemStream {
    /// `is_endless`: the stream has no last item.
    pub fn new(is_endless: bool) -> Result<ItemStream, Failure> {
        let form = chosen_format();
        if is_endless && form == OutputFormat::Json {
            return Err(Failure::Usage {
                message:
                    "-o json is one document, and --follow has no end; allowed: table, jsonl, \
                          yaml, name"
                        .into(),
                next: "the same command with -o jsonl: one object a line".into(),
            });
        }
        Ok(ItemStream { format: form, is_endless, printed: 0 })
    }

    pub fn add(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = self.render_item(&to_printed(value)?)?;
        self.printed += 1;
        print(&text)
    }

    fn render_item(&self, value: &Value) -> Result<String, Failure> {
        Ok(match self.format {
            OutputFormat::Json if self.printed == 0 => escape_in_json(format!("[\n{value}")),
            OutputFormat::Json => escape_in_json(format!(",\n{value}")),
            OutputFormat::Yaml if self.is_endless => format!("---\n{}", yaml::render(value)),
            OutputFormat::Yaml => yaml::render(&Value::Array(vec![value.clone()])),
            OutputFormat::Name => render_value(value, OutputFormat::Name)?,
            _ => escape_in_json(format!("{value}\n")),
        })
    }

    /// Called after the last item.
    pub fn finish(self) -> Result<(), Failure> {
        print(self.closing_text())
    }

    fn closing_text(&self) -> &'static str {
        match (self.format, self.printed) {
            (OutputFormat::Json | OutputFormat::Yaml, 0) => "[]\n",
            (OutputFormat::Json, _) => "\n]\n",
            _ => "",
        }
    }
}

/// A value as YAML, for a part of a text for people.
pub fn yaml(value: &Value) -> String {
    yaml::render(value)
}

fn render_value(value: &Value, form: OutputFormat) -> Result<String, Failure> {
    Ok(match form {
        OutputFormat::Table | OutputFormat::Wide | OutputFormat::Json => {
            escape_in_json(format!("{value:#}\n"))
        }
        OutputFormat::Yaml => yaml::render(value),
        OutputFormat::Jsonl => {
            items(value).iter().map(|item| escape_in_json(format!("{item}\n"))).collect()
        }
        OutputFormat::Name => {
            let names: Option<Vec<String>> = items(value).iter().map(item_name).collect();
            let names = names.ok_or_else(|| Failure::Usage {
                message: "what this command prints has no names".into(),
                next: "the same command with -o table, json, yaml or jsonl".into(),
            })?;
            names.iter().map(|name| format!("{name}\n")).collect()
        }
    })
}

/// The items of a list; any other value is its own only item.
fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        single => std::slice::from_ref(single),
    }
}

/// The name by which commands refer to this item.
fn item_name(value: &Value) -> Option<String> {
    let text = |field: &str| value.get(field).and_then(Value::as_str);
    match (text("user"), text("name")) {
        (Some(user), Some(name)) => return Some(format!("{user}/{name}")),
        (None, Some(name)) => return Some(name.to_owned()),
        _ => {}
    }
    let plain = ["task", "id", "digest", "node", "cursor"].into_iter().find_map(text);
    // The item may be wrapped in an object with its kind as key.
    let inner =
        || ["job", "machine", "user", "cron"].into_iter().find_map(|field| value.get(field));
    plain.map(str::to_owned).or_else(|| item_name(inner()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(value: &Value, form: OutputFormat, want: &str) {
        assert_eq!(render_value(value, form).unwrap(), want, "{form:?}");
    }

    /// The output for these values printed one after the other.
    fn render_stream(form: OutputFormat, is_endless: bool, values: &[Value]) -> String {
        let mut items = ItemStream { format: form, is_endless, printed: 0 };
        let mut text = String::new();
        for value in values {
            text.push_str(&items.render_item(value).unwrap());
            items.printed += 1;
        }
        text + items.closing_text()
    }

    #[test]
    fn values_that_come_one_by_one_are_one_document_or_lines() {
        let values = [json!({ "name": "a", "n": 1 }), json!({ "name": "b", "n": 2 })];
        for few in 0..=values.len() {
            let text = render_stream(OutputFormat::Json, false, &values[..few]);
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!(values[..few]));
        }
        let yaml = render_value(&json!(values), OutputFormat::Yaml).unwrap();
        assert_eq!(render_stream(OutputFormat::Yaml, false, &values), yaml);
        assert_eq!(render_stream(OutputFormat::Name, false, &values), "a\nb\n");
        let lines = render_stream(OutputFormat::Jsonl, true, &values);
        assert_eq!(lines, "{\"name\":\"a\",\"n\":1}\n{\"name\":\"b\",\"n\":2}\n");
        assert!(render_stream(OutputFormat::Yaml, true, &values).starts_with("---\n"));
    }

    #[test]
    fn every_form_of_a_list_and_of_one_thing() {
        let jobs = json!([{ "user": "ann", "name": "web" }, { "user": "bob", "name": "db" }]);
        check(&jobs, OutputFormat::Name, "ann/web\nbob/db\n");
        check(
            &jobs,
            OutputFormat::Jsonl,
            "{\"user\":\"ann\",\"name\":\"web\"}\n{\"user\":\"bob\",\"name\":\"db\"}\n",
        );
        check(&jobs, OutputFormat::Yaml, "- user: ann\n  name: web\n- user: bob\n  name: db\n");
        let single = json!({ "job": { "user": "ann", "name": "web" }, "tasks": [] });
        check(&single, OutputFormat::Name, "ann/web\n");
        check(&json!([]), OutputFormat::Json, "[]\n");
        assert!(render_value(&json!({ "placed": 3 }), OutputFormat::Name).is_err());
        for text in OUTPUT_FORMATS {
            assert!(OutputFormat::from_name(text).is_some());
        }
        assert_eq!(OutputFormat::from_name("xml"), None);
    }
}
