//! Other accounts of the computer and somebody's `cell dev`: whoever could submit a job to it, or
//! enter a task through its agent, would run programs as that somebody.

use cellwright_api::client::internal_calls::MACHINE_PACKAGES_PATH;
use cellwright_api::client::{ApiClientConfig, Client};
use cellwright_api::exec::EXEC_PATH;
use cellwright_api::output::{AGENT_ADDRESS_ATTRIBUTE, OUTPUT_PATH};
use cellwright_cell::name::Name;
use cellwright_tests::binary::{cell, command_output};
use cellwright_tests::folder::Folder;
use cellwright_tests::local_cell::start_open_cell;
use cellwright_tests::{TIMEOUT, skip};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// An account that owns nothing.
const NOBODY: u32 = 65_534;

/// As the other account would.
fn as_nobody(program: &str) -> Command {
    let mut command = Command::new(program);
    command.uid(NOBODY).gid(NOBODY).env_clear().env("PATH", "/usr/bin:/bin").current_dir("/");
    command
}

/// The status that curl gets, and what was said.
fn curl_answer(mut curl: Command, words: &[&str]) -> (String, String) {
    let done = curl.args(["-s", "-m", "30", "-w", "\n%{http_code}"]).args(words).output();
    let done = done.unwrap_or_else(|why| panic!("curl: {why}; scripts/install-tools.sh test"));
    let output = String::from_utf8_lossy(&done.stdout).into_owned();
    let (body, status) = output.rsplit_once('\n').expect("a status");
    (status.to_owned(), body.to_owned())
}

async fn agent_of(address: &str) -> String {
    let client = Client::new(ApiClientConfig::new(vec![address.to_owned()])).expect("a client");
    let machine = client.machine(&Name::new("local").expect("a name")).await.expect("this machine");
    let machine_json = serde_json::to_value(&machine.value.item).expect("JSON");
    let found = machine_json["spec"]["attributes"][AGENT_ADDRESS_ATTRIBUTE]["text"].as_str();
    found.expect("its agent can be dialled").to_owned()
}

#[tokio::test]
async fn another_account_runs_nothing_in_somebodys_cell() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can act as another account");
    }
    let folder = Folder::new();
    let (process, address) = start_open_cell(&folder, &["--driver", "process"]).await;
    let spec = folder.path("job.json");
    let job = r#"{"name": "mine", "priority": 120,
        "task": {"limits": {"cpu": "10m", "ram": 33554432}, "command": ["sleep", "1000"]}}"#;
    std::fs::write(&spec, job).expect("a file");
    let own = |words: &[&str]| {
        let mut command = Command::new(cell());
        command_output(command.env("CELL_ADDR", &address).args(words))
    };
    own(&["run", spec.to_str().expect("a path")]).expect("the own account submits as ever");
    let url = format!("http://{address}/v1/jobs");
    let json = "content-type: application/json";
    // The API counts in thousandths of a core, without a unit.
    let stolen = job.replace("\"10m\"", "10").replace("mine", "stolen");
    let body = format!("{{\"spec\": {stolen}, \"user\": \"dev\"}}");
    let submit = ["-X", "POST", "-H", json, "-d", &body, &url];
    let (status, response) = curl_answer(as_nobody("curl"), &submit);
    assert_eq!(status, "401", "{response}");
    let guess = ["-H", "authorization: Bearer dev.0000", &url];
    assert_eq!(curl_answer(as_nobody("curl"), &guess).0, "401");
    assert_eq!(curl_answer(as_nobody("curl"), &[&url]).0, "401", "nor does it read");
    let health = format!("http://{address}/healthz");
    assert_eq!(curl_answer(as_nobody("curl"), &[&health]).0, "200", "health is for everybody");

    let agent = agent_of(&address).await;
    for path in [MACHINE_PACKAGES_PATH.to_owned(), format!("{OUTPUT_PATH}/dev/mine/0")] {
        let (status, response) =
            curl_answer(as_nobody("curl"), &[&format!("http://{agent}{path}")]);
        assert_eq!(status, "403", "{path}: {response}");
    }
    let upgrade = ["-X", "POST", "-H", "connection: upgrade", "-H", "upgrade: cell-exec"];
    let enter = format!("http://{agent}{EXEC_PATH}/dev/mine/0?command=id");
    let (status, response) = curl_answer(as_nobody("curl"), &[&upgrade[..], &[&enter]].concat());
    assert_eq!(status, "403", "{response}");

    // The token is where the own account looks, and the other reads it nowhere.
    let token = folder.path("data/dev-token");
    let token_file = format!("/tmp/cellwright-0/{address}");
    let token_file = [format!("/run/user/0/cellwright/{address}"), token_file];
    let token_file = token_file.iter().find(|path| Path::new(path).exists()).expect("it is posted");
    for path in [token.to_str().expect("a path"), token_file] {
        let read = as_nobody("cat").arg(path).output().expect("cat runs");
        assert!(!read.status.success() && read.stdout.is_empty(), "{path}");
    }
    let header = folder.path("header");
    std::fs::write(&header, own(&["context", "header"]).expect("a header")).expect("a file");
    let header = format!("@{}", header.display());
    let (status, response) = curl_answer(Command::new("curl"), &["-H", &header, &url]);
    assert_eq!(status, "200", "with the token it is let in: {response}");
    assert!(response.contains("mine") && !response.contains("stolen"), "{response}");
    let holdings = format!("http://{agent}{MACHINE_PACKAGES_PATH}");
    let (status, response) = curl_answer(Command::new("curl"), &["-H", &header, &holdings]);
    assert_eq!(status, "200", "so it is at the agent: {response}");
    let logged = process.output();
    assert!(logged.contains("/#token=dev."), "the console's address has it: {logged}");

    own(&["stop", "dev/mine", "--yes"]).or_else(|_| own(&["stop", "dev/mine"])).expect("it stops");
    let begun = Instant::now();
    while own(&["job", "status", "--state", "live", "-o", "name"])
        .is_ok_and(|left| !left.is_empty())
    {
        assert!(begun.elapsed() < TIMEOUT, "it does not stop");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
