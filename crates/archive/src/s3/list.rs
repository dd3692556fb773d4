//! What a store answers in XML: lists of objects, and errors. Only the elements that are asked for
//! are looked at, by their names; a server that answers nonsense gets no further than an error.

use crate::store::ObjectInfo;
use cellwright_cell::time::Time;

/// Longest part of a message that is passed on.
const MAX_MESSAGE: usize = 300;

/// The objects of a list; `None` for what is no list.
pub(super) fn objects(body: &[u8]) -> Option<Vec<ObjectInfo>> {
    let text = std::str::from_utf8(body).ok()?;
    let list = element(text, "ListBucketResult")?;
    let mut objects = Vec::new();
    let mut rest = list;
    while let Some((entry, after)) = next_element(rest, "Contents") {
        let name = unescape(element(entry, "Key")?);
        let bytes = element(entry, "Size")?.trim().parse().ok()?;
        let modified = element(entry, "LastModified").and_then(parse_time).unwrap_or(Time(0));
        objects.push(ObjectInfo { name, bytes, modified });
        rest = after;
    }
    Some(objects)
}

/// Code and message of an error; what a server says that has neither.
pub(super) fn error_text(body: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(body);
    let part = |name: &str| {
        let found = element(&text, name).map(unescape).unwrap_or_default();
        found.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect::<String>()
    };
    (part("Code"), part("Message"))
}

/// `2013-09-17T18:07:53.000Z`.
fn parse_time(text: &str) -> Option<Time> {
    let number = |at: std::ops::Range<usize>| text.trim().get(at)?.parse::<i32>().ok();
    let small = |at| number(at).and_then(|number| u8::try_from(number).ok());
    let month = time::Month::try_from(small(5..7)?).ok()?;
    let date = time::Date::from_calendar_date(number(0..4)?, month, small(8..10)?).ok()?;
    let at = date.with_hms(small(11..13)?, small(14..16)?, small(17..19)?).ok()?;
    u64::try_from(at.assume_utc().unix_timestamp()).ok().map(|seconds| Time(seconds * 1000))
}

fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    next_element(text, name).map(|(content, _)| content)
}

/// The content of the first element of that name, and what follows it.
fn next_element<'a>(text: &'a str, name: &str) -> Option<(&'a str, &'a str)> {
    let begin = format!("<{name}");
    let end = format!("</{name}>");
    let mut from = 0;
    loop {
        let tag = from + text.get(from..)?.find(&begin)?;
        let after_name = tag + begin.len();
        // The name may be the beginning of another.
        if !matches!(text.as_bytes().get(after_name), Some(b'>' | b' ' | b'\n' | b'\t' | b'/')) {
            from = after_name;
            continue;
        }
        let open = after_name + text.get(after_name..)?.find('>')?;
        if text.get(..open)?.ends_with('/') {
            return Some(("", text.get(open + 1..)?));
        }
        let content = text.get(open + 1..)?;
        let close = content.find(&end)?;
        return Some((&content[..close], &content[close + end.len()..]));
    }
}

fn unescape(text: &str) -> String {
    let pairs = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    pairs.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_names_and_sizes() {
        let text = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3/\"><Name>b</Name>\
            <KeyCount>2</KeyCount><Contents><Key>c/jobs/a&amp;b</Key><LastModified>2013-05-24T00:00:01.000Z</LastModified><Size>12</Size></Contents>\
            <Contents>\n <Key>c/jobs/d</Key><ETag>&quot;x&quot;</ETag>\n<Size>0</Size></Contents>\
            </ListBucketResult>";
        let found = objects(text.as_bytes()).unwrap();
        let expect =
            |name: &str, bytes, at| ObjectInfo { name: name.into(), bytes, modified: Time(at) };
        let at = 1_369_353_601_000;
        assert_eq!(found, [expect("c/jobs/a&b", 12, at), expect("c/jobs/d", 0, 0)]);
        assert_eq!(objects(b"<ListBucketResult></ListBucketResult>"), Some(Vec::new()));
        for bad in [&b"<html></html>"[..], b"", b"\xff", b"<ListBucketResult><Contents></Contents>"]
        {
            assert_eq!(objects(bad), None);
        }
        let no_size = b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>";
        assert_eq!(objects(no_size), None);
    }

    #[test]
    fn an_error_has_a_code_and_a_message() {
        let text = b"<Error><Code>NoSuchBucket</Code><Message>it is not there</Message></Error>";
        assert_eq!(error_text(text), ("NoSuchBucket".into(), "it is not there".into()));
        assert_eq!(error_text(b"gone"), (String::new(), String::new()));
    }
}
