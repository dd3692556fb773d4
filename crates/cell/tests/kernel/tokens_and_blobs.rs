//! Tokens and blobs: random commands about them, and their words in transcripts.

use crate::build;
use crate::draw::Draw;
use crate::generate::user_name;
use crate::options::seconds;
use cellwright_cell::blob::{BlobLimits, MIN_CHARGED_BYTES};
use cellwright_cell::command::Command;
use cellwright_cell::credential::{
    KeyFingerprint, PartKind, ReplicaJoinRequest, SecretHash, TokenKind,
};
use cellwright_cell::name::{JobKey, Name, Token};
use cellwright_cell::time::Span;

/// Mostly none; else a version that is often not the present one.
pub fn expect(draw: &mut Draw) -> Option<u32> {
    draw.one_in(8).then(|| draw.below(4) as u32)
}

pub fn random(draw: &mut Draw) -> Command {
    match draw.below(8) {
        0..6 => token_command(draw),
        _ => {
            let digest = digest(draw);
            if draw.one_in(3) {
                Command::RemoveBlob { digest }
            } else {
                Command::AddBlob {
                    digest,
                    bytes: 1 + draw.below(2),
                    limits: BlobLimits {
                        per_user: MIN_CHARGED_BYTES,
                        in_all: 3 * MIN_CHARGED_BYTES,
                    },
                }
            }
        }
    }
}

fn token_kind(draw: &mut Draw) -> TokenKind {
    match draw.below(6) {
        0 | 4 => TokenKind::JoinAgent { machine: build::name("m1") },
        1 => TokenKind::JoinReplica { name: build::name("r1") },
        2 => TokenKind::JoinScheduler { name: build::name("s1") },
        _ => TokenKind::UserToken { user: build::name(&user_name(draw)) },
    }
}

fn token_command(draw: &mut Draw) -> Command {
    let id = build::name(&format!("t{}", draw.below(6)));
    let secret_hash = SecretHash([draw.below(2) as u8; 32]);
    match draw.below(8) {
        0..3 => {
            let life = [0, 60, 600, 2 * 86_400];
            let life = Span::seconds(*draw.pick(&life).unwrap_or(&60));
            let (kind, valid_for) = (token_kind(draw), life);
            let parent = draw.one_in(2).then(|| build::name(&format!("t{}", draw.below(6))));
            Command::AddToken { id, kind, secret_hash, valid_for, parent }
        }
        3 => Command::RevokeToken { id },
        6 => {
            let part = *draw.pick(&PartKind::ALL).unwrap_or(&PartKind::Agent);
            let name = *draw.pick(&["m1", "r1", "s1"]).unwrap_or(&"m1");
            Command::RevokePart { part, name: build::name(name) }
        }
        7 => {
            let key = KeyFingerprint([draw.below(2) as u8; 16]);
            Command::ConfirmReplica { name: build::name("r1"), key }
        }
        _ => {
            let key = KeyFingerprint([draw.below(2) as u8; 16]);
            let newcomer =
                draw.one_in(3).then(|| ReplicaJoinRequest { key, address: "10.0.0.2".into() });
            Command::UseJoinToken { id, secret_hash, newcomer }
        }
    }
}

fn digest(draw: &mut Draw) -> Token {
    if draw.one_in(8) {
        build::token("0a1b")
    } else {
        build::token(&["a", "b"][draw.below(2) as usize].repeat(64))
    }
}

/// Parses commands of transcripts.
pub fn parse_command(verb: &str, rest: &[&str]) -> Result<Option<Command>, String> {
    let token = |id: &str, secret: &str| -> Result<(Name, SecretHash), String> {
        let byte = secret.parse().map_err(|_| "a secret is a number up to 255".to_owned())?;
        Ok((build::name(id), SecretHash([byte; 32])))
    };
    Ok(Some(match (verb, rest) {
        ("token", [id, secret, kind, name, lifetime]) => {
            let (id, secret_hash) = token(id, secret)?;
            let name = build::name(name);
            let kind = match *kind {
                "user" => TokenKind::UserToken { user: name },
                "agent" => TokenKind::JoinAgent { machine: name },
                "replica" => TokenKind::JoinReplica { name },
                "scheduler" => TokenKind::JoinScheduler { name },
                other => return Err(format!("there is no kind of token {other:?}")),
            };
            let life = lifetime.strip_prefix("for=").ok_or("for=SECONDSs")?;
            let (valid_for, parent) = (seconds(life)?, None);
            Command::AddToken { id, kind, secret_hash, valid_for, parent }
        }
        ("revoke_part", [part, name]) => {
            let kind = PartKind::ALL.into_iter().find(|kind| kind.to_string() == *part);
            let part = kind.ok_or_else(|| format!("there is no kind of part {part:?}"))?;
            Command::RevokePart { part, name: build::name(name) }
        }
        ("revoke", [id]) => Command::RevokeToken { id: build::name(id) },
        ("join", [id, secret]) => {
            let (id, secret_hash) = token(id, secret)?;
            Command::UseJoinToken { id, secret_hash, newcomer: None }
        }
        ("ask-in", [id, secret, key, address]) => {
            let (id, secret_hash) = token(id, secret)?;
            let key = KeyFingerprint([key.parse().map_err(|_| "a key is a number up to 255")?; 16]);
            let newcomer = Some(ReplicaJoinRequest { key, address: (*address).to_owned() });
            Command::UseJoinToken { id, secret_hash, newcomer }
        }
        ("confirm", [replica, key]) => {
            let key = KeyFingerprint([key.parse().map_err(|_| "a key is a number up to 255")?; 16]);
            Command::ConfirmReplica { name: build::name(replica), key }
        }
        ("blob", [digit, bytes]) => {
            let bytes = bytes.parse().map_err(|_| "a number of bytes".to_owned())?;
            let digest = build::token(&digit.repeat(64));
            Command::AddBlob { digest, bytes, limits: Default::default() }
        }
        ("remove-blob", [digit]) => Command::RemoveBlob { digest: build::token(&digit.repeat(64)) },
        _ => return Ok(None),
    }))
}

pub fn parse_key(word: &str) -> Result<JobKey, String> {
    let (user, name) = word.split_once('/').ok_or("USER/NAME")?;
    Ok(build::job_key(user, name))
}
