//! A page of the guide taken apart: the files it asks for and the commands it shows, in order.

/// What a reader does at one place of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Writes a file.
    File { name: String, text: String },
    /// Types what the block says.
    Type(Block),
    /// Types it in a terminal of its own, where it goes on.
    Background { terminal: String, command: Command },
    /// Ends what goes on in that terminal.
    End { line: usize, terminal: String, how: EndMode },
    /// Only reads it, for this reason.
    Read { line: usize, why: String },
}

/// How a reader ends what runs in another terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndMode {
    /// Ctrl-c, and it ends by itself.
    Interrupted,
    /// As a machine that loses power.
    Killed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Where it stands in the page.
    pub line: usize,
    pub needs_root: bool,
    /// Its commands do no harm if they are typed again until they print what is shown.
    pub is_repeatable: bool,
    pub commands: Vec<Command>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub line: usize,
    pub text: String,
    /// Goes on until it is interrupted.
    pub is_endless: bool,
    pub printed: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Arguments of `cell dev`, where the page says so.
    pub cell: Option<String>,
    pub steps: Vec<Step>,
}

const CTRL_C: &str = "# ctrl-c";

/// What stands between `<!-- key: ` and ` -->`.
fn parse_remark<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let inner = line.trim().strip_prefix("<!--")?.strip_suffix("-->")?.trim();
    Some(inner.strip_prefix(key)?.strip_prefix(':')?.trim())
}

impl Page {
    /// # Errors
    /// What is wrong with the page, and where.
    pub fn parse(text: &str) -> Result<Page, String> {
        let mut page = Page::default();
        let mut lines = (1..).zip(text.lines());
        let mut before = "";
        while let Some((number, line)) = lines.next() {
            if let Some(arguments) = parse_remark(line, "cell") {
                page.cell = Some(arguments.to_owned());
            }
            page.steps.extend(end(number, line));
            let Some(kind) = line.strip_prefix("```") else {
                before = line;
                continue;
            };
            let mut inside = Vec::new();
            loop {
                match lines.next() {
                    Some((_, "```")) => break,
                    Some(line) => inside.push(line),
                    None => return Err(format!("line {number}: the block does not end")),
                }
            }
            page.steps.extend(step(number, kind, before, &inside)?);
            before = "";
        }
        Ok(page)
    }
}

fn end(line: usize, text: &str) -> Option<Step> {
    let keys = [("ctrl-c", EndMode::Interrupted), ("kill", EndMode::Killed)];
    let (terminal, mode) =
        keys.iter().find_map(|(key, how)| Some((parse_remark(text, key)?, *how)))?;
    Some(Step::End { line, terminal: terminal.to_owned(), how: mode })
}

fn step(
    line: usize,
    kind: &str,
    before: &str,
    inside: &[(usize, &str)],
) -> Result<Option<Step>, String> {
    if let Some(name) = parse_remark(before, "file") {
        let text = inside.iter().map(|(_, line)| format!("{line}\n")).collect();
        return Ok(Some(Step::File { name: name.to_owned(), text }));
    }
    let is_typed = inside.iter().any(|(_, line)| line.starts_with("$ ") || line.starts_with("# "));
    if kind != "console" {
        return if is_typed && kind != "text" {
            Err(format!("line {line}: commands stand in blocks of kind console"))
        } else {
            Ok(None)
        };
    }
    if let Some(why) = parse_remark(before, "not run") {
        return if why.is_empty() {
            Err(format!("line {line}: not run, and no reason is given"))
        } else {
            Ok(Some(Step::Read { line, why: why.to_owned() }))
        };
    }
    let needs_root = match parse_remark(before, "needs") {
        None => false,
        Some("root") => true,
        Some(other) => return Err(format!("line {line}: needs {other:?}; allowed: root")),
    };
    let is_repeatable = match parse_remark(before, "again") {
        None => false,
        Some("") => return Err(format!("line {line}: typed again, and no reason is given")),
        Some(_) => true,
    };
    let mut commands = commands(inside)?;
    if let Some(terminal) = parse_remark(before, "terminal") {
        return match (commands.pop(), commands.is_empty()) {
            (Some(command), true) => {
                Ok(Some(Step::Background { terminal: terminal.to_owned(), command }))
            }
            _ => Err(format!("line {line}: in another terminal goes one command")),
        };
    }
    Ok(Some(Step::Type(Block { line, needs_root, is_repeatable, commands })))
}

