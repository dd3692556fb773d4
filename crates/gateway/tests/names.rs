//! Names on a whole master: a task that starts has an address in DNS and over HTTP, one that is
//! told to stop has none.

use cellwright_api::client::{ApiClientConfig, Client};
use cellwright_api::types::{NameView, One};
use cellwright_cell::command::{Command, Observed, TaskReport};
use cellwright_cell::id::MachineId;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::plan::{Assignment, Group, Plan};
use cellwright_gateway::config::Config;
use cellwright_gateway::serve::{AccessMode, RunningMaster, run_master};
use cellwright_master::handle::Caller;
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// A directory that is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("cellwright-names-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

async fn open_master(folder: &Folder) -> RunningMaster {
    let given = [
        ("cell", "main".to_owned()),
        ("name", "m1".to_owned()),
        ("advertise", "127.0.0.1:7070".to_owned()),
        ("listen", "127.0.0.1:0".to_owned()),
        ("dns_listen", "127.0.0.1:0".to_owned()),
        ("disk_reserve", "0B".to_owned()),
        ("data_dir", folder.0.join("data").display().to_string()),
    ];
    let text = Config::default_file(&given).unwrap();
    let config = Config { supervise_scheduler: false, ..Config::parse(&text).unwrap() };
    run_master(config, AccessMode::Dev, None).await.unwrap()
}

async fn submit(master: &RunningMaster, command: Command) {
    let caller = Caller::default_sender(&command, &master.handle().read().state);
    let command_text = format!("{command:?}");
    let done = master.handle().submit(&caller, None, command).await.unwrap();
    assert!(done.verdict.is_ok(), "{command_text} {:?}", done.verdict);
}

/// A machine at 10.1.2.3 that runs the only task of `dev/web`.
async fn run_one_task(master: &RunningMaster) {
    let amounts = json!({"cpu": 10, "ram": 10, "disk": 10, "disk_rate": 10});
    let machine = json!({"name": "m1", "capacity": amounts, "rack": null, "power": null,
        "address": "10.1.2.3"});
    submit(master, Command::AddMachine(serde_json::from_value(machine).unwrap())).await;
    submit(master, Command::MachineUp { machine: MachineId(0), incarnation: 1 }).await;
    let amounts = json!({"cpu": 1, "ram": 1, "disk": 1, "disk_rate": 1});
    let task = json!({"limits": amounts, "ports": 1, "command": ["serve"]});
    let spec = json!({"name": "web", "count": 1, "priority": 120, "task": task});
    let spec = serde_json::from_value(spec).unwrap();
    submit(master, Command::SubmitJob { owner: Name::new("dev").unwrap(), spec }).await;
    let task = master.handle().read().state.tasks().iter().next().unwrap().0;
    let assignment = Assignment {
        task,
        attempt: 0,
        machine: MachineId(0),
        alloc: None,
        ports: vec![20_000],
        devices: vec![],
    };
    let group = Group { victims: vec![], assignments: vec![assignment] };
    submit(master, Command::CommitPlan(Plan { made_at: 0, groups: vec![group] })).await;
    let reports = vec![TaskReport { task, attempt: 1, what: Observed::Started }];
    submit(master, Command::TaskReports { machine: MachineId(0), incarnation: 1, reports }).await;
}

/// Queries the address of `web.dev.main.cell.internal` in DNS wire format: the response code, the
/// number of answers, and the address in the first record, if it has one.
async fn query_dns(dns: SocketAddr) -> (u8, u16, Option<Ipv4Addr>) {
    let mut query = vec![0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in ["web", "dev", "main", "cell", "internal"] {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend_from_slice(label.as_bytes());
    }
    query.extend_from_slice(&[0, 0, 1, 0, 1]);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(&query, dns).await.unwrap();
    let mut answer = [0; 512];
    let received = timeout(Duration::from_secs(60), socket.recv(&mut answer)).await;
    let length = received.unwrap().unwrap();
    let count = u16::from_be_bytes([answer[6], answer[7]]);
    let last: [u8; 4] = answer[length - 4..length].try_into().unwrap();
    (answer[3] & 15, count, (count > 0).then(|| Ipv4Addr::from(last)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_has_a_name_while_it_runs() {
    let folder = Folder::new();
    let master = open_master(&folder).await;
    let dns = master.dns_address().unwrap();
    assert_eq!(query_dns(dns).await, (3, 0, None), "no such name yet");
    run_one_task(&master).await;
    assert_eq!(query_dns(dns).await, (0, 1, Some(Ipv4Addr::new(10, 1, 2, 3))));
    let client = Client::new(ApiClientConfig::new(vec![master.address().to_string()])).unwrap();
    let found: One<NameView> = client.get("/v1/names/dev/web").await.unwrap().value;
    assert_eq!(found.item.name, "web.dev.main.cell.internal");
    let size = |name: &NameView| (name.tasks, name.healthy, name.unhealthy);
    assert_eq!(size(&found.item), (1, 1, 0));
    let endpoint = &found.item.endpoints[0];
    assert_eq!(
        (endpoint.address.to_string().as_str(), &*endpoint.ports),
        ("10.1.2.3", &[20_000][..])
    );
    let targets: serde_json::Value = client.get("/v1/prometheus").await.unwrap().value;
    assert_eq!(targets[0]["targets"], json!(["10.1.2.3:20000"]));
    let mut watch = client.watch::<NameView>("/v1/watch/names/dev/web", None);
    assert_eq!(watch.next().await.unwrap().data, Some(found.item));
    let job = JobKey { user: Name::new("dev").unwrap(), job: Name::new("web").unwrap() };
    submit(&master, Command::StopJob { job, expect: None }).await;
    let event = watch.next().await.unwrap().data.expect("a name");
    assert_eq!(event.endpoints, [], "the watch says so too");
    assert_eq!(size(&event), (1, 0, 0));
    assert_eq!(query_dns(dns).await, (0, 0, None), "gone with the order to stop");
    let found: One<NameView> = client.get("/v1/names/dev/web").await.unwrap().value;
    assert_eq!(found.item.endpoints, []);
    let targets: serde_json::Value = client.get("/v1/prometheus").await.unwrap().value;
    assert_eq!(targets, json!([]));
    master.stop().await;
}
