//! A DNS client of one question, by hand: what is on the wire is judged by eyes that are not those
//! of the library the server is made of.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

/// How long an answer may take; the caller asks again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const HEADER: usize = 12;
const INTERNET: u16 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordType {
    A = 1,
    Txt = 16,
    Srv = 33,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordData {
    Address(Ipv4Addr),
    Text(Vec<String>),
    Service { port: u16, target: String },
}

/// The records of that name and kind, sorted, with the longest time they may be kept; none when the
/// server says that there are none.
///
/// # Errors
/// When there is no answer, or none that can be read.
pub fn ask(server: &str, name: &str, kind: RecordType) -> io::Result<(Vec<RecordData>, u32)> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    socket.connect(server)?;
    socket.send(&question(name, kind))?;
    let mut answer = [0; 4096];
    let length = socket.recv(&mut answer)?;
    let mut reader = Reader { all: &answer[..length], at: 0 };
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "an answer that cannot be read");
    reader.answer(kind).ok_or_else(broken)
}

fn question(name: &str, kind: RecordType) -> Vec<u8> {
    // Number 7, a plain query, one question.
    let mut packet = vec![0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.trim_end_matches('.').split('.') {
        packet.push(u8::try_from(label.len()).expect("a short label"));
        packet.extend(label.as_bytes());
    }
    packet.push(0);
    packet.extend((kind as u16).to_be_bytes());
    packet.extend(INTERNET.to_be_bytes());
    packet
}

struct Reader<'a> {
    all: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn answer(&mut self, record_type: RecordType) -> Option<(Vec<RecordData>, u32)> {
        let [questions, answers] = [4, 6].map(|at| word(self.all, at));
        self.at = HEADER;
        for _ in 0..questions? {
            self.name()?;
            self.at += 4;
        }
        let (mut records, mut longest) = (Vec::new(), 0);
        for _ in 0..answers? {
            self.name()?;
            let kind = self.word()?;
            self.word()?;
            let [high, low] = [self.word()?, self.word()?].map(u32::from);
            longest = longest.max(high << 16 | low);
            let end = usize::from(self.word()?) + self.at;
            if kind == record_type as u16 {
                records.push(self.data(record_type, end)?);
            }
            self.at = end;
        }
        records.sort();
        Some((records, longest))
    }

    fn data(&mut self, kind: RecordType, end: usize) -> Option<RecordData> {
        if kind == RecordType::A {
            let bytes: [u8; 4] = self.all.get(self.at..self.at + 4)?.try_into().ok()?;
            return Some(RecordData::Address(bytes.into()));
        }
        if kind == RecordType::Txt {
            let mut words = Vec::new();
            while self.at < end {
                let from = self.at + 1;
                self.at = from + usize::from(*self.all.get(self.at)?);
                words.push(String::from_utf8(self.all.get(from..self.at)?.to_vec()).ok()?);
            }
            return Some(RecordData::Text(words));
        }
        // Priority and weight.
        self.at += 4;
        let port = self.word()?;
        Some(RecordData::Service { port, target: self.name()? })
    }

    fn word(&mut self) -> Option<u16> {
        self.at += 2;
        word(self.all, self.at - 2)
    }

    /// A name, which may go on elsewhere in the packet.
    fn name(&mut self) -> Option<String> {
        let (mut labels, mut at, mut back) = (Vec::new(), self.at, None);
        // More labels than a name can have: pointers in a circle.
        for _ in 0..128 {
            let length = usize::from(*self.all.get(at)?);
            match length {
                0 => {
                    self.at = back.unwrap_or(at + 1);
                    return Some(labels.join("."));
                }
                1..64 => {
                    let label = self.all.get(at + 1..at + 1 + length)?;
                    labels.push(String::from_utf8_lossy(label).into_owned());
                    at += 1 + length;
                }
                _ => {
                    back.get_or_insert(at + 2);
                    at = usize::from(word(self.all, at)? & 0x3fff);
                }
            }
        }
        None
    }
}

fn word(all: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(all.get(at..at + 2)?.try_into().ok()?))
}
