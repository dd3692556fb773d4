//! Job files in all three languages: their documents, and the errors of invalid ones.

use cellwright_cell::name::Name;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::{JobKind, JobSpec};
use cellwright_cell::time::Span;
use cellwright_lang::diagnostic::{Diagnostic, Source};
use cellwright_lang::{
    Diagnostics, Document, Evaluator, Format, Inputs, Limits, LoadOptions, Loaded,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

fn options() -> LoadOptions {
    let owner = Some(Name::new("dev").unwrap());
    LoadOptions {
        evaluator: Evaluator::InProcess,
        limits: Limits::default(),
        owner,
        inputs: Inputs::default(),
    }
}

fn load(name: &str, text: &str) -> Result<Loaded, Diagnostics> {
    let format = Format::of(Path::new(name)).unwrap();
    let source = Source { name: name.into(), text: text.into() };
    cellwright_lang::load_text(&source, Path::new("."), format, &options())
}

fn documents(name: &str, text: &str) -> Vec<Document> {
    match load(name, text) {
        Ok(loaded) => loaded.documents,
        Err(Diagnostics(errors)) => panic!("{}", render_all(&errors)),
    }
}

fn jobs(name: &str, text: &str) -> Vec<JobSpec> {
    documents(name, text).iter().map(|document| document.job().clone()).collect()
}

fn render_all(errors: &[Diagnostic]) -> String {
    errors.iter().map(|diagnostic| diagnostic.render(false)).collect::<Vec<_>>().join("\n")
}

/// The only error of the file is on `line`, at the text `caret`, and contains `expected`.
fn check(name: &str, text: &str, line: u32, caret: &str, expected: &str) {
    let Err(Diagnostics(errors)) = load(name, text) else { panic!("nothing is wrong with {text}") };
    let all = render_all(&errors);
    assert_eq!(errors.len(), 1, "{all}");
    let location = errors[0].place.as_ref().unwrap_or_else(|| panic!("no place: {all}"));
    let letters =
        location.text.chars().skip(location.column as usize - 1).take(location.width as usize);
    assert_eq!((location.line, letters.collect::<String>().as_str()), (line, caret), "{all}");
    let expected_words: Vec<&str> = all.split_whitespace().collect();
    assert!(expected_words.join(" ").contains(expected), "{expected:?} is not in {all}");
}

/// The same job in four forms.
const WEB: [(&str, &str); 4] = [
    (
        "web.json",
        r#"{"name": "web", "count": 3, "priority": 200, "task": {"limits": {"cpu": 0.5,
            "ram": 268435456}, "command": ["sleep", "9"], "notice": 90000}}"#,
    ),
    (
        "web.yaml",
        "name: web\ncount: 3\npriority: production\ncpu: 500m\nram: 256MiB\n\
         command: [sleep, '9']\nnotice: 1m30s\n",
    ),
    (
        "web.jsonnet",
        "local cell = import 'cell.libsonnet';\ncell.job('web', { count: 3, priority: 200, \
         cpu: '0.5', ram: cell.mib(256), command: ['sleep', '9'], notice: '90s' })",
    ),
    (
        "short.jsonnet",
        "{ web: { count: 3, priority: 'production', command: ['sleep', '9'], \
         limits: { cpu: '500m', ram: '256Mi' }, task: { notice: 90000 } } }",
    ),
];

#[test]
fn every_language_says_the_same_job() {
    for (name, text) in WEB {
        let [web] = &jobs(name, text)[..] else { panic!("{name} has one job") };
        assert_eq!((web.name.as_str(), web.count, web.priority.0), ("web", 3, 200), "{name}");
        assert_eq!(web.task.limits, Resources::new(500, 256 << 20, 0, 0), "{name}");
        assert_eq!(web.task.notice, Span::seconds(90), "{name}");
        assert_eq!(web.task.command, ["sleep", "9"], "{name}");
    }
}

