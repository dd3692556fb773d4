//! Service discovery without DNS: Prometheus' HTTP service discovery.
//!
//! <https://prometheus.io/docs/prometheus/latest/http_sd/>: a list of groups, each with targets and
//! labels. One group for each port of each task, so that relabelling can choose by port number.

use crate::directory::Directory;
use crate::zone::Zone;
use cellwright_cell::label::Labels;
use cellwright_cell::state::State;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The prefix of labels that Prometheus shows to relabelling only.
const META_LABEL_PREFIX: &str = "__meta_cellwright_";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TargetGroup {
    pub targets: Vec<String>,
    pub labels: BTreeMap<String, String>,
}

/// Every port of every healthy task of the jobs with matching labels.
#[must_use]
pub fn prometheus_targets(
    directory: &Directory,
    state: &State,
    zone: &Zone,
    wanted: impl Fn(&Labels) -> bool,
) -> Vec<TargetGroup> {
    let mut groups = Vec::new();
    for (key, tasks) in directory.jobs() {
        let job = state.job_named(key).and_then(|id| state.jobs().get(id));
        let Some(spec) = job.map(|job| job.spec()).filter(|spec| wanted(&spec.labels)) else {
            continue;
        };
        for (index, endpoint) in tasks {
            let machine = state.machines().get(endpoint.machine);
            let mut labels: BTreeMap<String, String> = [
                ("cell", zone.cell().to_owned()),
                ("user", key.user.to_string()),
                ("job", key.job.to_string()),
                ("task", index.to_string()),
                ("name", zone.task(key, *index)),
                ("machine", machine.map(|row| row.spec.name.to_string()).unwrap_or_default()),
            ]
            .map(|(name, value)| (format!("{META_LABEL_PREFIX}{name}"), value))
            .into();
            for (label, value) in &spec.labels {
                labels.insert(
                    format!("{META_LABEL_PREFIX}label_{}", prometheus_label(label.as_str())),
                    value.clone(),
                );
            }
            for (number, port) in endpoint.ports.iter().enumerate() {
                let mut labels = labels.clone();
                labels.insert(format!("{META_LABEL_PREFIX}port"), number.to_string());
                let targets = vec![SocketAddr::new(endpoint.address, *port).to_string()];
                groups.push(TargetGroup { targets, labels });
            }
        }
    }
    groups
}

/// Prometheus allows letters, digits and `_` in label names.
fn prometheus_label(label: &str) -> String {
    label.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cell, job, key, machine, name};
    use cellwright_cell::command::Command;
    use serde_json::json;

    #[test]
    fn every_port_of_a_wanted_job_is_a_target() {
        let mut cell = Cell::with_machines(2);
        let wide = machine("m1", Some("fd00::2".parse().unwrap()));
        cell.ok(Command::UpdateMachine { spec: wide, expect: None });
        cell.submit(job("web", 2, 2));
        cell.run("web", 0, 0);
        cell.run("web", 1, 1);
        let zone = Zone::new(&name("main"), "cell.internal").unwrap();
        let all = prometheus_targets(&cell.directory, &cell.state, &zone, |_| true);
        let ports: Vec<u16> = cell.directory.job(&key("web")).unwrap()[&1].ports.clone();
        assert_eq!(all.len(), 4);
        let expected = json!({
            "targets": [format!("[fd00::2]:{}", ports[1])],
            "labels": {
                "__meta_cellwright_cell": "main", "__meta_cellwright_user": "ada",
                "__meta_cellwright_job": "web", "__meta_cellwright_task": "1",
                "__meta_cellwright_name": "1.web.ada.main.cell.internal",
                "__meta_cellwright_machine": "m1", "__meta_cellwright_port": "1",
                "__meta_cellwright_label_tier": "front-end",
            }
        });
        assert_eq!(serde_json::to_value(&all[3]).unwrap(), expected);
        let none =
            prometheus_targets(&cell.directory, &cell.state, &zone, |labels| labels.is_empty());
        assert_eq!(none, []);
    }
}
