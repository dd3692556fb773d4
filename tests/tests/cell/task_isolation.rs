//! Isolation of tasks: tasks of an agent that runs as root are unprivileged; health probes and
//! commands of sessions have the limits of their task, leave no processes behind, and keep its
//! environment secret. These tests need root, and print that they are skipped without it. Task
//! certificates need no root.

use crate::agent::{first_line, is_running_attempt, submit, wait};
use crate::containers::{RootCell, can_run, failed};
use crate::secure_cell::SecureCell;
use crate::support::{Running, TIMEOUT, cell, stdout_of, text};
use cellwright_agent::config::Config;
use cellwright_agent::identity::Identity;
use cellwright_api::client::ClientError;
use cellwright_api::error::Code;
use cellwright_cell::id::TaskId;
use cellwright_cell::name::Name;
use cellwright_cell::task::{ExitClass, TaskOutcome, TaskState};
use cellwright_cell::time::{Span, Time};
use cellwright_identity::enroll::CERTIFICATE_LIFETIME;
use cellwright_identity::secret::Secret;
use cellwright_identity::spiffe::Part;
use cellwright_identity::task_identity::{
    TASK_IDENTITY_PATH, TaskCertificate, TaskIdentityAnswer, TaskIdentityRequest, new_key,
    signing_request,
};
use cellwright_identity::tls::{self, CertificateResolver, Trust};
use cellwright_master::clock::{Clock, SystemClock};
use rustls::CertificateError;
use serde_json::json;
use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Waits until the condition holds; no wait takes nearly as long as the timeout.
fn wait_until(condition_name: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < TIMEOUT, "waited in vain: {condition_name}");
        std::thread::yield_now();
    }
}

#[test]
fn a_plain_task_of_a_root_agent_is_its_own_unless_the_operator_says_otherwise() {
    if !can_run("nobody") {
        return;
    }
    let lab = RootCell::open("process");
    let script = r#"echo "$(id -u) $(id -g) $(id -G)"; cat conf/app; echo
        cat "$CELL_SECRETS/key"; echo; echo own > mine && cat "$CELL_DIR/mine"
        echo named > /dev/stdout; cat /etc/shadow 2> /dev/null && echo shadow
        echo $$ > "$SHARED/pid"; exec sleep 1000"#;
    let more = json!({ "task": {
        "limits": { "cpu": "100m", "ram": 64 << 20 }, "command": ["sh", "-c", script],
        "env": { "SHARED": lab.folder.path("") }, "notice": 0,
        "files": { "conf/app": "setting" }, "secrets": { "key": "rosebud" },
    }});
    submit(&lab.folder, &lab.address, "plain", 1, "", &more.to_string());
    let pid = first_line(&lab.folder, "pid");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = |key: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(key));
        found.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let uid: u32 = line("Uid:").split(' ').next().unwrap().parse().unwrap();
    assert!(uid >= 0x7740_0000 && uid % 65_536 == 65_534, "{uid}");
    assert_eq!(line("Uid:"), format!("{uid} {uid} {uid} {uid}"));
    assert_eq!(line("Gid:"), line("Uid:"));
    assert_eq!(line("Groups:"), "", "no group but its own");
    let own = format!("{uid} {uid} {uid}\nsetting\nrosebud\nown\nnamed\n");
    assert_eq!(lab.log("plain", &[]), own);
    // A session runs as the user of its task.
    let exec = ["--master", &lab.address, "exec", "dev/plain/0", "--", "sh", "-c", "id -u; id -G"];
    assert_eq!(text(&cell(&exec).stdout), format!("{uid}\n{uid}\n"));
    for user in ["root", "daemon"] {
        lab.run(user, "id", json!({ "user": user }));
        assert_eq!(lab.end_state(user), failed(ExitClass::CouldNotStart));
        let stderr = lab.log(user, &["--stderr"]);
        let why = format!("[cell: task.user: {user}; allowed: what this machine's operator allows");
        assert!(stderr.starts_with(&why), "{stderr}");
    }
    lab.run("named", "id -u", json!({ "user": "nobody" }));
    assert_eq!(lab.end_state("named"), TaskState::Dead(TaskOutcome::Finished));
    stdout_of(&["--master", &lab.address, "job", "stop", "dev/plain"]);
    lab.end_state("plain");
    lab.stop();
}

