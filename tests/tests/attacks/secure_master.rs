//! One master with identities on loopback, and those who join it.

use cellwright_agent::identity::Identity;
use cellwright_api::client::Client;
use cellwright_tests::binary::{cell, command_output};
use cellwright_tests::folder::Folder;
use cellwright_tests::local_cell::start_secure_master;
use cellwright_tests::process::Process;
use cellwright_tests::replicas::settings;
use cellwright_tests::{POLL_INTERVAL, TIMEOUT};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

pub struct SecureMaster {
    _process: Process,
    pub address: String,
    pub folder: Folder,
}

impl SecureMaster {
    pub async fn start() -> SecureMaster {
        let folder = Folder::new();
        let (process, address) = start_secure_master(&folder).await;
        let master = SecureMaster { _process: process, address, folder };
        master.until("the cell has a leader", || master.cell(&["user", "ls"]).is_ok()).await;
        master
    }

    pub async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < TIMEOUT, "never: {what}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// As its administrator.
    pub fn cell(&self, words: &[&str]) -> Result<String, String> {
        self.cell_as("contexts.toml", words)
    }

    pub fn cell_as(&self, contexts: &str, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new(cell());
        command_output(command.arg("--contexts").arg(self.folder.path(contexts)).args(words))
    }

    pub fn client_as(&self, contexts: &str) -> Client {
        Client::new(settings(&self.folder.path(contexts))).expect("a client")
    }

    /// A file with a join token.
    pub fn token(&self, kind: &str, name: &str) -> PathBuf {
        let file = self.folder.path(&format!("{name}.token"));
        let path = file.to_str().expect("a path in UTF-8");
        self.cell(&["token", "create", kind, name, "--token-file", path]).expect("a token");
        file
    }

    /// A machine joins; speaks with its certificate.
    pub fn join(&self, machine: &str) -> Client {
        let token = self.token("--agent", machine);
        let config = self.folder.path(&format!("{machine}.toml"));
        let mut command = Command::new(cell());
        command.args(["agent", "join", "--master", &self.address, "--config"]).arg(&config);
        command_output(command.arg("--token-file").arg(&token)).expect("a machine joins");
        self.client_of(machine)
    }

    /// Speaks with the certificate of a machine that joined.
    pub fn client_of(&self, machine: &str) -> Client {
        self.identity(machine).client().expect("a client")
    }

    pub fn identity(&self, machine: &str) -> Identity {
        let file = self.folder.path(&format!("{machine}.identity"));
        Identity::load(&file).expect("its certificate")
    }
}
