//! Results to stdout, in the form that was asked for, once for all commands.
//!
//! A command knows two things of its result: how it reads in a table, and the value it is. What
//! becomes of the value (JSON, YAML, a line for each item, or the names alone) is decided here.
//! The form is of the whole process, like colours, since a process prints one result; so no
//! command can forget one of the forms. Rejected: a match on six forms in every command, which is
//! how commands come to differ.

mod yaml;

use crate::failure::Failure;
use crate::sanitize::{ColourPolicy, escape_in_json, sanitize};
use crate::table;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgMatches, Command};
use serde::Serialize;
use serde_json::Value;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

/// What a command has to make of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// For people.
    Table,
    /// For programs: the value, in whichever form it then takes.
    Json,
}

/// Every form there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    Table,
    /// A table as wide as it likes to be, with more columns.
    Wide,
    Json,
    Yaml,
    /// Names alone, one a line.
    Name,
    /// One object a line.
    Jsonl,
}

/// As typed after `-o`.
pub const OUTPUT_FORMATS: [&str; 6] = ["table", "wide", "json", "yaml", "name", "jsonl"];
/// Names the form where `-o` does not.
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

/// The form of this process; JSON where a command printed a value without asking.
fn chosen_format() -> OutputFormat {
    CHOSEN_FORMAT.get().copied().unwrap_or(OutputFormat::Json)
}

/// Whether tables may be as wide as they like.
pub fn is_wide() -> bool {
    CHOSEN_FORMAT.get() == Some(&OutputFormat::Wide)
}

/// For `-o`: refuses what is not a form, and tells the command what it has to know.
pub fn format_parser() -> impl TypedValueParser<Value = Output> {
    PossibleValuesParser::new(OUTPUT_FORMATS)
        .map(|text| OutputFormat::from_name(&text).map_or(Output::Table, OutputFormat::output))
}

/// The same commands with the form that the environment names instead of a table.
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
        // A command may have more forms of its own.
        OUTPUT_FORMATS.iter().all(|form| values.iter().any(|value| value.get_name() == *form))
    };
    command
        .mut_args(|arg| if is_form(&arg) { arg.default_value(form) } else { arg })
        .mut_subcommands(|inner| set_default_format(inner, form))
}

/// Takes the form from what was typed, at whatever depth.
pub fn choose_format(matches: &ArgMatches) {
    let mut current = matches;
    loop {
        let given_format =
            current.try_get_raw("output").ok().flatten().and_then(|mut values| values.next());
        if let Some(form) =
            given_format.and_then(|text| OutputFormat::from_name(&text.to_string_lossy()))
        {
            // Set once: there is one command line.
            let _ = CHOSEN_FORMAT.set(form);
        }
        match current.subcommand() {
            Some((_, inner)) => current = inner,
            None => return,
        }
    }
}

/// Writes to stdout; what is not ours in it commands no terminal.
pub fn print(text: &str) -> Result<(), Failure> {
    print_sanitized(text, ColourPolicy::OwnColours)
}

/// Writes what a program wrote: the very bytes, and on a terminal its colours but nothing else that
/// a terminal obeys.
pub fn print_output(text: &str) -> Result<(), Failure> {
    print_sanitized(text, ColourPolicy::AnyColours)
}

fn print_sanitized(text: &str, colours: ColourPolicy) -> Result<(), Failure> {
    match io::stdout().is_terminal() {
        true => print_raw(&sanitize(text, colours)),
        false => print_raw(text),
    }
}

/// Writes to stdout as it is; a reader that went away is not an error of ours. For what commands a
/// terminal on purpose.
pub fn print_raw(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let result = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    result.map_err(|source| match source.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Write { what: "the result".into(), source },
    })
}

/// Writes sentences and tables for people to stdout, no wider than a terminal is.
pub fn print_prose(text: &str) -> Result<(), Failure> {
    print(&table::wrap_prose(text))
}

/// Says something to a person beside the result, such as that there is none: on stderr, wrapped at
/// a terminal and on one line for whoever reads it with a program.
pub fn print_notice(text: &str) {
    match io::stderr().is_terminal() {
        true => print_stderr(&table::wrap_prose(text)),
        false => print_stderr(&format!("{text}\n")),
    }
}

/// Writes to stderr; what is not ours in it commands no terminal. That nobody reads it stops
/// nothing.
pub fn print_stderr(text: &str) {
    let sanitized = match io::stderr().is_terminal() {
        true => sanitize(text, ColourPolicy::OwnColours),
        false => text.into(),
    };
    let _ = io::stderr().lock().write_all(sanitized.as_bytes());
}

/// A line on stderr, as `eprintln!` has it, through [`print_stderr`].
macro_rules! note {
    ($($format:tt)*) => { $crate::output::print_stderr(&format!("{}\n", format_args!($($format)*))) };
}
pub(crate) use note;

/// Writes a value in the form for programs that was asked for; its names are those given.
pub fn print_named(value: &impl Serialize, names: &[String]) -> Result<(), Failure> {
    match chosen_format() {
        OutputFormat::Name => {
            print(&names.iter().map(|name| format!("{name}\n")).collect::<String>())
        }
        _ => print_json(value),
    }
}

/// Writes a value in the form for programs that was asked for.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let value = serde_json::to_value(value)
        .map_err(|error| Failure::from_error(&error, "the same command with -o table"))?;
    print(&render_value(&value, chosen_format())?)
}

/// Many values that are printed as they come. JSON and YAML are one list all the same, so that
/// whatever reads a document reads it; whoever goes on for ever has no end to write, and takes
/// lines.
#[derive(Debug)]
pub struct ItemStream {
    format: OutputFormat,
    is_endless: bool,
    printed: u64,
}

impl ItemStream {
    /// `is_endless`: there is no last one.
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
        let value = serde_json::to_value(value)
            .map_err(|error| Failure::from_error(&error, "the same command with -o table"))?;
        let text = self.render_item(&value)?;
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

    /// After the last one.
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

/// A value as YAML, for parts of what people read.
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

/// A list item by item; anything else is its own only item.
fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) => items,
        single => std::slice::from_ref(single),
    }
}

/// What commands take to mean this very thing again.
fn item_name(value: &Value) -> Option<String> {
    let text = |field: &str| value.get(field).and_then(Value::as_str);
    match (text("user"), text("name")) {
        (Some(user), Some(name)) => return Some(format!("{user}/{name}")),
        (None, Some(name)) => return Some(name.to_owned()),
        _ => {}
    }
    let plain = ["task", "id", "digest", "node", "cursor"].into_iter().find_map(text);
    // What is shown of one thing may be wrapped in its kind.
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

    /// What is printed of these values one after the other.
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
