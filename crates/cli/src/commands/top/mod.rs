//! `cell top`: the cell on one screen, refreshed: the usage of machines and jobs against their
//! reservations and limits.

mod draw;
mod screen_data;

use super::Success;
use crate::connection::{Cell, ConnectionArgs};
use crate::failure::Failure;
use crate::output::print;
use crate::runtime::block_on;
use clap::Args;
use draw::{Pane, View};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use screen_data::ScreenData;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// The refresh interval.
const PERIOD: Duration = Duration::from_secs(2);
/// The maximum number of machine or job lines in a printed snapshot; the rest is counted.
const MAX_PRINTED_LINES: u16 = 1000;

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
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let pane = if self.jobs { Pane::Jobs } else { Pane::Machines };
        let mut view = View { pane, ..View::default() };
        if self.once || !io::stdout().is_terminal() {
            let data = block_on(screen_data::read(&cell))?;
            print(&render_once(&data, view)?)?;
            return Ok(Success::Done);
        }
        // Fetched once before the terminal is taken over, so that errors are printed as plain
        // lines.
        let data = block_on(screen_data::read(&cell))?;
        let mut terminal = ratatui::try_init().map_err(terminal_failure)?;
        let done = run_interactive(&cell, &mut terminal, data, &mut view);
        ratatui::try_restore().map_err(terminal_failure)?;
        done?;
        Ok(Success::Done)
    }
}

fn terminal_failure(error: io::Error) -> Failure {
    Failure::from_error(&error, "the same command with --once")
}

/// One snapshot as plain text: as many lines as needed, without the keys, which cannot be used.
fn render_once(data: &ScreenData, mut view: View) -> Result<String, Failure> {
    let all = view.lines(data).len();
    let printed_rows = u16::try_from(all).unwrap_or(u16::MAX).min(MAX_PRINTED_LINES);
    view.omitted_lines = Some(all - usize::from(printed_rows));
    // The table has a header, and an empty line after it.
    let (width, height) = (crate::table::WIDTH as u16, printed_rows + draw::FRAME_LINES + 2);
    let draw_failure = |_| Failure::Operation {
        message: "the picture cannot be drawn".into(),
        next: "cell status, cell machine ls".into(),
    };
    let mut terminal = Terminal::new(TestBackend::new(width, height)).map_err(draw_failure)?;
    terminal.draw(|frame| draw::draw(frame, data, &view)).map_err(draw_failure)?;
    let buffer = terminal.backend().buffer();
    let line = |y: u16| {
        let cells = (0..width).filter_map(|x| buffer.cell((x, y)));
        let text: String = cells.map(|cell| cell.symbol()).collect();
        format!("{}\n", text.trim_end())
    };
    let lines: String = (0..height).map(line).collect();
    Ok(format!("{}\n", lines.trim_end()))
}

fn run_interactive(
    cell: &Cell,
    terminal: &mut ratatui::DefaultTerminal,
    mut data: ScreenData,
    view: &mut View,
) -> Result<(), Failure> {
    let mut last_fetch = Instant::now();
    loop {
        view.clamp_scroll(&data);
        terminal.draw(|frame| draw::draw(frame, &data, view)).map_err(terminal_failure)?;
        let remaining = PERIOD.saturating_sub(last_fetch.elapsed());
        if event::poll(remaining).map_err(terminal_failure)? {
            let Event::Key(key) = event::read().map_err(terminal_failure)? else { continue };
            if key.kind == KeyEventKind::Press && !handle_key(key, view) {
                return Ok(());
            }
            continue;
        }
        last_fetch = Instant::now();
        if view.is_paused {
            continue;
        }
        match block_on(screen_data::read(cell)) {
            Ok(fresh) => {
                data = fresh;
                view.stale_reason = None;
            }
            // Leadership may change; the last data stays until a master answers again.
            Err(failure) => view.stale_reason = Some(failure.to_string()),
        }
    }
}

