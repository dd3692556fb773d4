//! Whether a program printed what a page says it prints: words for words, digits for digits.

/// Lines with what differs from run to run taken out.
fn normalize(line: &str) -> String {
    let mut plain = String::new();
    let mut in_number = false;
    for word in line.split_whitespace() {
        if !plain.is_empty() {
            plain.push(' ');
        }
        // A digest or a token, which has digits at random places.
        let is_hash = word.len() >= 12 && word.chars().all(|c| c.is_ascii_hexdigit());
        if is_hash {
            plain.push('#');
            continue;
        }
        for character in word.chars() {
            let is_digit = character.is_ascii_digit();
            // `1.5` and `1,500` are numbers as `15` is.
            let is_inside = in_number && matches!(character, '.' | ',');
            match (is_digit, is_inside) {
                (true, _) if in_number => {}
                (true, _) => plain.push('#'),
                (false, true) => {}
                (false, false) => plain.push(character),
            }
            in_number = is_digit || is_inside;
        }
        in_number = false;
    }
    plain
}

/// Whether a line is as a page says, where `…` stands for anything.
fn line_matches(expected: &str, found: &str) -> bool {
    let found = normalize(found);
    let parts: Vec<String> = expected.split('…').map(normalize).collect();
    let [first, .., last] = &parts[..] else { return parts[0] == found };
    let Some(mut rest) = found.strip_prefix(first.trim_end()) else { return false };
    for part in &parts[1..parts.len() - 1] {
        match rest.split_once(part.trim()) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last.trim_start())
}

/// Whether a program printed what a page says it prints.
#[must_use]
pub fn matches(expected: &[String], printed: &str) -> bool {
    let is_blank = |line: &&str| line.trim().is_empty();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    let expected: Vec<&str> = expected.into_iter().filter(|line| !is_blank(line)).collect();
    let found: Vec<&str> = printed.lines().filter(|line| !is_blank(line)).collect();
    all_match(&expected, &found)
}

fn all_match(expected: &[&str], found: &[&str]) -> bool {
    match expected.split_first() {
        None => found.is_empty(),
        Some((&"...", rest)) => (0..=found.len()).any(|from| all_match(rest, &found[from..])),
        Some((line, rest)) => found
            .split_first()
            .is_some_and(|(one, more)| line_matches(line, one) && all_match(rest, more)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expected: &str, printed: &str) -> bool {
        let expected: Vec<String> = expected.lines().map(str::to_owned).collect();
        matches(&expected, printed)
    }

    #[test]
    fn digits_stand_for_digits_and_words_for_themselves() {
        assert!(check("log at 12, 3.5 MiB", "log   at 7, 1,024 MiB\n\n"));
        assert!(check("at 2026-11-15 12:44:16Z", "at 2027-01-02 03:04:05Z"));
        assert!(check("digest 4c774f521dbc0000 kept", "digest ab12cd34ef56ab12cd34 kept"));
        assert!(!check("3 running", "3 pending"));
        assert!(!check("3 running", "running"));
        assert!(!check("a", "a\nb"));
        assert!(!check("a\nb", "a"));
    }

    #[test]
    fn dots_stand_for_lines_and_for_parts_of_them() {
        assert!(check("...\nlast", "first\nsecond\nlast"));
        assert!(check("first\n...", "first"));
        assert!(check("a … of … end", "a thing of beauty has an end"));
        assert!(!check("a … of … end", "a thing of beauty"));
        assert!(!check("...\nlast", "first\nlast\nmore"));
    }
}
