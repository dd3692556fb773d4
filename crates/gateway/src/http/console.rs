//! The web console: a few files embedded in this binary, served to anyone. They contain no data of
//! the cell; they fetch all of it from the API, with the rights of their user.
//!
//! Any path below `/console/` that is not a file is the single page, which parses the path itself:
//! so every view has a URL that can be kept, sent and reloaded.
//!
//! Rejected: a directory beside the binary. It could be missing, of another version, or somebody
//! else's; `CELL_CONSOLE_DIR` serves from one during development of the console, and only the files
//! that are known here.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, header};
use axum::routing::get;
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

const BASE: &str = "/console/";
const PAGE: &str = "index.html";
/// The view with the API's documentation.
const DOCS: &str = "/console/docs";
/// Directory of the console's sources, for its developers.
const FOLDER_VARIABLE: &str = "CELL_CONSOLE_DIR";

/// No script, style or connection from elsewhere, and no embedding in frames.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                                       img-src 'self'; connect-src 'self'; base-uri 'none'; \
                                       form-action 'none'; frame-ancestors 'none'";

struct File {
    name: &'static str,
    content: &'static [u8],
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(File {
            name: $name,
            content: include_bytes!(concat!("../../../../console/", $name)),
        }),*]
    };
}

const FILES: &[File] = files![
    "index.html",
    "style.css",
    "pages.css",
    "terminal.css",
    "docs.css",
    "icon.svg",
    "main.js",
    "api.js",
    "stream.js",
    "live.js",
    "picture.js",
    "past.js",
    "versions.js",
    "units.js",
    "indent.js",
    "logs.js",
    "parts.js",
    "schema.js",
    "dialog.js",
    "run.js",
    "chart.js",
    "heat.js",
    "keys.js",
    "terminal.js",
    "pages/overview.js",
    "pages/jobs.js",
    "pages/job.js",
    "pages/task.js",
    "pages/machines.js",
    "pages/machine.js",
    "pages/pending.js",
    "pages/quota.js",
    "pages/sql.js",
    "pages/docs.js",
    "vendor/htm-preact.js",
    "vendor/xterm.js",
    "vendor/xterm.css",
    "vendor/xterm-fit.js",
];

/// Whether a path belongs to the console, which is public.
#[must_use]
pub fn is_of_console(path: &str) -> bool {
    matches!(path, "/" | "/console" | "/docs" | "/docs/" | "/favicon.ico") || path.starts_with(BASE)
}

pub(super) struct Console {
    folder: Option<PathBuf>,
}

impl Console {
    pub fn from_environment() -> Console {
        Console { folder: std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from) }
    }

    pub fn router(self: &Arc<Console>) -> Router {
        let (one, all, icon) = (self.clone(), self.clone(), self.clone());
        let home = |uri: Uri| async move { redirect(BASE, &uri) };
        // Common guesses for the documentation; a fragment, which names an operation, is kept.
        let docs = |uri: Uri| async move { redirect(DOCS, &uri) };
        let file = move |uri: Uri, headers: HeaderMap| async move { all.answer(&uri, &headers) };
        let page = move |headers: HeaderMap| async move { one.serve_file(PAGE, &headers) };
        let mark = move |headers: HeaderMap| async move { icon.serve_file("icon.svg", &headers) };
        Router::new()
            .route("/", get(home))
            .route("/console", get(home))
            .route("/docs", get(docs))
            .route("/docs/", get(docs))
            .route("/favicon.ico", get(mark))
            .route(BASE, get(page))
            .route("/console/{*path}", get(file))
    }

    fn answer(&self, uri: &Uri, headers: &HeaderMap) -> Response<Body> {
        let name = uri.path().strip_prefix(BASE).unwrap_or_default();
        match FILES.iter().find(|file| file.name == name) {
            Some(file) => self.serve_file(file.name, headers),
            // A file requested by an older page, not a view: views have no dots.
            None if name.starts_with("pages/") || name.ends_with(".js") => not_found(),
            None => self.serve_file(PAGE, headers),
        }
    }

    fn serve_file(&self, name: &str, headers: &HeaderMap) -> Response<Body> {
        let Some(content) = self.content(name) else { return not_found() };
        let tag = format!("\"{:016x}\"", xxh3_64(&content));
        let has = headers
            .get(header::IF_NONE_MATCH)
            .is_some_and(|seen| seen.as_bytes() == tag.as_bytes());
        let mut response = Response::new(if has { Body::empty() } else { Body::from(content) });
        if has {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let head = response.headers_mut();
        head.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type(name)));
        // Revalidated each time, and answered with "not modified": no page mixes two versions.
        head.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        if let Ok(tag) = HeaderValue::try_from(tag) {
            head.insert(header::ETAG, tag);
        }
        head.insert(
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(CONTENT_SECURITY_POLICY),
        );
        head.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        head.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        response
    }

    fn content(&self, name: &str) -> Option<Bytes> {
        let file = FILES.iter().find(|file| file.name == name)?;
        match &self.folder {
            None => Some(Bytes::from_static(file.content)),
            Some(folder) => std::fs::read(folder.join(file.name)).ok().map(Bytes::from),
        }
    }
}

