//! A document before the cell's own rules, all of them in one go: they stop at the first field that
//! is out of range, so that field is mended and they are asked again.

use crate::document::{CronDocument, Document, JobDocument};
use crate::mend::Mended;
use crate::path::Path;
use crate::shape::{Checker, Fault, Wrong};
use cellwright_cell::admit;
use cellwright_cell::name::Name;
use cellwright_cell::reason::Refusal;
use cellwright_cell::spec::JobSpec;

/// Times that the rules are asked about one document.
const MOST_ROUNDS: usize = 64;

/// The steps of `path` from the document at `top` on.
pub(crate) fn inside(top: &Path, path: &Path) -> Path {
    Path(path.0.get(top.0.len()..).unwrap_or_default().to_vec())
}

/// Mends what was found wrong with the document at `top`, and forgets what only follows from the
/// rest of it.
pub(crate) fn mend(mended: &mut Mended, found: Vec<Wrong>, top: &Path) -> Vec<Wrong> {
    for wrong in &found {
        let path = inside(top, &wrong.path);
        match &wrong.fault {
            Fault::Misfit | Fault::Unquoted => mended.doubt(path),
            Fault::Unknown(meant) => {
                let object = Path(path.0.split_last().map_or(&[][..], |(_, rest)| rest).to_vec());
                meant.iter().for_each(|meant| mended.doubt_misspelt(&object, meant));
            }
            Fault::Missing(_) => {}
        }
    }
    let place = |wrong: &Wrong| match &wrong.fault {
        Fault::Missing(name) => inside(top, &wrong.path).field(name),
        _ => inside(top, &wrong.path),
    };
    let follows = |wrong: &Wrong| match wrong.fault {
        Fault::Missing(_) => mended.explains(&place(wrong)),
        _ => false,
    };
    let (follow, kept): (Vec<Wrong>, Vec<Wrong>) = found.into_iter().partition(follows);
    for wrong in kept.iter().chain(&follow) {
        mended.replace(&place(wrong));
    }
    kept
}

/// The document, with stand-ins for what is wrong with it, as far as it can be read.
pub(crate) fn admitted(
    mut mended: Mended,
    top: &Path,
    owner: Option<Name>,
    checker: &mut Checker,
) -> Option<Document> {
    let mut document = read(&mended, top, &owner, checker)?;
    for _ in 0..MOST_ROUNDS {
        let Some((at, refusal)) = refused(&document) else { break };
        let Refusal::BadField { field, value, allowed } = refusal else {
            checker.add(top, refusal.to_string(), None);
            break;
        };
        let path = below(&at, &field);
        if !mended.explains(&path) {
            let full = Path([&top.0[..], &path.0].concat());
            checker.add(&full, format!("{field}: {value} is not valid"), Some(allowed));
        }
        if !mended.replace(&path) {
            break;
        }
        document = read(&mended, top, &owner, checker)?;
    }
    Some(document)
}

fn read(
    mended: &Mended,
    top: &Path,
    owner: &Option<Name>,
    checker: &mut Checker,
) -> Option<Document> {
    let (value, owner) = (mended.value().clone(), owner.clone());
    let read = match value.get("schedule").is_some() {
        true => {
            serde_json::from_value(value).map(|spec| Document::Cron(CronDocument { owner, spec }))
        }
        false => {
            serde_json::from_value(value).map(|spec| Document::Job(JobDocument { owner, spec }))
        }
    };
    let unread = |error: serde_json::Error| {
        if mended.is_whole() {
            checker.add(top, format!("this is not understood: {error}"), None);
        }
    };
    read.map_err(unread).ok()
}

/// What the first rule says that the document breaks, and of what part of it.
fn refused(document: &Document) -> Option<(Path, Refusal)> {
    let of_job = |spec: &JobSpec| admit::check_job(spec).and_then(|()| asked_anew(spec)).err();
    match document {
        Document::Job(job) => Some((Path::default(), of_job(&job.spec)?)),
        Document::Cron(cron) => {
            let job = of_job(&cron.spec.job).map(|refusal| (Path::default().field("job"), refusal));
            job.or_else(|| Some((Path::default(), cron.spec.check().err()?)))
        }
    }
}

/// Rules for what is written now, which jobs from before need not keep.
fn asked_anew(spec: &JobSpec) -> Result<(), Refusal> {
    admit::may_bound_notice(spec)?;
    admit::asks_for_no_gaps(spec)?;
    admit::volumes_can_be_seen(spec)?;
    admit::can_begin(spec)?;
    admit::digests_are_whole(spec)?;
    admit::runs_a_program(spec)
}

/// The path of a field as admission names it.
fn below(path: &Path, field: &str) -> Path {
    let field = field
        .strip_prefix("total of all tasks' ")
        .map_or(field.to_owned(), |rest| format!("task.{rest}"));
    let field = field.split(' ').next().unwrap_or_default();
    path.below(&field.replace("disk-rate", "disk_rate"))
}
