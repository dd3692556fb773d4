//! TLS to servers that are no part of the cell: registries, and stores of archives. They are known
//! by the authorities this machine trusts, and by those in a file that was named.
//!
//! The machine's bundle is read from where distributions keep it. Rejected: a list compiled in. It
//! would age with the program, and the authority a company adds to its machines would be missing.

use crate::tls::{certificates, provider};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names another bundle, as for other programs.
const ENV_VAR: &str = "SSL_CERT_FILE";
/// Debian and Alpine, Fedora, SUSE, and the rest.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// TLS 1.3, or 1.2 where a server has no other; between the parts of a cell it is 1.3 alone.
/// `extra`: a file with more authorities, and what it is called where it was named.
///
/// # Errors
/// When a file that was named cannot be read, or is none of certificates.
pub fn client_config(extra: Option<(&str, &Path)>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    let named = std::env::var_os(ENV_VAR).map(PathBuf::from);
    roots.add_parsable_certificates(system_certificates(named.as_deref())?);
    if let Some((option, path)) = extra {
        let bad = |why: &dyn std::fmt::Display| format!("{option} {}: {why}", path.display());
        let text = fs::read_to_string(path).map_err(|why| bad(&why))?;
        for certificate in certificates("certificate", &text).map_err(|why| bad(&why))? {
            roots.add(certificate).map_err(|why| bad(&why))?;
        }
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|why| why.to_string())?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The certificates of the named bundle, or else of the machine's. It may contain some that this
/// library cannot read; the others still count.
fn system_certificates(named: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, String> {
    let list = match named {
        Some(path) => {
            fs::read(path).map_err(|why| format!("{ENV_VAR} {}: {why}", path.display()))?
        }
        None => SYSTEM_BUNDLES.iter().find_map(|list| fs::read(list).ok()).unwrap_or_default(),
    };
    Ok(CertificateDer::pem_slice_iter(&list).flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_good_certificate_of_a_list_counts_and_a_missing_list_is_named() {
        let folder = std::env::temp_dir().join(format!("bundles-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let one = || rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        let (first, second) = (one().cert.pem(), one().cert.pem());
        let bad = "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n";
        let list = [first.as_bytes(), b"# Autorit\xe9\n", bad.as_bytes(), second.as_bytes()];
        fs::write(folder.join("list.pem"), list.concat()).unwrap();
        assert_eq!(system_certificates(Some(&folder.join("list.pem"))).unwrap().len(), 2);
        let error = system_certificates(Some(&folder.join("none.pem"))).unwrap_err();
        assert!(error.contains("SSL_CERT_FILE") && error.contains("none.pem"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
