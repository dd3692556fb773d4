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
/// Lines of machines or jobs that one printed picture holds; the rest is counted.
const MOST_LINES: u16 = 1000;

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
            print(&still(&picture, view)?)?;
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

/// One picture as plain text: as many lines as there are things to say, and none of the keys, which
/// nobody can press any more.
fn still(picture: &Picture, mut view: View) -> Result<String, Failure> {
    let all = view.lines(picture).len();
    let shown = u16::try_from(all).unwrap_or(u16::MAX).min(MOST_LINES);
    view.printed = Some(all - usize::from(shown));
    // The table has a header, and an empty line after it.
    let (width, height) = (crate::table::WIDTH as u16, shown + draw::AROUND + 2);
    let fault = |_| Failure::Work {
        message: "the picture cannot be drawn".into(),
        next: "cell status, cell machine ls".into(),
    };
    let mut terminal = Terminal::new(TestBackend::new(width, height)).map_err(fault)?;
    terminal.draw(|frame| draw::draw(frame, picture, &view)).map_err(fault)?;
    let buffer = terminal.backend().buffer();
    let line = |y: u16| {
        let cells = (0..width).filter_map(|x| buffer.cell((x, y)));
        let text: String = cells.map(|cell| cell.symbol()).collect();
        format!("{}\n", text.trim_end())
    };
    let lines: String = (0..height).map(line).collect();
    Ok(format!("{}\n", lines.trim_end()))
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
    fn a_printed_picture_has_the_lines_it_needs_and_shows_usage_against_the_rest() {
        let text = still(&picture(), View::default()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        let of = |name: &str| *lines.iter().find(|line| line.contains(name)).unwrap();
        // Of sixteen places two are used, two more reserved, four more within limits.
        assert!(of("m1").contains("##==----........"), "{text}");
        assert!(of("m1").contains("  12%"), "{text}");
        // Nobody has measured it yet: what is reserved is no use.
        assert!(of("m2").contains("========--------    -") && !of("m2").contains('%'), "{text}");
        let (head, tasks, foot) = (lines[0], lines[1], lines[lines.len() - 1]);
        assert!(head.starts_with("cell at ") && tasks == "6 running", "{text}");
        // Head, empty, header, two machines, empty, foot.
        assert_eq!((lines.len(), lines[2], lines[6]), (8, "", ""), "{text}");
        assert!(foot.starts_with("# used") && !text.contains("q quit"), "{text}");
        assert!(foot.ends_with("% used of capacity"), "{text}");
        let jobs = still(&picture(), View { pane: Pane::Jobs, ..View::default() }).unwrap();
        assert!(jobs.ends_with("% used of limits\n"), "{jobs}");
    }

    #[test]
    fn a_printed_picture_has_more_lines_than_a_screen_and_says_what_it_left_out() {
        let many = |count: usize| {
            let machines = (0..count).map(|n| line(&format!("m{n}"), 1000, None)).collect();
            still(&Picture { machines, ..picture() }, View::default()).unwrap()
        };
        let text = many(30);
        assert_eq!(text.lines().count(), 36, "{text}");
        assert!(text.contains("\nm29 ") && !text.contains("more"), "{text}");
        let text = many(usize::from(MOST_LINES) + 5);
        assert!(text.ends_with("\nand 5 more: cell machine ls\n"), "{text}");
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
