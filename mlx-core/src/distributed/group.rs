//! The group of all ranks in MLX, over which they exchange hidden states and sums within the graph. The environment of a rank's process names
//! a file, which is written here before the group is joined: MLX reads the environment once, and only at the start of a process may it change.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;

use mlx_rs::ops::{add, zeros};
use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, Dtype};

use super::group_backend::GroupBackend;
use super::group_start::{RANK, file_variable};
use crate::array::slice_axis;
use crate::error::{Error, Result};
use crate::mlx_sys::Group;
use crate::weights::AllReduce;

/// Refuses to load a divided model in a process that cannot join a group.
pub(super) fn expect_possible() -> Result<()> {
    if std::env::var_os(RANK).is_some() {
        return Ok(());
    }
    let message = "need an engine in a process of its own, which can join the other machines once";
    Err(Error::option("workers", message))
}

/// Returns a free address for the group on the interface of `control`; `None` if that has no IPv4 address, which MLX needs.
pub(super) fn free_address(control: SocketAddr) -> Option<String> {
    let ip = match control.ip() {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => ip.to_ipv4_mapped()?,
    };
    // MLX binds the address again.
    let listener = TcpListener::bind((ip, 0)).ok()?;
    listener.local_addr().ok().map(|address| address.to_string())
}

/// Returns the text of MLX's file with these addresses, in the order of ranks.
pub(super) fn ring_file(addresses: &[String]) -> Result<String> {
    let hosts: Vec<[&String; 1]> = addresses.iter().map(|address| [address]).collect();
    serde_json::to_string(&hosts).map_err(|error| Error::Internal(error.to_string()))
}

/// Joins the group that `file`, the text of MLX's file, and the environment describe. Blocks until the neighbors of this rank have joined.
pub(super) fn join(backend: GroupBackend, file: &str, rank: usize, ranks: usize) -> Result<RankGroup> {
    let variable = |name: &'static str| {
        std::env::var(name).map_err(|_| Error::environment(name, "is not set; start `mlx worker`"))
    };
    let own = variable(RANK)?;
    if own != rank.to_string() {
        return Err(Error::environment(RANK, format!("is {own}, but this is rank {rank}")));
    }
    if let Some(name) = file_variable(backend) {
        let path = PathBuf::from(variable(name)?);
        std::fs::write(&path, file).map_err(|error| Error::io(&path, error))?;
    }
    let group = Group::join(backend.name(), backend.is_on_device())?;
    if group.size() != ranks {
        return Err(Error::Mlx(format!("a group has {} ranks, not {ranks}", group.size())));
    }
    Ok(RankGroup { group, rank })
}

/// This rank's side of the group. Every rank runs the same exchanges in the same order.
pub(super) struct RankGroup {
    group: Group,
    rank: usize,
}

impl RankGroup {
    /// The number of ranks.
    pub(super) fn size(&self) -> usize {
        self.group.size()
    }

    /// Sends this many bytes once around the ring, from rank 0 to rank 0. Waits until they have left this rank, or for rank 0 have come back.
    pub(super) fn send_around(&self, bytes: usize) -> Result<()> {
        let shape = shape_of(bytes);
        let rows = match self.rank {
            0 => {
                async_eval([&self.send_on(&zeros::<f32>(&shape)?)?])?;
                self.receive(&shape, Dtype::Float32)?
            }
            _ => self.send_on(&self.receive(&shape, Dtype::Float32)?)?,
        };
        Ok(rows.eval()?)
    }

    /// Waits for the sum of this many bytes of all ranks.
    pub(super) fn sum_zeros(&self, bytes: usize) -> Result<()> {
        Ok(self.sum(&zeros::<f32>(&shape_of(bytes))?)?.eval()?)
    }

    /// True if this is the last rank, whose next one is rank 0.
    pub(super) fn is_last(&self) -> bool {
        self.rank + 1 == self.group.size()
    }

    /// Sends rows to the next rank. Returns them; whoever computes the result sends them first.
    pub(super) fn send_on(&self, rows: &Array) -> Result<Array> {
        self.group.send(rows, (self.rank + 1) % self.group.size())
    }

    /// Returns rows of this shape that the previous rank sends.
    pub(super) fn receive(&self, shape: &[i32], dtype: Dtype) -> Result<Array> {
        let ranks = self.group.size();
        self.group.receive(shape, dtype, (self.rank + ranks - 1) % ranks)
    }
}

/// Returns the shape of a row of f32 with this many bytes.
fn shape_of(bytes: usize) -> [i32; 2] {
    [1, (bytes / size_of::<f32>()) as i32]
}

impl AllReduce for RankGroup {
    /// Adds in the order of ranks, in f32, and rounds once, so that the bits of a row do not depend on the other rows. The sum of two terms
    /// has no order.
    fn sum(&self, part: &Array) -> Result<Array> {
        let ranks = self.group.size() as i32;
        if ranks == 2 {
            return self.group.sum(part);
        }
        let (all, rows) = (self.group.gather(part)?, part.dim(0));
        let term = |rank: i32| -> Result<Array> {
            Ok(slice_axis(&all, 0, rank * rows, (rank + 1) * rows)?.as_dtype(Dtype::Float32)?)
        };
        let mut sum = term(0)?;
        for rank in 1..ranks {
            sum = add(&sum, &term(rank)?)?;
        }
        Ok(sum.as_dtype(part.dtype())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_of_the_same_interface_and_ipv4() {
        let of = |address: &str| free_address(address.parse().expect("an address"));
        let found: SocketAddr = of("127.0.0.1:80").and_then(|it| it.parse().ok()).expect("a free port");
        assert!(found.ip().is_loopback() && found.port() != 80, "{found}");
        assert!(of("[::ffff:127.0.0.1]:80").expect("a free port").starts_with("127.0.0.1:"));
        assert_eq!(of("[::1]:80"), None);
    }
}
