//! What the cell is given to do: machines, a user with quota, and jobs.

use cellwright_api::client::Client;
use cellwright_api::types::{AddUser, BatchItem, ItemVerdict, SubmitJob};
use cellwright_cell::admit::MAX_TOTAL;
use cellwright_cell::machine::MachineSpec;
use cellwright_cell::name::{JobKey, Name};
use cellwright_cell::priority::Band;
use cellwright_cell::quota::Quota;
use cellwright_cell::resource::Resources;
use cellwright_cell::spec::JobSpec;
use cellwright_cell::time::Time;
use std::io;

/// Whose jobs they are.
pub const OWNER: &str = "bench";

pub fn name(text: &str) -> io::Result<Name> {
    Name::new(text).map_err(io::Error::other)
}

pub fn key(job: &str) -> io::Result<JobKey> {
    Ok(JobKey { user: name(OWNER)?, job: name(job)? })
}

/// 64 cores and 256 GiB: room for 128 tasks of half a core.
pub fn machine(number: u32) -> io::Result<MachineSpec> {
    let capacity = Resources { cpu: 64_000, ram: 256 << 30, disk: 1 << 40, disk_rate: 1 << 30 };
    Ok(MachineSpec {
        name: name(&format!("virtual-{number}"))?,
        capacity,
        attributes: Default::default(),
        labels: Default::default(),
        rack: None,
        power: None,
        devices: Vec::new(),
        named: Vec::new(),
        ports: Default::default(),
        address: None,
    })
}

/// The body of a request that submits one job of `count` tasks: half a core, a quarter gibibyte.
pub fn job_json(job: &str, count: u32) -> String {
    format!(
        "{{\"owner\":\"{OWNER}\",\"spec\":{{\"name\":\"{job}\",\"count\":{count},\"priority\":100,\
         \"task\":{{\"limits\":{{\"cpu\":500,\"ram\":268435456}},\
         \"command\":[\"sleep\",\"infinity\"]}}}}}}"
    )
}

pub fn job(job: &str, count: u32) -> io::Result<JobSpec> {
    let body: SubmitJob = serde_json::from_str(&job_json(job, count)).map_err(io::Error::other)?;
    Ok(body.spec)
}

/// The user, with more quota than is needed.
pub async fn add_user(client: &Client) -> io::Result<()> {
    let amount =
        Resources { cpu: MAX_TOTAL, ram: MAX_TOTAL, disk: MAX_TOTAL, disk_rate: MAX_TOTAL };
    let quota = Quota { amount, from: Time(0), until: Time::NEVER };
    let user = name(OWNER)?;
    let items = vec![
        BatchItem::AddUser(AddUser { name: user.clone() }),
        BatchItem::SetQuota { user, band: Band::Batch, quota: Some(quota), expect: None },
    ];
    batch(client, items).await
}

/// All of these, in one request; none may be refused.
pub async fn batch(client: &Client, items: Vec<BatchItem>) -> io::Result<()> {
    let answer = client.batch(items).await.map_err(io::Error::other)?;
    for verdict in answer.value.verdicts {
        if let ItemVerdict::Rejected(error) = verdict {
            return Err(io::Error::other(error.to_string()));
        }
    }
    Ok(())
}