#[test]
fn files_hold_lists_objects_and_several_documents() {
    let job = "{priority: 0, cpu: '1', ram: '1GiB', command: [a]";
    let three = format!("--- {job}, name: a}}\n--- [{job}, name: b}}]\n--- {{c: {job}}}}}\n");
    let names: Vec<String> =
        jobs("many.yaml", &three).iter().map(|job| job.name.to_string()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let cron = "{name: tick, owner: ads, schedule: '*/5 * * * *', job: \
                {priority: batch, cpu: 100m, ram: 64MiB, command: [date]}}";
    let [Document::Cron(tick)] = &documents("tick.yaml", cron)[..] else { panic!("a cron") };
    assert_eq!(
        (tick.owner.as_ref().unwrap().as_str(), tick.spec.job.name.as_str()),
        ("ads", "tick")
    );
}

#[test]
fn the_library_makes_services_batches_sets_crons_and_workflows() {
    let text = "
        local cell = import 'cell.libsonnet';
        local size = { cpu: '1', ram: '1GiB' };
        local pool = cell.allocSet('pool', size { count: 2 });
        local run = { command: ['true'] } + size;
        [
          cell.workflow([cell.batch('get', run), cell.batch('sort', run),
                         [cell.batch('left', run), cell.batch('right', run)],
                         cell.batch('join', run), [cell.batch('last', run)]]),
          cell.inside(pool, cell.service('web', run {
            ports: 1,
            health: cell.http('/ok', 0, { interval: '5s' }),
          })),
          pool,
          cell.batch('shards', run + cell.each(3, function(i) { env: { SHARD: '%d' % i } })),
          cell.service('picky', run {
            constraints: [cell.where('os', '==', 'debian'), cell.where('gpu', 'exists'),
                          cell.prefer(50, cell.where('cores', '>=', 8)),
                          cell.where('rack', 'in', ['r1', 'r2'])],
            spread: [cell.spread('machine')],
          }),
          cell.cron('nightly', '30 2 * * *', run, { overlap: 'skip' }),
        ]";
    let all = documents("all.jsonnet", text);
    let names: Vec<&str> = all.iter().map(|document| document.name().as_str()).collect();
    let at = |name: &str| names.iter().position(|known| *known == name).unwrap();
    assert!(at("pool") < at("web"), "{names:?}");
    assert!(at("get") < at("sort") && at("sort") < at("right"), "{names:?}");
    let job = |name: &str| all[at(name)].job();
    assert_eq!(job("pool").kind, JobKind::AllocSet);
    let after = |name: &str| -> Vec<String> {
        job(name).after.iter().map(|after| after.job.to_string()).collect()
    };
    assert_eq!((after("get").len(), after("right")), (0, vec!["dev/sort".to_owned()]));
    assert_eq!(after("join"), ["dev/left", "dev/right"]);
    assert_eq!(after("last"), ["dev/join"]);
    assert!(at("right") < at("join"), "{names:?}");
    assert_eq!(job("web").alloc_set.as_ref().unwrap().to_string(), "dev/pool");
    assert_eq!(job("web").task.health.as_ref().unwrap().interval, Span::seconds(5));
    assert_eq!(job("shards").env_of(2)["SHARD"], "2");
    assert_eq!(job("picky").constraints[2].to_string(), "cores >= 8");
    assert!(job("web").restart.restart_on_success && !job("get").restart.restart_on_success);
    assert!(matches!(all[at("nightly")], Document::Cron(_)));
}

const HEAD: &str = "local cell = import 'cell.libsonnet';\n";

/// `cell.service` with these additional fields on line 3.
fn service(line: &str) -> String {
    format!(
        "{HEAD}cell.service('web', {{ command: ['a'], cpu: '1', ram: '1GiB' }} + {{\n{line}\n}})"
    )
}

fn in_service(line: &str, caret: &str, expected: &str) {
    check("web.jsonnet", &service(line), 3, caret, expected);
}

#[test]
fn what_is_wrong_is_shown_where_it_is_written() {
    let check = in_service;
    check(
        "  prioirty: 200,",
        "prioirty",
        "there is no field `prioirty` here; did you mean `priority`?",
    );
    check("  replicas: 3,", "replicas", "did you mean `count`?");
    check("  memory: '1GiB',", "memory", "did you mean `ram`?");
    check("  comand: [],", "comand", "did you mean `command`?");
    check("  count: 'three',", "'three'", "a number is wanted here, not \"three\"");
    check("  count: 2.5,", "2.5", "2.5 is no whole number");
    check("  priority: 'prodction',", "'prodction'", "did you mean `production`?");
    check("  after: 'wbe',", "'wbe'", "there is no job \"wbe\" in this file; did you mean `web`?");
    check("  after: 'Web/x',", "'Web/x'", "no job can be called \"Web/x\"");
    check("  after: ['a/wbe/0'],", "'a/wbe/0'", "allowed: web, or USER/NAME for one that is in");
    check("  after: 'dev/wEb',", "'dev/wEb'", "can be called \"dev/wEb\"; did you mean `web`?");
    check("  alloc_set: 'pool',", "'pool'", "there is no alloc set \"pool\" in this file");
    check("  spread: [{ domain: 'shelf', limit: 1 }],", "'shelf'", "machine, rack, power");
    check("  health: cell.http('ok'), ports: 1,", "health", "a path from / on");
    check("  env: { PORT: 80 },", "80", "write it in quotes: '80'");
    check("  isolation: { netwrok: 'own' },", "netwrok", "did you mean `network`?");
    check("  labels: { 'a b': 'c' },", "'a b'", "printable ASCII");
    check(
        "  isolation: { volumes: [{ source: '/srv', target: '/dev/shm' }] },",
        "'/dev/shm'",
        "a path outside /proc, /sys and /dev",
    );
    check(
        "  isolation: { volumes: [{ source: '/srv', target: 'data' }] },",
        "'data'",
        "absolute, as /srv/data, without ..",
    );
    check("  overrides: { '0': { limits: { cpu: 1, ram: 5 } } },", "5", "2097152 (2 MiB) or more");
    check(
        "  constraints: [cell.where('os', '~', 'x')],",
        "cell.where('os', '~', 'x')",
        "operator ~",
    );
    check("  task: { limits: { rma: 5 } },", "rma", "did you mean `ram`?");
    check("  kind: 'alloc-set',", "'alloc-set'", "did you mean `alloc_set`?");
    check("  command: 'sleep 5',", "'sleep 5'", "write it in brackets");
    check("  command: [],", "[]", "allowed: a program and its arguments");
    check("  command: [''],", "['']", "task.command: [\"\"] is not valid");
    check("  overrides: { '0': { command: [] } },", "[]", "overrides.0.command: [] is not valid");
    check("  count: missing,", "missing", "`missing` is not defined");
    check("  count: 3 +,", ",", "cannot stand here");
}

#[test]
fn numbers_and_times_are_told_with_their_range() {
    let check = in_service;
    check("  count: 0,", "0", "0 is out of range");
    check("  count: -1,", "-1", "allowed: a whole number from 1 to 200000");
    check("  count: 1e30,", "1e30", "allowed: a whole number from 1 to 200000");
    check("  max_run: '2 hours',", "'2 hours'", "\"1h30m\" (ms, s, m, h, d)");
    check("  disk: '2 gigs',", "'2 gigs'", "\"512MiB\"");
    check("  priority: 900,", "900", "production, monitoring, or a number from 0 to 399");
    check("  max_run: '400d',", "'400d'", "\"400d\" is out of range");
    check("  max_run: '400d',", "'400d'", "allowed: 1ms to 366d, as a text such as");
    check("  disruptions: { most: 0, within: '1h' },", "0", "1 to 1000");
    check("  disruptions: { most: -1, within: '1h' },", "-1", "a whole number from 1 to 1000");
    check("  disruptions: { most: 1 },", "disruptions", "`within` is missing");
    check("  disruptions: { most: 1 },", "disruptions", "allowed: 1ms to 366d, as a text such as");
    check(
        "  disruptions: { most: 1, within: '1 hour' },",
        "'1 hour'",
        "\"1h30m\" (ms, s, m, h, d)",
    );
    check("  disruptions: { most: 1, within: 0 },", "0", "allowed: 1ms to 366d");
    check("  disruptions: { most: 1, within: 9, per: 1 },", "per", "no field `per` here");
    check("  static_ports: [80, 70000],", "70000", "70000 is out of range");
}

#[test]
fn json_and_yaml_have_places_too() {
    let json = "{\"name\": \"web\", \"priority\": 200,\n \"task\": {\"limits\": {\"cpu\": 1,\n \
                \"rams\": 5}, \"command\": [\"a\"]}}";
    let Err(Diagnostics(errors)) = load("web.json", json) else { panic!("it is wrong") };
    assert!(render_all(&errors).contains("did you mean `ram`?"), "{}", render_all(&errors));
    assert_eq!(errors[0].place.as_ref().unwrap().line, 3);
    // A field under another name is not missing as well.
    assert_eq!(errors.len(), 1, "{}", render_all(&errors));
    let yaml = "- name: web\n  priority: 200\n  cpu: 500m\n  ram: lots\n  command: [a]\n";
    check("web.yaml", yaml, 4, "lots", "512MiB");
    check(
        "w.yaml",
        "web:\n  priority: 1\n  ram: 1GiB\n  command: [a]\n",
        1,
        "web",
        "`cpu` is missing",
    );
    check("w.yaml", "web: 5\n", 1, "5", "is no job");
    let volumes = "[{source: /a, target: /data},\n   {source: /b, target: /data}]";
    let yaml = format!(
        "{{name: web, priority: 200, cpu: '1', ram: 1GiB, command: [a],\n isolation: {{volumes: \
         {volumes}}}}}"
    );
    check("w.yaml", &yaml, 3, "/data", "allowed: each target once");
    let json = "{\"name\": \"web\", \"priority\": 200, \"cpu\": \"1\", \"ram\": \"1GiB\",\n \
                \"command\": [\"a\"], \"isolation\": {\"volumes\": [{\"source\": \"/a\",\n \
                \"target\": \"/work\"}]}}";
    check("w.json", json, 3, "\"/work\"", "volumes[0].target: \"/work\" is not valid");
    let cron = "name: a\nschedule: '* * * * *'\njob: {cpu: '1', ram: 4MiB, command: [a],\n  \
                priority: 1, count: 0}\n";
    check("tick.yaml", cron, 4, "0", "field: job.count");
    let cron = cron.replace("count: 0", "count: 1").replace("4MiB", "1MiB");
    check("tick.yaml", &cron, 3, "1MiB", "2097152 (2 MiB) or more");
    check(
        "tick.yaml",
        "name: a\nschedule: '* * * *'\njob: {cpu: '1', ram: 16MiB, command: [a], priority: 1}",
        2,
        "'* * * *'",
        "* * * *",
    );
}

#[test]
fn paths_are_followed_through_the_file() {
    let text = "local base = { cpu: '1', ram: '1GiB',\n  command: ['a'] };\n\
                local job(name, extra) = base + { name: name, priority: 200 } + extra;\n\
                { jobs: [job('a', {}), job('b', { gang: 'yes' })] }";
    check("f.jsonnet", text, 4, "'yes'", "jobs[1].gang");
    let text = "local base = { cpu: '1', ram: '1GB', command: 'a' };\n\
                [base { name: n, priority: 1 } for n in ['a']]";
    check("f.jsonnet", text, 1, "'a'", "a list is wanted here");
}

#[test]
fn names_and_references_are_those_of_the_whole_file() {
    let run = "priority: 0, cpu: '1', ram: '1GiB', command: [a]";
    let twice = format!("- {{name: a, {run}}}\n- {{name: a, {run}}}\n");
    check("f.yaml", &twice, 2, "a", "the name a is taken by [0]");
    let other = format!("- {{name: a, {run}}}\n- {{name: a, owner: ads, {run}}}\n");
    assert_eq!(documents("f.yaml", &other).len(), 2);
    let circle = format!("a: {{after: b, {run}}}\nb: {{after: a, {run}}}\n");
    let Err(Diagnostics(errors)) = load("f.yaml", &circle) else { panic!("a circle") };
    assert!(render_all(&errors).contains("waits for itself"), "{}", render_all(&errors));
    let several = format!("a: {{{run}}}\nb: {{after: [a, {{job: c}}], {run}}}\n");
    check("f.yaml", &several, 2, "c", "there is no job \"c\" in this file");
    let several = several.replace("{job: c}", "a");
    let Err(Diagnostics(errors)) = load("f.yaml", &several) else { panic!("twice the same") };
    assert!(render_all(&errors).contains("each job once"), "{}", render_all(&errors));
    let elsewhere = format!("{{name: a, after: ads/load, {run}}}");
    assert_eq!(jobs("f.yaml", &elsewhere)[0].after[0].job.to_string(), "ads/load");
}

#[test]
fn what_is_wrong_is_told_once_and_not_of_who_refers_to_it() {
    let run = "priority: 0, cpu: '1', ram: '1GiB', command: [a]";
    let two = format!("a: {{after: [Web, Foo], {run}}}\nb: {{after: a, {run}}}\n");
    let Err(Diagnostics(errors)) = load("f.yaml", &two) else { panic!("no names") };
    let all = render_all(&errors);
    assert_eq!(errors.len(), 2, "{all}");
    assert!(errors[0].message.contains("can be called \"Web\""), "{all}");
    assert!(errors[1].message.contains("can be called \"Foo\""), "{all}");
    let cron = format!("name: t\nschedule: '* * * * *'\njob: {{after: [W, F], {run}}}\n");
    let Err(Diagnostics(errors)) = load("f.yaml", &cron) else { panic!("no names") };
    assert_eq!(errors.len(), 2, "{}", render_all(&errors));
    // Errors by the schema, by admission, and by an invalid kind.
    let count = format!("a: {{count: 0, {run}}}\nb: {{after: a, {run}}}\n");
    check("f.yaml", &count, 1, "0", "0 is out of range");
    let small = format!("a: {{{run}}}\nb: {{after: a, {run}}}\n").replacen("1GiB", "1MiB", 1);
    check("f.yaml", &small, 1, "'1MiB'", "2097152 (2 MiB) or more");
    let kind = format!("a: {{kind: alloc-set, {run}}}\nb: {{alloc_set: a, {run}}}\n");
    check("f.yaml", &kind, 1, "alloc-set", "did you mean `alloc_set`?");
    // An object of the wrong kind is not a valid target either.
    let job = format!("a: {{count: 0, {run}}}\nb: {{alloc_set: a, {run}}}\n");
    let Err(Diagnostics(errors)) = load("f.yaml", &job) else { panic!("no set") };
    assert_eq!(errors.len(), 2, "{}", render_all(&errors));
}

#[test]
fn a_job_in_the_place_of_a_user_is_doubted() {
    let run = "priority: 0, cpu: '1', ram: '1GiB', command: [a]";
    let warned = |text: &str| load("f.yaml", text).unwrap().warnings;
    let [warning] = &warned(&format!("a: {{{run}}}\nb: {{after: a/0, {run}}}\n"))[..] else {
        panic!("one warning")
    };
    assert!(warning.message.starts_with("a is a job of this file"), "{}", warning.message);
    assert_eq!(warning.place.as_ref().unwrap().line, 2);
    let own = format!("a: {{{run}}}\nb: {{owner: a, {run}}}\nc: {{after: a/b, {run}}}\n");
    assert!(warned(&own).is_empty(), "a is a user of this file as well");
    assert!(warned(&format!("b: {{after: ads/load, {run}}}\n")).is_empty());
}

#[test]
fn a_bare_number_is_cores_in_every_language() {
    let cpu = |name: &str, cpu: &str| {
        let text = format!(
            "{{\"name\": \"w\", \"priority\": 0, \"cpu\": {cpu}, \"ram\": \"64Mi\", \
             \"command\": [\"a\"]}}"
        );
        let loaded = load(name, &text).unwrap_or_else(|errors| panic!("{name} {cpu}: {errors:?}"));
        let warned = loaded.warnings.iter().map(|warning| {
            assert!(!warning.is_error());
            warning.help.clone().unwrap()
        });
        let limits = loaded.documents[0].job().task.limits;
        assert_eq!(limits.ram, 64 << 20, "{name}");
        (limits.cpu, warned.collect::<Vec<_>>())
    };
    for name in ["w.jsonnet", "w.json", "w.yaml"] {
        assert_eq!(cpu(name, "2"), (2000, vec![]), "{name}");
        assert_eq!(cpu(name, "0.5"), (500, vec![]), "{name}");
        assert_eq!(cpu(name, "\"500m\""), (500, vec![]), "{name}");
        assert_eq!(cpu(name, "\"1.5\""), (1500, vec![]), "{name}");
        let doubted = "for 500 thousandths of a core write '500m'".to_owned();
        assert_eq!(cpu(name, "500"), (500_000, vec![doubted]), "{name}");
    }
    assert_eq!(cpu("w.jsonnet", "0.1 + 0.2").0, 300);
    assert_eq!(cpu("w.jsonnet", "(import 'cell.libsonnet').cores(1.5)").0, 1500);
}

#[test]
fn a_task_of_its_own_names_only_what_differs() {
    let text = "{ name: 'w', priority: 1, count: 2, cpu: 2, ram: '1GiB', command: ['a'],
                  env: { A: '1', B: '2' },
                  overrides: { '1': { limits: { ram: '2Gi' }, env: { B: '3' } } } }";
    let [job] = &jobs("w.jsonnet", text)[..] else { panic!("one job") };
    assert_eq!(job.limits_of(1), Resources::new(2000, 2 << 30, 0, 0));
    assert_eq!((job.env_of(1)["A"].as_str(), job.env_of(1)["B"].as_str()), ("1", "3"));
    assert_eq!(job.limits_of(0), Resources::new(2000, 1 << 30, 0, 0));
}

