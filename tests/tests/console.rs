//! The web console in a real browser, on a real `cell dev`: every page, live changes, the keyboard,
//! changes that ask first, a phone, light and dark. Nothing may appear in the browser's console.
//! The pictures are kept below the target folder.

use cellwright_tests::binary::{cell, command_output};
use cellwright_tests::browser::{Browser, key};
use cellwright_tests::folder::Folder;
use cellwright_tests::local_cell::{start_open_cell, start_secure_master};
use cellwright_tests::process::Process;
use serde_json::{Value, json};
use std::cell::Cell;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cell of this machine alone, its tasks plain processes, and a browser before it.
struct ConsoleFixture {
    browser: Browser,
    cell: Process,
    address: String,
    folder: Folder,
    /// The tab has the token of the cell, and keeps it.
    has_token: Cell<bool>,
}

impl ConsoleFixture {
    /// Nothing where there is no browser, which was printed.
    async fn start() -> Option<ConsoleFixture> {
        ConsoleFixture::start_with(&["--driver", "process"]).await
    }

    async fn start_with(options: &[&str]) -> Option<ConsoleFixture> {
        let folder = Folder::new();
        let browser = Browser::open(&folder.path("driver.log")).await?;
        let (process, address) = start_open_cell(&folder, options).await;
        let has_token = Cell::new(false);
        Some(ConsoleFixture { browser, cell: process, address, folder, has_token })
    }

    /// Runs a job of so many tasks.
    fn submit(&self, name: &str, count: u32, cpu: u64, command: &str) {
        self.submit_at(120, name, count, cpu, command);
    }

    fn submit_at(&self, priority: u32, name: &str, count: u32, cpu: u64, command: &str) {
        let ram = cpu << 18;
        let limits = json!({ "cpu": format!("{cpu}m"), "ram": ram });
        self.run(&json!({
            "name": name, "count": count, "priority": priority, "labels": { "tier": name },
            "task": { "limits": limits, "command": ["sh", "-c", command] },
        }));
    }

    fn run(&self, spec: &Value) {
        let name = spec["name"].as_str().expect("a job has a name");
        let file = self.folder.path(&format!("{name}.json"));
        fs::write(&file, spec.to_string()).expect("a file");
        self.cli(&["run", file.to_str().expect("a name")]);
    }

    fn cli(&self, words: &[&str]) -> String {
        let mut command = Command::new(cell());
        command_output(command.args(["--master", &self.address]).args(words))
            .expect("the command line works")
    }

    fn open(&self, path: &str) {
        if !self.has_token.replace(true) {
            self.browser.navigate(&format!("http://{}/#token={}", self.address, self.token()));
        }
        self.browser.navigate(&format!("http://{}{path}", self.address));
    }

    /// As `cell dev` prints it behind the address of the console.
    fn token(&self) -> String {
        fs::read_to_string(self.folder.path("data/dev-token")).expect("the cell has a token")
    }

    fn assert_no_problems(&self) {
        let problems = self.browser.problems();
        assert!(problems.is_empty(), "{problems:#?}\n{}", self.cell.output());
    }

    fn path(&self) -> String {
        self.browser.run("return location.pathname").as_str().unwrap_or_default().to_owned()
    }
}

/// Where pictures are kept.
fn pictures() -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its file");
    let target = own.ancestors().nth(3).expect("cargo's folders");
    let folder = target.join("console-pictures");
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

const TALKING_SCRIPT: &str = "while true; do echo the time is $(date +%T); sleep 1; done";

#[tokio::test]
async fn every_page_opens_in_light_and_dark_and_on_a_phone() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    fixture.submit("web", 2, 100, TALKING_SCRIPT);
    fixture.submit("huge", 1, 900_000, "true");
    fixture.submit("a-job-with-a-rather-long-name-that-somebody-made-up", 1, 100, TALKING_SCRIPT);
    let pages: [(&str, &str, &str); 10] = [
        ("overview", "/", "tasks running"),
        ("jobs", "/console/jobs", "web"),
        ("job", "/console/jobs/dev/web", "2 running"),
        ("task", "/console/jobs/dev/web/1", "the time is"),
        ("machines", "/console/machines", "local"),
        ("machine", "/console/machines/local", "driver=process"),
        ("pending", "/console/pending", "machines of the cell"),
        ("quota", "/console/quota", "best effort"),
        ("sql", "/console/sql", "submissions"),
        ("docs", "/docs", "Submit a job."),
    ];
    for (width, height) in [(1280, 900), (390, 844)] {
        for scheme in ["light", "dark"] {
            fixture.browser.resize(width, height);
            fixture.browser.set_color_scheme(scheme);
            for (name, path, words) in pages {
                fixture.open(path);
                fixture.browser.wait_for_text(words).await;
                let theme = fixture.browser.run("return document.documentElement.dataset.theme");
                assert_eq!(theme, scheme, "{name}");
                let wide = fixture.browser.run("return document.documentElement.scrollWidth");
                assert!(
                    wide.as_u64() <= Some(u64::from(width)),
                    "{name} is {wide} of {width} wide"
                );
                let cut = "return [...document.querySelectorAll('.scroll')]
                    .every((box) => box.scrollWidth <= box.clientWidth)";
                assert_eq!(
                    fixture.browser.run(cut),
                    true,
                    "{name}: columns out of sight at {width}"
                );
                fixture
                    .browser
                    .wait_for_script("return document.querySelector('.side em') !== null")
                    .await;
                let bar = "const bar = document.querySelector('.side ul');
                    return bar.scrollWidth <= bar.clientWidth && bar.scrollHeight <= bar.clientHeight";
                assert_eq!(
                    fixture.browser.run(bar),
                    true,
                    "{name}: no whole navigation at {width}"
                );
                // The unit of four figures is said once, or they take two lines.
                let units = "return [...document.querySelectorAll('.meter .figures')]
                    .every((line) => line.textContent.split(' core').length <= 2)";
                assert_eq!(fixture.browser.run(units), true, "{name}: figures with many units");
                let text = fixture.browser.text();
                assert!(!text.contains("[object") && !text.contains("undefined"), "{name}: {text}");
                fixture
                    .browser
                    .screenshot(&pictures().join(format!("{name}-{scheme}-{width}.png")));
            }
        }
    }
    fixture.assert_no_problems();
}

