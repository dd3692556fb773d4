//! A thief with somebody's token makes others with it, to stay when the theft is noticed.

use crate::secure_master::SecureMaster;
use cellwright_api::client::JobFilter;
use cellwright_api::error::Code;
use cellwright_cell::name::Name;
use cellwright_tests::TIMEOUT;
use tokio::time::timeout;

/// Saves a context that a command printed, as the file of that name.
fn save_context(master: &SecureMaster, name: &str, context: &str) {
    let file = master.folder.path(name);
    cellwright_identity::private_files::write_private(&file, context.as_bytes()).expect("a file");
}

#[tokio::test]
async fn what_was_made_with_a_stolen_token_ends_with_it() {
    let master = SecureMaster::start().await;
    let add = ["user", "add", "ann", "--capability", "manage_users", "--valid-for", "1h"];
    save_context(&master, "stolen", &master.cell(&add).expect("ann is added"));
    master.cell(&["user", "add", "bob"]).expect("bob is added");
    // Longer than the stolen one is good for, for the same user and for another, once and twice
    // removed.
    let again = master.cell_as("stolen", &["user", "token", "ann", "--valid-for", "90d"]);
    save_context(&master, "second", &again.expect("ann makes herself a token"));
    let other = master.cell_as("second", &["user", "token", "bob", "--valid-for", "90d"]);
    save_context(&master, "third", &other.expect("and with that one for bob"));
    let list = master.cell(&["token", "ls", "-o", "json"]).expect("the tokens");
    let list: Vec<serde_json::Value> = serde_json::from_str(&list).expect("JSON");
    let stolen = std::fs::read_to_string(master.folder.path("stolen")).expect("a context");
    let id = |row: &serde_json::Value| row["id"].as_str().expect("an id").to_owned();
    let first = list.iter().find(|row| stolen.contains(&id(row))).expect("it is listed");
    let made = |parent: &serde_json::Value| list.iter().find(|row| row["parent"] == parent["id"]);
    let second = made(first).expect("the second has a parent");
    let third = made(second).expect("the third has a parent");
    for row in [second, third] {
        assert!(row["expires"].as_u64() <= first["expires"].as_u64(), "{row} outlives {first}");
    }

    let bob = Name::new("bob").expect("a name");
    let thief = master.client_as("third");
    thief.user(&bob).await.expect("it lets in");
    let mut watch = thief.watch_jobs(&JobFilter::default(), None);
    master.cell(&["token", "revoke", &id(first)]).expect("the theft is noticed");
    for context in ["stolen", "second", "third"] {
        let rejection = master.client_as(context).user(&bob).await.expect_err("worthless");
        assert_eq!(rejection.code(), Some(Code::Unauthenticated), "{context}: {rejection}");
    }
    // What was open ends, and is not opened again.
    let ended = async { while watch.next().await.is_ok() {} };
    timeout(TIMEOUT, ended).await.expect("the watch ends");
    let left = master.cell(&["token", "ls"]).expect("the tokens");
    for row in [first, second, third] {
        assert!(!left.contains(&id(row)), "{left}");
    }
}
