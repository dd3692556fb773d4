//! SPIFFE ids of a cell's parts: `spiffe://<cell>/<kind>/<name>`, as a URI in a certificate's
//! alternative names.
//!
//! The text is matched whole and component by component, never by prefix: `agent/m1` does not match
//! `agent/m10`. Rejected: the common name of the subject, which every library treats differently
//! and which a certificate for a host name also fills.

use cellwright_cell::name::Name;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A part or person of one cell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Identity {
    pub cell: Name,
    pub part: Part,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Part {
    Master(Name),
    /// The agent of the machine of this name.
    Agent(Name),
    Scheduler(Name),
    User(Name),
}

/// Why a text is not an identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not an identity; allowed: spiffe://<cell>/<kind>/<name> with kind \
     master, agent, scheduler or user"
)]
pub struct InvalidIdentity {
    pub text: String,
}

impl Part {
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Part::Master(_) => "master",
            Part::Agent(_) => "agent",
            Part::Scheduler(_) => "scheduler",
            Part::User(_) => "user",
        }
    }

    #[must_use]
    pub fn name(&self) -> &Name {
        match self {
            Part::Master(name) | Part::Agent(name) | Part::Scheduler(name) | Part::User(name) => {
                name
            }
        }
    }

    /// The part of this kind and name, if there is such a kind.
    #[must_use]
    pub fn from_kind(kind: &str, name: Name) -> Option<Part> {
        Some(match kind {
            "master" => Part::Master(name),
            "agent" => Part::Agent(name),
            "scheduler" => Part::Scheduler(name),
            "user" => Part::User(name),
            _ => return None,
        })
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind(), self.name())
    }
}

impl Identity {
    /// # Errors
    /// When the text is anything but exactly a cell, a known kind and a name.
    pub fn parse(text: &str) -> Result<Identity, InvalidIdentity> {
        parse_parts(text).ok_or_else(|| InvalidIdentity { text: text.chars().take(200).collect() })
    }
}

fn parse_parts(text: &str) -> Option<Identity> {
    let mut pieces = text.strip_prefix("spiffe://")?.split('/');
    let (cell, kind, name) = (pieces.next()?, pieces.next()?, pieces.next()?);
    if pieces.next().is_some() {
        return None;
    }
    let part = Part::from_kind(kind, Name::new(name).ok()?)?;
    Some(Identity { cell: Name::new(cell).ok()?, part })
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spiffe://{}/{}", self.cell, self.part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_form_is_an_identity() {
        let name = |text| Name::new(text).unwrap();
        for part in [
            Part::Master(name("m1")),
            Part::Agent(name("m1")),
            Part::Scheduler(name("s1")),
            Part::User(name("ann")),
        ] {
            let identity = Identity { cell: name("aa"), part };
            assert_eq!(Identity::parse(&identity.to_string()), Ok(identity));
        }
        for wrong in [
            "",
            "spiffe://aa/agent",
            "spiffe://aa/agent/",
            "spiffe://aa/agent/m1/",
            "spiffe://aa/agent/m1/x",
            "spiffe://aa/Agent/m1",
            "spiffe://aa/root/m1",
            "spiffe:///agent/m1",
            "https://aa/agent/m1",
            "spiffe://aa/agent/m1?x",
            "spiffe://aa/agent/M1",
        ] {
            assert!(Identity::parse(wrong).is_err(), "{wrong}");
        }
    }
}
