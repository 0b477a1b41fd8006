//! Takes clients in and serves them, until Python orders the stop.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use crate::connection;
use crate::edge::{Connection, Edge};

/// How long clients that connected before the port closed are waited for.
const LAST_CLIENTS: Duration = Duration::from_millis(1);

/// Serve until the order to stop.
pub async fn run(edge: Rc<Edge>, listener: TcpListener) {
    spawn_local(edge.clone().tell_python());
    let accepting = spawn_local(accept(edge.clone(), listener));
    let orders = spawn_local(edge.clone().take_orders());
    edge.stopped.notified().await;
    orders.abort();
    // The port closes first: a client that is sent away comes back at once.
    accepting.abort();
    let _ = accepting.await;
    // The calls that end now report it when they are dropped.
    for connection in edge.connections.borrow().values() {
        connection.end.notify_one();
    }
    while !edge.connections.borrow().is_empty() {
        tokio::task::yield_now().await;
    }
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

async fn accept(edge: Rc<Edge>, listener: TcpListener) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = edge.closing.notified() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((tcp, address)) => serve(&edge, tcp, address),
            // No descriptors, or a client that left at once.
            Err(_) => tokio::time::sleep(connection::RETRY_INTERVAL).await,
        }
    }
    // A client that connected before the port closed is served, and sent away.
    while let Ok(Ok((tcp, address))) = tokio::time::timeout(LAST_CLIENTS, listener.accept()).await {
        serve(&edge, tcp, address);
    }
}

fn serve(edge: &Rc<Edge>, tcp: TcpStream, address: SocketAddr) {
    let Some(connection) = edge.admit(address) else { return };
    let edge = edge.clone();
    let open = OpenConnection { edge: edge.clone(), connection: connection.clone() };
    spawn_local(async move {
        let _open = open;
        connection::serve(edge, connection, tcp).await;
    });
}

/// Counts a connection for as long as it lives, also when its task panics.
struct OpenConnection {
    edge: Rc<Edge>,
    connection: Rc<Connection>,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.edge.forget(&self.connection);
    }
}