#[tokio::test]
async fn what_happens_is_seen_without_loading_anything_again() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    fixture.open("/console/jobs");
    fixture.browser.wait_for_text("No jobs yet").await;
    let _ = fixture.browser.run("window.mark = 'still the same page'");
    fixture.submit("late", 2, 100, TALKING_SCRIPT);
    fixture.browser.wait_for_text("late").await;
    fixture.browser.wait_for_text("2 running").await;
    fixture.browser.click("td a[href='/console/jobs/dev/late']").await;
    fixture.browser.wait_for_text("What it asks for").await;
    assert_eq!(fixture.path(), "/console/jobs/dev/late");
    fixture.cli(&["job", "stop", "dev/late"]);
    fixture.browser.wait_for_text("2 stopped").await;
    assert_eq!(fixture.browser.run("return window.mark"), "still the same page");
    let _ = fixture.browser.run("history.back()");
    fixture.browser.wait_for_script("return location.pathname === '/console/jobs'").await;
    // Usage is measured by the agent and reaches the overview with its next polls.
    fixture.open("/");
    fixture
        .browser
        .wait_for_script("return /[0-9] used · .* cores/.test(document.body.innerText)")
        .await;
    fixture.assert_no_problems();
}

#[tokio::test]
async fn the_keyboard_reaches_everything_that_is_needed() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    fixture.submit("web", 1, 100, TALKING_SCRIPT);
    fixture.submit("mail", 1, 100, TALKING_SCRIPT);
    let browser = &fixture.browser;
    fixture.open("/");
    browser.wait_for_text("tasks running").await;
    browser.press(&[key::TAB]);
    browser.wait_for_script("return document.activeElement.className === 'skip'").await;
    browser.press(&["g", "j"]);
    browser.wait_for_text("mail").await;
    assert_eq!(fixture.path(), "/console/jobs");
    browser.press(&["/"]);
    browser.wait_for_script("return document.activeElement.matches('[data-filter]')").await;
    browser.press(&["w", "e", "b"]);
    browser
        .wait_for_script("return !document.querySelector('main').innerText.includes('mail')")
        .await;
    browser.wait_for_script("return location.search === '?q=web'").await;
    browser.press(&[key::ESCAPE]);
    let focus = "document.querySelector('tbody a').focus(); return true";
    assert_eq!(browser.run(focus), true);
    let ring = "return getComputedStyle(document.activeElement).outlineStyle !== 'none'";
    browser.press(&[key::TAB]);
    assert_eq!(browser.run(ring), true, "where the focus is must be seen");
    assert_eq!(browser.run(focus), true);
    browser.press(&[key::ENTER]);
    browser.wait_for_text("What it asks for").await;
    assert_eq!(fixture.path(), "/console/jobs/dev/web");
    browser.press(&["?"]);
    browser.wait_for_text("Go to the filter of the page").await;
    browser.press(&[key::ESCAPE]);
    browser.wait_for_script("return !document.querySelector('dialog')").await;
    browser.press(&["g", "o"]);
    browser.wait_for_text("Point at a machine").await;
    assert_eq!(browser.run("document.querySelector('.heat canvas').focus(); return true"), true);
    browser.press(&[key::RIGHT, key::DOWN]);
    browser.wait_for_text("memory").await;
    browser.press(&[key::ENTER]);
    browser.wait_for_text("What runs here").await;
    assert_eq!(fixture.path(), "/console/machines/local");
    let before = browser.run("return document.documentElement.dataset.theme");
    browser.press(&["t"]);
    let after = browser.run("return document.documentElement.dataset.theme");
    assert_ne!(before, after);
    fixture.assert_no_problems();
}

#[tokio::test]
async fn keys_lead_into_a_table_and_all_of_them_are_told() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    fixture.submit("mail", 1, 100, TALKING_SCRIPT);
    fixture.submit("web", 1, 100, TALKING_SCRIPT);
    let browser = &fixture.browser;
    fixture.open("/console/jobs");
    browser.wait_for_text("web").await;
    let here = |name: &str| format!("return document.activeElement.textContent === '{name}'");
    browser.press(&["j"]);
    browser.wait_for_script(&here("mail")).await;
    // From another link of the row too.
    browser.press(&[key::TAB, "j"]);
    browser.wait_for_script(&here("web")).await;
    browser.press(&["j"]);
    browser.wait_for_script(&here("web")).await;
    browser.press(&["k"]);
    browser.wait_for_script(&here("mail")).await;
    browser.press(&["?"]);
    browser.wait_for_text("Go to the filter of the page").await;
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/console.md");
    let guide = fs::read_to_string(guide).expect("the guide");
    let page_text = browser.text();
    for key in ["Ctrl+Enter", "Shift+Tab", "Shift+PageUp", "Shift+PageDown", "Home", "End"] {
        assert!(page_text.contains(key) && guide.contains(key), "{key}: {page_text}");
    }
    // Whoever leaves a dialog is where they were.
    browser.press(&[key::ENTER]);
    browser.wait_for_script(&here("mail")).await;
    fixture.assert_no_problems();
}

#[tokio::test]
async fn an_address_is_heeded_however_one_came_to_it() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    fixture.submit("web", 1, 100, TALKING_SCRIPT);
    let browser = &fixture.browser;
    fixture.open("/console/jobs");
    browser.wait_for_text("1 job").await;
    let field = |text: &str| format!("return document.querySelector('input').value === '{text}'");
    browser.click("td a.quiet").await;
    browser.wait_for_script(&field("dev/")).await;
    browser.click("nav.side li:nth-child(2) a").await;
    browser.wait_for_script(&field("")).await;
    let _ = browser.run("history.back()");
    browser.wait_for_script(&field("dev/")).await;
    // What nobody would have made a link to.
    fixture.open("/console/?show=nothing&of=nothing");
    browser.wait_for_text("Point at a machine").await;
    browser.wait_for_script("return document.querySelector('.heat canvas').width > 0").await;
    fixture.open("/console/jobs/%E0%A4%A");
    browser.wait_for_text("No such page").await;
    fixture.assert_no_problems();
}

/// A machine is silent only after a while, so what the route answers is put in its place.
#[tokio::test]
async fn alarms_are_told_where_the_cell_is_seen_at_a_glance() {
    const ALARM: &str = "machine local has not been heard from for 40 s";
    let Some(fixture) = ConsoleFixture::start().await else { return };
    let browser = &fixture.browser;
    fixture.open("/console/");
    browser.wait_for_text("1 up").await;
    assert!(!browser.text().contains("Alarm"));
    let alarm = json!({ "kind": "machine_silent", "machine": "local", "message": ALARM });
    let answer = json!({ "replica": "m1", "leader": "m2", "items": [alarm] });
    let taken = browser.run(&format!(
        "const real = window.fetch, answer = JSON.stringify({answer});
         window.fetch = (path, how) =>
           path === '/v1/alarms' ? Promise.resolve(new Response(answer)) : real(path, how);
         return true"
    ));
    assert_eq!(taken, true);
    browser.wait_for_text(ALARM).await;
    fixture.assert_no_problems();
}