#[test]
fn a_file_without_jobs_is_told_so() {
    for text in ["[]", "{}"] {
        let Err(Diagnostics(errors)) = load("f.jsonnet", text) else { panic!("no jobs") };
        assert!(errors[0].message.contains("no job"), "{}", errors[0].message);
    }
}

/// A temporary folder, removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lang-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that is left behind does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn imports_stay_below_the_files_folder() {
    let folder = Folder::new();
    folder.write("secret.txt", "rosebud");
    folder
        .write("jobs/lib/base.libsonnet", "{ cpu: '1', ram: '1GiB', command: [importstr 'word'] }");
    folder.write("jobs/lib/word", "hello");
    let fine = folder
        .write("jobs/web.jsonnet", "(import 'lib/base.libsonnet') { name: 'w', priority: 1 }");
    let loaded = cellwright_lang::load(&fine, &options()).unwrap();
    assert_eq!(loaded.documents[0].job().task.command, ["hello"]);
    std::os::unix::fs::symlink(folder.0.join("secret.txt"), folder.0.join("jobs/link")).unwrap();
    for import in [
        "importstr '../secret.txt'",
        "importstr 'link'",
        "importbin 'link'",
        "import '../secret.txt'",
        "importstr '/etc/hostname'",
        "importstr 'none'",
        "importstr 'lib'",
    ] {
        let file = folder.write("jobs/bad.jsonnet", &format!("{{ name: 'w',\n  x: {import} }}"));
        let Err(Diagnostics(errors)) = cellwright_lang::load(&file, &options()) else {
            panic!("{import} was read")
        };
        let all = render_all(&errors);
        assert!(!all.contains("rosebud"), "{all}");
        assert_eq!(errors[0].place.as_ref().map(|place| place.line), Some(2), "{all}");
        assert!(all.contains("folder of the file and below"), "{all}");
    }
    let file = folder.write("jobs/broken.jsonnet", "import 'lib/broken.libsonnet'");
    folder.write("jobs/lib/broken.libsonnet", "{\n  a: 1\n  b: 2\n}");
    let Err(Diagnostics(errors)) = cellwright_lang::load(&file, &options()) else {
        panic!("broken")
    };
    let location = errors[0].place.as_ref().unwrap();
    assert!(
        location.file.ends_with("jobs/lib/broken.libsonnet") && location.line == 3,
        "{location:?}"
    );
}

