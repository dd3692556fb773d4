//! Which trace to read, as written on the command line: `KIND:PATH`.
//!
//! The kind is spelled out instead of being guessed from the files, so that a folder with a
//! missing file gives an error about that file and not a wrong guess.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A trace on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceSource {
    /// Folder with the tables of the Google cluster data 2011-2.
    Google2011(PathBuf),
    /// Folder with the node and pod lists of the Alibaba GPU trace 2023.
    Openb(PathBuf),
    /// One log file in Standard Workload Format.
    Swf(PathBuf),
    /// Folder with `machines.csv` and `jobs.csv` of an example cell.
    Example(PathBuf),
    /// One checkpoint file of a live cell.
    Checkpoint(PathBuf),
}

/// Why a text does not name a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceSourceError {
    #[error("trace \"{given}\" names no kind; allowed: {ALLOWED}")]
    NoKind { given: String },
    #[error("trace kind \"{kind}\" in \"{given}\" is unknown; allowed: {ALLOWED}")]
    UnknownKind { kind: String, given: String },
    #[error("trace \"{given}\" has no path after the colon; allowed: {ALLOWED}")]
    NoPath { given: String },
}

const ALLOWED: &str = "google2011:DIR, openb:DIR, swf:FILE, example:DIR, checkpoint:FILE";

impl FromStr for TraceSource {
    type Err = TraceSourceError;

    fn from_str(given: &str) -> Result<Self, TraceSourceError> {
        let Some((kind, path)) = given.split_once(':') else {
            return Err(TraceSourceError::NoKind { given: given.into() });
        };
        let make = match kind {
            "google2011" => TraceSource::Google2011,
            "openb" => TraceSource::Openb,
            "swf" => TraceSource::Swf,
            "example" => TraceSource::Example,
            "checkpoint" => TraceSource::Checkpoint,
            _ => {
                let (kind, given) = (kind.into(), given.into());
                return Err(TraceSourceError::UnknownKind { kind, given });
            }
        };
        if path.is_empty() {
            return Err(TraceSourceError::NoPath { given: given.into() });
        }
        Ok(make(PathBuf::from(path)))
    }
}

impl fmt::Display for TraceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, path) = match self {
            TraceSource::Google2011(path) => ("google2011", path),
            TraceSource::Openb(path) => ("openb", path),
            TraceSource::Swf(path) => ("swf", path),
            TraceSource::Example(path) => ("example", path),
            TraceSource::Checkpoint(path) => ("checkpoint", path),
        };
        write!(f, "{kind}:{}", path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_reads_back_as_written() {
        for text in ["google2011:a/b", "openb:.", "swf:l.gz", "example:x:y", "checkpoint:a.ckpt"] {
            let source: TraceSource = text.parse().expect(text);
            assert_eq!(source.to_string(), text);
        }
    }

    #[test]
    fn errors_say_what_is_allowed() {
        let check = |text: &str, expected: &str| {
            let error = text.parse::<TraceSource>().expect_err(text).to_string();
            assert_eq!(error, format!("{expected}; allowed: {ALLOWED}"));
        };
        check("", "trace \"\" names no kind");
        check("google2011", "trace \"google2011\" names no kind");
        check("borg:x", "trace kind \"borg\" in \"borg:x\" is unknown");
        check("swf:", "trace \"swf:\" has no path after the colon");
    }
}
