//! The log filter of all programs of the project: `MLX_LOG`, in the syntax of `tracing`'s filters.

use tracing_subscriber::EnvFilter;

/// The variable with the filter of the log.
pub const LOG_VARIABLE: &str = "MLX_LOG";

/// Returns the filter in the variable, or `default`.
pub fn log_filter(default: &str) -> Result<EnvFilter, String> {
    chosen(std::env::var_os(LOG_VARIABLE).map(|value| value.to_string_lossy().into_owned()), default)
}

fn chosen(given: Option<String>, default: &str) -> Result<EnvFilter, String> {
    let Some(given) = given else { return Ok(EnvFilter::new(default)) };
    EnvFilter::try_new(&given).map_err(|error| {
        format!("{LOG_VARIABLE}: {given:?} is not a filter ({error}); use a level such as debug, or a crate and a level such as mlx_core=debug")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_filter_is_named() {
        assert_eq!(chosen(None, "warn").expect("the default").to_string(), "warn");
        assert_eq!(
            chosen(Some("mlx_core=debug".into()), "warn").expect("a filter").to_string(),
            "mlx_core=debug"
        );
        let message = chosen(Some("mlx_core=loud".into()), "warn").expect_err("no level");
        assert!(message.starts_with("MLX_LOG: \"mlx_core=loud\""), "{message}");
    }
}
