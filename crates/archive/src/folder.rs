//! Objects as files of a folder. A file is written under another name, flushed, and renamed, so a
//! name leads to all of an object or to none; what a crash left half-written lies apart, and is
//! removed by who writes next.
//!
//! The folder can be one that several masters mount, for each writes the same under a name.

use crate::names::is_plain;
use crate::store::{ObjectInfo, ObjectStore, StoreError};
use bytes::Bytes;
use cellwright_cell::time::Time;
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

/// Where files are until they are whole; no object is named so.
const UNFINISHED: &str = ".unfinished";
/// What is older than this in there is nobody's any more.
const ABANDONED_AFTER_SECONDS: u64 = 3600;

#[derive(Clone, Debug)]
pub struct FolderStore {
    folder: Arc<PathBuf>,
}

impl FolderStore {
    #[must_use]
    pub fn new(folder: PathBuf) -> FolderStore {
        FolderStore { folder: Arc::new(folder) }
    }

    /// Blocking work on a thread for it.
    fn blocking<'a, T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        let folder = self.folder.clone();
        Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || work(&folder)).await;
            done.unwrap_or_else(|why| Err(StoreError::Unreachable(why.to_string())))
        })
    }
}

impl ObjectStore for FolderStore {
    fn put<'a>(&'a self, name: &'a str, content: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        let name = name.to_owned();
        self.blocking(move |folder| put(folder, &name, &content))
    }

    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        let name = name.to_owned();
        self.blocking(move |folder| {
            let path = path_of(folder, &name)?;
            match fs::read(&path) {
                Ok(content) => Ok(Some(content.into())),
                Err(why) if is_absent(folder, &why) => Ok(None),
                Err(why) => Err(StoreError::File { path, why }),
            }
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: &'a str,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<ObjectInfo>, StoreError>> {
        let (prefix, after) = (prefix.to_owned(), after.to_owned());
        self.blocking(move |folder| {
            let mut found = Vec::new();
            let from = prefix.rsplit_once('/').map_or("", |(parent, _)| parent);
            let inside = if from.is_empty() { String::new() } else { format!("{from}/") };
            walk((folder, &folder.join(from)), &inside, &prefix, &after, most, &mut found)?;
            Ok(found)
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        let name = name.to_owned();
        self.blocking(move |folder| {
            let path = path_of(folder, &name)?;
            match fs::remove_file(&path) {
                Err(why) if !is_absent(folder, &why) => return Err(StoreError::File { path, why }),
                _ => {}
            }
            // Folders that are empty now go as well; one that is not says so and stays.
            let parents = path.ancestors().skip(1);
            for parent in parents.take_while(|parent| *parent != folder) {
                if fs::remove_dir(parent).is_err() {
                    break;
                }
            }
            Ok(())
        })
    }

    fn place(&self) -> String {
        self.folder.display().to_string()
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> StoreError + use<> {
    let path = path.to_owned();
    move |why| StoreError::File { path, why }
}

/// Whether there is no such object. A store whose own folder is none is no store without objects.
fn is_absent(folder: &Path, why: &io::Error) -> bool {
    match why.kind() {
        io::ErrorKind::NotFound => true,
        io::ErrorKind::NotADirectory => folder.is_dir(),
        _ => false,
    }
}

fn path_of(folder: &Path, name: &str) -> Result<PathBuf, StoreError> {
    if is_plain(name) {
        Ok(folder.join(name))
    } else {
        Err(StoreError::Config(format!("{name:?} can be no name of an object")))
    }
}

fn put(folder: &Path, name: &str, content: &[u8]) -> Result<(), StoreError> {
    let path = path_of(folder, name)?;
    let unfinished = write_unfinished(folder, content)?;
    let done = finish(folder, &unfinished, &path);
    if done.is_err() {
        // Removed by the next writer otherwise.
        drop(fs::remove_file(&unfinished));
    }
    done
}

/// The content in a file of its own, on the disk.
fn write_unfinished(folder: &Path, content: &[u8]) -> Result<PathBuf, StoreError> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let dir = folder.join(UNFINISHED);
    make_dir(&dir)?;
    remove_abandoned(&dir);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = dir.join(format!("{}-{number}", std::process::id()));
    let open = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path);
    let written = open.and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    written.map_err(at(&path))?;
    Ok(path)
}

/// Gives a written file its name, for good.
fn finish(folder: &Path, unfinished: &Path, path: &Path) -> Result<(), StoreError> {
    let parent = path.parent().unwrap_or(folder);
    loop {
        make_dir(parent)?;
        match fs::rename(unfinished, path) {
            // Somebody removed the empty folder just now.
            Err(why) if why.kind() == io::ErrorKind::NotFound && unfinished.exists() => {}
            done => break done.map_err(at(path))?,
        }
    }
    // The names of new folders as well as that of the file.
    for dir in parent.ancestors() {
        File::open(dir).and_then(|open| open.sync_all()).map_err(at(dir))?;
        if dir == folder {
            break;
        }
    }
    Ok(())
}

fn make_dir(dir: &Path) -> Result<(), StoreError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(at(dir))
}

/// What a writer left that was killed; what it could not remove is tried again.
fn remove_abandoned(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|found| found.modified()).ok();
        let age = age.and_then(|at| cellwright_identity::clock::system().duration_since(at).ok());
        if age.is_some_and(|age| age.as_secs() > ABANDONED_AFTER_SECONDS) {
            drop(fs::remove_file(entry.path()));
        }
    }
}