/// Redirects to another path, with the request's query.
fn redirect(to: &'static str, from: &Uri) -> Response<Body> {
    let query = from.query().map(|query| format!("?{query}")).unwrap_or_default();
    let location = HeaderValue::try_from(format!("{to}{query}"));
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    response
        .headers_mut()
        .insert(header::LOCATION, location.unwrap_or(HeaderValue::from_static(to)));
    response
}

fn not_found() -> Response<Body> {
    let mut response = Response::new(Body::from("no such file of the console\n"));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;
    use ring::digest::{SHA256, digest};
    use std::collections::BTreeSet;
    use std::path::Path;
    use tower::ServiceExt;

    const EMULATOR: &str = "vendor/xterm.js";

    #[test]
    fn what_others_wrote_is_as_they_published_it() {
        let readme = include_str!("../../../../console/vendor/README.md");
        for file in FILES.iter().filter(|file| file.name.starts_with("vendor/")) {
            let name = file.name.trim_start_matches("vendor/");
            let row = readme.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            let sum = hex(digest(&SHA256, file.content).as_ref());
            assert!(row.is_some_and(|row| row.contains(&sum)), "{name} has the sum {sum}");
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn files_below(folder: &Path, prefix: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                files_below(&entry.path(), &format!("{name}/"), found)
            } else {
                found.insert(name);
            }
        }
    }

    #[test]
    fn every_file_of_the_console_is_inside_and_all_scripts_stay_small() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../console");
        let mut on_disk = BTreeSet::new();
        files_below(&folder, "", &mut on_disk);
        let served = |name: &String| media_type(name) != "application/octet-stream";
        let on_disk: BTreeSet<String> = on_disk.into_iter().filter(served).collect();
        let inside: BTreeSet<String> = FILES.iter().map(|file| file.name.to_owned()).collect();
        assert_eq!(inside, on_disk);
        // The emulator is fetched when a terminal is opened, and not before.
        let is_script = |file: &&File| file.name.ends_with(".js") && file.name != EMULATOR;
        let scripts = FILES.iter().filter(is_script);
        let bytes: usize = scripts.map(|file| file.content.len()).sum();
        assert!(bytes <= 200 << 10, "{bytes} bytes of script");
    }

    #[test]
    fn views_are_the_page_files_are_themselves_and_the_rest_is_not_there() {
        let console = Console { folder: None };
        let ask = |path: &str| {
            let response = console.answer(&path.parse().unwrap(), &HeaderMap::new());
            let kind = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
            (response.status().as_u16(), kind)
        };
        let page = (200, "text/html; charset=utf-8".to_owned());
        assert_eq!(ask("/console/jobs/ann/web"), page);
        assert_eq!(ask("/console/machines/m.7"), page, "names may have dots");
        assert_eq!(ask("/console/main.js"), (200, "text/javascript; charset=utf-8".to_owned()));
        assert_eq!(ask("/console/pages/old.js").0, 404);
        assert_eq!(ask("/console/../Cargo.toml"), page, "no path leads out");
    }

    #[test]
    fn what_a_browser_has_is_not_sent_again_and_runs_no_script_but_ours() {
        let console = Console { folder: None };
        let first = console.serve_file("main.js", &HeaderMap::new());
        let policy = first.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.contains("script-src 'self'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(first.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone());
        assert_eq!(console.serve_file("main.js", &headers).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(console.serve_file("api.js", &headers).status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn short_addresses_lead_on_with_their_query() {
        let router = Arc::new(Console { folder: None }).router();
        for (from, to) in [
            ("/", "/console/"),
            ("/console?show=used", "/console/?show=used"),
            ("/docs", "/console/docs"),
            ("/docs/?q=a%20b", "/console/docs?q=a%20b"),
        ] {
            let request = Request::get(from).body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            let place = response.headers()[header::LOCATION].to_str().unwrap();
            assert_eq!((response.status().as_u16(), place), (307, to), "{from}");
        }
    }

    #[test]
    fn only_the_console_is_for_anyone() {
        for own in
            ["/", "/console", "/console/", "/console/jobs", "/docs", "/docs/", "/favicon.ico"]
        {
            assert!(is_of_console(own), "{own}");
        }
        for other in ["/v1/jobs", "/metrics", "/consoles", "/docs/x", "/v1/console/x", ""] {
            assert!(!is_of_console(other), "{other}");
        }
    }
}
