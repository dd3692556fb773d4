//! The merged layers of an image: names that point to where their bytes are.
//!
//! A path of a layer may lead through links of the layers below (`bin/x` where `bin` is a link to
//! `usr/bin`). They are resolved here, in the tree, where nothing can lead out of it.

use super::Dropped;
use crate::error::PackageError;
use crate::kind::{FOLDER_MODE, Kind};
use crate::path::{EntryPath, check_link, truncate};
use crate::tar_stream::Member;
use std::collections::BTreeMap;
use tar::EntryType;

const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";
/// As on Linux.
const MAX_LINKS: u32 = 40;
/// Most parts of a path, those still to be walked and those walked, while links are resolved: each
/// link may add as many as a path has, so that a few of them would grow without end.
const MAX_PARTS: usize = 400;
/// The set-user-ID and set-group-ID bits.
const OWNER_MODES: u32 = 0o6000;

/// Bytes in an unpacked layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Content {
    pub(super) layer: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

#[derive(Clone)]
enum Node {
    Folder(Folder),
    File { mode: u32, content: Content },
    Link(String),
}

#[derive(Clone)]
struct Folder {
    mode: u32,
    children: BTreeMap<String, Node>,
}

impl Default for Folder {
    fn default() -> Folder {
        Folder { mode: FOLDER_MODE, children: BTreeMap::new() }
    }
}

#[derive(Default)]
pub(super) struct Tree {
    root: Folder,
    pub(super) dropped: Dropped,
}

type Entry = (EntryPath, Kind, Option<Content>);

impl Tree {
    /// Applies the next layer. A whiteout removes entries of the layers below, wherever in its
    /// archive it is.
    pub(super) fn apply_layer(
        &mut self,
        layer: usize,
        members: Vec<Member>,
    ) -> Result<(), PackageError> {
        let mut added = Vec::new();
        for member in members {
            let parts = normal_parts(&member.path)?;
            match parts.last() {
                Some(name) if name.starts_with(WHITEOUT) => self.apply_whiteout(&parts)?,
                // The root itself.
                None => {}
                Some(_) => added.push((parts, member)),
            }
        }
        for (parts, member) in added {
            self.add(layer, parts, &member)?;
        }
        Ok(())
    }

    fn apply_whiteout(&mut self, parts: &[String]) -> Result<(), PackageError> {
        let Some((name, folder)) = parts.split_last() else { return Ok(()) };
        let resolved = self.resolve(folder)?;
        let Some(folder) = self.folder(&resolved) else { return Ok(()) };
        match name.strip_prefix(WHITEOUT) {
            _ if name == OPAQUE => folder.children.clear(),
            Some(hidden) => drop(folder.children.remove(hidden)),
            None => {}
        }
        Ok(())
    }

