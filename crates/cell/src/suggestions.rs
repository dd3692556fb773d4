//! Suggestions for mistyped words ("did you mean"): the known word nearest to an unknown one.

/// The nearest of `words` within a third of the length of `wrong`; of equals the first.
#[must_use]
pub fn nearest<'a>(wrong: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    let (typed, letters) = (plain(wrong), wrong.chars().count());
    let max_distance = (letters / 3).max(1);
    // A larger difference in length cannot be near, and there may be as many words as names in a
    // cell.
    let similar_length = |word: &&str| word.chars().count().abs_diff(letters) <= max_distance;
    let candidates = words
        .into_iter()
        .filter(similar_length)
        .map(|word| (edit_distance(&typed, &plain(word)), word));
    // At least one letter must be right: every word of one letter is near any other.
    candidates
        .filter(|(distance, _)| *distance <= max_distance && *distance < letters)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Number of letters to add, drop, replace or swap with their neighbour.
fn edit_distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    // Nobody mistypes a whole sentence.
    if from.len() > 64 || to.len() > 64 {
        return usize::MAX;
    }
    let mut rows = vec![(0..=to.len()).collect::<Vec<usize>>()];
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            let swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
            if swapped {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_a_stranger_is_not() {
        let words = ["priority", "count", "constraints", "labels", "ram"];
        let check = |wrong: &str, want: Option<&str>| assert_eq!(nearest(wrong, words), want);
        check("prioirty", Some("priority"));
        check("Count", Some("count"));
        check("constraint", Some("constraints"));
        check("rams", Some("ram"));
        check("replicas", None);
        check("", None);
        assert_eq!(nearest("x", ["a", "b"]), None);
        assert_eq!(nearest("x", ["a", "X"]), Some("X"));
    }
}
