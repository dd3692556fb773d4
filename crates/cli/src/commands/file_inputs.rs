//! What job files are evaluated with apart from themselves: libraries and parameters, from the
//! command line and from the context of the cell they are for.

use super::file::JobFile;
use crate::command_line::shell_quoted;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use cellwright_lang::Inputs;
use cellwright_lang::inputs::{CELL_PARAMETER, parse_parameter};
use clap::Args;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "How the file is evaluated")]
pub struct InputArgs {
    /// A folder that files may import from too; repeat it for several, which are searched in order
    /// and before those of the context (cell context set)
    #[arg(short = 'J', long = "library", value_name = "DIR")]
    libraries: Vec<PathBuf>,

    /// A parameter of a file that is a function: JSON, or else a text
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = parse_parameter)]
    parameters: Vec<(String, Value)>,
}

impl InputArgs {
    /// The file `name` with these inputs, for the cell that `connection` means.
    pub fn file(&self, name: &str, connection: &ConnectionArgs) -> Result<JobFile, Failure> {
        let inputs = self.inputs(connection)?;
        Ok(JobFile { name: name.to_owned(), inputs, options: self.words() })
    }

    fn inputs(&self, connection: &ConnectionArgs) -> Result<Inputs, Failure> {
        let mut parameters = BTreeMap::new();
        for (name, value) in &self.parameters {
            if parameters.insert(name.clone(), value.clone()).is_some() {
                return Err(Failure::Usage {
                    message: format!("--set {name} is there twice; allowed: once"),
                    next: "the same command with one of the two".into(),
                });
            }
        }
        let environment = connection.environment()?;
        let libraries = self.libraries.iter().cloned().chain(environment.libraries).collect();
        let offered = [(CELL_PARAMETER.to_owned(), Value::String(environment.cell))].into();
        Ok(Inputs { libraries, parameters, offered })
    }

    /// The options as typed, each with a blank before it, for a command that is suggested.
    pub fn words(&self) -> String {
        let libraries =
            self.libraries.iter().map(|folder| ["-J".into(), folder.display().to_string()]);
        let set = |(name, value): &(String, Value)| {
            let text = match value {
                Value::String(text) if !is_json(text) => text.clone(),
                other => other.to_string(),
            };
            ["--set".to_owned(), format!("{name}={text}")]
        };
        let words: Vec<String> =
            libraries.chain(self.parameters.iter().map(set)).flatten().collect();
        if words.is_empty() { String::new() } else { format!(" {}", shell_quoted(&words)) }
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        connection: ConnectionArgs,
        #[command(flatten)]
        inputs: InputArgs,
    }

    fn read(words: &[&str]) -> Line {
        Line::try_parse_from([&["cell", "--master", "m:1"], words].concat()).unwrap()
    }

    #[test]
    fn what_is_typed_reaches_the_file_and_the_next_command() {
        let words = ["-J", "a b", "--set", "n=3", "--set", "image=web:2", "--set", "t=\"3\""];
        let line = read(&words);
        let inputs = line.inputs.inputs(&line.connection).unwrap();
        assert_eq!(inputs.libraries, [PathBuf::from("a b")]);
        let parameters = serde_json::json!({ "n": 3, "image": "web:2", "t": "3" });
        assert_eq!(serde_json::to_value(&inputs.parameters).unwrap(), parameters);
        assert_eq!(
            serde_json::to_value(&inputs.offered).unwrap(),
            serde_json::json!({"cell": "dev"})
        );
        let want = " -J 'a b' --set n=3 --set image=web:2 --set 't=\"3\"'";
        assert_eq!(line.inputs.words(), want);
        assert_eq!(read(&[]).inputs.words(), "");
    }

    #[test]
    fn a_parameter_is_given_once_and_in_its_form() {
        let line = read(&["--set", "n=3", "--set", "n=4"]);
        let failure = line.inputs.inputs(&line.connection).unwrap_err();
        assert_eq!(failure.to_string(), "--set n is there twice; allowed: once");
        assert!(Line::try_parse_from(["cell", "--set", "n"]).is_err());
    }
}
