//! The picture on a screen of any size, from 80 columns on. One bar says three things: what is
//! used, what more is reserved, and what more the limits allow.

use super::picture::{Line, Picture, Sums};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::{Paragraph, Row, Table};

/// Lines above and below the table: two of head and an empty one, two of foot.
pub const AROUND: u16 = 5;

/// Places of a bar.
const BAR: u64 = 16;

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

/// What the person at the screen chose.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub pane: Pane,
    pub sort: Sort,
    /// The first row on the screen.
    pub top: usize,
    pub held: bool,
    /// Why the picture is not fresh.
    pub trouble: Option<String>,
    /// The picture is printed once, without so many of its lines.
    pub printed: Option<usize>,
}

impl View {
    pub fn turn(&mut self) {
        self.pane = match self.pane {
            Pane::Machines => Pane::Jobs,
            Pane::Jobs => Pane::Machines,
        };
        self.top = 0;
    }

    pub fn lines<'a>(&self, picture: &'a Picture) -> &'a [Line] {
        match self.pane {
            Pane::Machines => &picture.machines,
            Pane::Jobs => &picture.jobs,
        }
    }

    /// The last row stays on the screen.
    pub fn fit(&mut self, picture: &Picture) {
        self.top = self.top.min(self.lines(picture).len().saturating_sub(1));
    }
}

pub fn draw(frame: &mut Frame<'_>, picture: &Picture, view: &View) {
    let parts = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(2),
    ])
    .split(frame.area());
    let [head, _, rows, foot] = parts[..] else { return };
    let held = if view.held { " (held)" } else { "" };
    let text = format!("{}{held}\n{}", picture.head, picture.tasks);
    frame.render_widget(Paragraph::new(Text::raw(text)), head);
    frame.render_widget(table(picture, view), rows);
    frame.render_widget(Paragraph::new(Text::raw(footer(view))), foot);
}

fn footer(view: &View) -> String {
    let second = match (&view.trouble, view.printed, view.pane) {
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

fn table<'a>(picture: &Picture, view: &View) -> Table<'a> {
    let mut lines: Vec<&Line> = view.lines(picture).iter().collect();
    let busy = |line: &Line, of: fn(Sums) -> u64| {
        // What nobody has measured comes last, as it shows no figure to sort by.
        std::cmp::Reverse(line.used.map(|used| share(of(used), of(line.whole))))
    };
    match view.sort {
        Sort::Name => {}
        Sort::Cpu => lines.sort_by_key(|line| busy(line, |sums| sums.cpu)),
        Sort::Ram => lines.sort_by_key(|line| busy(line, |sums| sums.ram)),
    }
    let rows = lines.into_iter().skip(view.top).map(row);
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
        Constraint::Length(BAR as u16 + 5),
        Constraint::Length(BAR as u16 + 5),
    ];
    Table::new(rows, widths).header(header)
}

fn row<'a>(line: &Line) -> Row<'a> {
    Row::new([
        line.name.clone(),
        line.state.clone(),
        format!("{:>5}", line.tasks),
        gauge(line, |sums| sums.cpu),
        gauge(line, |sums| sums.ram),
    ])
}

/// Hundredths of the whole.
fn share(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100).checked_div(whole).unwrap_or(0)
}

/// A bar, and what is used in hundredths of the whole; no figure until that is measured.
fn gauge(line: &Line, of: fn(Sums) -> u64) -> String {
    let whole = of(line.whole);
    let places = |amount: u64| {
        let places = if whole == 0 { 0 } else { amount.saturating_mul(BAR).div_ceil(whole) };
        places.min(BAR)
    };
    let used = line.used.map_or(0, of);
    let ends = [places(used), places(of(line.reserved)), places(of(line.limits))];
    let mut bar = String::new();
    for place in 0..BAR {
        bar.push(match ends.iter().position(|end| place < *end) {
            Some(0) => '#',
            Some(1) => '=',
            Some(_) => '-',
            None => '.',
        });
    }
    match line.used {
        Some(used) => format!("{bar} {:>3}%", share(of(used), whole).min(999)),
        None => format!("{bar}    -"),
    }
}