#[tokio::test]
async fn what_a_drain_waits_for_and_what_fits_now_are_told() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    let browser = &fixture.browser;
    fixture.run(&json!({
        "name": "web", "count": 2, "priority": 120, "max_down": 1,
        "task": { "limits": { "cpu": "100m", "ram": 16 << 20 }, "command": ["sh", "-c", TALKING_SCRIPT] },
    }));
    browser.resize(390, 844);
    fixture.open("/console/pending");
    browser.wait_for_text("Nothing waits").await;
    browser.click(".waiting button").await;
    browser.wait_for_text("Easy is what 1 machine or more would take.").await;
    browser.wait_for_text("1 of 1 machine takes such work").await;
    let wide = browser.run("return document.documentElement.scrollWidth");
    assert!(wide.as_u64() <= Some(390), "{wide} wide");
    browser.screenshot(&pictures().join("shapes-390.png"));
    fixture.open("/console/jobs/dev/web");
    browser.wait_for_text("2 running").await;
    fixture.cli(&["machine", "drain", "local"]);
    fixture.open("/console/machines/local");
    browser.wait_for_text("1 task waits for max_down of dev/web: 1 is down.").await;
    browser.screenshot(&pictures().join("drain-390.png"));
    fixture.open("/console/pending");
    browser.click(".waiting button").await;
    browser.wait_for_text("Nothing fits: no machine takes such work now.").await;
    fixture.assert_no_problems();
}

#[tokio::test]
async fn the_api_is_linked_to_searched_and_tried() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    fixture.submit("web", 1, 100, TALKING_SCRIPT);
    let browser = &fixture.browser;
    // The short address leads to the page, and on to the operation.
    fixture.open("/docs#getJob");
    browser.wait_for_text(&format!("curl -s http://{}/v1/jobs/USER/JOB", fixture.address)).await;
    assert_eq!(fixture.path(), "/console/docs");
    browser
        .wait_for_script("return document.activeElement.closest('.operation').id === 'getJob'")
        .await;
    let _ = browser.run("document.getElementById('getJob-user').focus()");
    browser.type_text("dev");
    browser.press(&[key::TAB]);
    browser.type_text("web");
    browser.wait_for_text(&format!("curl -s http://{}/v1/jobs/dev/web", fixture.address)).await;
    browser.press(&[key::ENTER]);
    browser.wait_for_text("status 200 · cell-index").await;
    browser.wait_for_text("\"name\": \"web\"").await;
    // What changes something is shown and not sent; its fields are opened one below the other.
    fixture.open("/console/docs#submitJob");
    browser.wait_for_text("-L -X POST -H 'content-type: application/json' --data @body.json").await;
    assert_eq!(browser.run("return document.querySelector('#submitJob form')"), Value::Null);
    browser.click("#submitJob .fields summary").await;
    browser.wait_for_text("integer, 1 to 200000").await;
    browser.wait_for_text("What every task of the job runs and needs").await;
    let task = "const fields = [...document.querySelectorAll('#submitJob .fields .fields > li')];
        fields.find((one) => one.querySelector('.name').textContent === 'task')
            .querySelector('summary').click()";
    let _ = browser.run(task);
    browser.wait_for_text("Milliseconds between the warning signal and the kill").await;
    let _ = browser.run("document.activeElement.blur()");
    browser.press(&["/"]);
    browser.type_text("undrain");
    browser.wait_for_text("1 operation").await;
    browser.wait_for_script("return location.search === '?q=undrain'").await;
    let ids = "return [...document.querySelectorAll('.operation')].map((one) => one.id).join()";
    assert_eq!(browser.run(ids), "stopDrain");
    // Whoever goes back in the words is not led away to where the address led first.
    browser.press(&[key::BACKSPACE; 6]);
    browser.wait_for_script("return document.getElementById('submitJob') !== null").await;
    browser.press(&[key::BACKSPACE]);
    browser.wait_for_script("return document.querySelector('[data-filter]').value === ''").await;
    browser.type_text("nothing-like-that");
    browser.wait_for_text("No operation has all of these words.").await;
    fixture.open("/console/docs#of-machines");
    browser.wait_for_script("return scrollY > 400").await;
    fixture.assert_no_problems();
}

#[tokio::test]
async fn past_events_are_told_as_the_command_line_tells_them() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    fixture.run(&json!({
        "name": "bad", "count": 1, "priority": 120, "restart": { "max_failures": 0 },
        "task": { "limits": { "cpu": "100m", "ram": 16 << 20 }, "command": ["sh", "-c", "exit 3"] },
    }));
    fixture.open("/console/jobs/dev/bad");
    fixture.browser.wait_for_text("1 failed").await;
    // Loaded anew, the page has nothing but history.
    fixture.open("/console/jobs/dev/bad");
    let events = fixture.cli(&["events", "--job", "dev/bad", "-o", "json"]);
    let events: Vec<Value> = serde_json::from_str(&events).expect("a list of events");
    assert!(events.len() > 3, "{events:#?}");
    for event in events {
        fixture.browser.wait_for_text(event["text"].as_str().expect("a sentence")).await;
    }
    fixture.assert_no_problems();
}

#[tokio::test]
async fn a_link_into_the_api_keeps_its_search_if_that_finds_what_it_names() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    let browser = &fixture.browser;
    let at = |place: &str| format!("return location.href.endsWith('/console/docs{place}')");
    let open = "return document.querySelector('#stopDrain .details') !== null";
    fixture.open("/docs/?q=drain#stopDrain");
    browser.wait_for_script(open).await;
    browser.wait_for_script(&at("?q=drain#stopDrain")).await;
    assert_eq!(browser.run("return document.getElementById('getJob')"), Value::Null);
    fixture.open("/docs?q=users#stopDrain");
    browser.wait_for_script(open).await;
    browser.wait_for_script(&at("#stopDrain")).await;
    browser.wait_for_script("return document.querySelector('[data-filter]').value === ''").await;
    fixture.assert_no_problems();
}

#[tokio::test]
async fn fields_of_the_api_take_spaces_and_none_at_their_ends_are_sent() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    let browser = &fixture.browser;
    fixture.open("/console/docs#listJobs");
    browser.wait_for_text("Try it").await;
    let _ = browser.run("document.getElementById('listJobs-selector').focus()");
    browser.type_text(" a b ");
    browser.wait_for_script("return document.activeElement.value === ' a b '").await;
    browser.wait_for_text("/v1/jobs?selector=a%20b'").await;
    fixture.open("/console/docs#getUser");
    browser.wait_for_text("Try it").await;
    let _ = browser.run("document.getElementById('getUser-user').focus()");
    browser.type_text(" ");
    browser.wait_for_script("return !document.activeElement.validity.valid").await;
    browser.type_text("dev ");
    browser.press(&[key::ENTER]);
    browser.wait_for_text("status 200").await;
    fixture.assert_no_problems();
}