fn commands(inside: &[(usize, &str)]) -> Result<Vec<Command>, String> {
    let mut commands: Vec<Command> = Vec::new();
    let mut goes_on = false;
    for (number, line) in inside {
        if goes_on && let Some(last) = commands.last_mut() {
            last.text.push('\n');
            last.text.push_str(line);
        } else if let Some(typed) = line.strip_prefix("$ ") {
            let (text, is_endless) = match typed.split_once(CTRL_C) {
                Some((text, _)) => (text.trim_end(), true),
                None => (typed, false),
            };
            let text = text.to_owned();
            commands.push(Command { line: *number, text, is_endless, printed: Vec::new() });
        } else if let Some(last) = commands.last_mut() {
            last.printed.push((*line).to_owned());
        } else {
            return Err(format!("line {number}: before it stands no command"));
        }
        goes_on = (goes_on || line.starts_with("$ ")) && line.ends_with('\\');
    }
    Ok(commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_commands_and_what_is_only_read_are_told_apart() {
        let text = "# Title\n<!-- cell: --machines 3 -->\n\n<!-- file: a.json -->\n```json\n{}\n\
                    ```\n```console\n$ cell run a.json \\\n    --wait\ndone\n...\n$ cell logs -f # ctrl-c\n\
                    hello\n```\n<!-- not run: no second machine -->\n```console\n$ ssh n2\n```\n\
                    <!-- needs: root -->\n```console\n$ id\n```\n```json\n{}\n```\n";
        let page = Page::parse(text).unwrap();
        assert_eq!(page.cell.as_deref(), Some("--machines 3"));
        let [Step::File { name, text }, Step::Type(block), Step::Read { line: 17, why }, root] =
            &page.steps[..]
        else {
            panic!("{:#?}", page.steps);
        };
        assert_eq!((name.as_str(), text.as_str()), ("a.json", "{}\n"));
        let typed: Vec<&str> = block.commands.iter().map(|c| c.text.as_str()).collect();
        assert_eq!(typed, ["cell run a.json \\\n    --wait", "cell logs -f"]);
        assert_eq!(block.commands[0].printed, ["done", "..."]);
        assert!(block.commands[1].is_endless && !block.commands[0].is_endless);
        assert_eq!(why, "no second machine");
        assert!(matches!(root, Step::Type(Block { needs_root: true, .. })));
    }

    #[test]
    fn what_may_be_typed_again_says_so() {
        let text =
            "<!-- again: an election -->\n```console\n$ true\n```\n```console\n$ true\n```\n";
        let page = Page::parse(text).unwrap();
        let texts = page.steps.iter().map(|step| match step {
            Step::Type(block) => block.is_repeatable,
            other => panic!("{other:?}"),
        });
        assert_eq!(texts.collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn what_goes_on_in_another_terminal_is_ended_there() {
        let text = "<!-- terminal: m1 -->\n```console\n$ cell dev\nserves\n```\nPress ctrl-c.\n\
                    <!-- ctrl-c: m1 -->\n<!-- kill: m2 -->\n";
        let page = Page::parse(text).unwrap();
        let [Step::Background { terminal, command }, interrupted, killed] = &page.steps[..] else {
            panic!("{:#?}", page.steps);
        };
        assert_eq!((terminal.as_str(), command.text.as_str()), ("m1", "cell dev"));
        assert_eq!(command.printed, ["serves"]);
        let end = |line, name: &str, mode| Step::End { line, terminal: name.to_owned(), how: mode };
        assert_eq!(*interrupted, end(7, "m1", EndMode::Interrupted));
        assert_eq!(*killed, end(8, "m2", EndMode::Killed));
    }

    #[test]
    fn what_a_page_must_not_say_is_refused() {
        for (text, why) in [
            ("```console\n$ true\n", "does not end"),
            ("<!-- not run: -->\n```console\n$ true\n```\n", "no reason"),
            ("<!-- again: -->\n```console\n$ true\n```\n", "no reason"),
            ("<!-- needs: luck -->\n```console\n$ true\n```\n", "luck"),
            ("```console\noutput\n```\n", "no command"),
            ("```sh\n$ true\n```\n", "kind console"),
            ("<!-- terminal: a -->\n```console\n$ true\n$ true\n```\n", "one command"),
        ] {
            let error = Page::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
