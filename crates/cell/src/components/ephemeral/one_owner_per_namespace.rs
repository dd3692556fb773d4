//! All ephemeral resources of a namespace have one owner, and the system's own namespace has none:
//! a user that may write one of them may write all, whoever created the first.

use super::SYSTEM_NAMESPACE;
use crate::id::UserId;
use crate::invariant::{Check, violation};
use crate::name::Token;
use crate::state::State;
use std::collections::BTreeMap;

const NAME: &str = "one_owner_per_namespace";

pub(super) fn check(state: &State) -> Check {
    let mut owners: BTreeMap<&Token, Option<UserId>> = BTreeMap::new();
    for (_, row) in state.resources().iter() {
        let Some(namespace) = &row.name.namespace else {
            return Err(violation(NAME, &row.name, "has no namespace"));
        };
        let owner = *owners.entry(namespace).or_insert(row.owner);
        if owner != row.owner {
            let detail = format!("belongs to {:?}, others beside it to {owner:?}", row.owner);
            return Err(violation(NAME, &row.name, detail));
        }
        if namespace.as_str() == SYSTEM_NAMESPACE && owner.is_some() {
            return Err(violation(NAME, &row.name, format!("is the system's, of {owner:?}")));
        }
    }
    Ok(())
}