#[tokio::test]
async fn answers_of_the_api_are_shown_as_they_came() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    let browser = &fixture.browser;
    fixture.open("/console/docs#listUsers");
    browser.click("#listUsers form button").await;
    browser.wait_for_text("\"until\": 18446744073709551615\n").await;
    browser.wait_for_text("\"capabilities\": [],\n").await;
    // Numbers that a browser would round are no bounds.
    fixture.open("/console/docs#removeMaster");
    browser.wait_for_text("path, integer, 1 or more").await;
    fixture.assert_no_problems();
}

#[tokio::test]
async fn every_operation_of_the_api_can_be_read_and_only_there_is_its_script_loaded() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    let browser = &fixture.browser;
    let loaded = "return performance.getEntriesByType('resource')
        .filter((one) => /(docs|schema)[.]js$/.test(one.name)).length";
    fixture.open("/console/jobs");
    browser.wait_for_text("No jobs yet").await;
    browser.press(&["?"]);
    browser.wait_for_text("g a").await;
    assert_eq!(browser.run(loaded), 0);
    browser.press(&[key::ESCAPE]);
    browser.wait_for_script("return !document.querySelector('dialog')").await;
    browser.press(&["g", "a"]);
    browser.wait_for_text("Submit a job.").await;
    assert_eq!((fixture.path().as_str(), browser.run(loaded)), ("/console/docs", json!(2)));
    browser.resize(390, 844);
    let open = "for (const one of document.querySelectorAll('.operation h3 button')) one.click();
        return document.querySelectorAll('.operation').length";
    let all = browser.run(open);
    browser
        .wait_for_script(&format!("return document.querySelectorAll('.details').length === {all}"))
        .await;
    let commands = "return [...document.querySelectorAll('.details')]
        .every((one) => /^(curl|cell exec) /.test(one.querySelector('.command code').textContent))";
    assert_eq!(browser.run(commands), true);
    let inner = "const closed = [...document.querySelectorAll('#submitJob details:not([open])')];
        for (const one of closed) one.open = true;
        return closed.length === 0";
    browser.until("all fields of a job", |b| (b.run(inner) == true).then_some(())).await;
    let text = browser.text();
    assert!(!text.contains("[object") && !text.contains("undefined"), "{text}");
    let wide = browser.run("return document.documentElement.scrollWidth");
    assert!(wide.as_u64() <= Some(390), "{wide} wide");
    browser.screenshot(&pictures().join("docs-open-390.png"));
    fixture.assert_no_problems();
}

/// Run in the page: what the worker says of a stream in pieces is left in `window.expected`.
const PICTURES: &str = r#"
    const worker = new Worker("/console/picture.js", { type: "module" });
    window.heard = [];
    worker.onmessage = ({ data: { sums, names, order, columns } }) => window.heard.push([
        sums.jobs, names ? Array.from(order, (slot) => names[slot]).join() : "as before",
        columns.tasks.join(), columns.cpu_used.join(),
    ].join(" "));
    const picture = (whole, jobs, id, name, tasks, cpu_used, gone) => [
        "id: 7", "event: overview",
        `data: ${JSON.stringify({ whole, jobs, machines: { id, name, tasks, cpu_used }, gone })}`,
    ].join("\n");
    const text = [
        picture(true, 1, [4, 9, 6], ["m10", "m2", "größer"], [1, 2, 3], [10, null, 30], []),
        ": still here",
        picture(false, 2, [9], ["m2"], [5], [50], []),
        picture(false, 3, [11], ["m1"], [7], [70], [6]),
        picture(true, 4, [3], ["alone"], [8], [80], []), "",
    ].join("\n\n");
    worker.postMessage("begin");
    const bytes = new TextEncoder().encode(text);
    for (let at = 0; at < bytes.length; at += 7) worker.postMessage(bytes.slice(at, at + 7));
"#;

#[tokio::test]
async fn the_worker_makes_columns_of_what_the_watch_says() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    fixture.open("/console/jobs");
    let _ = fixture.browser.run(PICTURES);
    fixture.browser.wait_for_script("return window.heard.length === 4").await;
    let expected = [
        "1 größer,m2,m10 1,2,3 10,-1,30",
        "2 as before 1,5,3 10,50,30",
        "3 m1,m2,m10 1,5,3,7 10,50,30,70",
        "4 alone 8 80",
    ];
    assert_eq!(fixture.browser.run("return window.heard"), json!(expected));
    fixture.assert_no_problems();
}

/// Run before the page: workers are counted and find no file until `window.mended`, and each word
/// on how fresh the page is goes into `window.fresh`.
const BROKEN: &str = r#"
    [window.workers, window.fresh, window.mended] = [[], [], false];
    const Whole = Worker;
    window.Worker = class extends Whole {
        constructor(file, options) {
            super(window.mended ? file : "/console/pages/nothing.js", options);
            window.workers.push(this);
        }
    };
    new MutationObserver(() => {
        const word = document.querySelector("header .live")?.textContent;
        if (word && word !== window.fresh.at(-1)) window.fresh.push(word);
    }).observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
"#;

#[tokio::test]
async fn a_worker_that_broke_has_a_successor_and_only_a_picture_is_live() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    let browser = &fixture.browser;
    let script = json!({ "source": BROKEN });
    browser.devtools("Page.addScriptToEvaluateOnNewDocument", script);
    fixture.open("/");
    // The watch has its connection long before the third.
    browser.wait_for_script("return window.workers.length >= 3").await;
    assert_eq!(browser.run("return window.fresh.includes('live')"), false);
    browser.wait_for_text("The picture of the cell could not be read.").await;
    let _ = browser.run("window.mended = true");
    browser.wait_for_text("tasks running").await;
    browser.wait_for_script("return window.fresh.at(-1) === 'live'").await;
    // Neither the word that begins a connection nor bytes of one: it cannot be read.
    let _ = browser.run("window.count = workers.length; workers.at(-1).postMessage({})");
    browser.wait_for_script("return workers.length === window.count + 1").await;
    fixture.submit("late", 2, 100, TALKING_SCRIPT);
    let seen = "return document.body.innerText.replaceAll('\\n', ' ').includes('2 tasks running')";
    browser.wait_for_script(seen).await;
    browser.wait_for_script("return window.fresh.slice(-2).join() === 'reconnecting,live'").await;
}

