//! Which identity gets an answer from which route: seen on a running master, route by route, and
//! recorded as the table of `docs/security.md`. A route without a row there fails, and so does one
//! that answers somebody it did not answer when the row was written.
//!
//! `UPDATE_SECURITY=1` writes the table anew; read the difference before keeping it.

use crate::support::{Cell, user};
use axum::body::Body;
use cellwright_api::routes::{Access, Route};
use cellwright_cell::name::Name;
use cellwright_cell::quota::Capability;
use cellwright_master::handle::Caller;
use std::collections::BTreeMap;
use std::path::PathBuf;

const BEGIN: &str = "<!-- routes: recorded by crates/master/tests/http/matrix.rs -->\n";
const END: &str = "<!-- end of routes -->";
const HEAD: &str =
    "| route | nobody | user | agent | scheduler | replica |\n|---|---|---|---|---|---|\n";

/// What was seen, a row for each route.
#[derive(Default)]
pub struct Matrix(BTreeMap<String, String>);

impl Matrix {
    /// Asks as everybody who is not the owner and holds no capability.
    pub async fn ask(
        &mut self,
        cell: &Cell,
        route: &'static Route,
        target: &str,
        content: impl Fn() -> Body,
    ) {
        let machine = Name::new("m9").unwrap();
        let callers = [
            None,
            Some(user("weak")),
            Some(Caller::Agent(machine)),
            Some(Caller::Scheduler("s9".into())),
            Some(Caller::Replica("9".into())),
        ];
        let mut row = String::new();
        for caller in callers {
            let got = cell.open(caller.as_ref(), target, &[], content()).await;
            let refused = matches!(got.status().as_u16(), 401 | 403);
            let cell = match (refused, &caller) {
                (false, _) => "yes".to_owned(),
                (true, Some(Caller::User(_))) => rights(route),
                (true, _) => "no".to_owned(),
            };
            row.push_str(&format!(" {cell} |"));
        }
        let name = format!("`{} {}`", route.method.as_str(), route.path);
        let before = self.0.insert(name.clone(), row.clone());
        assert!(before.is_none_or(|before| before == row), "{name} is answered now so, now so");
    }

    /// Compares what was seen with what is written.
    pub fn is_as_documented(&self) {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let (head, rest) = text.split_once(BEGIN).expect("the mark before the table");
        let (table, tail) = rest.split_once(END).expect("the mark behind the table");
        let rows: String = self.0.iter().map(|(name, row)| format!("| {name} |{row}\n")).collect();
        let seen = format!("{HEAD}{rows}");
        if std::env::var_os("UPDATE_SECURITY").is_some() {
            std::fs::write(&path, format!("{head}{BEGIN}{seen}{END}{tail}")).unwrap();
            return;
        }
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines(&seen), lines(table), "docs/security.md says otherwise");
    }
}

/// What a user needs who is refused without it.
fn rights(route: &Route) -> String {
    let right = |capability: Capability| format!("`{capability}`");
    match (route.access, route.capability) {
        (Access::SelfOrHolder(capability), _) => format!("own, {}", right(capability)),
        (Access::Holder(capability), _) | (_, Some(capability)) => right(capability),
        (Access::Open | Access::Known, None) => "own".to_owned(),
    }
}
