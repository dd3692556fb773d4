//! The few facts tidy needs from a Cargo.toml: the package's name, its dependencies, extra targets.
//!
//! A line reader rather than a TOML library: manifests here are short and formatted one key per
//! line, and tidy should not need a dozen crates to look at them. What it cannot read as a
//! dependency key it still reports by name, so an odd spelling fails loudly in the edge check.

pub struct Manifest {
    pub package: Option<String>,
    pub dependencies: Vec<Dependency>,
    /// `path = "…"` of `[lib]` and `[[bin]]` sections.
    pub target_paths: Vec<String>,
}

pub struct Dependency {
    /// The name in this manifest, which may be an alias.
    pub key: String,
    pub package: String,
    pub line: usize,
}

enum Section {
    Package,
    Target,
    Dependencies,
    /// `[dependencies.name]`: the keys below describe the dependency last pushed.
    OneDependency,
    Other,
}

impl Manifest {
    pub fn parse(text: &str) -> Manifest {
        let mut manifest =
            Manifest { package: None, dependencies: Vec::new(), target_paths: Vec::new() };
        let mut section = Section::Other;
        for (index, raw) in text.lines().enumerate() {
            let line = raw.trim();
            if line.starts_with('#') {
                continue;
            }
            if let Some(header) = line.strip_prefix('[') {
                let header = header.trim_start_matches('[').split(']').next().unwrap_or("");
                section = manifest.enter(header, index + 1);
            } else if let Some((key, value)) = line.split_once('=') {
                manifest.key(&section, key.trim(), value.trim(), index + 1);
            }
        }
        manifest
    }

    fn enter(&mut self, header: &str, line: usize) -> Section {
        // A target's `cfg(…)` may hold dots, but only before the last one or two parts.
        let parts: Vec<&str> = header.split('.').map(str::trim).collect();
        match parts.as_slice() {
            ["package"] => Section::Package,
            ["lib" | "bin"] => Section::Target,
            [.., last] if is_dependency_table(last) => Section::Dependencies,
            [.., table, name] if is_dependency_table(table) => {
                let name = unquoted(name);
                self.dependencies.push(Dependency { key: name.clone(), package: name, line });
                Section::OneDependency
            }
            _ => Section::Other,
        }
    }

    fn key(&mut self, section: &Section, key: &str, value: &str, line: usize) {
        match section {
            Section::Package if key == "name" => self.package = Some(unquoted(value)),
            Section::Target if key == "path" => self.target_paths.push(unquoted(value)),
            Section::OneDependency if key == "package" => {
                if let Some(last) = self.dependencies.last_mut() {
                    last.package = unquoted(value);
                }
            }
            Section::Dependencies => {
                let key = unquoted(key.split('.').next().unwrap_or(key).trim());
                let package = alias_target(value).unwrap_or_else(|| key.clone());
                self.dependencies.push(Dependency { key, package, line });
            }
            _ => {}
        }
    }
}

fn is_dependency_table(name: &str) -> bool {
    matches!(name, "dependencies" | "dev-dependencies" | "build-dependencies")
}

/// The value of `package = "…"` inside an inline table.
fn alias_target(value: &str) -> Option<String> {
    let (_, after) = value.split_once("package")?;
    let after = after.trim_start().strip_prefix('=')?;
    Some(unquoted(after.trim_start().trim_start_matches('"').split('"').next()?))
}

fn unquoted(text: &str) -> String {
    text.trim_matches(|c: char| c == '"' || c == '\'' || c.is_whitespace()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_dependency_is_seen() {
        let manifest = Manifest::parse(
            "[package]\nname = \"p\"\n[dependencies]\na.workspace = true\nb = \"1\"\n\
             c = { package = \"real-c\", path = \"x\" }\n# no = \"1\"\n[dev-dependencies.d]\n\
             package = \"real-d\"\n[target.'cfg(unix)'.dependencies]\ne = \"1\"\n\
             [profile.dev]\ndebug = 1\n[[bin]]\npath = \"src/x.rs\"\n",
        );
        let seen: Vec<(&str, &str, usize)> = manifest
            .dependencies
            .iter()
            .map(|d| (d.key.as_str(), d.package.as_str(), d.line))
            .collect();
        let expected =
            [("a", "a", 4), ("b", "b", 5), ("c", "real-c", 6), ("d", "real-d", 8), ("e", "e", 11)];
        assert_eq!(seen, expected);
        assert_eq!(manifest.package.as_deref(), Some("p"));
        assert_eq!(manifest.target_paths, ["src/x.rs"]);
    }
}