#[tokio::test]
async fn what_an_earlier_attempt_wrote_can_be_read() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    fixture.submit(
        "web",
        1,
        100,
        "echo word $CELL_ATTEMPT; test $CELL_ATTEMPT -gt 1 && sleep 1000",
    );
    let browser = &fixture.browser;
    fixture.open("/console/jobs/dev/web/0");
    browser.wait_for_text("word 2").await;
    fixture.open("/console/jobs/dev/web/0");
    let written = |b: &Browser| b.run("return document.querySelector('.logs')?.textContent ?? ''");
    browser.until("the second attempt alone", |b| (written(b) == "word 2\n").then_some(())).await;
    browser.click("[aria-label='From attempt'] button:last-child").await;
    let both = "── attempt 1 ──\nword 1\n\n── attempt 2 ──\nword 2\n";
    browser.until("the first one too", |b| (written(b) == both).then_some(())).await;
    browser.wait_for_text("Attempt 1 on local").await;
    assert_eq!(browser.run("return location.search"), "?attempt=1");
    fixture.assert_no_problems();
}

#[tokio::test]
async fn changes_ask_first_and_then_happen() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    fixture.submit("web", 1, 100, TALKING_SCRIPT);
    let browser = &fixture.browser;
    fixture.open("/console/jobs/dev/web");
    browser.wait_for_text("1 running").await;
    browser.click("button.danger").await;
    browser.wait_for_text("Stop dev/web?").await;
    // The way out has the focus, so that a careless Enter changes nothing.
    browser.press(&[key::ENTER]);
    browser.wait_for_script("return !document.querySelector('dialog')").await;
    assert!(fixture.cli(&["job", "status", "dev/web"]).contains("running"));
    browser.click("button.danger").await;
    browser.click("dialog button.danger").await;
    browser.wait_for_text("1 stopped").await;
    browser.wait_for_script("return !document.querySelector('button.danger')").await;
    fixture.open("/console/machines/local");
    browser.wait_for_text("Drain…").await;
    browser.click(".actions button").await;
    browser.click("dialog button.primary").await;
    browser.wait_for_text("Undrain…").await;
    browser.wait_for_text("draining").await;
    browser.wait_for_text("Nothing runs here any more").await;
    assert!(fixture.cli(&["machine", "show", "local"]).contains("drain"));
    fixture.assert_no_problems();
}

#[tokio::test]
async fn a_job_is_tried_and_then_run() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    let browser = &fixture.browser;
    fixture.open("/console/jobs");
    browser.click(".run-job").await;
    browser.wait_for_text("Run a job").await;
    browser.click("dialog input").await;
    browser.type_text("dev");
    browser.click("dialog button[type=submit]").await;
    browser.wait_for_text("dev/hello would be created.").await;
    browser.click("dialog button.primary").await;
    browser.wait_for_text("dev/hello was created.").await;
    assert!(fixture.cli(&["job", "status", "dev/hello"]).contains("version 1"));
    // The same again changes nothing; another priority is told before it is done.
    browser.click(".run-job").await;
    browser.click("dialog input").await;
    browser.type_text("dev");
    browser.click("dialog button[type=submit]").await;
    browser.wait_for_text("dev/hello is so already, at version 1.").await;
    let edited = browser.run(
        "const field = document.querySelector('dialog textarea');
         field.value = field.value.replace('100,', '110,');
         return field.dispatchEvent(new Event('input', { bubbles: true }))",
    );
    assert_eq!(edited, true);
    browser.click("dialog button[type=submit]").await;
    browser.wait_for_text("dev/hello would be updated to version 2.").await;
    browser.wait_for_text("priority: 100 → 110").await;
    browser.click("dialog button.primary").await;
    browser.wait_for_text("dev/hello is being updated to version 2.").await;
    fixture.assert_no_problems();
}

#[tokio::test]
async fn an_update_is_told_and_can_be_undone() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    fixture.submit("web", 2, 100, TALKING_SCRIPT);
    let browser = &fixture.browser;
    fixture.open("/console/jobs/dev/web");
    browser.wait_for_text("2 running").await;
    fixture.submit("web", 2, 100, "sleep 1000");
    browser.wait_for_text("ago. 2 of 2 tasks at version 2").await;
    browser.wait_for_text("Update complete, not closed yet").await;
    browser.click(".update button").await;
    browser.wait_for_text("Undo the update of dev/web?").await;
    browser.click("dialog button.primary").await;
    browser.wait_for_text("Update being undone").await;
    fixture.assert_no_problems();
}

#[tokio::test]
async fn versions_of_a_job_are_listed_and_one_goes_back_to_one() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    fixture.submit("web", 1, 100, TALKING_SCRIPT);
    let browser = &fixture.browser;
    fixture.open("/console/jobs/dev/web");
    browser.wait_for_text("1 running").await;
    browser.wait_for_text("1 created").await;
    fixture.submit("web", 1, 100, "sleep 1000");
    browser.wait_for_text("Update complete, not closed yet").await;
    browser.wait_for_text("2 task.command").await;
    browser.click(".versions button").await;
    browser.wait_for_text("Go back to version 1 of dev/web?").await;
    browser.wait_for_text("task.command:").await;
    browser.click("dialog button.primary").await;
    browser.wait_for_text("Update being undone").await;
    fixture.assert_no_problems();
}

/// The rows that are in sight; blanks within a row do not break.
const SCREEN: &str =
    "return document.querySelector('.xterm-rows').innerText.replaceAll('\\xa0', ' ')";

/// Waits until the terminal shows this.
async fn shows(browser: &Browser, words: &str) {
    let has = |b: &Browser| b.run(SCREEN).as_str().is_some_and(|text| text.contains(words));
    browser.until(words, |b| has(b).then_some(())).await;
}

fn enter(browser: &Browser, line: &str) {
    browser.type_text(line);
    browser.press(&[key::ENTER]);
}

/// Waits until a piece of text is painted so: by rules of the emulator that the page's policy must
/// let through.
async fn colour_of(browser: &Browser, text: &str, property: &str, colour: &str) {
    let script = format!(
        "return [...document.querySelectorAll('.xterm-rows span')].some((one) =>
            one.textContent === '{text}' && getComputedStyle(one).{property} === '{colour}')"
    );
    browser.wait_for_script(&script).await;
}

