//! The names of enum variants in flags and messages, taken from serde.

/// Implements `FromStr` and `Display` for an enum with serde's names of its variants. `$wrong` returns the error for an unknown name.
macro_rules! impl_variant_names {
    ($enum:ty, $wrong:expr) => {
        impl std::str::FromStr for $enum {
            type Err = String;

            fn from_str(name: &str) -> std::result::Result<Self, String> {
                let wrong: fn(&str) -> String = $wrong;
                let reader = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(name);
                serde::Deserialize::deserialize(reader).map_err(|_| wrong(name))
            }
        }

        impl std::fmt::Display for $enum {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                serde::Serialize::serialize(self, formatter)
            }
        }
    };
}

pub(crate) use impl_variant_names;
