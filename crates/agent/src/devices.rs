//! The machine's devices: those that are detected in `/proc` and `/sys` without a vendor's library,
//! and those that its operator configures by hand.
//!
//! GPUs are detected: NVIDIA's driver lists its own below `/proc`, every other driver shows a
//! compute node below `/sys/class/drm`. Nodes that open more of the machine than one card,
//! `/dev/kvm` for one, have to be configured. A device's position in the list is its identity in
//! the cell: detected ones come by their bus address, then the operator's in the order of the
//! configuration, and a device that was there before keeps its position
//! ([`crate::device_positions`]).

use crate::config::{Config, ConfigError, DeviceConfig};
use crate::driver::DriverError;
use cellwright_cell::device::{Device, DeviceGrant, REMOVED_DEVICE};
use cellwright_cell::name::Token;
use cellwright_isolate::container::DeviceNode;
use std::fs;
use std::path::{Path, PathBuf};

/// Nodes that go with every NVIDIA GPU, as far as they are there: some appear at their first use.
const NVIDIA_SHARED_NODES: [&str; 4] =
    ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"];
/// The PCI vendor of AMD, and the node that its GPUs compute through.
const AMD: (&str, &str) = ("0x1002", "kfd");

/// A device, and how a task gets access to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    pub device: Device,
    /// Its ID for its users.
    pub id: Token,
    /// Its own node first, then those that go with it.
    pub nodes: Vec<PathBuf>,
    /// More nodes that go with it, if they are there when it is granted.
    pub optional_nodes: Vec<PathBuf>,
    /// Identifies the same device at the next start: `gpu:GPU-7f3a`, `kvm:/dev/kvm`.
    pub identity: String,
}

/// A device that is granted to a task, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedDevice {
    pub host_device: HostDevice,
    pub milli: u16,
}

/// Where the kernel lists devices.
struct KernelPaths<'a> {
    nvidia: &'a Path,
    drm: &'a Path,
    dev: &'a Path,
}

/// All devices of this machine.
///
/// # Errors
/// When the configuration names a node that is not there.
pub fn discover(config: &Config) -> Result<Vec<HostDevice>, ConfigError> {
    let kernel = KernelPaths {
        nvidia: Path::new("/proc/driver/nvidia/gpus"),
        drm: Path::new("/sys/class/drm"),
        dev: Path::new("/dev"),
    };
    let found = if config.find_devices { detect(&kernel) } else { Vec::new() };
    with_configured(found, &config.devices)
}

/// A configured entry for a detected node replaces that device.
fn without_configured(mut found: Vec<HostDevice>, configured: &[DeviceConfig]) -> Vec<HostDevice> {
    let is_configured = |own: &PathBuf| configured.iter().any(|entry| entry.nodes.contains(own));
    found.retain(|found| !found.nodes.first().is_some_and(is_configured));
    found
}

/// The detected devices, followed by the configured ones.
fn with_configured(
    found: Vec<HostDevice>,
    configured: &[DeviceConfig],
) -> Result<Vec<HostDevice>, ConfigError> {
    let mut all = without_configured(found, configured);
    for (number, entry) in configured.iter().enumerate() {
        let wrong = |field: &str, value: String, allowed: String| ConfigError::Field {
            field: format!("devices[{number}].{field}"),
            value,
            allowed,
        };
        if entry.kind.as_str() == REMOVED_DEVICE {
            let allowed = "any other kind; this one is of devices that are not there any more";
            return Err(wrong("kind", REMOVED_DEVICE.into(), allowed.into()));
        }
        for node in &entry.nodes {
            DeviceNode::of(node).map_err(|why| {
                let allowed = format!("paths of devices of this machine: {why}");
                wrong("nodes", node.display().to_string(), allowed)
            })?;
        }
        let number = all.iter().filter(|other| other.device.kind == entry.kind).count();
        let token = |field: &str, configured: &Option<Token>, text: &str| match configured {
            Some(token) => Ok(token.clone()),
            None => Token::new(text).map_err(|why| wrong(field, text.into(), why.to_string())),
        };
        let id = token("id", &entry.id, &number.to_string())?;
        let model = token("model", &entry.model, "generic")?;
        let same = |other: &&HostDevice| other.device.kind == entry.kind && other.id == id;
        if id.as_str().contains(',') || all.iter().any(|other| same(&other)) {
            let allowed = "no comma, and each one once among devices of a kind".to_owned();
            return Err(wrong("id", id.to_string(), allowed));
        }
        let identity = identity(entry, &id, &all);
        let device = Device { kind: entry.kind.clone(), model };
        all.push(HostDevice {
            device,
            id,
            nodes: entry.nodes.clone(),
            optional_nodes: Vec::new(),
            identity,
        });
    }
    Ok(all)
}