#[tokio::test]
async fn a_terminal_in_a_task_takes_keys_and_shows_what_comes() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    fixture.submit("web", 1, 100, TALKING_SCRIPT);
    let browser = &fixture.browser;
    browser.resize(1280, 900);
    fixture.open("/console/jobs/dev/web/0");
    browser.wait_for_text("the time is").await;
    browser.wait_for_script("return !document.querySelector('.exec button').disabled").await;
    // The keyboard is enough.
    assert_eq!(browser.run("document.querySelector('.exec input').focus(); return true"), true);
    browser.press(&[key::ENTER]);
    browser.wait_for_script("return document.activeElement.matches('.terminal textarea')").await;
    browser.wait_for_text("Keys go to the command").await;
    browser.until("a prompt", |b| (b.run(SCREEN).as_str()?.trim() != "").then_some(())).await;
    enter(browser, "echo \"<$((6 * 7)) $CELL_JOB $TERM>\"");
    shows(browser, "<42 web xterm-256color>").await;
    enter(browser, "printf '\\033[31mred\\033[0m \\033[1;44mbold\\033[0m\\n'");
    colour_of(browser, "red", "color", "rgb(255, 123, 134)").await;
    colour_of(browser, "bold", "backgroundColor", "rgb(126, 171, 255)").await;
    enter(browser, "printf '\\033[38;2;10;200;30mgreen\\033[0m\\n'");
    colour_of(browser, "green", "color", "rgb(10, 200, 30)").await;
    // Ctrl+C is for the command, and what is typed wrong can be taken back.
    enter(browser, "echo begin $((2 + 1)); sleep 1000");
    shows(browser, "begin 3").await;
    browser.press_with(key::CONTROL, "c");
    browser.type_text("echo \"<code $?");
    browser.press(&["x", key::BACKSPACE]);
    enter(browser, ">\"");
    shows(browser, "<code 130>").await;
    let above = "document.querySelector('.inside').scrollIntoView(); return true";
    assert_eq!(browser.run(above), true);
    for scheme in ["dark", "light"] {
        browser.set_color_scheme(scheme);
        browser
            .wait_for_script(&format!(
                "return document.documentElement.dataset.theme === '{scheme}'"
            ))
            .await;
        browser.screenshot(&pictures().join(format!("terminal-{scheme}.png")));
    }
    for_the_guide(browser, "console-terminal.png");
    pastes_copies_and_scrolls(browser).await;
    // The other end hears of a new size.
    enter(browser, "old=$(stty size); echo sizes $old.");
    shows(browser, "sizes ").await;
    enter(browser, "until test \"$(stty size)\" != \"$old\"; do sleep 0.1; done; echo re''sized");
    browser.resize(800, 900);
    shows(browser, "resized").await;
    // Tab is the command's, so there is another way out, and one back.
    browser.press(&[key::TAB]);
    assert_eq!(browser.run("return document.activeElement.tagName"), "TEXTAREA");
    browser.press_with(key::SHIFT, key::TAB);
    browser
        .wait_for_script("return document.activeElement.textContent === 'End the session'")
        .await;
    browser.press(&[key::TAB]);
    browser.wait_for_script("return document.activeElement.matches('.terminal textarea')").await;
    browser.press_with(key::CONTROL, "u");
    enter(browser, "printf '\\033[H\\033[2Jclean\\n'; exit 3");
    browser.wait_for_text("Ended with exit code 3.").await;
    let is_clean = |b: &Browser| (b.run(SCREEN).as_str()?.trim() == "clean").then_some(());
    browser.until("a clean screen", is_clean).await;
    fixture.assert_no_problems();
    let audit = fixture.cli(&["audit", "--output", "json"]);
    assert!(audit.contains("exec [\\\"sh\\\"]"), "{audit}");
}

/// Text with the end of a bracketed paste in it, as a page may put it into somebody's clipboard.
const PASTE: &str = r"const data = new DataTransfer();
    data.setData('text', 'seq 300; echo pa\x1b[201~sted\n');
    const how = { clipboardData: data, bubbles: true, cancelable: true };
    return !document.activeElement.dispatchEvent(new ClipboardEvent('paste', how))";

/// A double click on the first word, and what a copy is then.
const COPY: &str = r"const cells = document.querySelector('.xterm-screen');
    const { left, top } = cells.getBoundingClientRect();
    const place = { clientX: left + 4, clientY: top + 4, button: 0, buttons: 1, bubbles: true };
    cells.dispatchEvent(new MouseEvent('mousedown', { ...place, detail: 2 }));
    document.dispatchEvent(new MouseEvent('mouseup', place));
    const how = { clipboardData: new DataTransfer(), bubbles: true, cancelable: true };
    const event = new ClipboardEvent('copy', how);
    document.querySelector('.xterm-helper-textarea').dispatchEvent(event);
    return event.clipboardData.getData('text/plain')";

async fn pastes_copies_and_scrolls(browser: &Browser) {
    assert_eq!(browser.run(PASTE), true, "the page takes the paste");
    // Without its escape it ends nothing.
    shows(browser, "\npa[201~sted").await;
    browser.press_with(key::SHIFT, key::PAGE_UP);
    let first = |b: &Browser| {
        let text = b.run(SCREEN).as_str()?.to_owned();
        (!text.contains("\n300")).then(|| text.lines().next().unwrap_or_default().to_owned())
    };
    let first = browser.until("what went by", first).await;
    assert_eq!(browser.run(COPY), first.as_str());
    // Whoever types is shown where.
    enter(browser, "clear; echo back");
    shows(browser, "back\n").await;
}