/// Handles a key; returns false to quit.
fn handle_key(key: KeyEvent, view: &mut View) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if control => return false,
        KeyCode::Tab | KeyCode::BackTab => view.switch_pane(),
        KeyCode::Down | KeyCode::Char('j') => view.first_row = view.first_row.saturating_add(1),
        KeyCode::Up | KeyCode::Char('k') => view.first_row = view.first_row.saturating_sub(1),
        KeyCode::PageDown => view.first_row = view.first_row.saturating_add(10),
        KeyCode::PageUp => view.first_row = view.first_row.saturating_sub(10),
        KeyCode::Home => view.first_row = 0,
        KeyCode::Char('s') => view.sort = view.sort.next(),
        KeyCode::Char('p') => view.is_paused = !view.is_paused,
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use screen_data::{CpuAndRam, UsageRow};

    fn line(name: &str, cpu: u64, used: Option<u64>) -> UsageRow {
        let sums = |cpu| CpuAndRam { cpu, ram: cpu << 20 };
        UsageRow {
            name: name.into(),
            state: "up".into(),
            tasks: 3,
            total: sums(4000),
            used: used.map(sums),
            reserved: sums(cpu),
            limits: sums(cpu * 2),
        }
    }

    fn sample_data() -> ScreenData {
        ScreenData {
            header: "cell at 127.0.0.1:7070: 2 machines, 2 up".into(),
            tasks: "6 running".into(),
            machines: vec![line("m1", 1000, Some(500)), line("m2", 2000, None)],
            jobs: vec![line("dev/hello", 300, Some(100))],
        }
    }

    #[test]
    fn a_printed_picture_has_the_lines_it_needs_and_shows_usage_against_the_rest() {
        let text = render_once(&sample_data(), View::default()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        let of = |name: &str| *lines.iter().find(|line| line.contains(name)).unwrap();
        // Of sixteen characters, two are usage, two more reservation, four more limits.
        assert!(of("m1").contains("##==----........"), "{text}");
        assert!(of("m1").contains("  12%"), "{text}");
        // Without a measurement, the reservation must not be shown as usage.
        assert!(of("m2").contains("========--------    -") && !of("m2").contains('%'), "{text}");
        let (head, tasks, foot) = (lines[0], lines[1], lines[lines.len() - 1]);
        assert!(head.starts_with("cell at ") && tasks == "6 running", "{text}");
        // Header, empty, table header, two machines, empty, footer.
        assert_eq!((lines.len(), lines[2], lines[6]), (8, "", ""), "{text}");
        assert!(foot.starts_with("# used") && !text.contains("q quit"), "{text}");
        assert!(foot.ends_with("% used of capacity"), "{text}");
        let jobs =
            render_once(&sample_data(), View { pane: Pane::Jobs, ..View::default() }).unwrap();
        assert!(jobs.ends_with("% used of limits\n"), "{jobs}");
    }

    #[test]
    fn a_printed_picture_has_more_lines_than_a_screen_and_says_what_it_left_out() {
        let many = |count: usize| {
            let machines = (0..count).map(|n| line(&format!("m{n}"), 1000, None)).collect();
            render_once(&ScreenData { machines, ..sample_data() }, View::default()).unwrap()
        };
        let text = many(30);
        assert_eq!(text.lines().count(), 36, "{text}");
        assert!(text.contains("\nm29 ") && !text.contains("more"), "{text}");
        let text = many(usize::from(MAX_PRINTED_LINES) + 5);
        assert!(text.ends_with("\nand 5 more: cell machine ls\n"), "{text}");
    }

    #[test]
    fn keys_turn_sort_hold_and_end() {
        let mut view = View::default();
        let mut press = |code| handle_key(KeyEvent::new(code, KeyModifiers::NONE), &mut view);
        assert!(press(KeyCode::Tab) && press(KeyCode::Char('s')) && press(KeyCode::Char('p')));
        assert!(press(KeyCode::Down));
        assert!(!press(KeyCode::Char('q')));
        assert!(view.is_paused && view.pane == Pane::Jobs && view.first_row == 1);
        view.clamp_scroll(&sample_data());
        assert_eq!(view.first_row, 0, "there is no more than one job to scroll to");
    }
}
