//! Draws the screen of `cell top` at any size from 80 columns on. One bar shows three amounts:
//! usage, the rest of the reservation, and the rest up to the limits.

use super::screen_data::{CpuAndRam, ScreenData, UsageRow};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::{Paragraph, Row, Table};

/// Lines above and below the table: two of header and an empty one, two of footer.
pub const FRAME_LINES: u16 = 5;

/// The width of a bar in characters.
const BAR_WIDTH: u64 = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pane {
    #[default]
    Machines,
    Jobs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Name,
    Cpu,
    Ram,
}

impl Sort {
    pub fn next(self) -> Sort {
        match self {
            Sort::Name => Sort::Cpu,
            Sort::Cpu => Sort::Ram,
            Sort::Ram => Sort::Name,
        }
    }
}

/// The view that the user has selected.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub pane: Pane,
    pub sort: Sort,
    /// The first row on the screen.
    pub first_row: usize,
    pub is_paused: bool,
    /// Why the data is stale.
    pub stale_reason: Option<String>,
    /// Set for a printed snapshot: the number of lines left out.
    pub omitted_lines: Option<usize>,
}

impl View {
    pub fn switch_pane(&mut self) {
        self.pane = match self.pane {
            Pane::Machines => Pane::Jobs,
            Pane::Jobs => Pane::Machines,
        };
        self.first_row = 0;
    }

    pub fn lines<'a>(&self, data: &'a ScreenData) -> &'a [UsageRow] {
        match self.pane {
            Pane::Machines => &data.machines,
            Pane::Jobs => &data.jobs,
        }
    }

    /// Keeps the last row on the screen.
    pub fn clamp_scroll(&mut self, data: &ScreenData) {
        self.first_row = self.first_row.min(self.lines(data).len().saturating_sub(1));
    }
}

pub fn draw(frame: &mut Frame<'_>, data: &ScreenData, view: &View) {
    let parts = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(2),
    ])
    .split(frame.area());
    let [head, _, rows, foot] = parts[..] else { return };
    let paused_mark = if view.is_paused { " (held)" } else { "" };
    let text = format!("{}{paused_mark}\n{}", data.header, data.tasks);
    frame.render_widget(Paragraph::new(Text::raw(text)), head);
    frame.render_widget(table(data, view), rows);
    frame.render_widget(Paragraph::new(Text::raw(footer(view))), foot);
}

fn footer(view: &View) -> String {
    let second = match (&view.stale_reason, view.omitted_lines, view.pane) {
        (_, Some(0), _) => String::new(),
        (_, Some(left), Pane::Machines) => format!("and {left} more: cell machine ls"),
        (_, Some(left), Pane::Jobs) => format!("and {left} more: cell job status"),
        (Some(why), None, _) => format!("not fresh: {why}"),
        (None, None, _) => "tab machines/jobs  up/down scroll  s sort  p hold  q quit".to_owned(),
    };
    let whole = match view.pane {
        Pane::Machines => "capacity",
        Pane::Jobs => "limits",
    };
    format!("# used  = reserved beyond that  - within limits  . free  % used of {whole}\n{second}")
}

fn table<'a>(data: &ScreenData, view: &View) -> Table<'a> {
    let mut lines: Vec<&UsageRow> = view.lines(data).iter().collect();
    let busy = |line: &UsageRow, of: fn(CpuAndRam) -> u64| {
        // Rows without a measurement come last, as they have no figure to sort by.
        std::cmp::Reverse(line.used.map(|used| percent(of(used), of(line.total))))
    };
    match view.sort {
        Sort::Name => {}
        Sort::Cpu => lines.sort_by_key(|line| busy(line, |sums| sums.cpu)),
        Sort::Ram => lines.sort_by_key(|line| busy(line, |sums| sums.ram)),
    }
    let rows = lines.into_iter().skip(view.first_row).map(row);
    let (name, sorted) = match (view.pane, view.sort) {
        (Pane::Machines, _) => ("machine", view.sort),
        (Pane::Jobs, _) => ("job", view.sort),
    };
    let mark = |text: &str, is: bool| format!("{text}{}", if is { " v" } else { "" });
    let header = Row::new([
        mark(name, sorted == Sort::Name),
        "state".into(),
        "tasks".into(),
        mark("cpu", sorted == Sort::Cpu),
        mark("ram", sorted == Sort::Ram),
    ])
    .style(Style::new().add_modifier(Modifier::BOLD));
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Length(BAR_WIDTH as u16 + 5),
        Constraint::Length(BAR_WIDTH as u16 + 5),
    ];
    Table::new(rows, widths).header(header)
}

fn row<'a>(line: &UsageRow) -> Row<'a> {
    Row::new([
        line.name.clone(),
        line.state.clone(),
        format!("{:>5}", line.tasks),
        gauge(line, |sums| sums.cpu),
        gauge(line, |sums| sums.ram),
    ])
}

/// `part` as a percentage of `whole`.
fn percent(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100).checked_div(whole).unwrap_or(0)
}

/// A bar and the usage in percent; without a measurement there is no percentage.
fn gauge(line: &UsageRow, of: fn(CpuAndRam) -> u64) -> String {
    let whole = of(line.total);
    let places = |amount: u64| {
        let places = if whole == 0 { 0 } else { amount.saturating_mul(BAR_WIDTH).div_ceil(whole) };
        places.min(BAR_WIDTH)
    };
    let used = line.used.map_or(0, of);
    let ends = [places(used), places(of(line.reserved)), places(of(line.limits))];
    let mut bar = String::new();
    for column in 0..BAR_WIDTH {
        bar.push(match ends.iter().position(|end| column < *end) {
            Some(0) => '#',
            Some(1) => '=',
            Some(_) => '-',
            None => '.',
        });
    }
    match line.used {
        Some(used) => format!("{bar} {:>3}%", percent(of(used), whole).min(999)),
        None => format!("{bar}    -"),
    }
}