/// Adds the objects of a folder whose names begin with `prefix` and come after `after`. A folder
/// stands in the order as its name with a slash, as it does in names.
fn walk(
    (root, dir): (&Path, &Path),
    inside: &str,
    prefix: &str,
    after: &str,
    most: usize,
    found: &mut Vec<ObjectInfo>,
) -> Result<(), StoreError> {
    let entries = match fs::read_dir(dir) {
        Err(why) if is_absent(root, &why) => return Ok(()),
        entries => entries.map_err(at(dir))?,
    };
    let mut names = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(at(dir))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Ok(kind) = entry.file_type() else { continue };
        if is_plain(&name) && (kind.is_dir() || kind.is_file()) {
            let slash = if kind.is_dir() { "/" } else { "" };
            names.insert(format!("{inside}{name}{slash}"), entry.path());
        }
    }
    for (name, path) in names {
        if found.len() >= most {
            break;
        }
        let is_dir = name.ends_with('/');
        let may_match = name.starts_with(prefix) || (is_dir && prefix.starts_with(&name));
        // Of a folder that `after` lies in, only a part comes after.
        let is_after = name.as_str() > after || (is_dir && after.starts_with(&name));
        if !may_match || !is_after {
            continue;
        }
        if is_dir {
            walk((root, &path), &name, prefix, after, most, found)?;
        } else if let Ok(metadata) = fs::metadata(&path) {
            let since = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            let millis = since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
            found.push(ObjectInfo { name, bytes: metadata.len(), modified: Time(millis) });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("archive-{name}-{}", std::process::id()));
            drop(fs::remove_dir_all(&path));
            Scratch(path)
        }

        fn store(&self) -> FolderStore {
            FolderStore::new(self.0.clone())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    async fn names(store: &FolderStore, prefix: &str, after: &str, most: usize) -> Vec<String> {
        let found = store.list(prefix, after, most).await.unwrap();
        found.into_iter().map(|object| object.name).collect()
    }

    #[tokio::test]
    async fn objects_are_written_read_listed_in_order_and_removed() {
        let scratch = Scratch::new("order");
        let store = scratch.store();
        assert_eq!(store.get("jobs/a/b/1").await.unwrap(), None);
        assert!(names(&store, "jobs/", "", 10).await.is_empty());
        for name in ["jobs/a-b/x/1", "jobs/a/b/2", "jobs/a/b/1", "jobs/a/b-c/1", "logs/a/b/1"] {
            store.put(name, Bytes::from(name.to_owned())).await.unwrap();
        }
        let all = ["jobs/a-b/x/1", "jobs/a/b-c/1", "jobs/a/b/1", "jobs/a/b/2"];
        assert!(all.is_sorted());
        assert_eq!(names(&store, "jobs/", "", 10).await, all);
        for at in 0..all.len() {
            assert_eq!(names(&store, "jobs/", all[at], 10).await, all[at + 1..], "{at}");
            assert_eq!(names(&store, "jobs/", "", at).await, all[..at], "{at}");
        }
        assert_eq!(names(&store, "jobs/a/", "", 10).await, all[1..]);
        assert_eq!(names(&store, "jobs/a/b/", "", 10).await, all[2..]);
        store.put("jobs/a/b/1", Bytes::from_static(b"again")).await.unwrap();
        assert_eq!(store.get("jobs/a/b/1").await.unwrap().unwrap(), "again");
        store.remove("jobs/a/b/1").await.unwrap();
        store.remove("jobs/a/b/1").await.unwrap();
        store.remove("jobs/a/b/2").await.unwrap();
        assert!(!scratch.0.join("jobs/a/b").exists(), "an empty folder goes with its last file");
        assert_eq!(names(&store, "jobs/", "", 10).await, all[..2]);
    }

    #[tokio::test]
    async fn a_crash_between_the_write_and_the_name_leaves_what_was_before() {
        let scratch = Scratch::new("crash");
        let store = scratch.store();
        store.put("jobs/a/b/1", Bytes::from_static(b"before")).await.unwrap();
        let left = write_unfinished(&scratch.0, b"aft").unwrap();
        assert_eq!(store.get("jobs/a/b/1").await.unwrap().unwrap(), "before");
        assert_eq!(names(&store, "", "", 10).await, ["jobs/a/b/1"], "half a file is no object");
        // One that is being written by another stays, one that was left goes.
        store.put("jobs/a/b/2", Bytes::new()).await.unwrap();
        assert!(left.exists());
        let old = cellwright_identity::clock::system()
            - Duration::from_secs(ABANDONED_AFTER_SECONDS + 60);
        File::options().write(true).open(&left).unwrap().set_modified(old).unwrap();
        store.put("jobs/a/b/2", Bytes::new()).await.unwrap();
        assert!(!left.exists());
        finish(
            &scratch.0,
            &write_unfinished(&scratch.0, b"after").unwrap(),
            &scratch.0.join("jobs/a/b/1"),
        )
        .unwrap();
        assert_eq!(store.get("jobs/a/b/1").await.unwrap().unwrap(), "after");
    }

    #[tokio::test]
    async fn a_place_that_cannot_be_written_is_named_and_no_name_leads_out_of_it() {
        let scratch = Scratch::new("file");
        fs::write(&scratch.0, "").unwrap();
        assert!(scratch.store().get("jobs/a/b/1").await.is_err());
        assert!(scratch.store().list("jobs/", "", 1).await.is_err());
        let error = scratch.store().put("jobs/a/b/1", Bytes::new()).await.unwrap_err();
        assert!(error.to_string().contains("archive-file"), "{error}");
        fs::remove_file(&scratch.0).unwrap();
        for name in ["../x", "/etc/x", "a/../../x"] {
            assert!(scratch.store().put(name, Bytes::new()).await.is_err(), "{name}");
            assert!(scratch.store().get(name).await.is_err(), "{name}");
        }
    }
}