/// The processes in the cgroups of the lab's tasks, including nested cgroups.
fn processes(lab: &RootCell) -> Vec<u32> {
    fn below(group: &Path) -> Vec<u32> {
        let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        let own = text.lines().filter_map(|line| line.parse().ok());
        let inner = fs::read_dir(group).into_iter().flatten().flatten();
        let inner = inner.filter(|entry| entry.path().is_dir());
        own.chain(inner.flat_map(|entry| below(&entry.path()))).collect()
    }
    lab.groups().iter().flat_map(|group| below(group)).collect()
}

/// A probe that hangs, with a child that tries to escape, again and again.
fn probes_end_whole(driver: &str) {
    let lab = RootCell::open(driver);
    let probe_command = "echo asked >> asked; setsid sleep 1000 & setsid sleep 1000 & sleep 1000";
    let health = json!({ "probe": { "command": ["sh", "-c", probe_command] },
        "interval": 100, "timeout": 400, "start_period": 600_000, "failures": 100 });
    lab.run("ill", "exec sleep 1000", json!({ "health": health }));
    let work = || -> Option<PathBuf> {
        let tasks = fs::read_dir(lab.folder.0.join("data/agent/tasks")).ok()?;
        Some(tasks.flatten().next()?.path().join("work"))
    };
    let probe_count = || {
        let probe_count = work().and_then(|work| fs::read_to_string(work.join("asked")).ok());
        probe_count.unwrap_or_default().lines().count()
    };
    wait_until("it is asked", || probe_count() >= 1);
    wait_until("the probe is in the task's group", || processes(&lab).len() > 2);
    wait_until("it is asked often", || probe_count() >= 6);
    // If they were left, there would be twenty-four and more; the task and one probe are five.
    wait_until("those before are gone", || processes(&lab).len() <= 5);
    stdout_of(&["--master", &lab.address, "job", "stop", "dev/ill"]);
    assert_eq!(lab.end_state("ill"), TaskState::Dead(TaskOutcome::Killed));
    wait_until("all of them are gone", || processes(&lab).is_empty());
    lab.stop();
}

#[test]
fn a_probe_in_a_container_ends_with_all_it_started() {
    if can_run("probes in a container") {
        probes_end_whole("container");
    }
}

#[test]
fn a_probe_beside_a_plain_process_ends_with_all_it_started() {
    if can_run("probes of a process") {
        probes_end_whole("process");
    }
}

#[test]
fn what_a_session_leaves_in_a_container_ends_with_it_and_its_environment_is_not_shown() {
    if !can_run("sessions in a container") {
        return;
    }
    let lab = RootCell::open("container");
    let env = json!({ "PASSWORD": "rosebud-of-this-test" });
    lab.run("web", "exec sleep 1000", json!({ "env": env }));
    wait(&lab.address, "web", is_running_attempt(1));
    let exec = ["--master", &lab.address, "exec", "dev/web/0", "--", "sh", "-c"];
    let leaves = "setsid sleep 1000 < /dev/null > /dev/null 2>&1 & echo left";
    assert_eq!(text(&cell(&[&exec[..], &[leaves]].concat()).stdout), "left\n");
    wait_until("what it left is gone", || processes(&lab).len() == 1);
    let stays = "echo $PASSWORD; exec sleep 1000";
    let session = Running::spawn_args(&[&exec[..], &[stays]].concat());
    session.wait_for_line("rosebud-of-this-test");
    let lines = fs::read_dir("/proc").unwrap().flatten();
    let lines = lines.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let command_lines: Vec<String> = lines.map(|line| text(&line)).collect();
    assert!(command_lines.iter().any(|line| line.contains("--process")), "the runtime is seen");
    let leaked = command_lines.iter().find(|line| line.contains("rosebud-of-this-test"));
    assert_eq!(leaked, None);
    // Others cannot read it in the stored bundle either.
    let bundles = fs::read_dir(lab.folder.0.join("data/agent/containers")).unwrap().flatten();
    let written = bundles.map(|entry| entry.path().join("config.json")).find(|path| path.exists());
    let mode = fs::metadata(written.expect("a container")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0);
    session.kill();
    wait_until("the session is gone", || processes(&lab).len() == 1);
    stdout_of(&["--master", &lab.address, "job", "stop", "dev/web"]);
    lab.end_state("web");
    lab.stop();
}

