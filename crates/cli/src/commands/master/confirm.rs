//! `cell master confirm`: allows a waiting replica to get the authority's key.

use crate::commands::Success;
use crate::commands::parse::name;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::print_prose;
use crate::runtime::block_on;
use cellwright_api::client::{ChangeOptions, Client};
use cellwright_api::types::{Changed, ConfirmMaster};
use cellwright_cell::name::Name;
use clap::Args;
use hyper::Method;

#[derive(Debug, Args)]
pub struct ConfirmArgs {
    /// Name of the replica that waits
    #[arg(value_name = "NAME", value_parser = name)]
    name: Name,

    /// What it shows itself where it joins; not a copy of what `cell master status` shows
    #[arg(value_name = "FINGERPRINT")]
    fingerprint: String,
}

impl ConfirmArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        let ConfirmArgs { name, fingerprint } = self;
        block_on(confirm(&cell.client, ConfirmMaster { name: name.clone(), fingerprint }))?;
        print_prose(&format!(
            "replica {name} may have the authority's key; it goes on by itself\n\
             next, there: cell master start\n"
        ))?;
        Ok(Success::Done)
    }
}

pub async fn confirm(client: &Client, body: ConfirmMaster) -> Result<(), Failure> {
    let change = ChangeOptions::default();
    let path = "/v1/masters/confirm";
    client.change::<_, Changed>(Method::POST, path, Some(&body), &change).await?;
    Ok(())
}
