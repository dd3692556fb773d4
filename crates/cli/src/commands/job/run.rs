//! `cell job run`: a job from a file.

use crate::args::OutputArgs;
use crate::commands::Success;
use crate::commands::parse::name;
use crate::commands::target::typed;
use crate::commands::wait::AttendArgs;
use crate::failure::Failure;
use crate::output::{Output, print, print_json};
use crate::reach::Reach;
use crate::server::ask;
use cellwright_cell::name::Name;
use cellwright_cell::spec::JobSpec;
use clap::Args;
use std::io::{self, Read};

/// Largest file: a few times what the master takes.
const MOST_BYTES: u64 = 64 << 20;

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The job as JSON; its fields are those of JobSpec in /v1/openapi.json
    #[arg(value_name = "FILE|-")]
    file: String,

    /// Whose job it is [default: yours; on an open master dev's]
    #[arg(long, value_name = "USER", value_parser = name)]
    owner: Option<Name>,

    #[command(flatten)]
    attend: AttendArgs,

    #[command(flatten)]
    output: OutputArgs,
}

impl RunArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let spec = self.spec()?;
        let cell = reach.cell()?;
        let owner = cell.owner(self.owner.clone());
        let done = ask(async { Ok(cell.client.submit_job(owner.as_ref(), &spec).await?.value) })?;
        match self.output.output {
            Output::Json => print_json(&done)?,
            Output::Table => {
                // Without an owner it is the caller's, whom only the cell knows.
                let job = match &owner {
                    Some(owner) => format!("{owner}/{}", spec.name),
                    None => spec.name.to_string(),
                };
                let of = owner.as_ref().map_or(String::new(), |_| format!(" {job}"));
                let what = match done.changed {
                    true => format!("is in the log at {}", done.index),
                    false => "was there already, just like this".to_owned(),
                };
                let tasks = crate::format::counted(u64::from(spec.count), "task");
                print(&format!("job {job} of {tasks} {what}\nnext: cell status{of}\n"))?;
            }
        }
        if !self.attend.is_asked() {
            return Ok(Success::Done);
        }
        let job = match &owner {
            Some(owner) => format!("{owner}/{}", spec.name),
            None => spec.name.to_string(),
        };
        // Without an owner the cell is asked whose it is.
        let typed = typed(&job).map_err(|message| Failure::Usage {
            message,
            next: "the same command with --owner USER".into(),
        })?;
        let key = ask(async { Ok(typed.resolve(&cell).await?.job) })?;
        self.attend.attend(&cell, &[key])
    }

    fn spec(&self) -> Result<JobSpec, Failure> {
        let text = self.text().map_err(|error| Failure::Usage {
            message: format!("cannot read the job from {}: {error}", self.file),
            next: "name a file that can be read, or - for standard input".into(),
        })?;
        serde_json::from_str(&text).map_err(|error| Failure::Usage {
            message: format!("{} is not a job: {error}", self.file),
            next: "compare it with examples/hello.json, or with JobSpec in /v1/openapi.json".into(),
        })
    }

    fn text(&self) -> io::Result<String> {
        let mut text = String::new();
        let mut source: Box<dyn Read> = match self.file.as_str() {
            "-" => Box::new(io::stdin().lock()),
            path => Box::new(std::fs::File::open(path)?),
        };
        source.as_mut().take(MOST_BYTES + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MOST_BYTES {
            let why = format!("it has more than {MOST_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(text)
    }
}