/// By the ID that its operator gave it, else by its own node: an ID that was only counted changes
/// with what comes before it.
fn identity(entry: &DeviceConfig, id: &Token, others: &[HostDevice]) -> String {
    let by = |what: &str| format!("{}:{what}", entry.kind);
    let node = entry.nodes.first().filter(|_| entry.id.is_none());
    let by_node = node.map(|node| by(&node.display().to_string()));
    // A node may be configured more than once.
    let alone = by_node.filter(|own| !others.iter().any(|other| other.identity == *own));
    alone.unwrap_or_else(|| by(id.as_str()))
}

fn detect(kernel: &KernelPaths<'_>) -> Vec<HostDevice> {
    let mut all = nvidia_gpus(kernel);
    all.extend(drm_gpus(kernel));
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    all.retain(|(bus, gpu)| {
        let missing = gpu.nodes.iter().find(|node| !node.exists());
        if let Some(node) = missing {
            let node = node.display();
            tracing::warn!(%bus, %node, "a GPU is not offered: its node is missing");
        }
        missing.is_none()
    });
    all.into_iter().map(|(_, gpu)| gpu).collect()
}

/// Names in a folder, which may be absent.
fn dir_entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// GPUs of NVIDIA's driver, with their bus addresses.
fn nvidia_gpus(kernel: &KernelPaths<'_>) -> Vec<(String, HostDevice)> {
    let one = |bus: String| {
        let text = fs::read_to_string(kernel.nvidia.join(&bus).join("information")).ok()?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim_start_matches(':').trim().to_owned())
        };
        let number: u32 = field("Device Minor")?.parse().ok()?;
        let node = kernel.dev.join(format!("nvidia{number}"));
        let shared = NVIDIA_SHARED_NODES.iter().map(|name| kernel.dev.join(name)).collect();
        // A driver that does not know the card's UUID puts question marks there.
        let own = field("GPU UUID").filter(|id| !id.contains('?')).unwrap_or_else(|| bus.clone());
        let model = field("Model").unwrap_or_default();
        Some((bus, gpu(&model, &own, node, shared)?))
    };
    dir_entries(kernel.nvidia).into_iter().filter_map(one).collect()
}

/// GPUs of other drivers: those with a compute node. NVIDIA's have one too, and are already listed.
fn drm_gpus(kernel: &KernelPaths<'_>) -> Vec<(String, HostDevice)> {
    let one = |name: String| {
        let device = kernel.drm.join(&name).join("device");
        let text = |file: &str| {
            fs::read_to_string(device.join(file)).map(|text| text.trim().to_owned()).ok()
        };
        let (vendor, model) = (text("vendor")?, text("device")?);
        let bus = device.canonicalize().ok()?.file_name()?.to_str()?.to_owned();
        if kernel.nvidia.join(&bus).exists() {
            return None;
        }
        let node = kernel.dev.join("dri").join(&name);
        let computes = (vendor == AMD.0).then(|| kernel.dev.join(AMD.1)).into_iter().collect();
        let bare = |id: &str| id.trim_start_matches("0x").to_owned();
        let model = format!("{}:{}", bare(&vendor), bare(&model));
        let found = gpu(&model, &bus, node, computes)?;
        Some((bus, found))
    };
    let nodes = dir_entries(kernel.drm).into_iter().filter(|name| name.starts_with("renderD"));
    nodes.filter_map(one).collect()
}

