//! What stands in a field, and what may stand there.

use crate::admit::{MIN_CONTAINER_RAM, MIN_RAM};
use crate::constraint::{self, ConstraintFlaw, MAX_PATTERN, MAX_WEIGHT};
use crate::device::WHOLE_DEVICE;
use crate::isolation::TargetFlaw;
use crate::reason::{Allowed, FieldName, Given, Listed, Quality};
use crate::resource::MAX_QUANTITY;
use crate::spec::MAX_TASKS;
use std::fmt;

impl fmt::Display for FieldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        let quality = match self.quality {
            None => return f.write_str(path),
            Some(Quality::Total) => return write!(f, "total of all tasks' {path}"),
            Some(Quality::Bytes) => "bytes",
            Some(Quality::ProgramBytes) => "bytes of command and env",
            Some(Quality::Name) => "name",
            Some(Quality::Path) => "path",
            Some(Quality::Code) => "code",
            Some(Quality::TaskIndex) => "task index",
        };
        write!(f, "{path} ({quality})")
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Given::Text(text) => f.write_str(text),
            Given::Entries(count) => write!(f, "{count} entries"),
            Given::Length(span) => write!(f, "{} ms", span.0),
            Given::Something => f.write_str("given"),
            Given::Another => f.write_str("another one"),
            Given::Nothing => f.write_str("none"),
            Given::Added { by, held: None } => write!(f, "add {by} to an unbounded capacity"),
            Given::Added { by, held: Some(held) } => write!(f, "add {by} to a capacity of {held}"),
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Allowed as A;
        match self {
            A::AtMost(most) => write!(f, "at most {most}"),
            A::AtLeast(least) => write!(f, "{least} or more"),
            A::Range { least, most } => write!(f, "{least} to {most}"),
            A::LengthAtMost(most) => write!(f, "at most {} ms", most.0),
            A::LengthAtLeast(least) => write!(f, "{} ms or more", least.0),
            A::LengthRange { least, most } => write!(f, "{} to {} ms", least.0, most.0),
            A::Constraint(flaw) => flaw.fmt(f),
            A::Target(flaw) => flaw.fmt(f),
            A::AtMostBackoffMax(most) => write!(f, "at most backoff_max, {} ms", most.0),
            A::OneOfPackages(names) => {
                let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
                write!(f, "one of task.packages: {}", names.join(", "))
            }
            A::PortOfTask { last } => write!(f, "0 to {last}, counted among the task's ports"),
            A::PriorityOfInside { least, job } => {
                write!(f, "{} or more, the priority of job {job} inside it", least.0)
            }
            A::PriorityOfSet { most, set } => {
                write!(f, "at most {}, the priority of alloc set {set}", most.0)
            }
            A::CountWithOverrides { least } => {
                let last = least.saturating_sub(1);
                write!(f, "{least} to {MAX_TASKS}: task {last} has overrides of its own")
            }
            A::AsInVersion(version) => {
                write!(f, "as in version {version}; submit a new job instead")
            }
            A::CronName { most } => {
                write!(f, "at most {most} characters, so that runs have names")
            }
            A::AsCronName(name) => write!(f, "{name}, as name"),
            A::UpToNow(now) => write!(f, "at most {}, now", now.0),
            A::MomentOf(schedule) => write!(f, "a moment of {schedule:?}, in ms"),
            A::AfterQuotaFrom(from) => write!(f, "after quota.from, {}", from.0),
            A::JoinTokenLifetime { most } => {
                write!(f, "1 to {} ms, {} min", most.0, most.0 / 60_000)
            }
            A::FingerprintOfReplica(name) => {
                write!(f, "what replica {name} itself shows where it joins")
            }
            A::PortsGranted { fixed, more, range } => write!(
                f,
                "{fixed:?}, then {more} different ports of {} to {}",
                range.first, range.last
            ),
            A::EachOnce(listed) => write!(f, "each {} once", listed_name(*listed)),
            A::WholeDevices => write!(f, "{WHOLE_DEVICE} when more than one device is asked for"),
            A::HttpPath => write!(f, "a path from / on, ASCII, at most {MAX_PATTERN} bytes"),
            A::CapacitySum => write!(f, "a sum of 0 to {MAX_QUANTITY}"),
            A::RamToBegin => {
                let least = |bytes: u64| format!("{bytes} ({} MiB)", bytes >> 20);
                let (plain, contained) = (least(MIN_RAM), least(MIN_CONTAINER_RAM));
                write!(f, "{plain} or more, and in a container {contained} or more")
            }
            A::VersionKept(versions) => {
                let kept: Vec<String> = versions.iter().map(ToString::to_string).collect();
                write!(f, "a version that is kept: {}", kept.join(", "))
            }
            A::WholeCoresOfMachines { most } => {
                write!(f, "at most {most}: no machine gives away more, and each keeps one core")
            }
            plain => f.write_str(plain_words(plain)),
        }
    }
}

