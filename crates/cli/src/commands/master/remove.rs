//! `cell master remove`: removes a replica from the cell.

use crate::commands::Success;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::print_prose;
use crate::runtime::block_on;
use cellwright_api::types::Changed;
use clap::Args;
use hyper::Method;

#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Name of the replica, or its number
    name: String,
}

impl RemoveArgs {
    pub fn run(self, connection: &ConnectionArgs) -> Result<Success, Failure> {
        let cell = connection.cell()?;
        block_on(async {
            let members = cell.client.master_status().await?.value.members;
            let found = members
                .iter()
                .find(|member| member.name == self.name || member.id.to_string() == self.name);
            let Some(member) = found else {
                let known: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
                return Err(Failure::Usage {
                    message: format!("no replica {:?}; known: {}", self.name, known.join(", ")),
                    next: "cell master status".into(),
                });
            };
            let path = format!("/v1/masters/{}", member.id);
            let none: Option<&()> = None;
            cell.client.create::<_, Changed>(Method::DELETE, &path, none).await?;
            print_prose(&format!(
                "replica {} is no longer a member; stop it, and never start it on its data again\n",
                member.name
            ))
        })?;
        Ok(Success::Done)
    }
}
