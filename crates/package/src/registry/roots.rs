//! Whom we believe that a registry is who it says: the authorities this machine trusts, and those
//! in a file that was named.
//!
//! The machine's list is read from where distributions keep it. Rejected: a list compiled in. It
//! would age with the program, and the authority a company adds to its machines would be missing.

use super::error::Why;
use cellwright_api::tls::{certificates, provider};
use rustls::{ClientConfig, RootCertStore};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names another list, as for other programs.
const VARIABLE: &str = "SSL_CERT_FILE";
/// Debian and Alpine, Fedora, SUSE, and the rest.
const LISTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// TLS 1.3 alone, as between the parts of a cell.
pub(super) fn config(also: Option<&Path>) -> Result<Arc<ClientConfig>, Why> {
    let mut roots = RootCertStore::empty();
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let lists = named.map_or_else(|| LISTS.map(PathBuf::from).to_vec(), |list| vec![list]);
    let list = lists.iter().find_map(|list| fs::read_to_string(list).ok()).unwrap_or_default();
    // The machine's list may hold what this library cannot read; the others in it still count.
    roots.add_parsable_certificates(certificates("authorities", &list).unwrap_or_default());
    if let Some(path) = also {
        let bad = |why: String| Why::Untrusted(format!("--ca {}: {why}", path.display()));
        let text = fs::read_to_string(path).map_err(|why| bad(why.to_string()))?;
        for certificate in certificates("certificate", &text).map_err(|why| bad(why.to_string()))? {
            roots.add(certificate).map_err(|why| bad(why.to_string()))?;
        }
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|why| Why::Untrusted(why.to_string()))?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
