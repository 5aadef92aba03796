//! The group of all ranks in MLX, over which tensor parallelism sums within the graph. The environment of a rank's process names a file, which
//! is written here before the group is joined: MLX reads the environment once, and only at the start of a process may it change.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;

use mlx_rs::ops::add;
use mlx_rs::{Array, Dtype};

use crate::array::slice_axis;
use crate::error::{Error, Result};
use crate::mlx_sys::Group;
use crate::weights::AllReduce;

/// The variable with this process's rank in its group.
pub const RANK_VARIABLE: &str = "MLX_RANK";

/// The variable with the path of the file that lists the addresses of the group.
pub const ADDRESSES_VARIABLE: &str = "MLX_HOSTFILE";

/// Returns true if this process may join a group, once.
pub(super) fn is_possible() -> bool {
    std::env::var_os(RANK_VARIABLE).is_some()
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

/// Joins the group with these addresses, in the order of ranks. Blocks until the neighbors of this rank have joined.
pub(super) fn join(addresses: &[String], rank: usize) -> Result<GroupSum> {
    let variable = |name: &'static str| {
        std::env::var(name).map_err(|_| Error::environment(name, "is not set; start `mlx worker`"))
    };
    let own = variable(RANK_VARIABLE)?;
    if own != rank.to_string() {
        return Err(Error::environment(RANK_VARIABLE, format!("is {own}, but this is rank {rank}")));
    }
    let path = PathBuf::from(variable(ADDRESSES_VARIABLE)?);
    let hosts: Vec<[&String; 1]> = addresses.iter().map(|address| [address]).collect();
    let text = serde_json::to_string(&hosts).map_err(|error| Error::Internal(error.to_string()))?;
    std::fs::write(&path, text).map_err(|error| Error::io(&path, error))?;
    let group = Group::join(c"ring")?;
    if group.size() != addresses.len() {
        return Err(Error::Mlx(format!("a group has {} ranks, not {}", group.size(), addresses.len())));
    }
    Ok(GroupSum(group))
}

/// Sums over a group.
pub(super) struct GroupSum(Group);

impl AllReduce for GroupSum {
    /// Adds in the order of ranks, in f32, and rounds once, so that the bits of a row do not depend on the other rows. The sum of two terms
    /// has no order.
    fn sum(&self, part: &Array) -> Result<Array> {
        let ranks = self.0.size() as i32;
        if ranks == 2 {
            return self.0.sum(part);
        }
        let (all, rows) = (self.0.gather(part)?, part.dim(0));
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
