//! The command line as it was typed, with one word corrected, for `next:` lines that can be pasted
//! into a shell. Rejected: a closure from every verb that reproduces its call, which would have to
//! name each of its options again.

/// The command that was typed, with `replacement` in place of `wrong`; a task suffix after the
/// job's name stays.
pub fn corrected(wrong: &str, replacement: &str) -> String {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    replace_word(&words, wrong, replacement)
}

fn replace_word(args: &[String], wrong: &str, replacement: &str) -> String {
    // Search from the end: a name is the last argument, after the verbs.
    let at = args.iter().rposition(|word| suffix_after(word, wrong).is_some());
    let Some(at) = at else { return format!("the same command with {replacement}") };
    let mut words = args.to_vec();
    words[at] = format!("{replacement}{}", suffix_after(&args[at], wrong).unwrap_or_default());
    format!("cell {}", shell_quoted(&words))
}

/// `/3` of `web/3` for `web`, the empty string of `web` itself.
fn suffix_after<'a>(word: &'a str, wrong: &str) -> Option<&'a str> {
    word.strip_prefix(wrong).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Words quoted so that they can be pasted into a shell.
pub fn shell_quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    let word = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    words.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_is_put_right_and_the_others_stay() {
        let check = |words: &[&str], want: &str| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            assert_eq!(replace_word(&words, "gree", "dev/greeter"), want);
        };
        check(&["--master", "m:1", "stop", "gree"], "cell --master m:1 stop dev/greeter");
        check(&["stop", "gree/2"], "cell stop dev/greeter/2");
        check(&["stop", "gree/[2-5]"], "cell stop 'dev/greeter/[2-5]'");
        check(&["stop", "green", "gree"], "cell stop green dev/greeter");
        check(&["stop", "green"], "the same command with dev/greeter");
    }
}
