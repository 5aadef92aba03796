//! Which lines are logged: `MLX_LOG`, in the syntax of `tracing`'s filters, for every program of the project.

use tracing_subscriber::EnvFilter;

const VARIABLE: &str = "MLX_LOG";

/// The filter of the variable, or else `default`.
pub fn log_filter(default: &str) -> Result<EnvFilter, String> {
    chosen(std::env::var_os(VARIABLE).map(|value| value.to_string_lossy().into_owned()), default)
}

fn chosen(given: Option<String>, default: &str) -> Result<EnvFilter, String> {
    let Some(given) = given else { return Ok(EnvFilter::new(default)) };
    EnvFilter::try_new(&given).map_err(|error| {
        format!("{VARIABLE}: {given:?} is not a filter ({error}); write a level, such as debug, or a crate and its level, such as mlx_core=debug")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_read_is_named() {
        assert_eq!(chosen(None, "warn").expect("the default").to_string(), "warn");
        assert_eq!(
            chosen(Some("mlx_core=debug".into()), "warn").expect("a filter").to_string(),
            "mlx_core=debug"
        );
        let message = chosen(Some("mlx_core=loud".into()), "warn").expect_err("no level");
        assert!(message.starts_with("MLX_LOG: \"mlx_core=loud\""), "{message}");
    }
}
