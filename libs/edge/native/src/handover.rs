//! Connections of another protocol on the same port, which Python serves.
//!
//! The first byte tells: frames of the other protocol begin with their length, whose first byte is
//! 0, and neither HTTP/2 nor TLS begins so. A plaintext socket is given away as it is, with nothing
//! read from it. Behind TLS, its bytes are relayed in plaintext over a pair of sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::edge::{Connection, Edge, Stage};

const FIRST_BYTE: u8 = 0;
const BUFFER_BYTES: usize = 16 << 10; // what one record of TLS holds

pub enum Handed {
    Plain(TcpStream),
    /// With the first byte, which was read.
    Tls(Box<TlsStream<TcpStream>>, u8),
}

/// Whether the first byte of a connection is that of the other protocol.
pub fn begins_other(first: u8) -> bool {
    first == FIRST_BYTE
}

/// Give a connection to Python; return when this thread has nothing more to do for it.
pub async fn serve(edge: &Edge, connection: &Connection, handed: Handed) {
    let peer = connection.facts.peer.clone();
    match handed {
        Handed::Plain(tcp) => {
            let Ok(socket) = tcp.into_std() else { return };
            edge.shared.hand_over(OwnedFd::from(socket), peer, false);
            edge.wake_python();
        }
        Handed::Tls(tls, first) => {
            let Some((mine, its)) = pair() else { return };
            connection.stage.set(Stage::Relayed);
            edge.count_relayed(1);
            edge.shared.hand_over(its, peer, true);
            edge.wake_python();
            tokio::select! {
                () = relay(*tls, first, mine, edge.options.max_upload) => {}
                () = connection.end.notified() => {}
            }
        }
    }
}

fn pair() -> Option<(UnixStream, OwnedFd)> {
    let (mine, its) = UnixStream::pair().ok()?;
    Some((mine, OwnedFd::from(its.into_std().ok()?)))
}

/// Move bytes both ways until Python closes its end, or the client no longer reads.
async fn relay(tls: TlsStream<TcpStream>, first: u8, broker: UnixStream, unread: Duration) {
    let (mut from_client, mut to_client) = tokio::io::split(tls);
    let (mut from_broker, mut to_broker) = broker.into_split();
    let up = async {
        if to_broker.write_u8(first).await.is_ok() {
            // A client that ends without a word has ended, too.
            let _ = tokio::io::copy(&mut from_client, &mut to_broker).await;
        }
        let _ = to_broker.shutdown().await;
        // Python answers what is under way and closes its end.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = up => {}
        _ = answer(&mut from_broker, &mut to_client, unread) => {}
    }
}

/// Pass on what Python writes. A client has a limited time to read each piece.
async fn answer(
    from_broker: &mut (impl AsyncRead + Unpin),
    to_client: &mut (impl AsyncWrite + Unpin),
    unread: Duration,
) -> io::Result<()> {
    let mut buffer = vec![0u8; BUFFER_BYTES];
    loop {
        let count = from_broker.read(&mut buffer).await?;
        let piece = &buffer[..count];
        let written = async {
            if piece.is_empty() {
                return to_client.shutdown().await;
            }
            to_client.write_all(piece).await?;
            to_client.flush().await
        };
        tokio::time::timeout(unread, written).await.map_err(|_| io::ErrorKind::TimedOut)??;
        if count == 0 {
            return Ok(());
        }
    }
}
