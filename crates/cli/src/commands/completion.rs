//! `cell completion` and `cell man`: shell completions and man pages, generated from the command
//! definitions.

use super::Success;
use crate::failure::Failure;
use crate::output::print;
use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  cell completion bash > ~/.local/share/bash-completion/completions/cell
  cell completion zsh > ~/.zfunc/_cell
  cell completion fish > ~/.config/fish/completions/cell.fish";

/// Print what a shell needs to complete `cell` commands
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionArgs {
    /// Which
    #[arg(value_name = "SHELL", value_enum)]
    shell: SupportedShell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SupportedShell {
    Bash,
    Zsh,
    Fish,
}

impl CompletionArgs {
    pub fn run(self, mut command: Command) -> Result<Success, Failure> {
        let shell = match self.shell {
            SupportedShell::Bash => Shell::Bash,
            SupportedShell::Zsh => Shell::Zsh,
            SupportedShell::Fish => Shell::Fish,
        };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, "cell", &mut script);
        print(&String::from_utf8_lossy(&script))?;
        Ok(Success::Done)
    }
}

/// Write the manual pages, one for each command, into a folder
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Where they go; made if it is not there
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

impl ManArgs {
    pub fn run(self, command: Command) -> Result<Success, Failure> {
        let failed = |source| Failure::Write { what: self.folder.display().to_string(), source };
        std::fs::create_dir_all(&self.folder).map_err(failed)?;
        clap_mangen::generate_to(command, &self.folder).map_err(failed)?;
        let pages = std::fs::read_dir(&self.folder).map_err(failed)?.count();
        print(&format!(
            "{} in {}\nnext: man -l {}/cell.1\n",
            crate::format::pluralize(pages as u64, "page"),
            self.folder.display(),
            self.folder.display()
        ))?;
        Ok(Success::Done)
    }
}
