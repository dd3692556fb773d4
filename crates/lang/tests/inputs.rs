//! Libraries and parameters: where a file may import from, and what its function is called with.

use cellwright_cell::name::{Name, Token};
use cellwright_lang::diagnostic::{Diagnostic, Source};
use cellwright_lang::{Diagnostics, Document, Evaluator, Format, Inputs, Limits, LoadOptions};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary folder, removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("cell-lang-inputs-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path.canonicalize().unwrap())
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

fn options(inputs: Inputs) -> LoadOptions {
    let owner = Some(Name::new("dev").unwrap());
    LoadOptions { evaluator: Evaluator::InProcess, limits: Limits::default(), owner, inputs }
}

fn load(path: &Path, inputs: Inputs) -> Result<Vec<Document>, Vec<Diagnostic>> {
    match cellwright_lang::load(path, &options(inputs)) {
        Ok(loaded) => Ok(loaded.documents),
        Err(Diagnostics(errors)) => Err(errors),
    }
}

/// The errors as one line of words.
fn errors(path: &Path, inputs: Inputs) -> String {
    let errors = load(path, inputs).expect_err("it loads");
    let all: Vec<String> = errors.iter().map(|error| error.render(false)).collect();
    all.join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn libraries(folders: &[PathBuf]) -> Inputs {
    Inputs { libraries: folders.to_vec(), ..Inputs::default() }
}

fn with(given: &[(&str, Value)], offered: &[(&str, Value)]) -> Inputs {
    let all = |values: &[(&str, Value)]| {
        values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    };
    Inputs { parameters: all(given), offered: all(offered), ..Inputs::default() }
}

#[test]
fn libraries_are_searched_in_order_after_the_files_own_folder() {
    let folder = Folder::new();
    let size = |word: &str| {
        format!("{{ priority: 1, cpu: '1', ram: '1GiB', command: ['{word}', importstr 'word'] }}")
    };
    folder.write("one/acme/base.libsonnet", &size("one"));
    folder.write("one/acme/word", "first");
    folder.write("two/acme/base.libsonnet", &size("two"));
    folder.write("two/acme/word", "second");
    folder.write("two/acme/more.libsonnet", "(import 'base.libsonnet') { name: 'w' }");
    let file = folder.write("jobs/w.jsonnet", "import 'acme/more.libsonnet'");
    let [one, two] = [folder.0.join("one"), folder.0.join("two")];
    let command = |inputs: Inputs| load(&file, inputs).unwrap()[0].job().task.command.clone();
    // What stands beside the importing file comes before any library.
    assert_eq!(command(libraries(&[one.clone(), two.clone()])), ["two", "second"]);
    let file = folder.write("jobs/w.jsonnet", "(import 'acme/base.libsonnet') { name: 'w' }");
    let command = |inputs: Inputs| load(&file, inputs).unwrap()[0].job().task.command.clone();
    assert_eq!(command(libraries(&[one.clone(), two.clone()])), ["one", "first"]);
    assert_eq!(command(libraries(&[two.clone(), one.clone()])), ["two", "second"]);
    folder.write("jobs/acme/base.libsonnet", &size("own"));
    folder.write("jobs/acme/word", "here");
    assert_eq!(command(libraries(&[one, two])), ["own", "here"]);
}

#[test]
fn no_link_leads_out_of_the_files_folder_and_its_libraries() {
    let folder = Folder::new();
    folder.write("secret.txt", "rosebud");
    folder.write("lib/in/fine.libsonnet", "1");
    std::os::unix::fs::symlink(folder.0.join("secret.txt"), folder.0.join("lib/link")).unwrap();
    std::os::unix::fs::symlink(&folder.0, folder.0.join("lib/up")).unwrap();
    let lib = folder.0.join("lib");
    for import in ["importstr 'link'", "importstr 'up/secret.txt'", "importstr '../secret.txt'"] {
        let text = format!("{{ name: 'w', labels: {{ x: {import} }} }}");
        let all =
            errors(&folder.write("jobs/w.jsonnet", &text), libraries(std::slice::from_ref(&lib)));
        assert!(all.contains("is outside") && !all.contains("rosebud"), "{import}: {all}");
        let allowed = format!("in the libraries {}", lib.display());
        assert!(all.contains(&allowed), "{import}: {all}");
        // The same from within a library.
        folder.write("lib/out.libsonnet", &text);
        let file = folder.write("jobs/w.jsonnet", "import 'out.libsonnet'");
        let all = errors(&file, libraries(std::slice::from_ref(&lib)));
        assert!(all.contains("is outside") && !all.contains("rosebud"), "{import}: {all}");
    }
    // A folder that was not named is no library, even below another name.
    let file = folder.write("jobs/w.jsonnet", "import '../lib/in/fine.libsonnet'");
    assert!(errors(&file, Inputs::default()).contains("is outside"));
    let all = errors(&file, libraries(&[folder.0.join("none")]));
    assert!(all.contains("the library folder") && all.contains("none cannot be read"), "{all}");
    assert!(errors(&file, libraries(std::slice::from_ref(&file))).contains("cannot be read"));
}

#[test]
fn an_error_inside_a_library_is_shown_there() {
    let folder = Folder::new();
    folder.write("lib/acme.libsonnet", "{\n  web(name): { name: name, cpu: 'lots' },\n}");
    let text = "(import 'acme.libsonnet').web('w') + { priority: 1, ram: '1GiB', command: ['a'] }";
    let file = folder.write("jobs/w.jsonnet", text);
    let all = errors(&file, libraries(&[folder.0.join("lib")]));
    assert!(all.contains("\"lots\" is no amount here"), "{all}");
    folder.write("lib/acme.libsonnet", "{\n  a: 1\n  b: 2\n}");
    let all = errors(&file, libraries(&[folder.0.join("lib")]));
    assert!(all.contains("lib/acme.libsonnet:3:3"), "{all}");
}

const JOB: &str = "{ name: 'w', priority: 1, count: replicas, cpu: '1', ram: '1GiB',\n  \
                   command: [image], labels: { cell: cell } }";

#[test]
fn a_file_that_is_a_function_is_called_with_its_parameters() {
    let folder = Folder::new();
    let forms = [
        format!("function(image, replicas=2, cell)\n{JOB}"),
        format!("local f(image, replicas=2, cell=error 'none') = {JOB};\nf"),
        format!("local c = 1;\n(function(image, cell, replicas=c + 1) {JOB})"),
        "import 'inner.libsonnet'".to_owned(),
    ];
    folder.write("inner.libsonnet", &forms[0]);
    for text in forms {
        let file = folder.write("w.jsonnet", &text);
        let inputs = with(&[("image", json!("web"))], &[("cell", json!("aa"))]);
        let job = load(&file, inputs).unwrap()[0].job().clone();
        assert_eq!((job.count, job.task.command.as_slice()), (2, &["web".to_owned()][..]));
        assert_eq!(serde_json::to_value(&job.labels).unwrap(), json!({ "cell": "aa" }), "{text}");
        // What is given counts more than what is offered.
        let given = [("image", json!("a")), ("replicas", json!(7)), ("cell", json!("bb"))];
        let job = load(&file, with(&given, &[("cell", json!("aa"))])).unwrap()[0].job().clone();
        assert_eq!(job.count, 7);
        assert_eq!(serde_json::to_value(&job.labels).unwrap(), json!({ "cell": "bb" }), "{text}");
    }
}

#[test]
fn missing_and_unknown_parameters_are_all_named() {
    let folder = Folder::new();
    let file = folder.write("w.jsonnet", &format!("function(image, cell, replicas=2)\n{JOB}"));
    let all = errors(&file, Inputs::default());
    assert!(all.contains("the parameters `image`, `cell` are missing"), "{all}");
    let listed = "--set NAME=VALUE for image, cell, replicas (may be left out)";
    assert!(all.contains(listed), "{all}");
    let one = [("image", json!("web")), ("imgae", json!(1)), ("x", json!(1))];
    let all = errors(&file, with(&one, &[("cell", json!("aa"))]));
    assert!(all.contains("the file has no parameters `imgae`, `x`"), "{all}");
    let slip = [("image", json!("web")), ("replica", json!(1))];
    let all = errors(&file, with(&slip, &[("cell", json!("aa"))]));
    assert!(all.contains("no parameter `replica`; did you mean `replicas`?"), "{all}");
    let all = errors(&file, with(&[("y", json!(1))], &[("cell", json!("aa"))]));
    assert!(all.contains("the parameter `image` is missing"), "{all}");
    assert!(all.contains("the file has no parameter `y`"), "{all}");
    // A call inside the file that fits badly is that file's error.
    let inner = "function(cell) (function(a) { name: a })(b=1)";
    let all = errors(&folder.write("v.jsonnet", inner), with(&[], &[("cell", json!("aa"))]));
    assert!(all.contains("v.jsonnet:1:"), "{all}");
}

#[test]
fn files_without_parameters_refuse_them_and_take_offers_calmly() {
    let folder = Folder::new();
    let fields = "\"name\": \"w\", \"priority\": 1, \"command\": [\"a\"], \"ram\": \"1GiB\"";
    let text = format!("{{{fields}, \"cpu\": \"1\"}}");
    for name in ["w.jsonnet", "w.json", "w.yaml"] {
        let file = folder.write(name, &text);
        load(&file, with(&[], &[("cell", json!("aa"))])).unwrap();
        let all = errors(&file, with(&[("size", json!(1))], &[]));
        assert!(all.contains("the file has no parameter `size`"), "{all}");
    }
}

#[test]
fn an_error_of_a_field_is_found_in_the_function() {
    let folder = Folder::new();
    let file = folder.write("w.jsonnet", "function(cell)\n{ name: 'w',\n  prioirty: 1 }");
    let found = load(&file, with(&[], &[("cell", json!("aa"))])).unwrap_err();
    assert_eq!(found[0].place.as_ref().map(|place| place.line), Some(3), "{found:?}");
    let source = Source { name: "f.jsonnet".into(), text: "function(a) a".into() };
    let inputs = with(&[("a", json!([]))], &[]);
    let here = Path::new(".");
    let loaded = cellwright_lang::load_text(&source, here, Format::Jsonnet, &options(inputs));
    let Err(Diagnostics(errors)) = loaded else { panic!("there is no job") };
    assert!(errors[0].message.contains("there is no job"), "{errors:?}");
}

#[test]
fn an_image_stands_in_the_spec_with_the_digest_that_the_cell_has() {
    let folder = Folder::new();
    let fields = "name: 'w', priority: 1, cpu: 1, ram: '1GiB', command: ['a']";
    let forms = [
        format!("{{ {fields}, image: 'alpine:3.20@c2a512f6e332' }}"),
        format!("{{ {fields}, task: {{ image: 'alpine:3.20@c2a512f6e332' }} }}"),
        format!(
            "{{ name: 'w', schedule: '* * * * *', job: {{ {fields}, image: 'alpine:3.20' }} }}"
        ),
    ];
    for text in forms {
        let file = folder.write("w.jsonnet", &text);
        let mut document = load(&file, Inputs::default()).unwrap().remove(0);
        let image = document.image().unwrap().clone();
        let digest = Token::new(&"d".repeat(64)).unwrap();
        image.pin(document.job_mut(), digest.clone(), 77);
        let task = &document.job().task;
        assert_eq!(task.isolation.root.as_ref().map(|name| name.as_str()), Some("alpine-3.20"));
        let [package] = &task.packages[..] else { panic!("one package: {text}") };
        assert_eq!((package.name.as_str(), package.bytes), ("alpine-3.20", 77));
        assert_eq!(package.digest, digest);
    }
    for (more, part) in [
        ("image: 'docker://alpine'", "cell package import docker://alpine --to alpine.package"),
        ("image: 7", "a text is wanted here, not 7"),
        ("image: 'a', isolation: { root: 'a' }", "`isolation.root` is as well"),
        ("image: 'a b'", "cannot be the name of a package"),
    ] {
        let file = folder.write("w.jsonnet", &format!("{{ {fields}, {more} }}"));
        let all = errors(&file, Inputs::default());
        assert!(all.contains(part) && all.contains("w.jsonnet:1:"), "{more}: {all}");
    }
}
