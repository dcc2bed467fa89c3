//! What the standard `OTEL_*` variables ask for, as far as the exporter decides it: which exporters, which protocol, how
//! long, how many at a time. Endpoints, headers and the rest are read where the protocol is spoken.
//!
//! A value that is not supported is refused: what is silently taken for something else sends nothing, or to nobody.

use std::time::Duration;

use super::spans::TEXT_BYTES;

/// Where a signal goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exporter {
    /// To a collector.
    Otlp(Protocol),
    /// To stdout.
    Console,
    /// Nowhere.
    None,
}

/// How a collector is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Protobuf over HTTP.
    Http,
    /// gRPC.
    Grpc,
}

/// A variable that can't be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value:?}, and {may}")]
pub struct Unsupported {
    /// The variable.
    pub name: &'static str,
    /// What it holds.
    pub value: String,
    /// What it may hold.
    pub may: &'static str,
}

/// The settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) traces: Exporter,
    pub(super) metrics: Exporter,
    pub(super) traces_timeout: Duration,
    pub(super) metrics_timeout: Duration,
    /// Spans of one request.
    pub(super) batch_max: usize,
    /// How long spans may wait for others.
    pub(super) delay: Duration,
    pub(super) text_bytes_max: usize,
}

/// A signal, and its own name in a variable's.
#[derive(Debug, Clone, Copy)]
struct Signal {
    exporter: &'static str,
    protocol: &'static str,
    timeout: &'static str,
    tls: [&'static str; 3],
}

const TRACES: Signal = Signal {
    exporter: "OTEL_TRACES_EXPORTER",
    protocol: "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    timeout: "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    tls: [
        "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
    ],
};

const METRICS: Signal = Signal {
    exporter: "OTEL_METRICS_EXPORTER",
    protocol: "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    timeout: "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT",
    tls: [
        "OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY",
    ],
};

const BOTH_TLS: [&str; 3] = [
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
];

impl Settings {
    /// Reads the settings; `variable` gives what a variable holds.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, Unsupported> {
        let from = Variables(variable);
        let off = from.get("OTEL_SDK_DISABLED").filter(|value| value.eq_ignore_ascii_case("true"));
        if let Some(value) = off {
            let may = "nothing would be sent: unset it, or don't export";
            return Err(Unsupported { name: "OTEL_SDK_DISABLED", value, may });
        }
        for name in TRACES.tls.into_iter().chain(METRICS.tls).chain(BOTH_TLS) {
            if let Some(value) = from.get(name) {
                let may =
                    "certificates of its own are not supported: SSL_CERT_FILE names a file of roots of trust";
                return Err(Unsupported { name, value, may });
            }
        }
        Ok(Settings {
            traces: from.exporter(TRACES)?,
            metrics: from.exporter(METRICS)?,
            traces_timeout: from.timeout(TRACES)?,
            metrics_timeout: from.timeout(METRICS)?,
            batch_max: from.number(&["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"], 512)?.clamp(1, 65_536),
            delay: from.millis(&["OTEL_BSP_SCHEDULE_DELAY"], 5_000)?,
            text_bytes_max: from.number(
                &["OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"],
                TEXT_BYTES,
            )?,
        })
    }
}

struct Variables<F>(F);

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// A variable that is set to nothing is not set.
    fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// The first that is set.
    fn first(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names.iter().find_map(|name| Some((*name, self.get(name)?)))
    }

    fn exporter(&self, signal: Signal) -> Result<Exporter, Unsupported> {
        let kind = self.get(signal.exporter).unwrap_or_else(|| "otlp".to_owned());
        match kind.to_ascii_lowercase().as_str() {
            "otlp" => Ok(Exporter::Otlp(self.protocol(signal)?)),
            "console" => Ok(Exporter::Console),
            "none" => Ok(Exporter::None),
            _ => Err(Unsupported {
                name: signal.exporter,
                value: kind,
                may: "it may be otlp, console or none",
            }),
        }
    }

    fn protocol(&self, signal: Signal) -> Result<Protocol, Unsupported> {
        let Some((name, value)) = self.first(&[signal.protocol, "OTEL_EXPORTER_OTLP_PROTOCOL"]) else {
            return Ok(Protocol::Http);
        };
        match value.to_ascii_lowercase().as_str() {
            "http/protobuf" => Ok(Protocol::Http),
            "grpc" => Ok(Protocol::Grpc),
            _ => Err(Unsupported { name, value, may: "it may be http/protobuf or grpc" }),
        }
    }

    fn timeout(&self, signal: Signal) -> Result<Duration, Unsupported> {
        self.millis(&[signal.timeout, "OTEL_EXPORTER_OTLP_TIMEOUT"], 10_000)
    }

    fn millis(&self, names: &[&'static str], default: u64) -> Result<Duration, Unsupported> {
        self.parsed(names, "it may be a whole number of milliseconds")
            .map(|millis| Duration::from_millis(millis.unwrap_or(default)))
    }

    fn number(&self, names: &[&'static str], default: usize) -> Result<usize, Unsupported> {
        self.parsed(names, "it may be a whole number").map(|number| number.unwrap_or(default))
    }

    fn parsed<T: std::str::FromStr>(
        &self,
        names: &[&'static str],
        may: &'static str,
    ) -> Result<Option<T>, Unsupported> {
        let Some((name, value)) = self.first(names) else { return Ok(None) };
        match value.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(Unsupported { name, value, may }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Result<Settings, Unsupported> {
        Settings::of(|name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn without_variables_both_signals_go_to_a_collector_by_protobuf_over_http() {
        let settings = of(&[]).unwrap();
        assert_eq!(settings.traces, Exporter::Otlp(Protocol::Http));
        assert_eq!(settings.metrics, settings.traces);
        assert_eq!(
            (settings.traces_timeout, settings.delay),
            (Duration::from_secs(10), Duration::from_secs(5))
        );
        assert_eq!((settings.batch_max, settings.text_bytes_max), (512, 1_024));
        assert_eq!(
            of(&[("OTEL_TRACES_EXPORTER", " "), ("OTEL_EXPORTER_OTLP_PROTOCOL", "")]).unwrap(),
            settings
        );
    }

    #[test]
    fn a_signal_s_own_variable_goes_before_the_one_for_both() {
        let settings = of(&[
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
            ("OTEL_METRICS_EXPORTER", "Console"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "700"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "7"),
            ("OTEL_BSP_SCHEDULE_DELAY", "200"),
            ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "99"),
        ]);
        assert_eq!(
            settings.unwrap(),
            Settings {
                traces: Exporter::Otlp(Protocol::Http),
                metrics: Exporter::Console,
                traces_timeout: Duration::from_millis(500),
                metrics_timeout: Duration::from_millis(700),
                batch_max: 7,
                delay: Duration::from_millis(200),
                text_bytes_max: 99,
            }
        );
        assert_eq!(
            of(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap().traces,
            Exporter::Otlp(Protocol::Grpc)
        );
        assert_eq!(of(&[("OTEL_TRACES_EXPORTER", "none")]).unwrap().traces, Exporter::None);
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (name, value) in [
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_METRICS_EXPORTER", "prometheus"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem"),
            ("OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY", "key.pem"),
            ("OTEL_SDK_DISABLED", "True"),
        ] {
            let refused = of(&[(name, value)]).unwrap_err();
            assert_eq!((refused.name, refused.value.as_str()), (name, value));
            assert!(refused.to_string().starts_with(&format!("{name} is {value:?}, and ")), "{refused}");
        }
        assert!(of(&[("OTEL_SDK_DISABLED", "false")]).is_ok());
    }
}