/// Of what has no fields.
fn plain_words(allowed: &Allowed) -> &'static str {
    use Allowed as A;
    match allowed {
        A::NamesInOrder => "names in order, each once",
        A::ResourcesInOrder => "each resource once, in the order cpu, ram, disk, disk-rate",
        A::NoneBelowProduction => "none below the production band (priority 200 or more)",
        A::NoneWithoutGang => "none without gang: true",
        A::AnotherDeviceKind => {
            "any other kind; this one is of devices that are not there any more"
        }
        A::FailureCode => "1 to 255; 0 is success",
        A::NoSaver => "none: only what an alloc left has a saver",
        A::SaverInsideSet => "a job that runs inside this alloc set",
        A::NoProgram => "none: an alloc runs no program",
        A::NoNesting => "none: alloc sets do not nest",
        A::NoPortsOfAlloc => "none: the tasks inside get ports from the machine",
        A::SpreadOfAllocs => {
            "none, because task i runs in alloc i: spread the alloc set, or say alloc_pairing any"
        }
        A::WholeCoresOutsideSets => "none: cores are reserved by tasks outside alloc sets",
        A::LatencySensitiveOnly => "none, unless the appclass is latency_sensitive",
        A::NotOfDaemons => "none: a daemon has one task, alike, on each machine",
        A::NoDaemonRuns => "tasks or alloc_set: a daemon has no end, so it has no next run",
        A::NotScaled => "none: gangs, alloc sets and daemons keep their size",
        A::NoneWithoutLimit => "none, because the task has no limit of it",
        A::MetricName => "letters, digits, `_`, of names also `:`, no digit first",
        A::MetricSource => "http or file, where tasks tell the numbers of target.metrics",
        A::NoneInsideSet => "none inside an alloc set: ask for it in the alloc set",
        A::PackageDigest => "64 digits 0-9 and a-f, as `cell package ls -o json` shows them",
        A::Program => "a program and its arguments, such as [\"sleep\", \"60\"]",
        A::ProbeProgram => "a program",
        A::NoZeroBytes => "no zero bytes",
        A::VariableName => "not empty, without = and zero bytes",
        A::RelativePath => "relative, as conf/app.toml, without ..",
        A::AbsolutePath => "absolute, as /srv/data, without ..",
        A::CoresOfLimit => "no more than task.limits.cpu has",
        A::HostNetwork => "host for a task that asks for ports",
        A::SecretName => "letters, digits, `-`, `_` and `.`, no dot first",
        A::SecretItself => "the value itself, which is never shown",
        A::NoPort => "none: the task asks for no port",
        A::AnAllocSet => "an alloc set; this is a job of tasks",
        A::AnotherJob => "another job",
        A::NoNamespace => "names without a namespace; those with one are ephemeral",
        A::AddressOfOneMachine => "an address of one machine",
        A::PortsOfMachine => "1 to 65535, the first not above the last",
        A::TokenKind => "user_token, join_agent, join_replica, join_scheduler",
        A::NamespaceWithoutSlash => "a token without /",
        A::ContentDigest => "64 digits 0-9 and a-f: the content's SHA-256",
        A::ChangeOfUnbounded => "remove it first, or leave it unbounded",
        A::DevicesGranted => {
            "in the order of the requests, for each as many different devices of its kind and \
             model as it counts, with its shares, free on the machine"
        }
        // They have sentences above.
        A::AtMost(_) | A::AtLeast(_) | A::Range { .. } | A::LengthAtMost(_) => "",
        A::LengthAtLeast(_) | A::LengthRange { .. } | A::Constraint(_) | A::Target(_) => "",
        A::AtMostBackoffMax(_) | A::OneOfPackages(_) | A::PortOfTask { .. } => "",
        A::PriorityOfInside { .. } | A::PriorityOfSet { .. } | A::CountWithOverrides { .. } => "",
        A::AsInVersion(_) | A::CronName { .. } | A::AsCronName(_) | A::UpToNow(_) => "",
        A::MomentOf(_)
        | A::AfterQuotaFrom(_)
        | A::JoinTokenLifetime { .. }
        | A::FingerprintOfReplica(_) => "",
        A::PortsGranted { .. } | A::EachOnce(_) | A::WholeDevices | A::HttpPath => "",
        A::CapacitySum | A::RamToBegin | A::VersionKept(_) | A::WholeCoresOfMachines { .. } => "",
    }
}

fn listed_name(listed: Listed) -> &'static str {
    match listed {
        Listed::Job => "job",
        Listed::Port => "port",
        Listed::Model => "model",
        Listed::Package => "package",
        Listed::Domain => "domain",
        Listed::Metric => "series",
    }
}

impl fmt::Display for ConstraintFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConstraintFlaw::EmptyList => {
                f.write_str("an empty list matches nothing; allowed: one value or more")
            }
            ConstraintFlaw::Version(version) => {
                write!(f, "version {version:?} is not valid; allowed: dotted parts such as 6.10.1")
            }
            ConstraintFlaw::Weight(weight) => {
                write!(f, "weight {weight} is out of range; allowed: 1 to {MAX_WEIGHT}")
            }
            ConstraintFlaw::LongPattern { bytes } => {
                write!(f, "pattern of {bytes} bytes; allowed: at most {MAX_PATTERN}")
            }
            // What is wrong with it is found again: no row keeps the sentences of a library.
            ConstraintFlaw::Pattern(pattern) => match constraint::pattern_error(pattern) {
                Some(error) => write!(f, "pattern {pattern:?} is not valid: {error}"),
                None => write!(f, "pattern {pattern:?} is not valid"),
            },
        }
    }
}

impl fmt::Display for TargetFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TargetFlaw::Twice => "each target once",
            TargetFlaw::Kernel => "a path outside /proc, /sys and /dev",
            TargetFlaw::Given => {
                "a path outside /packages, /secrets, /identity, /ports and /devices"
            }
            TargetFlaw::Filled => {
                "any path but /work, /alloc and /etc; one inside them is fine, save what programs \
                 look up in /etc"
            }
            TargetFlaw::Names => {
                "any path but /etc/hosts and /etc/resolv.conf on the machine's network"
            }
            TargetFlaw::LookedUp => {
                "a path outside what programs look up in /etc (/etc/passwd, /etc/ssl, /etc/pki…), \
                 unless a package is the task's root"
            }
            TargetFlaw::Programs => {
                "a path outside the machine's programs (/usr, /bin, /sbin, /lib…), unless a \
                 package is the task's root"
            }
        })
    }
}
