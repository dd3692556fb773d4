//! `cell top`: the cell on one screen, kept fresh: what machines and jobs use against what is
//! reserved for them and what their limits allow.

mod draw;
mod picture;

use super::Success;
use crate::failure::Failure;
use crate::output::print;
use crate::reach::{Cell, Reach};
use crate::server::ask;
use clap::Args;
use draw::{Pane, View};
use picture::Picture;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// How often the cell is asked.
const PERIOD: Duration = Duration::from_secs(2);
/// A terminal nobody has made larger.
const USUAL: (u16, u16) = (80, 24);

const AFTER_HELP: &str = "\
Keys: tab between machines and jobs, up and down to scroll, s to sort by another
column, p to hold the picture, q to quit.";

/// Machines and jobs on one screen: usage against reservation and limit
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct TopArgs {
    /// Print one picture and end; so does an output that is no terminal
    #[arg(long)]
    once: bool,

    /// Begin with the jobs
    #[arg(long)]
    jobs: bool,
}

impl TopArgs {
    pub fn run(self, reach: &Reach) -> Result<Success, Failure> {
        let cell = reach.cell()?;
        let pane = if self.jobs { Pane::Jobs } else { Pane::Machines };
        let mut view = View { pane, ..View::default() };
        if self.once || !io::stdout().is_terminal() {
            let picture = ask(picture::read(&cell))?;
            view.fit(&picture);
            print(&still(&picture, &view)?)?;
            return Ok(Success::Done);
        }
        // Asked once before the screen is taken: what is wrong is said in plain lines.
        let picture = ask(picture::read(&cell))?;
        let mut terminal = ratatui::try_init().map_err(screen)?;
        let done = live(&cell, &mut terminal, picture, &mut view);
        ratatui::try_restore().map_err(screen)?;
        done?;
        Ok(Success::Done)
    }
}

fn screen(error: io::Error) -> Failure {
    Failure::work(&error, "the same command with --once")
}

/// One picture as plain text.
fn still(picture: &Picture, view: &View) -> Result<String, Failure> {
    let (width, height) = USUAL;
    let fault = |_| Failure::Work {
        message: "the picture cannot be drawn".into(),
        next: "cell status, cell machine ls".into(),
    };
    let mut terminal = Terminal::new(TestBackend::new(width, height)).map_err(fault)?;
    terminal.draw(|frame| draw::draw(frame, picture, view)).map_err(fault)?;
    let buffer = terminal.backend().buffer();
    let line = |y: u16| {
        let cells = (0..width).filter_map(|x| buffer.cell((x, y)));
        let text: String = cells.map(|cell| cell.symbol()).collect();
        format!("{}\n", text.trim_end())
    };
    Ok((0..height).map(line).collect())
}

fn live(
    cell: &Cell,
    terminal: &mut ratatui::DefaultTerminal,
    mut picture: Picture,
    view: &mut View,
) -> Result<(), Failure> {
    let mut asked = Instant::now();
    loop {
        view.fit(&picture);
        terminal.draw(|frame| draw::draw(frame, &picture, view)).map_err(screen)?;
        let left = PERIOD.saturating_sub(asked.elapsed());
        if event::poll(left).map_err(screen)? {
            let Event::Key(key) = event::read().map_err(screen)? else { continue };
            if key.kind == KeyEventKind::Press && !heed(key, view) {
                return Ok(());
            }
            continue;
        }
        asked = Instant::now();
        if view.held {
            continue;
        }
        match ask(picture::read(cell)) {
            Ok(fresh) => {
                picture = fresh;
                view.trouble = None;
            }
            // Masters change; the last picture stays until one answers again.
            Err(failure) => view.trouble = Some(failure.to_string()),
        }
    }
}

/// Whether to go on.
fn heed(key: KeyEvent, view: &mut View) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if control => return false,
        KeyCode::Tab | KeyCode::BackTab => view.turn(),
        KeyCode::Down | KeyCode::Char('j') => view.top = view.top.saturating_add(1),
        KeyCode::Up | KeyCode::Char('k') => view.top = view.top.saturating_sub(1),
        KeyCode::PageDown => view.top = view.top.saturating_add(10),
        KeyCode::PageUp => view.top = view.top.saturating_sub(10),
        KeyCode::Home => view.top = 0,
        KeyCode::Char('s') => view.sort = view.sort.next(),
        KeyCode::Char('p') => view.held = !view.held,
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use picture::{Line, Sums};

    fn line(name: &str, cpu: u64, used: Option<u64>) -> Line {
        let sums = |cpu| Sums { cpu, ram: cpu << 20 };
        Line {
            name: name.into(),
            state: "up".into(),
            tasks: 3,
            whole: sums(4000),
            used: used.map(sums),
            reserved: sums(cpu),
            limits: sums(cpu * 2),
        }
    }

    fn picture() -> Picture {
        Picture {
            head: "cell at 127.0.0.1:7070: 2 machines, 2 up".into(),
            tasks: "6 running".into(),
            machines: vec![line("m1", 1000, Some(500)), line("m2", 2000, None)],
            jobs: vec![line("dev/hello", 300, Some(100))],
        }
    }

    #[test]
    fn a_picture_fits_a_usual_terminal_and_shows_usage_against_the_rest() {
        let mut view = View::default();
        view.fit(&picture());
        let text = still(&picture(), &view).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 24);
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        let of = |name: &str| *lines.iter().find(|line| line.contains(name)).unwrap();
        // Of sixteen places two are used, two more reserved, four more within limits.
        assert!(of("m1").contains("##==----........"), "{text}");
        assert!(of("m2").contains("========--------"), "{text}");
        assert!(text.contains("6 running") && text.contains("q quit"), "{text}");
    }

    #[test]
    fn keys_turn_sort_hold_and_end() {
        let mut view = View::default();
        let mut press = |code| heed(KeyEvent::new(code, KeyModifiers::NONE), &mut view);
        assert!(press(KeyCode::Tab) && press(KeyCode::Char('s')) && press(KeyCode::Char('p')));
        assert!(press(KeyCode::Down));
        assert!(!press(KeyCode::Char('q')));
        assert!(view.held && view.pane == Pane::Jobs && view.top == 1);
        view.fit(&picture());
        assert_eq!(view.top, 0, "there is no more than one job to scroll to");
    }
}
