//! The store against a server that speaks S3, is not ours, and checks signatures by Amazon's own
//! library: moto.
//!
//! `scripts/install-tools.sh test` installs it, as a Python library, where this test looks for it.

use super::{S3Config, S3Store};
use crate::store::ObjectStore;
use bytes::Bytes;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A server with a bucket, and a user whose key it checks from then on. Its line says port, key and
/// secret; it ends with its standard input.
const SERVER: &str = r#"
import json, os, sys
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "4"
from moto.iam import access_control
from moto.server import ThreadedMotoServer
import boto3, logging

# Slashes in a query are signed encoded, also by Amazon's library; moto checks them as they are.
plain = access_control.S3IAMRequest.__init__
def encoded(self, *args, **named):
    path, mark, query = named["path"].partition("?")
    plain(self, *args, **{**named, "path": path + mark + query.replace("/", "%2F")})
access_control.S3IAMRequest.__init__ = encoded

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
anybody = dict(region_name="eu-central-1", endpoint_url=f"http://{host}:{port}",
               aws_access_key_id="x", aws_secret_access_key="y")
iam = boto3.client("iam", **anybody)
iam.create_user(UserName="cell")
key = iam.create_access_key(UserName="cell")["AccessKey"]
allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
iam.put_user_policy(UserName="cell", PolicyName="all", PolicyDocument=policy)
place = {"LocationConstraint": "eu-central-1"}
boto3.client("s3", **anybody).create_bucket(Bucket="cells", CreateBucketConfiguration=place)
print(port, key["AccessKeyId"], key["SecretAccessKey"], flush=True)
sys.stdin.read()
"#;

fn python() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let python = cache.or(home)?.join("cellwright/moto/bin/python");
    let probe = Command::new(&python).args(["-c", "import moto.server, boto3"]).output().ok()?;
    probe.status.success().then_some(python)
}

struct Server {
    child: Child,
    keys: PathBuf,
    config: S3Config,
}

impl Server {
    fn start(python: &PathBuf) -> Server {
        let mut command = Command::new(python);
        command.args(["-c", SERVER]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let [port, key, secret] = words[..] else { panic!("the server says {line:?}") };
        let keys = std::env::temp_dir().join(format!("archive-s3-{}", std::process::id()));
        let text = format!("aws_access_key_id = {key}\naws_secret_access_key = {secret}\n");
        fs::write(&keys, text).unwrap();
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
        let config = S3Config {
            endpoint: format!("http://127.0.0.1:{port}"),
            bucket: "cells".into(),
            prefix: "some/where".into(),
            region: "eu-central-1".into(),
            credentials: keys.clone(),
            authority: None,
        };
        Server { child, keys, config }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        drop(fs::remove_file(&self.keys));
    }
}

#[tokio::test]
async fn a_real_server_takes_keeps_lists_and_returns_objects() {
    let Some(python) = python() else {
        assert!(std::env::var_os("CI").is_none(), "no moto: scripts/install-tools.sh test");
        println!("skipped: there is no moto; scripts/install-tools.sh test fetches it");
        return;
    };
    let server = Server::start(&python);
    let store = S3Store::new(server.config.clone(), "aa");
    let other_cell = S3Store::new(server.config.clone(), "bb");
    assert_eq!(store.get("jobs/ann/web/1").await.unwrap(), None);
    let large = Bytes::from((0..3_000_000_u32).map(|at| at as u8).collect::<Vec<_>>());
    for name in ["jobs/ann/web/1", "jobs/ann/web-2/1", "jobs/ann/web/2"] {
        store.put(name, large.clone()).await.unwrap();
    }
    other_cell.put("jobs/ann/web/9", Bytes::new()).await.unwrap();
    assert_eq!(store.get("jobs/ann/web/2").await.unwrap(), Some(large.clone()));
    let listed = async |prefix: &str, after: &str, most: usize| {
        let found = store.list(prefix, after, most).await.unwrap();
        found.into_iter().map(|object| object.name).collect::<Vec<_>>()
    };
    let all = ["jobs/ann/web-2/1", "jobs/ann/web/1", "jobs/ann/web/2"];
    assert_eq!(listed("jobs/", "", 10).await, all);
    assert_eq!(listed("jobs/", all[0], 10).await, all[1..]);
    assert_eq!(listed("jobs/", "", 2).await, all[..2]);
    assert_eq!(listed("jobs/ann/web/", "", 10).await, all[1..]);
    let object = &store.list("jobs/ann/web/", "", 1).await.unwrap()[0];
    assert_eq!(object.bytes, 3_000_000);
    assert!(object.modified.0 > 1_700_000_000_000, "{object:?}");
    store.put("jobs/ann/web/1", Bytes::from_static(b"again")).await.unwrap();
    assert_eq!(store.get("jobs/ann/web/1").await.unwrap().unwrap(), "again");
    store.remove("jobs/ann/web/1").await.unwrap();
    store.remove("jobs/ann/web/1").await.unwrap();
    assert_eq!(listed("jobs/ann/web/", "", 10).await, all[2..]);
    assert_eq!(other_cell.get("jobs/ann/web/9").await.unwrap().unwrap().len(), 0);
    let elsewhere = S3Config { bucket: "nowhere".into(), ..server.config.clone() };
    let error = S3Store::new(elsewhere, "aa").get("jobs/a").await.unwrap_err().to_string();
    assert!(error.contains("NoSuchBucket"), "{error}");
    let text = fs::read_to_string(&server.keys).unwrap();
    fs::write(&server.keys, text.trim_end().to_owned() + "x\n").unwrap();
    let error = store.put("jobs/a", Bytes::new()).await.unwrap_err().to_string();
    assert!(error.contains("403 SignatureDoesNotMatch"), "{error}");
}
