//! `cell edit`: the spec of a job in an editor, and what was changed applied to the cell, unless
//! somebody else has changed the job meanwhile. A file that is not valid, or that the cell refuses,
//! is offered again with what is wrong; it is kept whenever its changes were not applied.

use super::describe::without_empty;
use super::plan::render::render_plan;
use super::target::{TargetArg, parse_target};
use super::{Success, file};
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::{print, print_prose, print_stderr};
use crate::runtime::block_on;
use crate::style;
use cellwright_api::client::ChangeOptions;
use cellwright_api::types::{JobView, PlanAction, PlanJobs, SubmitJob};
use cellwright_cell::name::JobKey;
use cellwright_cell::spec::JobSpec;
use cellwright_lang::Inputs;
use cellwright_lang::diagnostic::Diagnostic;
use cellwright_lang::{Diagnostics, Document, to_source};
use clap::{Args, ValueEnum};
use std::fs::DirBuilder;
use std::io::{self, IsTerminal};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const EXAMPLES: &str = "\
Examples:
  cell edit dev/hello
  EDITOR=nano cell edit web --format jsonnet
  EDITOR='sed -i s/v1/v2/' cell edit web --yes

The editor is VISUAL, else EDITOR, else vi. Nothing is done when the file stays
as it was. Values of secrets are not shown: a job with secrets asks for them to
be written in again.";

/// The editor where none is named.
const DEFAULT_EDITOR: &str = "vi";
/// Names for a folder that are tried.
const FOLDER_TRIES: u32 = 100;

/// Change a running job in an editor
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct EditArgs {
    /// The job
    #[arg(value_name = "JOB", value_parser = parse_target)]
    job: TargetArg,

    /// The language of the file
    #[arg(long, value_enum, default_value = "yaml")]
    format: EditFormat,

    /// Apply what was changed without asking
    #[arg(long, short)]
    yes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EditFormat {
    Yaml,
    Jsonnet,
}

impl EditFormat {
    fn ending(self) -> &'static str {
        match self {
            EditFormat::Yaml => "yaml",
            EditFormat::Jsonnet => "jsonnet",
        }
    }

    /// The job as its owner would write it; empty fields only where leaving them out would make
    /// another job of it.
    fn text(self, spec: &JobSpec, key: &JobKey) -> String {
        let whole = to_source::job(spec);
        let short = self.render(&without_empty(whole.clone()));
        if self.parse(&short, key).is_ok_and(|parsed| parsed == spec.redacted()) {
            short
        } else {
            self.render(&whole)
        }
    }

    fn render(self, value: &serde_json::Value) -> String {
        match self {
            EditFormat::Yaml => crate::output::yaml(value),
            EditFormat::Jsonnet => format!("{value:#}\n"),
        }
    }

    fn parse(self, text: &str, key: &JobKey) -> Result<JobSpec, Vec<Diagnostic>> {
        let format = match self {
            EditFormat::Yaml => cellwright_lang::Format::Yaml,
            // What is no more than JSON takes no evaluator.
            EditFormat::Jsonnet if serde_json::from_str::<serde_json::Value>(text).is_ok() => {
                cellwright_lang::Format::Json
            }
            EditFormat::Jsonnet => cellwright_lang::Format::Jsonnet,
        };
        let name = format!("{}.{}", key.job, self.ending());
        let source = cellwright_lang::diagnostic::Source { name, text: text.to_owned() };
        let options = file::options(Some(key.user.clone()), Inputs::default());
        let options = options.map_err(|_| Vec::new())?;
        let loaded = cellwright_lang::load_text(&source, Path::new("."), format, &options);
        only_job(loaded.map_err(|Diagnostics(all)| all)?.documents, key, &source.name)
    }
}

/// The spec in a file that must be of this job.
fn only_job(
    documents: Vec<Document>,
    key: &JobKey,
    file: &str,
) -> Result<JobSpec, Vec<Diagnostic>> {
    let wrong = |found: String| {
        vec![Diagnostic::error(file, format!("{found}; allowed: the job {key} alone"))]
    };
    match <[Document; 1]>::try_from(documents) {
        Ok([Document::Job(job)]) => {
            let owner = job.owner.as_ref().unwrap_or(&key.user);
            if (owner, &job.spec.name) == (&key.user, &key.job) {
                Ok(job.spec)
            } else {
                Err(wrong(format!("the file is of the job {owner}/{}", job.spec.name)))
            }
        }
        Ok([Document::Cron(_)]) => Err(wrong("the file is of a periodic job".into())),
        Err(all) => Err(wrong(format!("the file has {} jobs", all.len()))),
    }
}