/// Run in the page: leaves what does not hold of the parts of a terminal in
/// `window.said`.
const PARTS: &str = r#"(async () => {
    const { FrameReader, emulate, words, writer } = await import("/console/terminal.js");
    const said = [];
    const check = (what, holds) => holds || said.push(what);
    check("no page before has the emulator", !performance.getEntriesByType("resource")
        .some(({ name }) => name.includes("xterm")));
    const box = document.body.appendChild(document.createElement("div"));
    const terminal = emulate(await import("/console/vendor/xterm.js"), box);
    check("the page's own document is as it was", !Object.hasOwn(document, "createElement"));
    const sheets = document.adoptedStyleSheets.length;
    check("styles are sheets", sheets >= 3 && document.querySelector("style") === null);
    terminal.resize(20, 4);
    let typed = "";
    terminal.onData((text) => { typed += text; });
    const write = (text) => new Promise((done) => terminal.write(text, done));
    const row = (n) => terminal.buffer.active.getLine(terminal.buffer.active.baseY + n)
        .translateToString(true);
    await write("x\x1b[5b\r\n");
    check(`a character is repeated: ${row(0)}`, row(0) === "xxxxxx");
    // A few bytes that ask for billions; this is not reached for as long as one is obeyed.
    for (const count of ["9999", "2147483647", "99999999999"]) {
        for (const final of "@PLMSTXABCDEFGIZdaeHf`bJKgnrsu") {
            await write(`y\x1b[2;3H\x1b[${count}${final}\x1b[r`);
        }
    }
    const { cols, rows, buffer } = terminal;
    check(`the screen is whole: ${rows}x${cols}`, cols === 20 && rows === 4);
    check("the cursor is on it", buffer.active.cursorX <= 20 && buffer.active.cursorY < 4);
    check("what went by is bounded", buffer.active.length <= 1004);
    await write("\x1bcabcdef\x1b[1;2H\x1b[2@");
    check(`room for characters: ${row(0)}`, row(0) === "a  bcdef");

    // A program has the screen, and nothing else of the page.
    const title = document.title;
    const taken = [];
    navigator.clipboard.writeText = navigator.clipboard.readText = async () => taken.push("it");
    window.open = window.confirm = () => taken.push("a link");
    typed = "";
    await write("\x1bc\x1b]52;c;cm0gLXJmIC8=\x07\x1b]52;c;?\x07\x1b]0;evil\x07\x1b]2;evil\x1b\\");
    await write("\x1b[21t\x1b[8;200;200t\x1b[?3h\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07");
    await write("\x1b]8;;https://elsewhere.example/\x07<img src=x onerror=alert(1)>\x1b]8;;\x07");
    check(`the title: ${document.title}`, document.title === title);
    check(`it types: ${typed}`, typed === "");
    check("it has its size", terminal.cols === 20 && terminal.rows === 4);
    check(`a link and markup are text: ${row(0)}`, row(0).startsWith("link<img src=x"));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    check("no markup", box.querySelector("img, a, script, iframe") === null);
    const cells = box.querySelector(".xterm-screen");
    const at = cells.getBoundingClientRect();
    for (const kind of ["mousemove", "mousedown", "mouseup", "click"]) {
        const place = { clientX: at.left + 4, clientY: at.top + 4, bubbles: true, buttons: 1 };
        cells.dispatchEvent(new MouseEvent(kind, place));
    }
    check(`taken: ${taken}`, taken.length === 0);
    terminal.dispose();
    check("its sheets went", document.adoptedStyleSheets.length < sheets);

    // Floods are bounded, and what was left out is told once there is room.
    const [drawn, done] = [[], []];
    const flood = writer({ write: (what, then) => { drawn.push(what); if (then) done.push(then); } });
    for (let i = 0; i < 20; i += 1) flood(new Uint8Array(1 << 20));
    check(`a flood waits: ${drawn.length}`, drawn.length === 8);
    for (const then of done.splice(0)) then();
    check(`what was left out: ${drawn[8]}`, drawn.length === 9 && drawn[8].includes("[12582912 bytes"));
    flood(new Uint8Array(3));
    check("it goes on", drawn.length === 10 && drawn[9].length === 3);

    const heard = [];
    const reader = new FrameReader((kind, body) => {
        heard.push(`${kind}:${body.join()}`);
        if (kind === 1) throw new Error("not taken");
    });
    try {
        reader.feed(new Uint8Array([1, 0, 0, 0, 1, 7, 2, 0, 0, 0, 2, 8]));
        check("the taker's error is told", false);
    } catch { /* as it must */ }
    reader.feed(new Uint8Array([9, 3, 0, 0, 0, 0]));
    check(`frames stay in step: ${heard}`, heard.join(" ") === "1:7 2:8,9 3:");

    const split = words(`sh -c "echo \\"it's\\"" a\\ b 'c "d'`);
    check(`words: ${split}`, split.join("|") === `sh|-c|echo "it's"|a b|c "d`);
    for (const text of ["sh -c 'echo", 'sh -c "echo \\"', "it's", "echo \\"]) {
        try {
            check(`${text} is no command: ${words(text)}`, false);
        } catch (error) {
            check(error.message, error.message.startsWith("The command "));
        }
    }
    window.said = said;
})().catch((error) => { window.said = [String(error)]; });"#;

#[tokio::test]
async fn what_a_terminal_is_made_of_stands_what_comes() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    fixture.submit("web", 1, 100, TALKING_SCRIPT);
    let browser = &fixture.browser;
    fixture.open("/console/jobs/dev/web/0");
    browser.wait_for_text("the time is").await;
    let _ = browser.run(PARTS);
    browser.wait_for_script("return window.said !== undefined").await;
    assert_eq!(browser.run("return window.said.join('; ')"), "");
    // A command that was not written to its end is not run, and not another in its place.
    browser.wait_for_script("return !document.querySelector('.exec button').disabled").await;
    assert_eq!(browser.run("document.querySelector('.exec input').focus(); return true"), true);
    enter(browser, " -c 'echo");
    browser.wait_for_text("a quote (') that is not closed").await;
    assert_eq!(browser.run("return document.querySelector('.terminal') === null"), true);
    fixture.assert_no_problems();
}

/// A page of somebody else, and where it is.
fn foreign_page() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
    let address = listener.local_addr().expect("it has an address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(8) {
            let mut stream = stream.expect("a browser");
            let page = "<!doctype html><link rel=icon href=data:,><main>elsewhere</main>";
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/html";
            let mut buffer = [0; 4096];
            // What it asks for, it gets the one page.
            let _ = stream.read(&mut buffer);
            let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{page}", page.len());
            stream.write_all(answer.as_bytes()).expect("the browser reads");
        }
    });
    format!("http://{address}/")
}

#[tokio::test]
async fn no_page_of_somebody_else_gets_into_a_task() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    fixture.submit("web", 1, 100, TALKING_SCRIPT);
    let browser = &fixture.browser;
    fixture.open("/console/jobs/dev/web/0");
    browser.wait_for_text("the time is").await;
    // With the token of the cell: where a script comes from decides even if it has stolen that.
    let (address, token) = (&fixture.address, fixture.token());
    let script = format!(
        "const s = new WebSocket('ws://{address}/v1/jobs/dev/web/tasks/0/exec?command=[%22sh%22]',
             ['cell-exec', 'cell-token.{token}']);
         s.onopen = () => {{ window.came = 'in'; }};
         s.onclose = () => {{ window.came ||= 'out'; }};"
    );
    // The very script that works on a page of the master.
    let _ = browser.run(&script);
    browser.wait_for_script("return window.came === 'in'").await;
    fixture.assert_no_problems();
    browser.navigate(&foreign_page());
    let _ = browser.run(&script);
    browser.wait_for_script("return window.came === 'out'").await;
    let problems = browser.problems();
    assert!(problems.iter().all(|problem| problem.contains("403")), "{problems:#?}");
}

#[tokio::test]
async fn a_printed_address_is_taken_by_a_page_that_is_open_already() {
    let Some(fixture) = ConsoleFixture::start().await else { return };
    let browser = &fixture.browser;
    fixture.open("/console/jobs");
    browser.wait_for_text("No jobs yet").await;
    let _ = browser.run("sessionStorage.setItem('cell.token', 'that of a cell before')");
    let token = fixture.token();
    browser.navigate(&format!("http://{}/console/jobs#token={token}", fixture.address));
    let taken = format!(
        "return sessionStorage.getItem('cell.token') === '{token}' && location.hash === ''
             && performance.getEntriesByType('navigation')[0].type === 'reload'"
    );
    browser.wait_for_script(&taken).await;
    browser.wait_for_text("No jobs yet").await;
    fixture.assert_no_problems();
}