    fn add(
        &mut self,
        layer: usize,
        parts: Vec<String>,
        member: &Member,
    ) -> Result<(), PackageError> {
        let Some((name, above)) = parts.split_last() else { return Ok(()) };
        let node = match member.kind {
            EntryType::Directory => None,
            EntryType::Regular | EntryType::Continuous => {
                self.dropped.owner_modes += u64::from(member.mode & OWNER_MODES != 0);
                let content = Content { layer, offset: member.starts, bytes: member.bytes };
                Some(Node::File { mode: member.mode & 0o777 | 0o400, content })
            }
            EntryType::Symlink => Some(Node::Link(member.link.clone())),
            EntryType::Link => Some(self.hard_link_target(member)?),
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                self.dropped.devices += 1;
                return Ok(());
            }
            other => {
                let kind = crate::tar_stream::kind_in_words(other);
                return Err(PackageError::BadKind { path: truncate(&member.path), kind });
            }
        };
        let resolved = self.resolve(above)?;
        let folder = self.ensure_folder(&resolved, &member.path)?;
        match node {
            Some(node) => drop(folder.children.insert(name.clone(), node)),
            None => {
                let mode = member.mode & 0o1777 | 0o700;
                match folder.children.get_mut(name) {
                    // What is below stays; the mode is the newer one's.
                    Some(Node::Folder(there)) => there.mode = mode,
                    _ => {
                        let made = Folder { mode, children: BTreeMap::new() };
                        folder.children.insert(name.clone(), Node::Folder(made));
                    }
                }
            }
        }
        Ok(())
    }

    /// The target of a hard link.
    fn hard_link_target(&self, member: &Member) -> Result<Node, PackageError> {
        let parts = normal_parts(&member.link)?;
        let node = parts.split_last().and_then(|(name, above)| {
            let resolved = self.resolve(above).ok()?;
            self.folder_at(&resolved)?.children.get(name)
        });
        match node {
            Some(node @ (Node::File { .. } | Node::Link(_))) => Ok(node.clone()),
            _ => Err(PackageError::BadLink {
                path: truncate(&member.path),
                target: truncate(&member.link),
                rule: "a hard link names an earlier file of the image",
            }),
        }
    }

    /// The path once all links in it are resolved, the last part's too. Parts that are not there
    /// are kept as they are; a loop of links ends where it was noticed.
    ///
    /// # Errors
    /// When the path is longer than any that a package may have.
    fn resolve(&self, parts: &[String]) -> Result<Vec<String>, PackageError> {
        let mut pending: Vec<String> = parts.iter().rev().cloned().collect();
        let mut at: Vec<String> = Vec::new();
        let mut links = 0;
        while let Some(part) = pending.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => drop(at.pop()),
                _ => at.push(part),
            }
            let Some((name, above)) = at.split_last() else { continue };
            let node = self.folder_at(above).and_then(|folder| folder.children.get(name));
            if let Some(Node::Link(target)) = node
                && links < MAX_LINKS
            {
                links += 1;
                pending.extend(target.split('/').rev().map(str::to_owned));
                if target.starts_with('/') {
                    at.clear();
                } else {
                    at.pop();
                }
            }
            if pending.len() + at.len() > MAX_PARTS {
                let path = truncate(&parts.join("/"));
                let rule = "it leads through links to a path of more than 400 parts";
                return Err(PackageError::BadPath { path, rule });
            }
        }
        Ok(at)
    }

    fn folder_at(&self, parts: &[String]) -> Option<&Folder> {
        parts.iter().try_fold(&self.root, |folder, part| match folder.children.get(part)? {
            Node::Folder(inner) => Some(inner),
            _ => None,
        })
    }

    fn folder(&mut self, parts: &[String]) -> Option<&mut Folder> {
        parts.iter().try_fold(&mut self.root, |folder, part| {
            match folder.children.get_mut(part)? {
                Node::Folder(inner) => Some(inner),
                _ => None,
            }
        })
    }

    /// The folder, with those above it, created where it is missing.
    fn ensure_folder(&mut self, parts: &[String], path: &str) -> Result<&mut Folder, PackageError> {
        parts.iter().try_fold(&mut self.root, |folder, part| {
            let missing = || Node::Folder(Folder::default());
            match folder.children.entry(part.clone()).or_insert_with(missing) {
                Node::Folder(inner) => Ok(inner),
                _ => {
                    Err(PackageError::NoFolder { path: truncate(path), place: format!("{part:?}") })
                }
            }
        })
    }

    /// All entries in the order a package has them.
    pub(super) fn entries(&self, dropped: &mut Dropped) -> Result<Vec<Entry>, PackageError> {
        let mut out = Vec::new();
        let mut written: BTreeMap<Content, EntryPath> = BTreeMap::new();
        let mut open: Vec<(String, &Node)> = children_reversed(&self.root, "");
        while let Some((path, node)) = open.pop() {
            let path = EntryPath::new(&path)?;
            match node {
                Node::Folder(folder) => {
                    open.extend(children_reversed(folder, &format!("{path}/")));
                    out.push((path, Kind::Folder { mode: folder.mode }, None));
                }
                Node::Link(target) => {
                    let kept = check_link(&path, target).is_ok();
                    dropped.rewritten_links += u64::from(!kept);
                    let target =
                        if kept { target.clone() } else { self.rewrite_link(&path, target)? };
                    out.push((path, Kind::SymbolicLink { target }, None));
                }
                Node::File { mode, content } => {
                    // An empty file has no bytes to share.
                    if let Some(first) = written.get(content).filter(|_| content.bytes > 0) {
                        out.push((path, Kind::HardLink { target: first.clone() }, None));
                        continue;
                    }
                    written.insert(*content, path.clone());
                    let kind = Kind::File { mode: *mode, bytes: content.bytes };
                    out.push((path, kind, Some(*content)));
                }
            }
        }
        Ok(out)
    }

    /// The same path as `target` is where the image's root is `/`, relative to the link's own
    /// folder, with all climbing at the beginning.
    fn rewrite_link(&self, path: &EntryPath, target: &str) -> Result<String, PackageError> {
        let home: Vec<String> = match path.folder() {
            Some(folder) => folder.split('/').map(str::to_owned).collect(),
            None => Vec::new(),
        };
        let mut at = if target.starts_with('/') { Vec::new() } else { home.clone() };
        for part in target.split('/') {
            match part {
                "" | "." => {}
                ".." => {
                    at = self.resolve(&at)?;
                    at.pop();
                }
                name => at.push(name.to_owned()),
            }
        }
        let common = home.iter().zip(&at).take_while(|(one, other)| one == other).count();
        let up = std::iter::repeat_n("..".to_owned(), home.len() - common);
        let relative: Vec<String> = up.chain(at.into_iter().skip(common)).collect();
        Ok(if relative.is_empty() { ".".to_owned() } else { relative.join("/") })
    }
}

/// Children, last first, for a stack.
fn children_reversed<'a>(folder: &'a Folder, prefix: &str) -> Vec<(String, &'a Node)> {
    let children = folder.children.iter().rev();
    children.map(|(name, node)| (format!("{prefix}{name}"), node)).collect()
}

/// The parts of a path of a layer, which may start with `./` or `/` and must not climb.
fn normal_parts(path: &str) -> Result<Vec<String>, PackageError> {
    let parts: Vec<String> =
        path.split('/').filter(|part| !matches!(*part, "" | ".")).map(str::to_owned).collect();
    if !parts.is_empty() {
        EntryPath::new(&parts.join("/"))?;
    }
    Ok(parts)
}