/// What becomes of the file after it was looked at.
enum Verdict {
    /// Its changes are to be applied.
    Apply(Box<JobSpec>),
    Unchanged,
    /// Its text, or what it would do, is refused.
    Invalid,
    Declined,
}

impl EditArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let target = block_on(self.job.resolve_exact(&cell))?;
        let key = target.job;
        if target.tasks.is_some() {
            return Err(Failure::Usage {
                message: "a task has no spec of its own".into(),
                next: format!("edit the job: cell edit {key}"),
            });
        }
        let job = block_on(async { Ok(cell.client.job(&key).await?.value.item) })?;
        if job.redacted {
            return Err(Failure::Operation {
                message: format!("what {key} runs is for its owner and users with read_specs"),
                next: "ask its owner".into(),
            });
        }
        let draft = Draft::new(self.format.text(&job.spec, &key), &key, self.format)?;
        let verdict = self.edit(&cell, &draft, &job, &key);
        match verdict {
            Ok(Verdict::Apply(spec)) => {
                apply(&cell, &key, &spec, job.version).map_err(|failure| draft.kept(failure))?;
                draft.remove();
            }
            Ok(Verdict::Unchanged) => {
                print(&format!("{key}: nothing was changed\n"))?;
                draft.remove();
            }
            Ok(Verdict::Invalid | Verdict::Declined) => {
                return Err(Failure::Operation {
                    message: format!("{key} stays as it is"),
                    next: format!("what was written is in {}", draft.path.display()),
                });
            }
            Err(failure) => return Err(draft.kept(failure)),
        }
        Ok(Success::Done)
    }

    /// Has the file edited until it can be applied, or the user gives up.
    fn edit(
        &self,
        cell: &Cell,
        draft: &Draft,
        job: &JobView,
        key: &JobKey,
    ) -> Result<Verdict, Failure> {
        loop {
            draft.open_editor()?;
            let verdict = self.look_at(cell, draft, job, key)?;
            let is_invalid = matches!(verdict, Verdict::Invalid);
            if !is_invalid || !is_attended() || !ask("edit it again? [Y/n] ", true) {
                return Ok(verdict);
            }
        }
    }

    fn look_at(
        &self,
        cell: &Cell,
        draft: &Draft,
        job: &JobView,
        key: &JobKey,
    ) -> Result<Verdict, Failure> {
        let text = draft.read()?;
        if text == draft.original {
            return Ok(Verdict::Unchanged);
        }
        let spec = match self.format.parse(&text, key) {
            Ok(spec) if spec == job.spec.redacted() => return Ok(Verdict::Unchanged),
            Ok(spec) => spec,
            Err(diagnostics) => {
                file::print_diagnostics(&diagnostics);
                return Ok(Verdict::Invalid);
            }
        };
        let submit = SubmitJob { owner: Some(key.user.clone()), spec: spec.clone() };
        let jobs = PlanJobs { jobs: vec![submit] };
        let plan = block_on(async { Ok(cell.client.plan(&jobs).await?.value.item) })?;
        print_prose(&render_plan(&plan, None, style::for_stdout()))?;
        let rejection = plan.jobs.iter().find_map(|job| job.rejected.as_ref());
        if let Some(error) = rejection {
            crate::output::note!("the cell would refuse it: {error}; {}", error.hint);
            return Ok(Verdict::Invalid);
        }
        if plan.jobs.iter().all(|job| job.action == PlanAction::Nothing) {
            return Ok(Verdict::Unchanged);
        }
        if !self.yes && !is_attended() {
            return Err(Failure::Usage {
                message: format!("{key} would be changed, and nobody is here to be asked"),
                next: "the same command with --yes".into(),
            });
        }
        let is_wanted = self.yes || ask(&format!("apply this to {key}? [y/N] "), false);
        Ok(if is_wanted { Verdict::Apply(Box::new(spec)) } else { Verdict::Declined })
    }
}

/// Changes the very version that was edited, or nothing.
fn apply(cell: &Cell, key: &JobKey, spec: &JobSpec, version: u32) -> Result<(), Failure> {
    let change = ChangeOptions { expect: Some(version), ..ChangeOptions::default() };
    let applied = block_on(async {
        let answer = cell.client.apply_job(Some(&key.user), spec, &change).await;
        answer.map_err(|error| Failure::from_change(error, &format!("cell status {key}")))
    })?;
    let version = applied.value.version;
    print(&format!("job {key}: version {version}\nnext: cell status {key}\n"))
}

fn is_attended() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks at the terminal; an unreadable answer is a no.
fn ask(question: &str, by_default: bool) -> bool {
    print_stderr(question);
    let mut line = String::new();
    match io::stdin().read_line(&mut line) {
        Ok(1..) => is_yes(&line, by_default),
        _ => false,
    }
}

