//! HTTPS: a certificate chain and its key, which are read again when their files change. Invariant: files that cannot be used never replace a
//! working certificate.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::task::spawn_blocking;
use tokio_rustls::TlsAcceptor;

use crate::file_watch::FileWatch;

/// The files of a certificate.
#[derive(Debug, Clone)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// The certificate in use. Open connections keep their certificate.
pub(crate) struct Tls {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the files. An error is the flag and the reason.
    pub(crate) fn open(files: TlsFiles) -> Result<Arc<Self>, (&'static str, String)> {
        let config = files.read()?;
        Ok(Arc::new(Self { files, config: RwLock::new(Arc::new(config)) }))
    }

    /// Returns what accepts a connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner)).into()
    }

    /// Reads the files again whenever they change, in an endless loop. Tools replace one file after the other, so a pair that does not fit is
    /// no reason to stop.
    pub(crate) async fn watch(self: Arc<Self>) {
        let TlsFiles { certificate, key } = self.files.clone();
        let mut watch = FileWatch::new(vec![certificate, key]).await;
        loop {
            watch.changed().await;
            let files = self.files.clone();
            match spawn_blocking(move || files.read()).await {
                Ok(Ok(config)) => {
                    *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
                    tracing::info!("the certificate was read again");
                }
                Ok(Err((flag, reason))) => {
                    tracing::error!(
                        flag,
                        reason,
                        "the certificate has changed and cannot be used; the old one stays"
                    );
                }
                Err(_) => tracing::error!("reading the certificate panicked; the old one stays"),
            }
        }
    }
}

impl TlsFiles {
    /// Reads and checks both files. An error is the flag and the reason.
    fn read(&self) -> Result<ServerConfig, (&'static str, String)> {
        let of_chain = |reason: String| ("--tls-cert", format!("{}: {reason}", self.certificate.display()));
        let of_key = |reason: String| ("--tls-key", format!("{}: {reason}", self.key.display()));
        let pem = |path: &Path| std::fs::read(path).map_err(|error| error.to_string());
        let chain = pem(&self.certificate).map_err(of_chain)?;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
        let chain = chain.map_err(|error| of_chain(format!("is not a PEM file: {error}")))?;
        if chain.is_empty() {
            return Err(of_chain("has no certificate; it must be a PEM file with the whole chain".into()));
        }
        let key = pem(&self.key).map_err(of_key)?;
        let key = PrivateKeyDer::from_pem_slice(&key)
            .map_err(|error| of_key(format!("has no private key in PEM form: {error}")))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| of_chain(error.to_string()))?;
        let mut config = builder
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| of_key(format!("does not fit the certificate: {error}")))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}
