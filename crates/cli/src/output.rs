//! Results to stdout, in the form that was asked for, once for all commands.
//!
//! A command knows two things of its result: how it reads in a table, and the value it is. What
//! becomes of the value (JSON, YAML, a line for each item, or the names alone) is decided here.
//! The form is of the whole process, like colours, since a process prints one result; so no
//! command can forget one of the forms. Rejected: a match on six forms in every command, which is
//! how commands come to differ.

mod yaml;

use crate::failure::Failure;
use crate::table;
use crate::visible::{Allowed, in_json, visible};
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
pub enum Form {
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
pub const FORMS: [&str; 6] = ["table", "wide", "json", "yaml", "name", "jsonl"];
/// Names the form where `-o` does not.
pub const VARIABLE: &str = "CELL_OUTPUT";

static CHOSEN: OnceLock<Form> = OnceLock::new();

impl Form {
    fn named(text: &str) -> Option<Form> {
        Some(match text {
            "table" => Form::Table,
            "wide" => Form::Wide,
            "json" => Form::Json,
            "yaml" => Form::Yaml,
            "name" => Form::Name,
            "jsonl" => Form::Jsonl,
            _ => return None,
        })
    }

    fn output(self) -> Output {
        match self {
            Form::Table | Form::Wide => Output::Table,
            Form::Json | Form::Yaml | Form::Name | Form::Jsonl => Output::Json,
        }
    }
}

/// The form of this process; JSON where a command printed a value without asking.
fn form() -> Form {
    CHOSEN.get().copied().unwrap_or(Form::Json)
}

/// Whether tables may be as wide as they like.
pub fn is_wide() -> bool {
    CHOSEN.get() == Some(&Form::Wide)
}

/// For `-o`: refuses what is not a form, and tells the command what it has to know.
pub fn parser() -> impl TypedValueParser<Value = Output> {
    PossibleValuesParser::new(FORMS)
        .map(|text| Form::named(&text).map_or(Output::Table, Form::output))
}

/// The same commands with the form that the environment names instead of a table.
pub fn with_default(command: Command, form: &str) -> Result<Command, Failure> {
    let Some(form) = FORMS.iter().find(|known| **known == form) else {
        return Err(Failure::Usage {
            message: format!("{VARIABLE} is {form:?}; allowed: {}", FORMS.join(", ")),
            next: format!("{VARIABLE}=table, or take it out of the environment"),
        });
    };
    Ok(defaulted(command, form))
}

fn defaulted(command: Command, form: &'static str) -> Command {
    let is_form = |arg: &clap::Arg| {
        let values = arg.get_possible_values();
        // A command may have more forms of its own.
        FORMS.iter().all(|form| values.iter().any(|value| value.get_name() == *form))
    };
    command
        .mut_args(|arg| if is_form(&arg) { arg.default_value(form) } else { arg })
        .mut_subcommands(|inner| defaulted(inner, form))
}

/// Takes the form from what was typed, at whatever depth.
pub fn choose(matches: &ArgMatches) {
    let mut at = matches;
    loop {
        let typed = at.try_get_raw("output").ok().flatten().and_then(|mut values| values.next());
        if let Some(form) = typed.and_then(|text| Form::named(&text.to_string_lossy())) {
            // Set once: there is one command line.
            let _ = CHOSEN.set(form);
        }
        match at.subcommand() {
            Some((_, inner)) => at = inner,
            None => return,
        }
    }
}

/// Writes to stdout; what is not ours in it commands no terminal.
pub fn print(text: &str) -> Result<(), Failure> {
    print_of(text, Allowed::OwnColours)
}

/// Writes what a program wrote: the very bytes, and on a terminal its colours but nothing else that
/// a terminal obeys.
pub fn print_output(text: &str) -> Result<(), Failure> {
    print_of(text, Allowed::AnyColours)
}

fn print_of(text: &str, allowed: Allowed) -> Result<(), Failure> {
    match io::stdout().is_terminal() {
        true => print_raw(&visible(text, allowed)),
        false => print_raw(text),
    }
}

/// Writes to stdout as it is; a reader that went away is not an error of ours. For what commands a
/// terminal on purpose.
pub fn print_raw(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|source| match source.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Write { what: "the result".into(), source },
    })
}

/// Writes sentences and tables for people to stdout, no wider than a terminal is.
pub fn say(text: &str) -> Result<(), Failure> {
    print(&table::prose(text))
}

/// Says something to a person beside the result, such as that there is none: on stderr, wrapped at
/// a terminal and on one line for whoever reads it with a program.
pub fn aside(text: &str) {
    match io::stderr().is_terminal() {
        true => warn(&table::prose(text)),
        false => warn(&format!("{text}\n")),
    }
}

/// Writes to stderr; what is not ours in it commands no terminal. That nobody reads it stops
/// nothing.
pub fn warn(text: &str) {
    let shown = match io::stderr().is_terminal() {
        true => visible(text, Allowed::OwnColours),
        false => text.into(),
    };
    let _ = io::stderr().lock().write_all(shown.as_bytes());
}

/// A line on stderr, as `eprintln!` has it, through [`warn`].
macro_rules! note {
    ($($format:tt)*) => { $crate::output::warn(&format!("{}\n", format_args!($($format)*))) };
}
pub(crate) use note;

