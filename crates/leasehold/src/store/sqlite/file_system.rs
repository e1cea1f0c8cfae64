//! Where a file of leases may be: only where all who use it share one machine's memory and locks.

use std::path::Path;

use super::fault::rejected;
use super::host::Host;
use crate::error::Result;

/// File systems between machines, and between a virtual machine and its host, by what `statfs` calls them.
const NETWORK: [(u32, &str); 19] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "SMB (CIFS)"),
    (0xfe53_4d42, "SMB (CIFS)"),
    (0x0102_1997, "9p"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x7375_7245, "Coda"),
    (0x564c, "NCP"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x2003_0528, "OrangeFS"),
    (0xaad7_aaea, "PanFS"),
    (0x786f_4256, "a VirtualBox shared folder"),
    (0xbacb_acbc, "a VMware shared folder"),
];

/// May be anything, also one of the above.
const FUSE: u32 = 0x6573_5546;

/// Refuses a place where another machine could be given the same lease. Called before anything is made there.
pub(super) fn refuse_network(path: &Path, host: &Host) -> Result<()> {
    match kind(path, host).and_then(|kind| NETWORK.iter().find(|(network, _)| *network == kind)) {
        None => Ok(()),
        Some((_, name)) => Err(rejected(
            path,
            &format!(
                "it is on a network file system ({name}), which does not share memory and locks between the machines \
                 that use it: name a file on a local file system (--store sqlite:///path)"
            ),
        )),
    }
}

/// Whether nobody can tell if the file is on a network file system.
pub(super) fn is_uncertain(path: &Path, host: &Host) -> bool {
    kind(path, host) == Some(FUSE)
}

fn kind(path: &Path, host: &Host) -> Option<u32> {
    // Of the file itself where there is one: it may be mounted from elsewhere.
    (host.file_system)(path).or_else(|| (host.file_system)(path.parent()?))
}

/// What `statfs` says; `None` where it fails, which whatever comes next will explain better.
#[cfg(target_os = "linux")]
pub(super) fn ask(path: &Path) -> Option<u32> {
    // The numbers have 32 bits; the field is wider or signed on some machines.
    rustix::fs::statfs(path).ok().map(|found| found.f_type as u32)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn ask(_path: &Path) -> Option<u32> {
    None
}
