//! A connection to a server, through the crate `rmcp`. It begins with the `initialize` handshake, which servers of all versions of the protocol
//! understand. The client offers no sampling, roots or questions to the user, so a server can only list and run tools.

use std::collections::HashMap;

use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, Implementation, JsonObject,
    PaginatedRequestParams, ProtocolVersion,
};
use rmcp::service::{ClientInitializeError, Peer, RoleClient, RunningService, ServiceError};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::{StreamableHttpClientTransportConfig, StreamableHttpError};
use rmcp::transport::{DynamicTransportError, StreamableHttpClientTransport};
use rmcp::{ClientHandler, serve_client};

use crate::config::Transport;
use crate::meter::{MAX_BYTES, Meter, Metered};
use crate::process::Process;

/// The maximum size of one message.
const MAX_MESSAGE_LEN: usize = 16 << 20;
/// The maximum number of tools and of pages of tools of a server.
const MAX_TOOLS: usize = 256;
const MAX_PAGES: usize = 32;

/// A connection. Dropping it ends the process of the server.
pub(crate) struct Connection {
    service: RunningService<RoleClient, Client>,
    process: Option<Process>,
    meter: Meter,
}

/// The client as servers see it.
struct Client;

impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        let name = Implementation::new("mlx", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), name)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}

impl Connection {
    /// Starts the server if it is a process, and connects to it.
    pub(crate) async fn open(transport: &Transport) -> Result<Self, String> {
        let meter = Meter::new();
        if let Transport::Http { url, headers } = transport {
            let stream = Metered { inner: http_transport(url, headers.iter())?, meter: meter.clone() };
            return match serve_client(Client, stream).await {
                Ok(service) => Ok(Self { service, process: None, meter }),
                Err(_) if meter.is_exceeded() => Err(flooded()),
                Err(error) => Err(handshake_failure(&error)),
            };
        }
        let (process, input, output) = Process::start(transport).map_err(|error| error.to_string())?;
        let output = Metered { inner: output, meter: meter.clone() };
        let stream = AsyncRwTransport::new_client(output, input).with_max_line_length(MAX_MESSAGE_LEN);
        match serve_client(Client, stream).await {
            Ok(service) => Ok(Self { service, process: Some(process), meter }),
            Err(_) if meter.is_exceeded() => Err(flooded()),
            Err(ClientInitializeError::ConnectionClosed(_)) => {
                let end = process.end().await;
                Err(end.unwrap_or_else(|| "it closed the connection before it was ready".to_owned()))
            }
            Err(error) => Err(handshake_failure(&error)),
        }
    }

    /// Returns true if requests can be sent.
    pub(crate) fn is_open(&self) -> bool {
        !self.service.is_closed() && !self.service.peer().is_transport_closed()
    }

    /// Returns all tools.
    pub(crate) async fn tools(&self) -> Result<Vec<rmcp::model::Tool>, String> {
        let (mut tools, mut cursor) = (Vec::new(), None);
        for _ in 0..MAX_PAGES {
            let parameters = cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
            self.meter.reset();
            let page = self.peer().list_tools(parameters).await;
            let page = match page {
                Ok(page) => page,
                Err(error) => return Err(self.explained(error).await),
            };
            tools.extend(page.tools);
            if tools.len() > MAX_TOOLS {
                return Err(format!("it has more than {MAX_TOOLS} tools"));
            }
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(tools);
            }
        }
        Err(format!("its list of tools has more than {MAX_PAGES} pages"))
    }

    /// Calls a tool.
    pub(crate) async fn call(&self, tool: &str, arguments: JsonObject) -> Result<CallToolResult, String> {
        self.meter.reset();
        let parameters = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        match self.peer().call_tool(parameters).await {
            Ok(result) => Ok(result),
            Err(error) => Err(self.explained(error).await),
        }
    }

    fn peer(&self) -> &Peer<RoleClient> {
        self.service.peer()
    }

    async fn explained(&self, error: ServiceError) -> String {
        if self.meter.is_exceeded() {
            return flooded();
        }
        match error {
            ServiceError::McpError(error) => format!("it reported an error: {}", error.message),
            ServiceError::TransportSend(error) if self.process.is_none() => transport_failure(&error),
            ServiceError::UnexpectedResponse => "it sent an answer of another kind".to_owned(),
            other => match &self.process {
                Some(process) => {
                    process.end().await.unwrap_or_else(|| "the connection was closed".to_owned())
                }
                None => format!("the connection failed: {}", with_causes(&other)),
            },
        }
    }
}

fn http_transport<'a>(
    url: &str,
    headers: impl Iterator<Item = (&'a String, &'a String)>,
) -> Result<StreamableHttpClientTransport<reqwest::Client>, String> {
    // Fails if the program has installed one already.
    rustls::crypto::ring::default_provider().install_default().ok();
    let mut sent = HashMap::new();
    for (name, value) in headers {
        let bad = || format!("the header {name:?} is not valid");
        let name = HeaderName::try_from(name).map_err(|_| bad())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| bad())?;
        value.set_sensitive(true);
        sent.insert(name, value);
    }
    // A redirect could send the headers to another server.
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build();
    let client = client.map_err(|error| with_causes(&error))?;
    let config = StreamableHttpClientTransportConfig::with_uri(url)
        .custom_headers(sent)
        .max_sse_event_size(MAX_MESSAGE_LEN)
        .max_json_response_size(MAX_MESSAGE_LEN);
    Ok(StreamableHttpClientTransport::with_client(client, config))
}

fn handshake_failure(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::JsonRpcError(error) => format!("it reported an error: {}", error.message),
        ClientInitializeError::TransportError { error, .. } => transport_failure(error),
        other => format!("the handshake failed: {other}"),
    }
}

/// Returns the reason without the names of Rust types, which the text of the error contains.
fn transport_failure(error: &DynamicTransportError) -> String {
    match error.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        Some(StreamableHttpError::Client(error)) => with_causes(error),
        Some(StreamableHttpError::AuthRequired(_)) => {
            "it requires a login (401); set headers in the file".to_owned()
        }
        _ => with_causes(error.error.as_ref()),
    }
}

/// Returns an error with its causes. Many errors of HTTP libraries name the cause only there.
fn with_causes(error: &dyn std::error::Error) -> String {
    let (mut text, mut source) = (error.to_string(), error.source());
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    text
}

fn flooded() -> String {
    format!("it sent more than {} MiB during one request", MAX_BYTES >> 20)
}
