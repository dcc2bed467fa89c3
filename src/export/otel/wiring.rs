//! Exporters out of settings: which crate sends what, by which protocol, and under which resource.

use std::io;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
    WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::SpanExporter as _;
use tokio::runtime::Runtime;

use super::client::{Http, LastTrouble};
use super::console::Console;
use super::settings::{Exporter, Protocol, Settings, TlsFiles};
use super::tls::Tls;
use super::{OtlpError, Parts, SendSpans};

/// The name that spans and metrics are filed under when the environment gives none.
const SERVICE: &str = "holdpoint";

/// Puts together what the environment asks for.
pub(super) fn from_env(variable: impl Fn(&str) -> Option<String>) -> Result<Parts, OtlpError> {
    let settings = Settings::of(&variable)?;
    let resource = resource(variable("OTEL_SERVICE_NAME"));
    let (runtime, trouble) = (runtime()?, LastTrouble::default());
    // A gRPC channel is made within the runtime that drives it.
    let within = runtime.enter();
    let wires = Wires { runtime: &runtime, trouble: &trouble };
    let spans = wires.spans(&settings, &resource)?;
    let meters = wires.meters(&settings, resource)?;
    drop(within);
    let (delay, batch_max, text_bytes_max) = (settings.delay, settings.batch_max, settings.text_bytes_max);
    Ok(Parts { spans, meters, runtime, trouble, delay, batch_max, text_bytes_max })
}

/// The runtime that requests are made on: one thread, because one request is under way at a time.
pub(super) fn runtime() -> Result<Runtime, OtlpError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("holdpoint-otlp")
        .enable_all()
        .build()
        .map_err(OtlpError::Thread)
}

fn resource(name: Option<String>) -> Resource {
    let named = name.filter(|name| !name.is_empty());
    Resource::builder_empty()
        .with_attribute(KeyValue::new("service.name", SERVICE))
        .with_detectors(&[Box::new(TelemetryResourceDetector), Box::new(EnvResourceDetector::new())])
        .with_attributes(named.map(|name| KeyValue::new("service.name", name)))
        .build()
}

struct Wires<'a> {
    runtime: &'a Runtime,
    trouble: &'a LastTrouble,
}

impl Wires<'_> {
    fn http(&self, signal: &'static str, timeout: Duration, files: &TlsFiles) -> Result<Http, OtlpError> {
        Tls::read(files)
            .and_then(|tls| tls.config())
            .and_then(|tls| Http::new(self.runtime.handle().clone(), timeout, tls, self.trouble.clone()))
            .map_err(|detail| OtlpError::Exporter { signal, detail })
    }

    fn spans(
        &self,
        settings: &Settings,
        resource: &Resource,
    ) -> Result<Option<Box<dyn SendSpans>>, OtlpError> {
        let failed = failed("spans");
        let mut exporter = match settings.traces {
            Exporter::None => return Ok(None),
            Exporter::Console => return Ok(Some(Box::new(Console::new(Box::new(io::stdout()))))),
            Exporter::Otlp(Protocol::Http) => SpanExporter::builder()
                .with_http()
                .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
                .with_timeout(settings.traces_timeout)
                .with_http_client(self.http("spans", settings.traces_timeout, &settings.traces_tls)?)
                .build()
                .map_err(failed)?,
            Exporter::Otlp(Protocol::Grpc) => SpanExporter::builder()
                .with_tonic()
                .with_timeout(settings.traces_timeout)
                .with_tls_config(of_grpc("spans", &settings.traces_tls)?)
                .build()
                .map_err(failed)?,
        };
        exporter.set_resource(resource);
        Ok(Some(Box::new(exporter)))
    }

    fn meters(&self, settings: &Settings, resource: Resource) -> Result<Option<SdkMeterProvider>, OtlpError> {
        let failed = failed("metrics");
        let exporter = match settings.metrics {
            Exporter::None => return Ok(None),
            Exporter::Console => return Ok(Some(reading(Console::new(Box::new(io::stdout())), resource))),
            Exporter::Otlp(Protocol::Http) => MetricExporter::builder()
                .with_http()
                .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
                .with_timeout(settings.metrics_timeout)
                .with_http_client(self.http("metrics", settings.metrics_timeout, &settings.metrics_tls)?)
                .build()
                .map_err(failed)?,
            Exporter::Otlp(Protocol::Grpc) => MetricExporter::builder()
                .with_tonic()
                .with_timeout(settings.metrics_timeout)
                .with_tls_config(of_grpc("metrics", &settings.metrics_tls)?)
                .build()
                .map_err(failed)?,
        };
        Ok(Some(reading(exporter, resource)))
    }
}

/// Sends what was counted every `OTEL_METRIC_EXPORT_INTERVAL`, and at the end.
fn reading(exporter: impl PushMetricExporter, resource: Resource) -> SdkMeterProvider {
    let reader = PeriodicReader::builder(exporter).build();
    SdkMeterProvider::builder().with_reader(reader).with_resource(resource).build()
}

fn of_grpc(signal: &'static str, files: &TlsFiles) -> Result<ClientTlsConfig, OtlpError> {
    let tls = Tls::read(files).map_err(|detail| OtlpError::Exporter { signal, detail })?;
    Ok(tls.of_grpc())
}

fn failed(signal: &'static str) -> impl Fn(ExporterBuildError) -> OtlpError {
    move |error| OtlpError::Exporter { signal, detail: error.to_string() }
}