/// Requests the certificate of an attempt as the agent of `machine`.
fn request_task_identity(
    walled: &SecureCell,
    machine: &str,
    task: u32,
    attempt: u32,
) -> Result<String, Code> {
    let config = Config::load(walled.folder.path(&format!("{machine}.toml")).as_ref()).unwrap();
    let identity = Identity::load(&config.identity.unwrap()).unwrap();
    let client = identity.client().unwrap();
    let signing_request = signing_request(&new_key().unwrap()).unwrap();
    let task = TaskId(task);
    let request = TaskIdentityRequest { task, attempt, signing_request };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = client.call_internal::<_, TaskIdentityAnswer>(TASK_IDENTITY_PATH, &request);
    match runtime.block_on(answer) {
        Ok(answer) => Ok(TaskCertificate::from_pem(&answer.certificate).unwrap().uri),
        Err(ClientError::Api(error)) => Err(error.code),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_task_has_a_certificate_of_its_own_and_only_its_machine_gets_it() {
    let mut walled = SecureCell::new();
    let script = r#"until cat "$CELL_IDENTITY/certificate.pem" > "$SHARED/shown.new"
        do sleep 0.1; done
        test -s "$CELL_IDENTITY/key.pem" && test -s "$CELL_IDENTITY/authority.pem" || exit 3
        (echo x > "$CELL_IDENTITY/mine") 2> /dev/null && test "$(id -u)" != 0 && exit 4
        mv "$SHARED/shown.new" "$SHARED/shown"; echo "$CELL_IDENTITY" > "$SHARED/place.new"
        mv "$SHARED/place.new" "$SHARED/place"; exec sleep 1000"#;
    walled.run("ann", "web", script);
    wait_until("it has said where", || Path::new(&walled.folder.path("place")).exists());
    let command_lines = fs::read_to_string(walled.folder.path("shown")).unwrap();
    let holder = TaskCertificate::from_pem(&command_lines).unwrap();
    assert_eq!(holder.uri, "spiffe://aa/ann/web/0");
    let life =
        holder.until.since(cellwright_identity::enroll::issued_at(holder.from, holder.until));
    // An hour, counted from its issue.
    assert!(life.0 <= 3_601_000, "{life:?}");
    let attempt = fs::read_dir(walled.folder.0.join("n1/tasks")).unwrap().flatten().next();
    let attempt = attempt.unwrap().file_name().into_string().unwrap();
    let task: u32 = attempt.split_once('-').unwrap().0.parse().unwrap();
    let other = walled.join("n2");
    assert_eq!(
        request_task_identity(&walled, "n1", task, 1).as_deref(),
        Ok("spiffe://aa/ann/web/0")
    );
    for (machine, task, attempt) in [("n2", task, 1), ("n1", task, 2), ("n1", task + 99, 1)] {
        assert_eq!(
            request_task_identity(&walled, machine, task, attempt),
            Err(Code::NotAllowed),
            "{machine}"
        );
    }
    // The next agent also gets a missing certificate, and renews one that is due.
    let identity_path = fs::read_to_string(walled.folder.path("place")).unwrap();
    let certificate = Path::new(identity_path.trim()).join("certificate.pem");
    fs::remove_file(&certificate).unwrap();
    walled.restart_agent();
    wait_until("it is renewed", || certificate.exists());
    let renewed = TaskCertificate::from_pem(&fs::read_to_string(&certificate).unwrap()).unwrap();
    assert_eq!(renewed.uri, holder.uri);
    stdout_of(&[&walled.args("ann")[..], &["job", "stop", "ann/web"]].concat());
    wait_until("it is gone with its task", || !Path::new(identity_path.trim()).exists());
    other.stop();
    walled.stop();
}

/// Writes the path of the task's credentials to a file.
const IDENTITY_SCRIPT: &str = r#"echo "$CELL_IDENTITY" > "$SHARED/place.new"
    mv "$SHARED/place.new" "$SHARED/place"; exec sleep 1000"#;

/// Performs a complete TLS handshake without the network, and returns whether a peer that trusts
/// the cell's authority accepts this certificate.
fn tls_handshake(walled: &SecureCell, certificate: &str, key: &str) -> Result<(), rustls::Error> {
    let (authority, now) = (walled.authority(), SystemClock.wall_time());
    let part = Part::Master(Name::new("m1").unwrap());
    let hosts = ["127.0.0.1".to_owned()];
    let credentials =
        authority.issue_credentials(&part, &hosts, now, CERTIFICATE_LIFETIME).unwrap();
    let pem = authority.certificate_pem();
    let server = CertificateResolver::new(&credentials.certificate, &credentials.key).unwrap();
    let server = tls::server_config_for_parts(pem, server).unwrap();
    let client = CertificateResolver::new(certificate, &Secret::new(key.to_owned())).unwrap();
    let mut client = tls::client_config(&Trust::Authority(pem.into()), Some(client)).unwrap();
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut server = rustls::ServerConnection::new(Arc::new(server)).unwrap();
    let name = "127.0.0.1".try_into().unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
    // In every round each side has something to send, or the handshake is complete.
    while server.is_handshaking() || client.is_handshaking() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut &bytes[..]).unwrap();
        server.process_new_packets()?;
        bytes.clear();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut &bytes[..]).unwrap();
        client.process_new_packets()?;
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the end of a certificate is a time of day")]
fn sleep_until(time: Time) {
    std::thread::sleep(Duration::from_millis(time.since(SystemClock.wall_time()).0));
}

#[test]
fn a_certificate_is_renewed_before_it_ends_and_nobody_takes_the_old_one_after() {
    let short = ("task_certificate_lifetime = \"1h\"", "task_certificate_lifetime = \"10s\"");
    let walled = SecureCell::with(&[short]);
    walled.run("ann", "web", IDENTITY_SCRIPT);
    wait_until("it has said where", || Path::new(&walled.folder.path("place")).exists());
    let identity_path = fs::read_to_string(walled.folder.path("place")).unwrap();
    let read = |name: &str| fs::read_to_string(Path::new(identity_path.trim()).join(name));
    wait_until("it has a certificate", || read("certificate.pem").is_ok());
    let key = read("key.pem").unwrap();
    let lets_in =
        || read("certificate.pem").is_ok_and(|now| tls_handshake(&walled, &now, &key).is_ok());
    wait_until("it is let in", lets_in);
    let old = read("certificate.pem").unwrap();
    let holder = TaskCertificate::from_pem(&old).unwrap();
    let issued = cellwright_identity::enroll::issued_at(holder.from, holder.until);
    assert!(holder.until.since(issued).0 <= 11_000, "{holder:?}");

    sleep_until(holder.renew_at());
    let last = RefCell::new(old.clone());
    wait_until("one is renewed before its end", || {
        let now = read("certificate.pem").unwrap();
        let before = last.replace(now.clone());
        let [now, before] = [now, before].map(|pem| TaskCertificate::from_pem(&pem).unwrap());
        // A certificate is valid from up to a second before its issue; times are whole seconds.
        now != before && now.from.plus(Span::seconds(1)) < before.until
    });
    // After its end it is accepted for as long again as it was valid, because clocks differ.
    sleep_until(holder.until.plus(holder.until.since(issued)).plus(Span::seconds(2)));
    let rejected = tls_handshake(&walled, &old, &key).unwrap_err();
    let expired = matches!(
        rejected,
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. }
        )
    );
    assert!(expired, "{rejected:?}");
    // The key stays, and the new certificate matches it.
    assert_eq!(read("key.pem").unwrap(), key);
    wait_until("it is let in with what it has now", lets_in);
    walled.stop();
}