/// Writes a value in the form for programs that was asked for; its names are those given.
pub fn print_named(value: &impl Serialize, names: &[String]) -> Result<(), Failure> {
    match form() {
        Form::Name => print(&names.iter().map(|name| format!("{name}\n")).collect::<String>()),
        _ => print_json(value),
    }
}

/// Writes a value in the form for programs that was asked for.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let value = serde_json::to_value(value)
        .map_err(|error| Failure::work(&error, "the same command with -o table"))?;
    print(&rendered(&value, form())?)
}

/// Many values that are printed as they come. JSON and YAML are one list all the same, so that
/// whatever reads a document reads it; whoever goes on for ever has no end to write, and takes
/// lines.
#[derive(Debug)]
pub struct Items {
    form: Form,
    follows: bool,
    printed: u64,
}

impl Items {
    /// `follows`: there is no last one.
    pub fn new(follows: bool) -> Result<Items, Failure> {
        let form = form();
        if follows && form == Form::Json {
            return Err(Failure::Usage {
                message:
                    "-o json is one document, and --follow has no end; allowed: table, jsonl, \
                          yaml, name"
                        .into(),
                next: "the same command with -o jsonl: one object a line".into(),
            });
        }
        Ok(Items { form, follows, printed: 0 })
    }

    pub fn add(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let value = serde_json::to_value(value)
            .map_err(|error| Failure::work(&error, "the same command with -o table"))?;
        let text = self.text_of(&value)?;
        self.printed += 1;
        print(&text)
    }

    fn text_of(&self, value: &Value) -> Result<String, Failure> {
        Ok(match self.form {
            Form::Json if self.printed == 0 => in_json(format!("[\n{value}")),
            Form::Json => in_json(format!(",\n{value}")),
            Form::Yaml if self.follows => format!("---\n{}", yaml::render(value)),
            Form::Yaml => yaml::render(&Value::Array(vec![value.clone()])),
            Form::Name => rendered(value, Form::Name)?,
            _ => in_json(format!("{value}\n")),
        })
    }

    /// After the last one.
    pub fn end(self) -> Result<(), Failure> {
        print(self.end_text())
    }

    fn end_text(&self) -> &'static str {
        match (self.form, self.printed) {
            (Form::Json | Form::Yaml, 0) => "[]\n",
            (Form::Json, _) => "\n]\n",
            _ => "",
        }
    }
}

/// A value as YAML, for parts of what people read.
pub fn yaml(value: &Value) -> String {
    yaml::render(value)
}

fn rendered(value: &Value, form: Form) -> Result<String, Failure> {
    Ok(match form {
        Form::Table | Form::Wide | Form::Json => in_json(format!("{value:#}\n")),
        Form::Yaml => yaml::render(value),
        Form::Jsonl => items(value).iter().map(|item| in_json(format!("{item}\n"))).collect(),
        Form::Name => {
            let names: Option<Vec<String>> = items(value).iter().map(name).collect();
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
        one => std::slice::from_ref(one),
    }
}

/// What commands take to mean this very thing again.
fn name(value: &Value) -> Option<String> {
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
    plain.map(str::to_owned).or_else(|| name(inner()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(value: &Value, form: Form, want: &str) {
        assert_eq!(rendered(value, form).unwrap(), want, "{form:?}");
    }

    /// What is printed of these values one after the other.
    fn streamed(form: Form, follows: bool, values: &[Value]) -> String {
        let mut items = Items { form, follows, printed: 0 };
        let mut text = String::new();
        for value in values {
            text.push_str(&items.text_of(value).unwrap());
            items.printed += 1;
        }
        text + items.end_text()
    }

    #[test]
    fn values_that_come_one_by_one_are_one_document_or_lines() {
        let values = [json!({ "name": "a", "n": 1 }), json!({ "name": "b", "n": 2 })];
        for few in 0..=values.len() {
            let text = streamed(Form::Json, false, &values[..few]);
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!(values[..few]));
        }
        let yaml = rendered(&json!(values), Form::Yaml).unwrap();
        assert_eq!(streamed(Form::Yaml, false, &values), yaml);
        assert_eq!(streamed(Form::Name, false, &values), "a\nb\n");
        let lines = streamed(Form::Jsonl, true, &values);
        assert_eq!(lines, "{\"name\":\"a\",\"n\":1}\n{\"name\":\"b\",\"n\":2}\n");
        assert!(streamed(Form::Yaml, true, &values).starts_with("---\n"));
    }

    #[test]
    fn every_form_of_a_list_and_of_one_thing() {
        let jobs = json!([{ "user": "ann", "name": "web" }, { "user": "bob", "name": "db" }]);
        check(&jobs, Form::Name, "ann/web\nbob/db\n");
        check(
            &jobs,
            Form::Jsonl,
            "{\"user\":\"ann\",\"name\":\"web\"}\n{\"user\":\"bob\",\"name\":\"db\"}\n",
        );
        check(&jobs, Form::Yaml, "- user: ann\n  name: web\n- user: bob\n  name: db\n");
        let one = json!({ "job": { "user": "ann", "name": "web" }, "tasks": [] });
        check(&one, Form::Name, "ann/web\n");
        check(&json!([]), Form::Json, "[]\n");
        assert!(rendered(&json!({ "placed": 3 }), Form::Name).is_err());
        for text in FORMS {
            assert!(Form::named(text).is_some());
        }
        assert_eq!(Form::named("xml"), None);
    }
}
