//! Ports that stay ours.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// A free port of the loopback address.
///
/// On Linux nobody else is given the port while this lives: a socket is bound to it that does not listen, so that
/// connections are refused until somebody who knows the port, and sets `SO_REUSEADDR` as servers do, listens on it.
/// Elsewhere that is not possible, and the port is free again at once.
#[derive(Debug)]
pub(super) struct Port {
    address: SocketAddr,
    _reservation: Option<TcpSocket>,
}

impl Port {
    pub(super) fn reserve() -> io::Result<Self> {
        let socket = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = socket.local_addr()?;
        Ok(Self { address, _reservation: cfg!(target_os = "linux").then_some(socket) })
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A socket that is bound, and does not listen yet.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
