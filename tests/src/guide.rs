//! The guide as a script: every command block of a page is run, and what the page says it prints is
//! compared with what it prints. A page that promises something else than the program does fails a
//! test, as code would.
//!
//! What a page may say, in comments that a reader does not see, on the line before a block:
//!
//! * `<!-- file: NAME -->`: the block is what a reader is asked to put into the file NAME.
//! * `<!-- not run: WHY -->`: it cannot be run here, for a reason that is printed.
//! * `<!-- needs: root -->`: run only by root, elsewhere said to be skipped.
//! * `<!-- again: WHY -->`: its commands do no harm if they are typed again until they print what
//!   is shown, as those that only look are anyway.
//! * `<!-- terminal: NAME -->`: its one command goes on in a terminal of its own. The walk goes on
//!   once it has printed what is shown, and it ends with the page, or at `<!-- ctrl-c: NAME -->` or
//!   `<!-- kill: NAME -->`. The page's own cell is in the terminal `cell`, its data in the folder
//!   of that name.
//!
//! And on any line, `<!-- cell: ARGUMENTS -->`: the page's cell is `cell dev ARGUMENTS`, or none
//! with `<!-- cell: none -->`. A page may write ports: `127.0.0.1:7070` and `-p 5353` in commands
//! and files become ports that are free, the same one each time, so that pages can be walked at
//! once.
//!
//! In a block `$ ` begins a command, which goes on behind a backslash at the end of the line; other
//! lines are what it prints. There `...` stands for any lines and `…` for anything in a line;
//! digits stand for digits (times, sizes and numbers in the log differ from run to run), words for
//! themselves. A command whose output begins with `error:` must fail, any other must not. A command
//! with `# ctrl-c` behind it runs until it has printed what is shown, and is interrupted then.

mod matching;
mod page;
mod ports;
mod run;

pub use matching::matches;
pub use page::{Block, Command, EndMode, Page, Step};
pub use run::walk;
