//! `cell schema`: prints the JSON Schema of job files, for editors.

use super::Success;
use crate::failure::Failure;
use crate::output::print_json;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  cell schema > jobs.schema.json

In VS Code, for YAML: `# yaml-language-server: $schema=jobs.schema.json` as the
first line.";

/// Print the JSON Schema of job files, for editors
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SchemaArgs {}

impl SchemaArgs {
    pub fn run(self) -> Result<Success, Failure> {
        print_json(&cellwright_lang::schema::file_schema())?;
        Ok(Success::Done)
    }
}