#[test]
fn nothing_outside_the_file_is_seen() {
    let Err(Diagnostics(errors)) = load("f.jsonnet", "{ name: std.extVar('HOME') }") else {
        panic!("a variable")
    };
    assert!(errors[0].message.contains("no external variable"), "{}", errors[0].message);
    let Err(Diagnostics(errors)) = load("f.jsonnet", "{ name: std.native('clock')() }") else {
        panic!("a native function")
    };
    assert!(errors[0].is_error());
    for text in ["import '/etc/a'", "local f(x) = import '/etc/a'; f(1)", "importstr '/etc/a'"] {
        let Err(Diagnostics(errors)) = load("f.jsonnet", text) else { panic!("a path from / on") };
        assert!(errors[0].message.contains("\"/etc/a\" is outside"), "{text}: {errors:?}");
    }
}

#[test]
fn depth_and_output_are_limited_by_name() {
    let check = |text: &str, limits: Limits, expected: &str| {
        let source = Source { name: "f.jsonnet".into(), text: text.into() };
        let options = LoadOptions { limits, ..options() };
        let here = Path::new(".");
        let loaded = cellwright_lang::load_text(&source, here, Format::Jsonnet, &options);
        let Err(Diagnostics(errors)) = loaded else { panic!("{text}") };
        assert!(render_all(&errors).contains(expected), "{}", render_all(&errors));
    };
    let limits = Limits { depth: 100, ..Limits::default() };
    check("local f(x) = 1 + f(x); f(1)", limits, "depth limit: 100 calls within calls");
    let limits = Limits { output_bytes: 1 << 20, ..Limits::default() };
    check("{ a: std.repeat('x', 2000000) }", limits, "output limit: 1 MiB");
    let limits = Limits { documents: 2, ..Limits::default() };
    let many = "[{ name: 'j%d' % i, priority: 0, cpu: '1', ram: '16MiB', command: ['a'] }
                 for i in std.range(1, 3)]";
    check(many, limits, "job limit: 2 in one file");
}