#[tokio::test]
async fn a_cell_with_identities_asks_who_is_there() {
    let folder = Folder::new();
    let Some(browser) = Browser::open(&folder.path("driver.log")).await else { return };
    let (_master, address) = start_secure_master(&folder).await;
    browser.navigate(&format!("https://{address}/"));
    browser.wait_for_text("Who asks?").await;
    let refused = browser.problems();
    assert!(refused.iter().all(|problem| problem.contains("401")), "{refused:#?}");
    let contexts = fs::read_to_string(folder.path("contexts.toml")).expect("contexts");
    let token = contexts.split("token = \"").nth(1).and_then(|rest| rest.split('"').next());
    browser.wait_for_script("return document.activeElement.type === 'password'").await;
    browser.type_text(token.expect("a token"));
    browser.press(&[key::ENTER]);
    browser.wait_for_text("No machine has joined yet").await;
    // What was refused before the token may be logged late; with it, nothing is.
    let late = browser.problems();
    assert!(late.iter().all(|problem| problem.contains("401")), "{late:#?}");
    browser.navigate(&format!("https://{address}/console/jobs"));
    browser.navigate(&format!("https://{address}/"));
    browser.wait_for_text("No machine has joined yet").await;
    let problems = browser.problems();
    assert!(problems.is_empty(), "{problems:#?}");
    assert_eq!(browser.run("return localStorage.length"), 0, "a token is kept for the tab alone");
}

#[tokio::test]
async fn ten_thousand_jobs_are_a_list_like_any_other() {
    const JOBS: u32 = 10_000;
    let Some(fixture) = ConsoleFixture::start().await else { return };
    let browser = &fixture.browser;
    fixture.open("/console/jobs");
    browser.wait_for_text("No jobs yet").await;
    // None of them fits, so none runs.
    let submit = format!(
        "const items = Array.from({{ length: {JOBS} }}, (_, n) => ({{ submit_job: {{ owner: 'dev', spec: {{
             name: `job-${{n}}`, count: 1, priority: 50,
             labels: {{ shard: String(n % 10) }},
             task: {{ limits: {{ cpu: 900000, ram: 1 << 20 }}, command: ['true'] }} }} }} }}));
         fetch('/v1/batch', {{ method: 'POST', body: JSON.stringify({{ items }}),
             headers: {{ 'content-type': 'application/json', authorization: 'Bearer {}' }} }})
             .then((answer) => answer.json()).then((said) => {{ window.said = said; }});",
        fixture.token()
    );
    let _ = browser.run(&submit);
    browser.wait_for_text("10,000 jobs").await;
    let rows = "return document.querySelectorAll('tbody tr').length";
    assert!(browser.run(rows).as_u64() <= Some(100), "rows are shown as they are asked for");
    browser.wait_for_text("Show more").await;
    browser.press(&["/"]);
    browser.type_text("job-9999");
    browser.wait_for_text("1 job").await;
    browser.wait_for_script("return document.querySelectorAll('tbody tr').length === 1").await;
    // Loaded anew, it comes in short.
    fixture.open("/console/jobs?q=shard%3D7&sort=-name");
    browser.wait_for_text("1,000 jobs").await;
    browser.wait_for_text("job-9997").await;
    fixture.assert_no_problems();
}

/// Where a machine stands decides what is placed on it, so its page says that.
#[tokio::test]
async fn racks_power_domains_and_attributes_of_virtual_machines_are_shown() {
    let domains = ["--racks", "3", "--power-domains", "2", "--attribute", "arch=x86_64,arm64"];
    let options = [&["--machines", "6"], &domains[..]].concat();
    let Some(fixture) = ConsoleFixture::start_with(&options).await else { return };
    let browser = &fixture.browser;
    fixture.open("/console/machines/dev-1");
    for words in ["rack-1", "power-1", "arch=arm64"] {
        browser.wait_for_text(words).await;
    }
    fixture.assert_no_problems();
}

/// What the guide shows is what the console looks like: written on demand, not by every run.
#[tokio::test]
async fn the_map_shows_many_machines() {
    let Some(fixture) = ConsoleFixture::start_with(&["--machines", "150"]).await else { return };
    fixture.cli(&["quota", "set", "dev", "production", "--cpu", "200", "--ram", "1TiB"]);
    for (name, count, cpu, priority) in [
        ("frontend", 40, 1500, 220),
        ("search", 60, 900, 210),
        ("crawler", 50, 2200, 120),
        ("mail", 30, 700, 140),
    ] {
        fixture.submit_at(priority, name, count, cpu, "run");
    }
    fixture.cli(&["machine", "drain", "dev-7"]);
    let browser = &fixture.browser;
    browser.resize(1280, 900);
    fixture.open("/");
    browser.wait_for_text("150\nmachines").await;
    browser.wait_for_text("180\ntasks running").await;
    browser.wait_for_text("1 draining").await;
    let painted = "const c = document.querySelector('.heat canvas');
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        const seen = new Set();
        for (let i = 0; i < d.length; i += 4) if (d[i + 3]) seen.add(`${d[i]},${d[i + 1]},${d[i + 2]}`);
        return seen.size";
    browser
        .until("squares of several colours", |b| (b.run(painted).as_u64() > Some(3)).then_some(()))
        .await;
    for measure in ["used", "limit", "band"] {
        fixture.open(&format!("/console/?show={measure}"));
        browser.wait_for_text("180\ntasks running").await;
        browser.screenshot(&pictures().join(format!("map-{measure}.png")));
    }
    keep_for_the_guide(&fixture).await;
    fixture.assert_no_problems();
}

fn for_the_guide(browser: &Browser, name: &str) {
    if std::env::var_os("UPDATE_PICTURES").is_some() {
        let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/images");
        browser.screenshot(&guide.join(name));
    }
}

async fn keep_for_the_guide(fixture: &ConsoleFixture) {
    for scheme in ["light", "dark"] {
        fixture.browser.set_color_scheme(scheme);
        fixture.open("/");
        fixture.browser.wait_for_text("180\ntasks running").await;
        for_the_guide(&fixture.browser, &format!("console-overview-{scheme}.png"));
    }
    fixture.browser.set_color_scheme("light");
    fixture.browser.resize(390, 700);
    fixture.open("/console/jobs");
    fixture.browser.wait_for_text("frontend").await;
    for_the_guide(&fixture.browser, "console-jobs-phone.png");
}