fn is_yes(line: &str, by_default: bool) -> bool {
    match line.trim().to_ascii_lowercase().as_str() {
        "" => by_default,
        "y" | "yes" => true,
        _ => false,
    }
}

/// The file that is edited, in a folder that nobody else can look into.
struct Draft {
    path: PathBuf,
    original: String,
}

impl Draft {
    fn new(original: String, key: &JobKey, format: EditFormat) -> Result<Draft, Failure> {
        let failed =
            |error: io::Error| Failure::Write { what: "the file to edit".into(), source: error };
        let folder = private_folder().map_err(failed)?;
        let path = folder.join(format!("{}.{}", key.job, format.ending()));
        std::fs::write(&path, &original).map_err(failed)?;
        Ok(Draft { path, original })
    }

    fn open_editor(&self) -> Result<(), Failure> {
        let named = |name: &str| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
        let editor = named("VISUAL").or_else(|| named("EDITOR"));
        let editor = editor.unwrap_or_else(|| DEFAULT_EDITOR.to_owned());
        // As a shell would: an editor may have arguments.
        let status = Command::new("sh")
            .args(["-c", &format!("{editor} \"$1\""), "sh"])
            .arg(&self.path)
            .status();
        let why = match status {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        Err(Failure::Operation {
            message: format!("the editor {editor:?} did not end well: {why}"),
            next: "name another: EDITOR=nano cell edit …".into(),
        })
    }

    fn read(&self) -> Result<String, Failure> {
        std::fs::read_to_string(&self.path).map_err(|error| Failure::Operation {
            message: format!("cannot read {}: {error}", self.path.display()),
            next: "see whether the editor wrote it elsewhere".into(),
        })
    }

    /// The failure, and where the file is; without one that was changed it goes.
    fn kept(&self, failure: Failure) -> Failure {
        let is_changed = std::fs::read_to_string(&self.path).is_ok_and(|now| now != self.original);
        if is_changed {
            crate::output::note!("what was written is kept in {}", self.path.display());
        } else {
            self.remove();
        }
        failure
    }

    fn remove(&self) {
        // The folder of temporary files is cleared by others, too.
        let _ = std::fs::remove_file(&self.path);
        if let Some(folder) = self.path.parent() {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// A new folder for the user alone; one that somebody else has made is not taken.
fn private_folder() -> io::Result<PathBuf> {
    let (temporary, process) = (std::env::temp_dir(), std::process::id());
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for number in 0..FOLDER_TRIES {
        let path = temporary.join(format!("cell-edit-{process}-{number}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellwright_cell::name::Name;
    use serde_json::json;

    fn key(user: &str, job: &str) -> JobKey {
        JobKey { user: Name::new(user).unwrap(), job: Name::new(job).unwrap() }
    }

    fn spec() -> JobSpec {
        serde_json::from_value(json!({
            "name": "web", "count": 3, "priority": 120,
            "task": {
                "limits": { "cpu": 500, "ram": 64 << 20 }, "command": ["sh", "-c", "echo \"a: b\""],
                "env": { "A": "yes", "B": "1" },
            },
        }))
        .unwrap()
    }

    #[test]
    fn what_is_offered_reads_as_the_job_that_it_is_of() {
        for format in [EditFormat::Yaml, EditFormat::Jsonnet] {
            let text = format.text(&spec(), &key("ann", "web"));
            assert!(!text.contains("null"), "{text}");
            assert_eq!(format.parse(&text, &key("ann", "web")).unwrap(), spec(), "{text}");
            let more = text.replace('3', "4");
            assert_eq!(format.parse(&more, &key("ann", "web")).unwrap().count, 4);
            assert!(format.parse("nonsense", &key("ann", "web")).is_err());
        }
    }

    #[test]
    fn a_file_of_another_job_is_not_taken() {
        let text = EditFormat::Yaml.text(&spec(), &key("ann", "web"));
        for (text, found) in [
            (text.replace("name: web", "name: other"), "the file is of the job ann/other"),
            (format!("owner: bob\n{text}"), "the file is of the job bob/web"),
            (format!("{text}---\n{}", text.replace("name: web", "name: b")), "has 2 jobs"),
        ] {
            let errors = EditFormat::Yaml.parse(&text, &key("ann", "web")).unwrap_err();
            let errors: String = errors.iter().map(|error| error.render(false)).collect();
            assert!(errors.contains(found), "{found}: {errors}");
        }
    }

    #[test]
    fn an_empty_answer_is_what_the_question_says() {
        assert!(is_yes("\n", true) && !is_yes("\n", false));
        assert!(is_yes("Yes\n", false) && !is_yes("n\n", true) && !is_yes("what\n", true));
    }
}