/// `NVIDIA A100-SXM4-40GB` is the model `a100-sxm4-40gb`.
fn gpu(model: &str, id: &str, node: PathBuf, optional_nodes: Vec<PathBuf>) -> Option<HostDevice> {
    let model = model.to_ascii_lowercase();
    let words: Vec<&str> = model.split_whitespace().filter(|word| *word != "nvidia").collect();
    let model = Token::new(&words.join("-")).or_else(|_| Token::new("unknown")).ok()?;
    let device = Device { kind: Token::new("gpu").ok()?, model };
    let (id, identity) = (Token::new(id).ok()?, format!("gpu:{id}"));
    Some(HostDevice { device, id, nodes: vec![node], optional_nodes, identity })
}

/// The devices that were granted to a task, with the nodes that are there by now.
///
/// # Errors
/// When the machine does not have one: it did, when the task was placed.
pub fn granted(
    all: &[HostDevice],
    grants: &[DeviceGrant],
) -> Result<Vec<GrantedDevice>, DriverError> {
    let one = |grant: &DeviceGrant| {
        let host_device =
            all.get(usize::from(grant.device)).ok_or_else(|| DriverError::Cannot {
                field: "task.devices",
                value: format!("device {} of this machine", grant.device),
                allowed: format!("those it has: {}", all.len()),
            })?;
        if host_device.device.is_removed() {
            return Err(DriverError::Cannot {
                field: "task.devices",
                value: format!(
                    "device {} of this machine ({}), which is gone",
                    grant.device, host_device.identity
                ),
                allowed: "those that are there".into(),
            });
        }
        let mut host_device = host_device.clone();
        host_device.nodes.extend(host_device.optional_nodes.drain(..).filter(|node| node.exists()));
        Ok(GrantedDevice { host_device, milli: grant.milli })
    };
    grants.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::scratch::Scratch;
    use std::os::unix::fs::symlink;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn format_devices(all: &[GrantedDevice], root: &Path) -> Vec<String> {
        let one = |granted: &GrantedDevice| {
            let host_device = &granted.host_device;
            let near = |path: &PathBuf| path.strip_prefix(root).unwrap().display().to_string();
            let nodes: Vec<String> = host_device.nodes.iter().map(near).collect();
            format!("{} {} {}", host_device.device.model, host_device.id, nodes.join(" "))
        };
        all.iter().map(one).collect()
    }

    #[test]
    fn gpus_are_found_by_what_their_drivers_show() {
        let scratch = Scratch::new();
        let root = scratch.path("");
        let [nvidia, drm, dev] = ["nvidia", "drm", "dev"].map(|name| root.join(name));
        for (bus, minor, id) in [("0000:41:00.0", 1, "GPU-b"), ("0000:0a:00.0", 0, "GPU-????????")]
        {
            let text = format!(
                "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 77\nGPU UUID: \t {id}\n\
                 Device Minor: \t {minor}\n"
            );
            write(&nvidia.join(bus).join("information"), &text);
        }
        write(&nvidia.join("0000:99:00.0/information"), "Model: unfinished");
        for (name, bus, vendor) in [
            ("renderD128", "0000:41:00.0", "0x10de"),
            ("renderD129", "0000:21:00.0", "0x1002"),
            ("card0", "0000:01:00.0", "0x1234"),
        ] {
            let place = root.join("bus").join(bus);
            write(&place.join("vendor"), &format!("{vendor}\n"));
            write(&place.join("device"), "0x74a1\n");
            fs::create_dir_all(drm.join(name)).unwrap();
            symlink(&place, drm.join(name).join("device")).unwrap();
        }
        let kernel = KernelPaths { nvidia: &nvidia, drm: &drm, dev: &dev };
        for name in ["nvidia1", "nvidiactl", "kfd", "dri/renderD129"] {
            write(&dev.join(name), "");
        }
        assert_eq!(detect(&kernel).len(), 2, "one has no node of its own");
        write(&dev.join("nvidia0"), "");
        let all = detect(&kernel);
        // Appears at the first use of a card.
        write(&dev.join("nvidia-uvm"), "");
        let want = [
            "a100-sxm4-40gb 0000:0a:00.0 dev/nvidia0 dev/nvidiactl dev/nvidia-uvm",
            "1002:74a1 0000:21:00.0 dev/dri/renderD129 dev/kfd",
            "a100-sxm4-40gb GPU-b dev/nvidia1 dev/nvidiactl dev/nvidia-uvm",
        ];
        let grants = [0, 1, 2].map(|device| DeviceGrant { device, milli: 1000 });
        assert_eq!(format_devices(&granted(&all, &grants).unwrap(), &root), want);
        let nowhere = root.join("nowhere");
        let none = KernelPaths { nvidia: &nowhere, drm: &nowhere, dev: &dev };
        assert_eq!(detect(&none), []);
    }

    #[test]
    fn what_is_lent_comes_after_what_was_found_or_in_its_stead() {
        let parse_devices = |text: &str| Config::parse(text).unwrap().devices;
        let card = |id: &str, node: &str| gpu("x", id, node.into(), Vec::new()).unwrap();
        // A node that no container may be given is rejected before anything else.
        let bad = parse_devices("[[devices]]\nkind = \"kvm\"\nnodes = [\"/etc/passwd\"]");
        let error = with_configured(vec![], &bad).unwrap_err().to_string();
        assert!(error.contains("devices[0].nodes: /etc/passwd; allowed: paths of"), "{error}");
        let gone = parse_devices("[[devices]]\nkind = \"(gone)\"");
        let error = with_configured(vec![], &gone).unwrap_err().to_string();
        assert!(error.contains("devices[0].kind: (gone); allowed: any other kind"), "{error}");
        let two =
            parse_devices("[[devices]]\nkind = \"gpu\"\n[[devices]]\nkind = \"gpu\"\nid = \"1\"");
        let ids = |all: Vec<HostDevice>| {
            all.iter().map(|device| device.id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(ids(with_configured(vec![], &two).unwrap()), ["0", "1"]);
        let error = with_configured(vec![card("1", "/dev/a")], &two).unwrap_err().to_string();
        assert!(error.contains("devices[0].id: 1; allowed: no comma"), "{error}");
        let instead =
            parse_devices("[[devices]]\nkind = \"gpu\"\nnodes = [\"/dev/a\", \"/dev/ctl\"]");
        let found = vec![card("a", "/dev/a"), card("b", "/dev/b")];
        assert_eq!(ids(without_configured(found, &instead)), ["b"]);
    }

    #[test]
    fn a_device_that_is_lent_is_known_by_its_id_or_by_its_node() {
        let kvm = "[[devices]]\nkind = \"kvm\"\nnodes = [\"/dev/kvm\"]\n";
        let configured = Config::parse(&format!("{kvm}{kvm}id = \"x\"")).unwrap().devices;
        let id = |text: &str| Token::new(text).unwrap();
        assert_eq!(identity(&configured[0], &id("0"), &[]), "kvm:/dev/kvm");
        assert_eq!(identity(&configured[1], &id("x"), &[]), "kvm:x");
        let mut first = gpu("x", "a", "/dev/kvm".into(), Vec::new()).unwrap();
        assert_eq!(first.identity, "gpu:a");
        first.identity = "kvm:/dev/kvm".into();
        assert_eq!(identity(&configured[0], &id("1"), &[first]), "kvm:1");
    }

    #[test]
    fn a_grant_of_what_is_gone_is_refused() {
        let all = [gpu("x", "a", "/dev/a".into(), Vec::new()).unwrap()];
        let grant = |device| DeviceGrant { device, milli: 500 };
        assert_eq!(granted(&all, &[grant(0)]).unwrap()[0].milli, 500);
        let error = granted(&all, &[grant(0), grant(1)]).unwrap_err().to_string();
        assert_eq!(error, "task.devices: device 1 of this machine; allowed: those it has: 1");
    }
}
